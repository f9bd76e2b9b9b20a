//! Versions of an npm package that ships builds, fetched when a trial needs them.

use super::{Range, RangeError, Source};
use crate::builds::npm::{self, Release};
use std::path::PathBuf;

/// The versions.
pub(super) struct Versions {
    releases: Vec<Release>,
}

pub(super) fn range(package: &str) -> Result<Range, RangeError> {
    let releases = npm::releases(package)?;
    if releases.len() < 2 {
        let why = format!("--npm {package}: {} versions, where two at least are wanted", releases.len());
        return Err(RangeError::Usage(why));
    }
    Ok(Range {
        what: format!("the versions of {package}"),
        labels: releases.iter().map(|release| release.version.to_string()).collect(),
        details: vec![String::new(); releases.len()],
        identities: releases.iter().map(|release| release.pin.to_string()).collect(),
        source: Source::Npm(Versions { releases }),
    })
}

impl Versions {
    pub(super) fn reorder(&mut self, order: &[usize]) {
        self.releases = order.iter().map(|&i| self.releases[i].clone()).collect();
    }

    pub(super) fn fetch(&self, place: usize) -> Result<PathBuf, RangeError> {
        Ok(self.releases[place].fetch()?)
    }

    /// The folder of a version that was fetched.
    pub(super) fn folder(&self, place: usize) -> Option<PathBuf> {
        self.releases[place].folder().ok()
    }
}
