//! What a self-test found, and its renderers: the console's text, Markdown and JSON.

use super::Kind;
use crate::atomic;
use crate::plan::CellId;
use crate::report::ReportError;
use crate::verdict::{ExitCode, Status};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The schema of the JSON document.
pub const SCHEMA: &str = "ggml-parity.selftest/1";

/// How many kinds must have their place named.
const LEAST_NAMED: usize = 26;

/// What a self-test found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The cells without a fault.
    pub controls: Vec<Control>,
    /// The cell into which faults were planted in their own size.
    pub cell: CellId,
    /// What became of them, kind by kind.
    pub faults: Vec<Found>,
    /// The cell in which the smallest faults were looked for.
    pub coarse: CellId,
    /// The smallest faults, kind by kind.
    pub smallest: Vec<Smallest>,
}

/// A cell without a fault, which must pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// The cell.
    pub cell: CellId,
    /// What became of it.
    pub status: Status,
    /// Why.
    pub reason: String,
}

/// What became of one planted fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Its kind.
    pub kind: Kind,
    /// How large it was, in words.
    pub size: String,
    /// Where it was planted, in words.
    pub place: String,
    /// Whether the gate must catch it.
    pub must_be_caught: bool,
    /// Whether the cell turned red.
    pub caught: bool,
    /// Whether the reason names the place.
    pub named: bool,
    /// The status of the cell.
    pub status: Status,
    /// Its reason.
    pub reason: String,
    /// Why the cell does not pass when the fault's size is 0, where it has a size: then it proves nothing.
    pub without: Option<String>,
}

/// The smallest fault of a kind that is caught.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Smallest {
    /// Its kind.
    pub kind: Kind,
    /// Its size, as the kind counts it; `None` where not even the largest is caught.
    pub size: Option<f64>,
    /// The size in words.
    pub words: Option<String>,
    /// Whether the reason names the place even there.
    pub named: bool,
}

impl SelfTest {
    /// How many faults were caught of those that must be, and how many those are.
    #[must_use]
    pub fn caught(&self) -> (usize, usize) {
        let must = || self.faults.iter().filter(|found| found.must_be_caught);
        (must().filter(|found| found.caught).count(), must().count())
    }

    /// How many faults had their place named.
    #[must_use]
    pub fn named(&self) -> usize {
        self.faults.iter().filter(|found| found.named).count()
    }

    /// Everything that makes the self-test fail, in words.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for control in self.controls.iter().filter(|control| control.status != Status::Pass) {
            failures
                .push(format!("without a fault {} is {}: {}", control.cell, control.status, control.reason));
        }
        for kind in Kind::ALL {
            if !self.faults.iter().any(|found| found.kind == *kind) {
                failures.push(format!("{kind} was not planted"));
            }
        }
        for found in &self.faults {
            if found.must_be_caught && !found.caught {
                failures.push(format!("{} ({}, {}) was not caught", found.kind, found.place, found.size));
            }
            if let Some(reason) = &found.without {
                failures.push(format!("{} of size 0 does not pass: {reason}", found.kind));
            }
        }
        if self.named() < LEAST_NAMED {
            failures.push(format!("{} places were named, {LEAST_NAMED} are wanted", self.named()));
        }
        failures
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.failures().is_empty() { ExitCode::Success } else { ExitCode::Diverged }
    }

    /// One line: how many faults were caught and named.
    #[must_use]
    pub fn summary(&self) -> String {
        let (caught, must) = self.caught();
        let may = self.faults.iter().filter(|found| !found.must_be_caught);
        let may = may.map(|found| {
            let how = if found.caught { "was caught too" } else { "went uncaught, as it may" };
            format!("; {} {how}", found.kind)
        });
        let named = self.named();
        format!(
            "{caught} of {must} faults caught, {named} of {} named{}",
            self.faults.len(),
            may.collect::<String>()
        )
    }

    /// The document as JSON, indented, with a final newline.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("string keys and no foreign types");
        format!("{text}\n")
    }

    /// Aligned tables for a terminal. The reason stands where a place was not named.
    #[must_use]
    pub fn console(&self) -> String {
        let widest = Kind::ALL.iter().map(|kind| kind.name().len()).max().unwrap_or(0);
        let mut text = format!("faults in {}\n", self.cell);
        text.push_str(&format!("{:widest$}  {:7}  {:5}  where\n", "fault", "caught", "named"));
        for found in &self.faults {
            let why = if found.caught && !found.named {
                format!(": {}", one_line(&found.reason))
            } else {
                String::new()
            };
            let line = format!(
                "{:widest$}  {:7}  {:5}  {}{why}\n",
                found.kind,
                found.word(),
                yes(found.named),
                found.place
            );
            text.push_str(&line);
        }
        text.push_str(&format!("\nthe smallest that are caught in {}\n", self.coarse));
        text.push_str(&format!("{:widest$}  {:5}  size\n", "fault", "named"));
        for found in &self.smallest {
            text.push_str(&format!("{:widest$}  {:5}  {}\n", found.kind, yes(found.named), found.word()));
        }
        text.push('\n');
        for failure in self.failures() {
            text.push_str(&format!("failed: {}\n", one_line(&failure)));
        }
        text.push_str(&self.summary());
        text.push('\n');
        text
    }

    /// The same as Markdown, with every reason.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# ggml-parity selftest\n\n{}\n", self.summary());
        let failures: String =
            self.failures().iter().map(|failure| format!("- {}\n", plain(failure))).collect();
        if !failures.is_empty() {
            text.push_str(&format!("\n## Failed\n\n{failures}"));
        }
        text.push_str(&format!("\n## Faults in `{}`\n\n", self.cell));
        text.push_str("| fault | size | where | caught | named | reason |\n|---|---|---|---|---|---|\n");
        for found in &self.faults {
            let fields =
                [found.kind.name(), &found.size, &found.place, found.word(), yes(found.named), &found.reason];
            text.push_str(&format!("| {} |\n", fields.map(plain).join(" | ")));
        }
        text.push_str(&format!("\n## The smallest that are caught in `{}`\n\n", self.coarse));
        text.push_str("| fault | size | named |\n|---|---|---|\n");
        for found in &self.smallest {
            let fields = [found.kind.name(), found.word(), yes(found.named)];
            text.push_str(&format!("| {} |\n", fields.map(plain).join(" | ")));
        }
        text
    }

    /// Writes `selftest.json` and `selftest.md` into `dir`, which is made if need be.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub fn write(&self, dir: &Path) -> Result<(), ReportError> {
        let io = |path: &Path, source| ReportError::Io { path: path.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(|source| io(dir, source))?;
        for (name, text) in [("selftest.json", self.json()), ("selftest.md", self.markdown())] {
            let path = dir.join(name);
            atomic::write_with(&path, |partial| std::fs::write(partial, text))
                .map_err(|source: std::io::Error| io(&path, source))?;
        }
        Ok(())
    }
}

