//! What a bisection has found, as `bisect.json` holds it; every rendering is a function of this.

use super::search::{Outcome, Stretch, most_trials};
use super::trial::Trial;
use crate::verdict::ExitCode;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The schema of `bisect.json` and of the journal.
pub const SCHEMA: &str = "ggml-parity bisect 1";

/// A finished bisection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bisection {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The version of ggml-parity.
    pub version: String,
    /// The case and the device.
    pub subject: String,
    /// The model file.
    pub model_sha256: String,
    /// The question.
    pub until: String,
    /// What its figure is called.
    pub what: String,
    /// The limit of its figure, where it has one.
    pub limit: Option<f64>,
    /// What was searched, in words.
    pub range: String,
    /// The places, from good to bad.
    pub places: Vec<String>,
    /// What is known of each beside its name.
    pub details: Vec<String>,
    /// What tells each place's build from any other of that name: a pin, a commit, a fingerprint.
    pub identities: Vec<String>,
    /// The command line.
    pub command: String,
    /// How long it took, without what a journal held.
    pub seconds: f64,
    /// The finding.
    pub finding: Finding,
    /// The trials in the order in which the search asked for them.
    pub trials: Vec<Judged>,
}

/// A trial and what the question makes of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The place.
    pub place: usize,
    /// Good, bad or skip.
    pub outcome: Outcome,
    /// Why.
    pub why: String,
    /// The figure that the question looks at.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub figure: Option<f64>,
    /// Whether an earlier start of the same search had made it.
    pub known: bool,
    /// The trial.
    pub trial: Trial,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The change lies after the one and not after the other; those between could not be tried.
    Found {
        /// The last good place.
        last_good: usize,
        /// The first place that is known to be bad.
        first_bad: usize,
    },
    /// Both ends are good: there is nothing to find between them.
    BothGood,
    /// Both ends are bad: it came before the range.
    BothBad,
    /// The good end is bad and the bad end is good.
    Swapped,
    /// An end cannot be tried.
    UnusableEnd {
        /// Which one.
        place: usize,
    },
    /// Every place was tried.
    Scanned {
        /// Stretches of one outcome, in order.
        stretches: Vec<Stretch>,
    },
}

/// Compute nodes that ran elsewhere, or in another number, on one of two builds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The backend.
    pub backend: String,
    /// The op, with its type.
    pub op: String,
    /// Nodes before.
    pub before: u64,
    /// Nodes after.
    pub after: u64,
}

