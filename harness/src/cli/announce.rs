//! What a run says when it has ended: on the console, to a machine, to GitHub.

use crate::report::{self, Report, annotations, console, json, markdown};
use clap::ValueEnum;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Who is told of red cells, beside the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Annotations {
    /// GitHub Actions, by workflow commands on standard error.
    Github,
    /// Nobody.
    None,
}

/// Arguments on what is printed.
#[derive(Debug, clap::Args)]
pub(super) struct Output {
    /// Print the report as JSON on standard output and nothing else there
    #[arg(long)]
    json: bool,
    /// Print no progress and no table: only the summary and where the report is
    #[arg(long)]
    quiet: bool,
    /// Annotate red cells for a CI system [default: github where GITHUB_ACTIONS is `true`, else none]
    #[arg(long, value_name = "WHERE")]
    annotations: Option<Annotations>,
}

impl Output {
    /// Whether progress is shown.
    pub(super) fn shows_progress(&self) -> bool {
        !self.quiet
    }

    /// Says what `report`, which lies in `folder`, has found. The last line names the file to open.
    pub(super) fn announce(&self, folder: &Path, report: &Report) {
        if self.annotations() == Annotations::Github {
            eprint!("{}", annotations::github(report));
        }
        if let Some(path) = given("GITHUB_STEP_SUMMARY").map(PathBuf::from) {
            // The verdict stands whether or not this can be written.
            if let Err(error) = append_summary(&path, report) {
                eprintln!("warning: GITHUB_STEP_SUMMARY: {}: {error}", path.display());
            }
        }
        let place = format!("report: {}", folder.join(report::INDEX).display());
        match (self.json, self.quiet) {
            (true, quiet) => {
                print!("{}", json::render(report));
                if !quiet {
                    eprintln!("{}\n{place}", report.summary());
                }
            }
            (false, true) => println!("{}\n{place}", report.summary()),
            (false, false) => println!("{}{place}", console::render(report, super::colour())),
        }
    }

    fn annotations(&self) -> Annotations {
        let on_github = || given("GITHUB_ACTIONS").is_some_and(|value| value == "true");
        self.annotations.unwrap_or_else(|| if on_github() { Annotations::Github } else { Annotations::None })
    }
}

/// A variable that is set to something.
fn given(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Adds the summary to what earlier commands of the step wrote; where both would be more than GitHub takes, one line.
fn append_summary(path: &Path, report: &Report) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let before = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut text = markdown::render(report);
    if before.saturating_add(text.len() + 1) > markdown::MOST_BYTES {
        text = format!("**ggml-parity: {}**\n", report.summary());
    }
    file.write_all(format!("{text}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Environment, Run};

    #[test]
    fn a_step_summary_is_added_to_and_never_outgrows_what_github_takes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary");
        let report = Report::new(Run::default(), Environment::default(), &[], Vec::new());
        append_summary(&path, &report).unwrap();
        append_summary(&path, &report).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("# ggml-parity: \n").count(), 2, "{text}");

        std::fs::write(&path, vec![b'x'; markdown::MOST_BYTES - 200]).unwrap();
        append_summary(&path, &report).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() <= markdown::MOST_BYTES, "{}", text.len());
        assert!(text.ends_with("**ggml-parity: 0 cells: nothing compared; exit 3 (nothing was compared, a declared cell is missing, or an undeclared one is unsupported)**\n\n"));
    }
}
