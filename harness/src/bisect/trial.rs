//! What one trial gave: a build, a run of the case on it, and how its numbers differ from those of other builds.

use crate::capture::{CaptureReader, Placement};
use crate::compare::{CompareError, compare};
use crate::pipeline::Build;
use crate::report::Cell;
use crate::verdict::{Limits, Status};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The place in the range: a build, a version or a commit.
    pub label: String,
    /// Why the build cannot be used, where it cannot.
    pub unusable: Option<String>,
    /// The build's name.
    pub build: Option<String>,
    /// ggml's version, where the build tells it.
    pub version: Option<String>,
    /// ggml's commit, where the build tells it.
    pub commit: Option<String>,
    /// What became of the cell.
    pub status: Option<Status>,
    /// Why.
    pub reason: String,
    /// Logits NMSE against the reference of the same build (the oracle's, where the device is its own reference).
    #[serde(with = "crate::figure::MaybeFigure")]
    pub logits_nmse: Option<f64>,
    /// K/V NMSE, the worst layer.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub kv_nmse: Option<f64>,
    /// Logits NMSE against the oracle, where it ran.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub oracle_nmse: Option<f64>,
    /// The limit of logits NMSE that the cell was held to.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub limit: Option<f64>,
    /// How the same device's numbers differ from those of the good end.
    pub against_good: Option<Change>,
    /// How they differ from those of the nearest build before, in the order of the range, that had been tried.
    pub against_previous: Option<Change>,
    /// The text that was generated, where the case generates.
    pub text: Option<String>,
    /// Seconds of computing.
    pub compute_seconds: Option<f64>,
    /// Where the work was placed.
    pub placement: Option<Placement>,
    /// How a first worker died, where a second one computed the cell.
    pub retried: Option<String>,
    /// The command that runs the cell on this build alone.
    pub rerun: Option<String>,
    /// How long the trial took.
    pub seconds: f64,
}

impl Trial {
    /// A trial of a build that cannot be used.
    #[must_use]
    pub fn unusable(label: &str, why: impl Into<String>) -> Self {
        Self { label: label.to_owned(), unusable: Some(why.into()), ..Self::default() }
    }

    /// What became of the cell on `build`.
    pub(super) fn of(label: &str, build: &Build, cell: &Cell) -> Self {
        let metrics = cell.metrics.as_ref();
        Self {
            label: label.to_owned(),
            build: Some(build.info.name.clone()),
            version: build.info.version.clone(),
            commit: build.info.commit.clone(),
            status: Some(cell.status),
            reason: cell.reason.clone(),
            logits_nmse: metrics.map(|m| m.logits.overall),
            kv_nmse: metrics.and_then(|m| m.kv.as_ref()).map(|kv| kv.worst.nmse),
            oracle_nmse: cell.attribution.as_ref().map(|found| found.device_nmse),
            limit: cell.limits.as_ref().map(|limits| limits.logits_nmse.limit),
            text: cell.text.clone(),
            compute_seconds: cell.timings.get("compute").copied(),
            placement: cell.placement.clone(),
            retried: cell.retried.clone(),
            rerun: Some(cell.rerun.clone()),
            ..Self::default()
        }
    }

    /// What the build says of itself: version and commit, where it tells them.
    #[must_use]
    pub fn ggml(&self) -> String {
        let commit = self.commit.as_ref().map(|commit| commit.chars().take(12).collect::<String>());
        let parts: Vec<String> =
            self.version.clone().into_iter().chain(commit.map(|c| format!("commit {c}"))).collect();
        if parts.is_empty() { "version not told".to_owned() } else { parts.join(", ") }
    }
}

