//! What is searched: places in an order, and how to come by the build at each.

mod builds;
mod checkout;
mod npm;

pub use checkout::{CheckoutSpec, sources_in};

use crate::builds::{BuildError, npm as npm_builds};
use crate::hint;
use crate::pipeline::RunError;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Places from the first to the last.
pub struct Range {
    /// What it is of, in words.
    pub what: String,
    /// Their names, in order.
    pub labels: Vec<String>,
    /// What is known of each beside its name from the beginning, as a commit's subject; empty where nothing is.
    details: Vec<String>,
    /// What tells each place's build from any other of that name.
    pub identities: Vec<String>,
    source: Source,
}

enum Source {
    Builds(Vec<PathBuf>),
    Npm(npm::Versions),
    Checkout(checkout::Checkout),
}

/// A range that there is not.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// It makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A build cannot be had.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<RangeError> for RunError {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::Usage(why) => Self::Usage(why),
            RangeError::Build(error) => Self::Build(error),
            RangeError::Io { path, source } => Self::Io { path, source },
        }
    }
}

impl Range {
    /// Builds that are there: a folder that holds them, a file that lists them, or a list separated by commas.
    ///
    /// # Errors
    /// Builds that are not there, and fewer than two.
    pub fn builds(given: &str) -> Result<Self, RangeError> {
        builds::range(given)
    }

    /// Versions of an npm package.
    ///
    /// # Errors
    /// When npm is not there or does not know the package.
    pub fn npm(package: &str) -> Result<Self, RangeError> {
        npm::range(package)
    }

    /// Commits of a checkout, from good to bad.
    ///
    /// # Errors
    /// Commits that there are not, or that are not ancestor and descendant.
    pub fn checkout(spec: CheckoutSpec) -> Result<Self, RangeError> {
        checkout::range(spec)
    }

    /// The part from `good` to `bad`, which may be the other way round: then it is walked backwards.
    ///
    /// # Errors
    /// Names that are none of the range's, and one place twice.
    pub fn between(mut self, good: &str, bad: &str) -> Result<Self, RangeError> {
        let (from, to) = (self.place("--good", good)?, self.place("--bad", bad)?);
        if from == to {
            return Err(RangeError::Usage(format!("--good and --bad are both {}", self.labels[from])));
        }
        let (first, last) = (from.min(to), from.max(to));
        let order: Vec<usize> =
            if from < to { (first..=last).collect() } else { (first..=last).rev().collect() };
        let take = |all: &[String]| order.iter().map(|&i| all[i].clone()).collect::<Vec<_>>();
        let (labels, details, identities) = (take(&self.labels), take(&self.details), take(&self.identities));
        match &mut self.source {
            Source::Builds(folders) => *folders = order.iter().map(|&i| folders[i].clone()).collect(),
            Source::Npm(versions) => versions.reorder(&order),
            Source::Checkout(checkout) => checkout.reorder(&order),
        }
        Ok(Self { labels, details, identities, ..self })
    }

    fn place(&self, flag: &str, name: &str) -> Result<usize, RangeError> {
        let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
        let known = || self.labels.iter().map(String::as_str);
        self.labels.iter().position(|label| label == name || label == last).ok_or_else(|| {
            let list: Vec<&str> = known().collect();
            let (hint, list) = (hint::nearest(name, known()), list.join(", "));
            RangeError::Usage(format!("{flag} `{name}` is none of {}: {list}{hint}", self.what))
        })
    }

    /// The folder of the build at a place, which may have to be fetched or made; or why there is none.
    ///
    /// # Errors
    /// What is not the place's fault, as a network that is down.
    pub fn obtain(&mut self, place: usize) -> Result<Result<PathBuf, String>, RangeError> {
        match &mut self.source {
            Source::Builds(folders) => Ok(Ok(folders[place].clone())),
            Source::Npm(versions) => Ok(Ok(versions.fetch(place)?)),
            Source::Checkout(checkout) => checkout.build(place),
        }
    }

    /// What is known of each place beside its name, by now: packages say which llama.cpp release they hold.
    #[must_use]
    pub fn details(&self) -> Vec<String> {
        let told = |place: usize| {
            let folder = match &self.source {
                Source::Builds(folders) => Some(folders[place].clone()),
                Source::Npm(versions) => versions.folder(place),
                Source::Checkout(_) => None,
            };
            folder.and_then(|folder| npm_builds::llama_cpp_release(&folder)).map(|r| format!("llama.cpp {r}"))
        };
        let known = self.details.iter().enumerate();
        known.map(|(place, detail)| told(place).unwrap_or_else(|| detail.clone())).collect()
    }

    /// Every place's identity by its name, for journals.
    #[must_use]
    pub fn identity(&self) -> BTreeMap<&str, &str> {
        let names = self.labels.iter().map(String::as_str);
        names.zip(self.identities.iter().map(String::as_str)).collect()
    }

    /// Removes what only the search needed.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn close(self) -> Result<(), RangeError> {
        match self.source {
            Source::Builds(_) | Source::Npm(_) => Ok(()),
            Source::Checkout(checkout) => checkout.close(),
        }
    }
}
