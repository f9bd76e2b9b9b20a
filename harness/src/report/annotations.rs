//! Workflow commands that GitHub Actions shows as annotations of a run: one for each red cell.

use super::Report;
use super::format::shortened;

/// GitHub shows ten errors of a step and drops the rest without a word.
const MOST: usize = 10;
/// The most characters of a message.
const MESSAGE: usize = 1000;

/// A line for each red cell, the first ones where there are too many, and then a line that says so. Nothing for a
/// green report.
pub fn github(report: &Report) -> String {
    let red = report.failed().count();
    let shown = if red > MOST { MOST - 1 } else { red };
    let cells = report.failed().take(shown).map(|cell| {
        let message = format!("{}\nrun again: {}", shortened(&cell.reason, MESSAGE), cell.rerun);
        error(&format!("{}: {}", cell.status, cell.id), &message)
    });
    let mut text: String = cells.collect();
    if red > shown {
        text.push_str(&error(
            &format!("{} more cells are red", red - shown),
            &format!("{}; all of them are in index.html and summary.md of the report", report.summary()),
        ));
    }
    // A run that compared nothing has no red cell and is red.
    if red == 0 && report.exit_code().code() != 0 {
        text.push_str(&error("ggml-parity", &report.summary()));
    }
    text
}

fn error(title: &str, message: &str) -> String {
    format!("::error title={}::{}\n", property(title), data(message))
}

/// Escapes the message of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{ended, report_of, sample};
    use super::*;
    use crate::verdict::Status;

    #[test]
    fn what_would_end_or_split_a_command_is_escaped() {
        let line = error("a:b,c%\r\n", "x::y,%0A\nz");
        assert_eq!(line, "::error title=a%3Ab%2Cc%25%0D%0A::x::y,%250A%0Az\n");
    }

    #[test]
    fn a_line_for_each_red_cell() {
        let text = github(&sample());
        assert_eq!(text.lines().count(), sample().failed().count());
        assert!(text.lines().all(|line| line.starts_with("::error title=")), "{text}");
        assert!(
            text.contains("title=crashed%3A dream-gen/f32/prefill@npm-3.21.1%3AVulkan0::signal 6"),
            "{text}"
        );
    }

    #[test]
    fn more_than_are_shown_are_counted() {
        let id = |i| format!("m{i}/f32/full@b:CPU");
        let cells = (0..25).map(|i| ended(&id(i), Status::Crashed, "gone")).collect();
        let text = github(&report_of(cells));
        assert_eq!(text.lines().count(), MOST);
        assert!(text.lines().last().unwrap().starts_with("::error title=16 more cells are red::25 cells"));
        assert!(github(&report_of(Vec::new())).contains("nothing compared"));
    }
}