/// How the numbers of one build differ from those of another on the same device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The other one's place.
    pub from: String,
    /// Logits NMSE; 0 only where every logit is the same.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub nmse: Option<f64>,
    /// K/V NMSE, the worst layer.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub kv_nmse: Option<f64>,
    /// Rows whose top token is another.
    pub mismatches: u64,
    /// Whether the free run gave the same tokens; none where the case has no free run.
    pub same_tokens: Option<bool>,
    /// Why the two cannot be compared number by number: then they went different ways.
    pub why: Option<String>,
}

impl Change {
    /// Compares the captures of two builds.
    pub(super) fn between(from: &str, before: &Path, after: &Path, limits: &Limits) -> Self {
        let open = |path: &Path| -> Result<CaptureReader, CompareError> { Ok(CaptureReader::open(path)?) };
        let pair = |limits: &Limits| compare(&mut open(before)?, &mut open(after)?, limits);
        // Caches of two types do not hold the same tensors; the logits may still be compared.
        let logits = Limits { kv_nmse: None, kv_before_storing_nmse: None, ..limits.clone() };
        let found = pair(limits).or_else(|error| pair(&logits).map_err(|_| error));
        let from = from.to_owned();
        match found {
            Ok(metrics) => Self {
                from,
                nmse: Some(metrics.logits.overall),
                kv_nmse: metrics.kv.as_ref().map(|kv| kv.worst.nmse),
                mismatches: metrics.top_token.mismatches,
                same_tokens: metrics.greedy.as_ref().map(|greedy| greedy.equal),
                why: None,
            },
            Err(error) => Self {
                from,
                nmse: None,
                kv_nmse: None,
                mismatches: 0,
                same_tokens: None,
                why: Some(error.to_string()),
            },
        }
    }

    /// Whether every number is the same.
    #[must_use]
    pub fn is_none(&self) -> bool {
        let same = |figure: Option<f64>| figure.is_none_or(|figure| figure == 0.0);
        self.why.is_none() && same(self.nmse) && same(self.kv_nmse) && !self.is_other_text()
    }

    /// Whether a user would read another text: the free run's tokens, or the top token of a row where there is none.
    #[must_use]
    pub fn is_other_text(&self) -> bool {
        self.why.is_some() || !self.same_tokens.unwrap_or(self.mismatches == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(nmse: f64, mismatches: u64, same_tokens: Option<bool>) -> Change {
        Change { from: "a".to_owned(), nmse: Some(nmse), kv_nmse: None, mismatches, same_tokens, why: None }
    }

    #[test]
    fn equal_numbers_are_no_change_and_a_nan_is_one() {
        assert!(change(0.0, 0, None).is_none());
        assert!(!change(1e-18, 0, None).is_none());
        assert!(!change(f64::NAN, 0, None).is_none());
        assert!(!Change { kv_nmse: Some(1e-9), ..change(0.0, 0, None) }.is_none());
        assert!(!Change { why: Some("tokens differ".to_owned()), ..change(0.0, 0, None) }.is_none());
    }

    #[test]
    fn the_free_run_tells_the_text_and_top_tokens_where_there_is_none() {
        assert!(!change(1e-9, 3, Some(true)).is_other_text());
        assert!(change(1e-9, 0, Some(false)).is_other_text());
        assert!(change(1e-9, 1, None).is_other_text());
        assert!(!change(1e-9, 0, None).is_other_text());
    }

    #[test]
    fn captures_that_cannot_be_read_went_another_way() {
        let nowhere = Path::new("/nowhere/a.safetensors");
        let found = Change::between("a", nowhere, nowhere, &Limits::uniform(1e-9));
        assert!(found.is_other_text() && !found.is_none());
    }

    #[test]
    fn a_build_is_described_by_what_it_tells() {
        let trial = Trial { version: Some("0.23.0".to_owned()), ..Trial::default() };
        assert_eq!(trial.ggml(), "0.23.0");
        let trial = Trial { commit: Some("0123456789abcdef".to_owned()), ..trial };
        assert_eq!(trial.ggml(), "0.23.0, commit 0123456789ab");
        assert_eq!(Trial::default().ggml(), "version not told");
    }
}
