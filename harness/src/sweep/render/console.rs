//! The console: the arms by number, a table, what is wrong row by row, and one line of summary.

use super::table::{HEADINGS, Line, lines};
use crate::report::one_line;
use crate::sweep::result::{Row, RowStatus, Sweep};

/// Rows that are told one by one at most.
const TOLD: usize = 20;

/// The result as text.
#[must_use]
pub fn render(sweep: &Sweep) -> String {
    let mut text = String::new();
    for (i, arm) in sweep.arms.iter().enumerate() {
        let role = if arm.declared { "" } else { " (reference)" };
        text.push_str(&format!("{:>3}  {}{role}\n", i + 1, arm.id));
    }
    for line in &sweep.left_out {
        text.push_str(&format!("left out: {line}\n"));
    }
    text.push('\n');
    text.push_str(&aligned(&lines(sweep, None)));
    text.push('\n');
    let red: Vec<&Row> = sweep.rows.iter().filter(|row| row.status != RowStatus::Done).collect();
    for row in red.iter().take(TOLD) {
        let (status, item, arm) = (row.status, &row.item, &row.arm);
        text.push_str(&format!("{status}: {item} on {arm}: {}\n", one_line(&row.reason)));
    }
    if red.len() > TOLD {
        text.push_str(&format!("… and {} more rows, in items.csv\n", red.len() - TOLD));
    }
    for row in &sweep.rows {
        if let Some(how) = &row.retried {
            let (item, arm) = (&row.item, &row.arm);
            text.push_str(&format!("computed on the second try: {item} on {arm}: {}\n", one_line(how)));
        }
    }
    text.push_str(&format!("{}\n{}\n", sweep.correction.sentence, sweep.verdict()));
    text
}

/// The table, columns that say nothing left out.
fn aligned(lines: &[Line]) -> String {
    let says = |column: &usize| *column == 0 || lines.iter().any(|line| line[*column] != "-");
    let columns: Vec<usize> = (0..HEADINGS.len()).filter(says).collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.chain([HEADINGS[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |of: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = columns.iter().map(|&c| format!("{:>w$}", of(c), w = width(c))).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let mut text = line(&|column| HEADINGS[column].to_owned());
    for row in lines {
        text.push_str(&line(&|column| row[column].clone()));
    }
    text
}
