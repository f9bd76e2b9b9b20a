//! A forecast on the console.

use super::{Assumption, Forecast, Row};
use crate::sweep::stats::power::Needed;
use std::fmt::Write;

impl Assumption {
    fn words(&self) -> String {
        match self {
            Self::NothingElseFlips => "nothing else flips".to_owned(),
            Self::Given => "assumed".to_owned(),
            Self::Independent => "independent mistakes".to_owned(),
            Self::Measured(arm) => format!("measured, {arm}"),
            Self::AtMost(arm) => format!("at most, {arm}"),
        }
    }
}

impl Forecast {
    /// For the console.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = match &self.corpus {
            Some(corpus) => {
                format!("corpus {}: {} items, {} with an answer\n", corpus.name, corpus.items, self.items)
            }
            None => format!("{} items with an answer\n", self.items),
        };
        let correction = match self.comparisons {
            1 => "one comparison, not corrected for others".to_owned(),
            n => format!(
                "one of {n} comparisons: p up to {:.2e} each (Bonferroni; Holm is no stricter)",
                self.alpha / n as f64
            ),
        };
        let _ = writeln!(
            text,
            "paired comparison by McNemar's exact test, {} confidence, {} power, {correction}",
            percent(1.0 - self.alpha),
            percent(self.power)
        );
        if let (Some(accuracy), Some(interval)) = (self.accuracy, self.accuracy_interval) {
            let _ = writeln!(
                text,
                "an accuracy of {} by itself is known to {} to {} (Clopper-Pearson, 95 %)",
                percent(accuracy),
                percent(interval.low),
                percent(interval.high)
            );
        }
        text.push('\n');
        text.push_str(&self.found_table());
        text.push('\n');
        text.push_str(&self.needed_table());
        if !self.tags.is_empty() {
            text.push('\n');
            text.push_str(&self.tag_table());
        }
        text
    }

    fn found_table(&self) -> String {
        let mut lines = vec![
            vec!["discordance", "", "detectable", "a loss to", "a gain to"]
                .into_iter()
                .map(str::to_owned)
                .collect(),
        ];
        for row in &self.rows {
            let after = |accuracy: Option<f64>| match (accuracy, self.accuracy, row.detectable) {
                (Some(accuracy), ..) => percent(accuracy),
                (None, Some(_), Some(_)) => "cannot be".to_owned(),
                _ => "-".to_owned(),
            };
            let detectable = row.detectable.map_or_else(|| "none".to_owned(), percent);
            lines.push(vec![
                discordance(row),
                row.assumption.words(),
                detectable,
                after(row.after_loss),
                after(row.after_gain),
            ]);
        }
        format!("the smallest difference that is found:\n{}", table(&lines))
    }

    fn needed_table(&self) -> String {
        let mut lines = vec![vec!["discordance".to_owned(), String::new()]];
        let differences = self.rows.first().map_or(&[][..], |row| row.needed.as_slice());
        lines[0].extend(differences.iter().map(|needed| percent(needed.difference)));
        for row in &self.rows {
            let mut line = vec![discordance(row), row.assumption.words()];
            line.extend(row.needed.iter().map(|needed| match needed.needed {
                Some(Needed { items, exact: true }) => items.to_string(),
                Some(Needed { items, exact: false }) => format!("~{items}"),
                None => "cannot be".to_owned(),
            }));
            lines.push(line);
        }
        format!("the items that a difference takes (~: normal approximation):\n{}", table(&lines))
    }

    fn tag_table(&self) -> String {
        let mut lines = vec![vec!["tag".to_owned(), "items".to_owned()]];
        lines[0].extend(self.rows.iter().map(discordance));
        for tag in &self.tags {
            let mut line = vec![tag.tag.clone(), tag.items.to_string()];
            line.extend(tag.detectable.iter().map(|found| found.map_or_else(|| "none".to_owned(), percent)));
            lines.push(line);
        }
        format!(
            "the smallest difference that is found among the items of one tag, by discordance:\n{}",
            table(&lines)
        )
    }
}

fn discordance(row: &Row) -> String {
    row.discordance.map_or_else(|| "least".to_owned(), percent)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Lines of columns, all but the first two flush right; an empty column is left out.
fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for line in lines {
        let mut written = String::new();
        for column in 0..columns {
            let cell = line.get(column).map_or("", String::as_str);
            let fill = " ".repeat(width(column) - cell.chars().count());
            let left = column == 0 || (column == 1 && lines[0][1].is_empty());
            written += &if left { format!("  {cell}{fill}") } else { format!("  {fill}{cell}") };
        }
        text += written.trim_end();
        text.push('\n');
    }
    text
}
