//! What a placement bisect tells: `pin.json`, `pin.md` and the console, all of one value.

use super::pin::{Finding, Found, Outcome, SCHEMA, Trial};
use crate::atomic;
use runtime::{Pins, Unit};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A finished search and what it was of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PinReport {
    /// Of the form of this report.
    pub schema: String,
    /// The cell.
    pub cell: String,
    /// The command that runs the cell with the found units pinned; none where none were found.
    pub rerun: Option<String>,
    /// The search.
    #[serde(flatten)]
    pub found: Found,
}

impl PinReport {
    /// A report of this version's form.
    #[must_use]
    pub fn new(cell: String, rerun: Option<String>, found: Found) -> Self {
        Self { schema: SCHEMA.to_owned(), cell, rerun, found }
    }

    /// Writes `pin.json` and `pin.md` into `folder`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        let json = serde_json::to_string_pretty(self).expect("reports are plain data") + "\n";
        for (name, text) in [("pin.json", json), ("pin.md", self.markdown())] {
            atomic::write_with(&folder.join(name), |path| std::fs::write(path, &text))?;
        }
        Ok(())
    }

    /// The finding in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match &self.found.finding {
            Finding::NothingToFind => "the cell passes as it is: nothing to find".to_owned(),
            Finding::NotPlacement => format!(
                "the cell does not pass with everything on the CPU either ({}): not a matter of placement",
                self.found.after().map_or("not run", |trial| trial.status.name())
            ),
            Finding::Scheduling => {
                "the cell passes as soon as every node is placed by hand, with none on the CPU: \
                                    the scheduler's own placement is at fault"
                    .to_owned()
            }
            Finding::Smallest(units) => format!(
                "parity returns with {} of {} units on the CPU, none of which can be left out: {}",
                units.len(),
                self.found.units.len(),
                units.iter().map(Unit::to_string).collect::<Vec<_>>().join(", ")
            ),
        }
    }

    /// For the console.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.cell, self.sentence());
        for (when, trial) in self.figures() {
            text.push_str(&format!("  {when}: {}\n", figures(trial)));
        }
        text.push_str(&format!("  trials: {}\n", self.counts()));
        if let Some(rerun) = &self.rerun {
            text.push_str(&format!("  again: {rerun}\n"));
        }
        text
    }

    /// For `pin.md`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# Placement bisect of `{}`\n\n{}.\n\n", self.cell, self.sentence());
        text.push_str(
            "| | status | logits NMSE | K/V NMSE | logits NMSE, oracle |\n| --- | --- | --: | --: | --: |\n",
        );
        for (when, trial) in self.figures() {
            let [logits, kv, oracle] = [trial.logits_nmse, trial.kv_nmse, trial.oracle_nmse].map(number);
            text.push_str(&format!("| {when} | {} | {logits} | {kv} | {oracle} |\n", trial.status));
        }
        if let Finding::Smallest(units) = &self.found.finding {
            let nodes = self.found.after().map(|trial| &trial.pinned);
            text.push_str("\n| layer | op | nodes |\n| --: | --- | --: |\n");
            for unit in units {
                let count = nodes.and_then(|nodes| nodes.get(unit)).copied().unwrap_or_default();
                text.push_str(&format!("| {} | {} | {count} |\n", unit.layer, unit.op));
            }
        }
        if let Some(rerun) = &self.rerun {
            text.push_str(&format!("\n    {rerun}\n"));
        }
        text.push_str(&format!("\n## Trials\n\n{}.\n\n", self.counts()));
        text.push_str(
            "| pinned | outcome | status | logits NMSE | seconds |\n| --- | --- | --- | --: | --: |\n",
        );
        for trial in &self.found.trials {
            let outcome = outcome_name(trial.outcome());
            text.push_str(&format!(
                "| {} | {outcome} | {} | {} | {:.1} |\n",
                pins(trial.pins.as_ref()),
                trial.status,
                number(trial.logits_nmse),
                trial.seconds
            ));
        }
        text
    }

    fn figures(&self) -> impl Iterator<Item = (&'static str, &Trial)> {
        let after = self.found.after().map(|trial| ("after", trial));
        self.found.before().map(|trial| ("before", trial)).into_iter().chain(after)
    }

    fn counts(&self) -> String {
        let of = |outcome| self.found.trials.iter().filter(|trial| trial.outcome() == outcome).count();
        let outcomes = [Outcome::Restored, Outcome::Off, Outcome::Unresolved];
        let parts = outcomes.map(|outcome| format!("{} {}", of(outcome), outcome_name(outcome)));
        format!("{}: {}", self.found.trials.len(), parts.join(", "))
    }
}