impl Bisection {
    /// The trial at a place.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Judged> {
        self.trials.iter().find(|judged| judged.place == place)
    }

    /// All trials in the order of the places.
    #[must_use]
    pub fn in_order(&self) -> Vec<&Judged> {
        let mut all: Vec<&Judged> = self.trials.iter().collect();
        all.sort_by_key(|judged| judged.place);
        all
    }

    /// The last good place and the first bad one: of a scan, those of its first change from good to bad.
    #[must_use]
    pub fn change(&self) -> Option<(usize, usize)> {
        match &self.finding {
            Finding::Found { last_good, first_bad } => Some((*last_good, *first_bad)),
            Finding::Scanned { stretches } => stretches
                .windows(2)
                .find(|pair| pair[0].outcome == Outcome::Good)
                .map(|pair| (pair[0].last, pair[1].first)),
            _ => None,
        }
    }

    /// What changed in placement between the last good build and the first bad one.
    #[must_use]
    pub fn moved(&self) -> Vec<Moved> {
        let placement = |place| self.at(place)?.trial.placement.as_ref();
        let Some((Some(before), Some(after))) = self.change().map(|(a, b)| (placement(a), placement(b)))
        else {
            return Vec::new();
        };
        let count = |placement: &crate::capture::Placement| -> BTreeMap<(String, String), u64> {
            let of = |backend: &crate::capture::BackendNodes| {
                let name = backend.name.clone();
                backend.ops.iter().map(move |(op, n)| ((name.clone(), op.clone()), *n)).collect::<Vec<_>>()
            };
            placement.backends.iter().flat_map(of).collect()
        };
        let (before, after) = (count(before), count(after));
        let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let of = |all: &BTreeMap<_, u64>, key: &(String, String)| all.get(key).copied().unwrap_or(0);
        keys.into_iter()
            .map(|key| (key, of(&before, key), of(&after, key)))
            .filter(|(_, before, after)| before != after)
            .map(|((backend, op), before, after)| Moved {
                backend: backend.clone(),
                op: op.clone(),
                before,
                after,
            })
            .collect()
    }

    /// Places at which the device's numbers are not those of the build before, in order.
    pub fn steps(&self) -> impl Iterator<Item = (&Judged, &super::trial::Change)> {
        let all = self.in_order().into_iter();
        all.filter_map(|judged| Some((judged, judged.trial.against_previous.as_ref()?)))
            .filter(|(_, change)| !change.is_none())
    }

    /// A place by name, with what is known of it.
    #[must_use]
    pub fn name(&self, place: usize) -> String {
        let label = &self.places[place];
        let tells = self.at(place).filter(|judged| judged.trial.build.is_some());
        let mut words: Vec<String> =
            tells.map(|judged| format!("ggml {}", judged.trial.ggml())).into_iter().collect();
        words.extend(Some(self.details[place].clone()).filter(|detail| !detail.is_empty()));
        if words.is_empty() { label.clone() } else { format!("{label} ({})", words.join("; ")) }
    }

    /// The finding in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let (first, last) = (0, self.places.len() - 1);
        let why = |place: usize| self.at(place).map_or("not tried", |judged| &judged.why);
        match &self.finding {
            Finding::Found { last_good, first_bad } if last_good + 1 == *first_bad => format!(
                "the first bad one is {}; the last good one is {}",
                self.name(*first_bad),
                self.name(*last_good)
            ),
            Finding::Found { last_good, first_bad } => format!(
                "the first bad one is among {}, of which all but the last could not be tried; the last good one is {}",
                (last_good + 1..=*first_bad).map(|i| self.name(i)).collect::<Vec<_>>().join(", "),
                self.name(*last_good)
            ),
            Finding::BothGood => format!(
                "both ends are good, so there is nothing to find between {} ({}) and {} ({})",
                self.places[first],
                why(first),
                self.places[last],
                why(last)
            ),
            Finding::BothBad => format!(
                "both ends are bad, so it came before {} ({}): choose an earlier good end",
                self.places[first],
                why(first)
            ),
            Finding::Swapped => format!(
                "the good end {} is bad ({}) and the bad end {} is good: exchange them to find what made it good",
                self.places[first],
                why(first),
                self.places[last]
            ),
            Finding::UnusableEnd { place } => format!(
                "the {} end {} cannot be tried: {}",
                if *place == 0 { "good" } else { "bad" },
                self.places[*place],
                why(*place)
            ),
            Finding::Scanned { stretches } => self.scanned(stretches),
        }
    }

    fn scanned(&self, stretches: &[Stretch]) -> String {
        let of = |outcome| self.trials.iter().filter(|judged| judged.outcome == outcome).count();
        let counts = format!(
            "{} builds: {} good, {} bad, {} skipped",
            self.trials.len(),
            of(Outcome::Good),
            of(Outcome::Bad),
            of(Outcome::Skip)
        );
        let turns: Vec<String> = stretches
            .windows(2)
            .map(|pair| format!("{} after {}", pair[1].outcome.name(), self.places[pair[0].last]))
            .collect();
        match turns.len() {
            0 => counts,
            1 => format!("{counts}; {}", turns[0]),
            _ => format!("{counts}; not monotonic: {}", turns.join(", ")),
        }
    }

    /// How many trials were made between the ends, and how many a search without skips needs at most.
    #[must_use]
    pub fn effort(&self) -> String {
        let last = self.places.len() - 1;
        let between = self.trials.iter().filter(|judged| judged.place != 0 && judged.place != last);
        let (made, skipped) = between.fold((0, 0), |(made, skipped), judged| {
            (made + 1, skipped + usize::from(judged.outcome == Outcome::Skip))
        });
        if matches!(self.finding, Finding::Scanned { .. }) {
            return format!("{} trials, one for each of {} places", self.trials.len(), self.places.len());
        }
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        format!(
            "{made} trial{} after both ends among {} places ({} at most without skips), {skipped} of them skipped",
            plural(made),
            self.places.len(),
            most_trials(self.places.len())
        )
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match &self.finding {
            Finding::Found { last_good, first_bad } if last_good + 1 == *first_bad => ExitCode::Success,
            Finding::Found { .. } => ExitCode::Incomplete,
            Finding::BothGood | Finding::BothBad | Finding::Swapped => ExitCode::Usage,
            Finding::UnusableEnd { .. } => ExitCode::Environment,
            Finding::Scanned { stretches } if stretches.is_empty() => ExitCode::Incomplete,
            Finding::Scanned { stretches } => {
                let bad = stretches.iter().any(|stretch| stretch.outcome == Outcome::Bad);
                if bad { ExitCode::Diverged } else { ExitCode::Success }
            }
        }
    }
}