impl Found {
    fn word(&self) -> &'static str {
        match (self.caught, self.must_be_caught) {
            (true, _) => "yes",
            (false, true) => "NO",
            (false, false) => "no, may",
        }
    }
}

impl Smallest {
    fn word(&self) -> &str {
        self.words.as_deref().unwrap_or("none is caught")
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Text on one line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Text that breaks no table of Markdown.
fn plain(text: &str) -> String {
    one_line(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A self-test in which everything went well.
    fn good() -> SelfTest {
        let [cell, coarse] =
            ["m/f32/decode@b:CPU@x64", "m/q4_k_m/decode@b:CPU@x64"].map(|id| id.parse().unwrap());
        let control =
            |cell: &CellId| Control { cell: cell.clone(), status: Status::Pass, reason: String::new() };
        let found = |&kind: &Kind| Found {
            kind,
            size: "one value".to_owned(),
            place: "logits row 4".to_owned(),
            must_be_caught: kind.must_be_caught(),
            caught: kind.must_be_caught(),
            named: kind.must_be_caught(),
            status: if kind.must_be_caught() { Status::Diverged } else { Status::Pass },
            reason: "logits NMSE 1 | 2\nrow 4".to_owned(),
            without: None,
        };
        let small = |&kind: &Kind| {
            let size = (kind != Kind::TopMantissaBit).then_some(kind.scale().full());
            Smallest { kind, size, words: size.map(|size| kind.words(size)), named: size.is_some() }
        };
        SelfTest {
            schema: SCHEMA.to_owned(),
            controls: vec![control(&cell), control(&coarse)],
            faults: Kind::ALL.iter().map(found).collect(),
            smallest: Kind::ALL.iter().map(small).collect(),
            cell,
            coarse,
        }
    }

    fn failures(change: impl FnOnce(&mut SelfTest)) -> Vec<String> {
        let mut test = good();
        change(&mut test);
        let failures = test.failures();
        let code = if failures.is_empty() { ExitCode::Success } else { ExitCode::Diverged };
        assert_eq!(test.exit_code(), code);
        failures
    }

    #[test]
    fn a_fault_that_may_go_uncaught_fails_nothing() {
        assert_eq!(failures(|_| {}), [""; 0]);
        let summary = good().summary();
        assert!(summary.starts_with("29 of 29 faults caught, 29 of 30 named; lowest-"), "{summary}");
        assert!(summary.ends_with("-flip went uncaught, as it may"), "{summary}");
    }

    #[test]
    fn everything_that_must_hold_fails_when_it_does_not() {
        let said = |wanted: &str, change: &dyn Fn(&mut SelfTest)| {
            let failures = failures(change);
            assert_eq!(failures.len(), 1, "{failures:?}");
            assert!(failures[0].contains(wanted), "{failures:?}");
        };
        said("row-x5 (logits row 4, one value) was not caught", &|t| t.faults[5].caught = false);
        said("row-x5 was not planted", &|t| drop(t.faults.remove(5)));
        said("m/q4_k_m/decode@b:CPU@x64 is diverged", &|t| t.controls[1].status = Status::Diverged);
        said("of size 0 does not pass: greedy", &|t| t.faults[5].without = Some("greedy".to_owned()));
        said("25 places were named", &|t| t.faults[..4].iter_mut().for_each(|found| found.named = false));
        assert_eq!(failures(|t| t.faults[..3].iter_mut().for_each(|found| found.named = false)), [""; 0]);
    }

    #[test]
    fn renderers_show_what_was_found() {
        let mut test = good();
        test.faults[1].named = false;
        test.faults[2].caught = false;
        insta::assert_snapshot!("console", test.console());
        insta::assert_snapshot!("markdown", test.markdown());
    }

    #[test]
    fn the_document_reads_back() {
        let test = good();
        assert_eq!(serde_json::from_str::<SelfTest>(&test.json()).unwrap(), test);
    }
}
