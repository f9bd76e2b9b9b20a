//! How far a run is, on standard error.

use crate::worker::{Ended, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Says how far the run is: a bar on a terminal, a line a cell elsewhere.
pub(super) struct Teller {
    shown: bool,
    bar: Option<ProgressBar>,
    done: usize,
    total: usize,
}

impl Teller {
    /// A teller of `total` captures, which says nothing unless it is `shown`.
    pub(super) fn new(total: usize, shown: bool) -> Self {
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left {eta}) {msg}");
            ProgressBar::new(total as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { shown, bar, done: 0, total }
    }

    pub(super) fn tell(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Started(id) => {
                if let Some(bar) = &self.bar {
                    bar.set_message(id.to_string());
                }
            }
            Progress::Ended(id, how) => {
                self.done += 1;
                let word = match how {
                    Ended::Captured => "computed",
                    Ended::Failed(failure) => failure.kind.name(),
                    Ended::Crashed(_) => "crashed",
                    Ended::TimedOut(_) => "timed out",
                };
                match &self.bar {
                    Some(bar) => bar.inc(1),
                    None if !self.shown => {}
                    None => eprintln!("[{:>3}/{}] {id} {word}", self.done, self.total),
                }
            }
            Progress::Warning(text) => match &self.bar {
                Some(bar) => bar.suspend(|| eprintln!("warning: {text}")),
                None => eprintln!("warning: {text}"),
            },
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
