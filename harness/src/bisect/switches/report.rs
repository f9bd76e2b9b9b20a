//! What a search over switches tells: `switches.json`, `switches.md`, `index.html` and the console, all of one value.

use super::{Finding, Found, SCHEMA, Switch, SwitchTrial};
use crate::atomic;
use crate::bisect::render::{brief, difference, number, page};
use crate::verdict::{ExitCode, Status};
use maud::html;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A finished search and what it was of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwitchReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The version of ggml-parity.
    pub version: String,
    /// The cell.
    pub cell: String,
    /// The build, with its version and commit where it tells them.
    pub build: String,
    /// The device and its driver.
    pub device: String,
    /// The command line.
    pub command: String,
    /// The search.
    #[serde(flatten)]
    pub found: Found,
}

impl SwitchReport {
    /// A report of this version's form.
    #[must_use]
    pub fn new(cell: String, build: String, device: String, command: String, found: Found) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { schema: SCHEMA.to_owned(), version, cell, build, device, command, found }
    }

    /// Writes `switches.json`, `switches.md` and `index.html` into `folder`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        let json = serde_json::to_string_pretty(self).expect("reports are plain data") + "\n";
        let files = [("switches.json", json), ("switches.md", self.markdown()), ("index.html", self.page())];
        for (name, text) in files {
            atomic::write_with(&folder.join(name), |path| std::fs::write(path, &text))?;
        }
        Ok(())
    }

    /// The finding in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let tried = self.found.offered.len();
        match &self.found.finding {
            Finding::Smallest(set) => format!(
                "the cell passes with {} of {tried} switches, none of which can be left out: {}",
                set.len(),
                names(set)
            ),
            Finding::NotSwitches if tried == 0 => {
                "this build and device have no switch of these kinds".to_owned()
            }
            Finding::NotSwitches => {
                format!("the cell passes neither with all {tried} switches set nor with any one of them")
            }
            Finding::Largest(None) => format!("none of {tried} switches changes a number"),
            Finding::Largest(Some(switch)) => {
                let trial = self.found.trials.iter().find(|trial| trial.set == std::slice::from_ref(switch));
                let change =
                    trial.and_then(|trial| trial.change.as_ref()).map(difference).unwrap_or_default();
                format!("of {tried} switches {switch} changes the numbers most ({}): {change}", switch.what)
            }
        }
    }

    /// The trials, those that move the numbers most first, after the one without a switch.
    fn in_order(&self) -> Vec<&SwitchTrial> {
        let mut all: Vec<&SwitchTrial> = self.found.trials.iter().collect();
        if matches!(self.found.finding, Finding::Largest(_)) {
            all.sort_by(|a, b| {
                (!a.set.is_empty()).cmp(&!b.set.is_empty()).then(b.distance().total_cmp(&a.distance()))
            });
        }
        all
    }

    /// For the console.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n", self.cell, self.sentence())
    }

    /// For `switches.md`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Switches of `{}`\n\n{}.\n\nBuild {} on {}.\n\n    {}\n\n",
            self.cell,
            self.sentence(),
            self.build,
            self.device,
            self.command
        );
        text.push_str(
            "| set | status | logits NMSE | K/V NMSE | oracle | moved from the plain run | compute s |\n",
        );
        text.push_str("| --- | --- | --: | --: | --: | --- | --: |\n");
        for trial in self.in_order() {
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} |\n",
                set(trial),
                trial.status,
                number(trial.logits_nmse),
                number(trial.kv_nmse),
                number(trial.oracle_nmse),
                moved(trial).replace('|', "\\|"),
                trial.compute_seconds.map_or("-".to_owned(), |s| format!("{s:.3}")),
            ));
        }
        text
    }

    /// For `index.html`.
    #[must_use]
    pub fn page(&self) -> String {
        let found = !matches!(self.found.finding, Finding::NotSwitches);
        let body = html! {
            header.top {
                p.product { "ggml-parity bisect --over" }
                h1 { (self.cell) }
                div class=(if found { "verdict good" } else { "verdict bad" }) {
                    p.word { (if found { "Found" } else { "Not found" }) }
                    p { (self.sentence()) "." }
                }
                dl.run {
                    div { dt { "Build" } dd { (self.build) } }
                    div { dt { "Device" } dd { (self.device) } }
                    div { dt { "Trials" } dd { (self.found.trials.len()) } }
                }
                div.command { span.label { "Command" } code { (self.command) } }
            }
            main #main {
                section aria-labelledby="trials-title" {
                    h2 #trials-title { "Trials" }
                    div.scroll tabindex="0" role="group" aria-label="Trials" {
                        table {
                            thead { tr {
                                th { "Set" } th { "Status" } th.n { "Logits NMSE" } th.n { "K/V NMSE" } th.n { "Oracle" }
                                th { "Moved from the plain run" } th.n { "Compute s" }
                            } }
                            tbody {
                                @for trial in self.in_order() {
                                    tr class=(if trial.passes() { "" } else { "over" }) {
                                        th scope="row" {
                                            (set(trial))
                                            @if let [switch] = trial.set.as_slice() { br; span.places { (switch.what) } }
                                        }
                                        td { span class=(format!("badge s-{}", trial.status)) { (trial.status) } }
                                        td.n { (number(trial.logits_nmse)) }
                                        td.n { (number(trial.kv_nmse)) }
                                        td.n { (number(trial.oracle_nmse)) }
                                        td { (moved(trial)) }
                                        td.n { (trial.compute_seconds.map_or("-".to_owned(), |s| format!("{s:.3}"))) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        };
        let files = ["switches.json", "switches.md", "trials.jsonl"];
        page(&format!("switches {} · ggml-parity", self.cell), &self.version, &files, &body)
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.found.finding {
            Finding::NotSwitches => ExitCode::Diverged,
            Finding::Smallest(_) | Finding::Largest(_) => ExitCode::Success,
        }
    }
}

/// What a trial says of itself, on one line.
#[must_use]
pub(crate) fn line(trial: &SwitchTrial) -> String {
    format!(
        "{}: {}, logits NMSE {}, moved: {}",
        set(trial),
        trial.status,
        number(trial.logits_nmse),
        moved(trial)
    )
}

fn names(set: &[Switch]) -> String {
    set.iter().map(Switch::to_string).collect::<Vec<_>>().join(" ")
}

fn set(trial: &SwitchTrial) -> String {
    if trial.set.is_empty() { "nothing".to_owned() } else { names(&trial.set) }
}

fn moved(trial: &SwitchTrial) -> String {
    match &trial.change {
        Some(change) if change.is_none() => "not at all".to_owned(),
        Some(change) => difference(change),
        None if matches!(trial.status, Status::Pass | Status::Diverged) || trial.reason.is_empty() => {
            "-".to_owned()
        }
        None => brief(&trial.reason),
    }
}