/// What a trial says of itself, on one line.
#[must_use]
pub fn line(trial: &Trial) -> String {
    format!("{}: {}", pins(trial.pins.as_ref()), figures(trial))
}

fn figures(trial: &Trial) -> String {
    let mut text = trial.status.to_string();
    for (name, figure) in [
        ("logits NMSE", trial.logits_nmse),
        ("K/V NMSE", trial.kv_nmse),
        ("against the oracle", trial.oracle_nmse),
    ] {
        if figure.is_some() {
            text.push_str(&format!(", {name} {}", number(figure)));
        }
    }
    let counted = [trial.logits_nmse, trial.kv_nmse, trial.oracle_nmse].iter().any(Option::is_some);
    if !counted && !trial.reason.is_empty() {
        let reason: String = trial.reason.chars().filter(|c| !c.is_control()).take(160).collect();
        text.push_str(&format!(", {reason}"));
    }
    text
}

fn number(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), crate::report::scientific)
}

fn pins(pins: Option<&Pins>) -> String {
    match pins {
        None => "as scheduled".to_owned(),
        Some(Pins::All) => "everything".to_owned(),
        Some(Pins::These(units)) if units.is_empty() => "nothing, all placed by hand".to_owned(),
        Some(Pins::These(units)) => units.iter().map(Unit::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Restored => "restored",
        Outcome::Off => "off",
        Outcome::Unresolved => "unresolved",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Status;
    use std::collections::BTreeSet;

    fn trial(pins: Option<Pins>, status: Status, nmse: Option<f64>) -> Trial {
        let pinned = match &pins {
            Some(Pins::These(units)) => units.iter().map(|unit| (unit.clone(), 3)).collect(),
            _ => Default::default(),
        };
        let reason =
            if nmse.is_some() { String::new() } else { "signal 11 (SIGSEGV)\nlast words".to_owned() };
        Trial {
            pins,
            status,
            reason,
            logits_nmse: nmse,
            kv_nmse: nmse,
            oracle_nmse: None,
            pinned,
            seconds: 1.5,
        }
    }

    fn report(finding: Finding) -> PinReport {
        let unit: Unit = "MUL_MAT@1".parse().unwrap();
        let these = |units: BTreeSet<Unit>| Some(Pins::These(units));
        let found = Found {
            finding,
            units: vec!["ADD@0".parse().unwrap(), unit.clone(), "ROPE@1".parse().unwrap()],
            trials: vec![
                trial(None, Status::Diverged, Some(f64::NAN)),
                trial(Some(Pins::All), Status::Pass, Some(1.25e-9)),
                trial(these(BTreeSet::new()), Status::Diverged, Some(0.5)),
                trial(these(["ROPE@1".parse().unwrap()].into()), Status::Crashed, None),
                trial(these([unit].into()), Status::Pass, Some(2e-9)),
            ],
        };
        PinReport::new("m/f32/prefill@b:Vulkan0".to_owned(), Some("ggml-parity pin ...".to_owned()), found)
    }

    #[test]
    fn a_set_that_was_found() {
        let report = report(Finding::Smallest(vec!["MUL_MAT@1".parse().unwrap()]));
        insta::assert_snapshot!("pin_markdown", report.markdown());
        insta::assert_snapshot!("pin_console", report.text());
        assert_eq!(line(&report.found.trials[3]), "ROPE@1: crashed, signal 11 (SIGSEGV)last words");
    }

    #[test]
    fn findings_without_a_set() {
        for (finding, words) in [
            (Finding::NothingToFind, "nothing to find"),
            (Finding::NotPlacement, "not a matter of placement"),
            (Finding::Scheduling, "the scheduler's own placement is at fault"),
        ] {
            let report = report(finding);
            assert!(report.text().contains(words) && report.markdown().contains(words), "{}", report.text());
        }
    }

    #[test]
    fn the_json_is_read_back() {
        let report = report(Finding::Smallest(vec!["MUL_MAT@1".parse().unwrap()]));
        let json = serde_json::to_string(&report).unwrap();
        let read: PinReport = serde_json::from_str(&json).unwrap();
        assert_eq!(read.found.finding, report.found.finding);
        assert_eq!(read.markdown(), report.markdown());
    }
}
