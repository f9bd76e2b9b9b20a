//! How far a sweep is, on standard error: a bar on a terminal; elsewhere a line now and then, and one for every row that
//! is not done.

use crate::report::one_line;
use crate::sweep::result::{Row, RowStatus};
use crate::sweep::run::Told;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A line comes after so long, where there is no terminal.
const PAUSE: Duration = Duration::from_secs(10);

/// Says how far a sweep is.
pub(super) struct Teller {
    shown: bool,
    bar: Option<ProgressBar>,
    done: usize,
    /// Rows that were there before.
    before: usize,
    total: usize,
    started: Instant,
    last: Instant,
}

impl Teller {
    /// A teller of `total` rows, of which so many are there; it says nothing of them unless it is `shown`.
    pub(super) fn new(total: usize, before: usize, shown: bool) -> Self {
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left {eta}) {msg}");
            let bar = ProgressBar::new(total as u64);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.with_position(before as u64)
        });
        let now = Instant::now();
        Self { shown, bar, done: before, before, total, started: now, last: now }
    }

    pub(super) fn tell(&mut self, told: &Told<'_>) {
        match told {
            Told::Warning(text) => self.line(&format!("warning: {text}")),
            Told::Row(row) => {
                self.done += 1;
                if !matches!(row.status, RowStatus::Done | RowStatus::Inapplicable) && self.shown {
                    self.line(&failure(row));
                }
                match &self.bar {
                    Some(bar) => {
                        bar.set_message(format!("{} on {}", row.item, row.arm));
                        bar.inc(1);
                    }
                    None => self.now_and_then(),
                }
            }
        }
    }

    fn now_and_then(&mut self) {
        let end = self.done == self.total;
        if !self.shown || (self.last.elapsed() < PAUSE && !end) {
            return;
        }
        self.last = Instant::now();
        let elapsed = self.started.elapsed();
        let done = (self.done - self.before).max(1);
        let left = elapsed.mul_f64((self.total - self.done) as f64 / done as f64);
        eprintln!("[{}/{}] {} s, {} s left", self.done, self.total, elapsed.as_secs(), left.as_secs());
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn failure(row: &Row) -> String {
    format!("{}: {} on {}: {}", row.status, row.item, row.arm, one_line(&row.reason))
}
