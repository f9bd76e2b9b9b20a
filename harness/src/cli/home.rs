//! The folder of a run while it runs: its report comes last, its captures and models lie there until then.

use crate::pipeline::RunError;
use std::path::{Path, PathBuf};

/// The folder of a run while it runs.
pub(super) struct Home {
    out: PathBuf,
    /// Captures.
    pub(super) captures: PathBuf,
    /// Generated models, and what workers print.
    pub(super) work: PathBuf,
    /// Whether it was made for this run.
    made: bool,
}

impl Home {
    pub(super) fn open(out: &Path) -> Result<Self, RunError> {
        let home = Self {
            out: out.to_owned(),
            captures: out.join("captures"),
            work: out.join("work"),
            made: !out.exists(),
        };
        for folder in [&home.captures, &home.work] {
            let at = |source| RunError::Io { path: folder.clone(), source };
            std::fs::create_dir_all(folder).map_err(at)?;
        }
        Ok(home)
    }

    /// Leaves no empty folders of a run that did not begin.
    pub(super) fn leave(self) {
        if self.made {
            let _ = std::fs::remove_dir_all(&self.out);
        } else {
            let _ = std::fs::remove_dir_all(&self.work);
        }
    }

    /// Removes what only the run needed.
    pub(super) fn close(self, keep_captures: bool) -> Result<(), RunError> {
        let captures = (!keep_captures).then_some(&self.captures);
        for folder in captures.into_iter().chain([&self.work]) {
            let at = |source| RunError::Io { path: folder.clone(), source };
            std::fs::remove_dir_all(folder).map_err(at)?;
        }
        Ok(())
    }
}
