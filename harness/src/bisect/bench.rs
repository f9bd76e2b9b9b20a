//! Where trials are made: one case and one device on whatever build comes.

use super::trial::{Change, Trial};
use crate::atomic;
use crate::keep::{CaptureStore, Keep};
use crate::pipeline::{self, Build, Folders, Plan, RunError, capture_path};
use crate::plan::{Case, CellId, DeviceSelector, safe_name};
use crate::report::{Cell, Run};
use crate::worker::Workplace;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A case on a device, of whichever build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The case.
    pub case: Case,
    /// The device.
    pub device: DeviceSelector,
}

/// Trials of one subject.
pub struct Bench<'a> {
    subject: &'a Subject,
    /// The model, and what a run is told besides; its builds and cells are those of the trial.
    plan: Plan,
    workplace: &'a Workplace,
    /// Where the device's captures stay, one a place.
    captures: PathBuf,
    keep: Keep,
}

impl<'a> Bench<'a> {
    /// Trials whose captures stay in `captures`; references and oracles come from `store` where it has them.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(
        subject: &'a Subject,
        plan: Plan,
        workplace: &'a Workplace,
        captures: PathBuf,
        store: Option<CaptureStore>,
    ) -> Result<Self, RunError> {
        std::fs::create_dir_all(&captures)
            .map_err(|source| RunError::Io { path: captures.clone(), source })?;
        Ok(Self { subject, plan, workplace, captures, keep: Keep { journal: None, store } })
    }

    /// What a run is told besides builds and cells.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device's capture of an earlier trial at this place, where it is there.
    #[must_use]
    pub fn capture(&self, label: &str) -> Option<PathBuf> {
        let path = self.capture_file(label);
        path.is_file().then_some(path)
    }

    /// Removes all captures.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn clear(&self) -> Result<(), RunError> {
        let at = |source| RunError::Io { path: self.captures.clone(), source };
        std::fs::remove_dir_all(&self.captures).map_err(at)
    }

    /// Runs the case on the build in `folder`, judged as `run` judges it; what is known of the good end and of the place
    /// before is compared with. A build that does not load, or has no such device, is a trial that says so.
    ///
    /// # Errors
    /// As a run's, where it is not the build's fault.
    pub fn run(
        &mut self,
        label: &str,
        folder: &Path,
        good: Option<&str>,
        previous: Option<&str>,
    ) -> Result<Trial, RunError> {
        let started = Instant::now();
        let trial = match self.cell(folder) {
            Ok((cell, scratch)) => self.compared(label, &cell, &scratch, good, previous)?,
            // What the build or the machine lacks is the build's affair; anything else ends the search.
            Err(RunError::Environment(why)) => Trial::unusable(label, why),
            Err(RunError::Build(error)) => Trial::unusable(label, error.to_string()),
            Err(error) => return Err(error),
        };
        Ok(Trial { seconds: started.elapsed().as_secs_f64(), ..trial })
    }

    /// Runs the cell; its captures are in the folder that is returned with it.
    fn cell(&mut self, folder: &Path) -> Result<(Cell, tempfile::TempDir), RunError> {
        let build = Build::open(Some(&folder.to_string_lossy()), self.workplace)?;
        build.check(&self.subject.device)?;
        let id = CellId::new(self.subject.case.clone(), &build.info.name, &self.subject.device);
        self.plan.builds = vec![build];
        self.plan.cells = vec![id.clone()];
        let at = |source| RunError::Io { path: self.workplace.folder.clone(), source };
        let scratch = tempfile::tempdir_in(&self.workplace.folder).map_err(at)?;
        let folders = Folders { captures: scratch.path().to_owned() };
        let run = Run::default();
        let report =
            pipeline::run_keeping(&self.plan, self.workplace, &folders, &mut self.keep, run, |_| {})?;
        let lost = || RunError::Usage(format!("cell {id} is in no report"));
        let cell = report.cells.into_iter().next().ok_or_else(lost)?;
        Ok((cell, scratch))
    }

    /// Keeps the device's capture, and says how it differs from others.
    fn compared(
        &self,
        label: &str,
        cell: &Cell,
        scratch: &tempfile::TempDir,
        good: Option<&str>,
        previous: Option<&str>,
    ) -> Result<Trial, RunError> {
        let mut trial = Trial::of(label, &self.plan.builds[0], cell);
        let made = capture_path(&Folders { captures: scratch.path().to_owned() }, &cell.id);
        let (true, Some(limits)) = (made.is_file(), &cell.limits) else { return Ok(trial) };
        let kept = self.capture_file(label);
        atomic::write_with(&kept, |partial| std::fs::copy(&made, partial).map(|_| ()))
            .map_err(|source: std::io::Error| RunError::Io { path: kept.clone(), source })?;
        let against = |other: Option<&str>| {
            let other = other.filter(|other| *other != label)?;
            Some(Change::between(other, &self.capture(other)?, &kept, limits))
        };
        trial.against_good = against(good);
        trial.against_previous = against(previous);
        Ok(trial)
    }

    fn capture_file(&self, label: &str) -> PathBuf {
        self.captures.join(format!("{}.safetensors", safe_name(label)))
    }
}

/// `CASE@DEVICE`, or a cell's id, whose build then says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotASubject(String);

impl std::str::FromStr for Subject {
    type Err = NotASubject;

    fn from_str(text: &str) -> Result<Self, NotASubject> {
        let Some((case, device)) = text.rsplit_once('@').filter(|(case, _)| case.contains('/')) else {
            return Err(NotASubject(format!("`{text}`: model/weights/mode?options@DEVICE is wanted")));
        };
        // In `…@CPU@x64` the last mark is of the device.
        let (case, device) = match case.split_once('@') {
            Some((case, base)) => (case, format!("{base}@{device}")),
            None => (case, device.to_owned()),
        };
        let wrong = |error: crate::plan::IdError| NotASubject(error.to_string());
        let case: Case = case.parse().map_err(wrong)?;
        case.check().map_err(wrong)?;
        let device: DeviceSelector = device.parse().map_err(wrong)?;
        Ok(Self { case, device: device.without_build() })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.case, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_on_a_device_and_a_cells_id_are_the_same_subject() {
        for (text, told) in [
            ("m/f32/prefill@CPU", "m/f32/prefill@CPU"),
            ("m/f32/prefill?kv=q8_0@npm-3.21.1:Vulkan0", "m/f32/prefill?kv=q8_0@Vulkan0"),
            ("m/f32/prefill@b:CPU@x64", "m/f32/prefill@CPU@x64"),
            ("m/f32/prefill@CPU@x64", "m/f32/prefill@CPU@x64"),
            ("m/f32/prefill@CPU+repack", "m/f32/prefill@CPU+repack"),
        ] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), told);
        }
    }

    #[test]
    fn what_is_no_subject_is_said() {
        for (text, words) in [
            ("m/f32/prefill", "is wanted"),
            ("CPU@x64", "is wanted"),
            ("m/f32/prefil@CPU", "mode `prefil`"),
            ("m/f32/prefill?kv=q9@CPU", "kv `q9`"),
            ("m/f32/prefill@", "device ``"),
        ] {
            let error = text.parse::<Subject>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
