//! What a sweep comes to: its exit code, and the sentence that says why.

use super::result::{Row, RowStatus, Sweep};
use crate::verdict::ExitCode;

impl Sweep {
    /// The exit code. A difference of accuracy is a finding, and fails only a limit that was given; what was not computed, or
    /// gave no figures, is red in any case.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::worst(self.faults().into_iter().map(|(code, _)| code))
    }

    /// What is wrong, each with its exit code.
    #[must_use]
    pub fn faults(&self) -> Vec<(ExitCode, String)> {
        let mut faults = Vec::new();
        let count = |of: &dyn Fn(&Row) -> bool| self.rows.iter().filter(|row| of(row)).count();
        let mut fault = |code, n: usize, what: &str| {
            if n > 0 {
                faults.push((code, format!("{n} of {} rows {what}", self.rows.len())));
            }
        };
        let with = |statuses: &[RowStatus]| count(&|row| statuses.contains(&row.status));
        let lost = [RowStatus::Crashed, RowStatus::Timeout, RowStatus::OutOfMemory, RowStatus::Failed];
        fault(ExitCode::Worker, with(&lost), "crashed, timed out, ran out of memory or failed");
        fault(ExitCode::Incomplete, with(&[RowStatus::Missing]), "are missing");
        fault(ExitCode::Incomplete, with(&[RowStatus::Unsupported]), "are not supported by build or device");
        fault(ExitCode::Diverged, with(&[RowStatus::Fallback]), "were not computed where they were to be");
        fault(ExitCode::Diverged, count(&has_no_figures), "have logits that are not finite");
        let selected: u64 = self.corpora.iter().map(|corpus| corpus.selected).sum();
        let absent = selected.saturating_sub(self.items.len() as u64);
        if self.run.shard.is_none() && absent > 0 {
            let why = format!("{absent} of {selected} items are missing: their shards were not merged");
            faults.push((ExitCode::Incomplete, why));
        }
        let compared = |row: &Row| row.status == RowStatus::Done && !row.against.is_empty();
        if !self.rows.iter().any(compared) {
            faults.push((ExitCode::Incomplete, "nothing was compared".to_owned()));
        }
        if let Some(limit) = &self.limit {
            if self.correction.all_items == 0 {
                let why = "a limit was given, and no item was judged on two arms".to_owned();
                faults.push((ExitCode::Incomplete, why));
            }
            faults.extend(limit.exceeded.iter().map(|text| (ExitCode::Diverged, text.clone())));
        }
        faults
    }

    /// One sentence: how many items and arms, and what is wrong.
    #[must_use]
    pub fn verdict(&self) -> String {
        let declared = self.arms.iter().filter(|arm| arm.declared).count();
        let (items, arms) = (self.items.len(), self.arms.len());
        let head = format!("{items} items on {arms} arms ({declared} of them asked for)");
        let faults: Vec<String> = self.faults().into_iter().map(|(_, text)| text).collect();
        let code = self.exit_code();
        if faults.is_empty() {
            return format!("{head}: exit 0");
        }
        format!("{head}: {}; exit {}", faults.join("; "), code.code())
    }
}

/// Whether a comparison met values that are not finite, apart from those that both arms have.
fn has_no_figures(row: &Row) -> bool {
    let mut logits = row.against.iter().filter_map(|against| against.logits.as_ref());
    logits.any(|logits| !(logits.nmse.is_finite() && logits.kl_max.is_finite()))
}
