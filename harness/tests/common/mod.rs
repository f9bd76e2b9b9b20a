//! What the end-to-end tests share: the real binary, the ggml builds of this machine, and captures by real
//! workers.

#![allow(dead_code, reason = "each test binary uses its part")]

use ggml_parity::builds;
use ggml_parity::capture::{CaptureReader, ModelInfo};
use ggml_parity::pipeline::Build;
use ggml_parity::plan::inputs::Inputs;
use ggml_parity::plan::{Case, CellId, DeviceSelector, Mode};
use ggml_parity::worker::{self, Ended, JobCell, RunJob, Workplace};
use model_file::Model;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

/// A file of the outside anchors.
pub(crate) fn anchor(name: &str) -> PathBuf {
    root().join("golden/anchors").join(name)
}

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_ggml-parity"))
}

/// Every known ggml build that is on this machine, by name. The default build must be there.
pub(crate) fn all_builds() -> Vec<String> {
    builds::resolve(None).unwrap_or_else(|error| panic!("these tests need a ggml build: {error}"));
    let present = builds::list().expect("the cache can be read").into_iter();
    let mut names: Vec<String> = present.filter(|b| b.fits && b.path.is_some()).map(|b| b.name).collect();
    if names.is_empty() {
        names.push(default_build());
    }
    names
}

/// The build that tests of one build use.
pub(crate) fn default_build() -> String {
    builds::resolve(None)
        .unwrap_or_else(|error| panic!("these tests need a ggml build: {error}"))
        .display()
        .to_string()
}

/// SmolLM2, where it was fetched; a line says that it was not.
pub(crate) fn smollm2() -> Option<PathBuf> {
    let path = std::env::var_os("GGML_PARITY_SMOLLM2").map(PathBuf::from);
    let cached = builds::cache::root().ok().map(|c| c.join("models/smollm2-135m-instruct.gguf"));
    let found = path.or(cached).filter(|path| path.is_file());
    if found.is_none() {
        eprintln!("NOT CHECKED: SmolLM2 is not here; `ci/fetch-model smollm2-135m-instruct` gets it");
    }
    found
}

/// The binary, without what a CI system around the tests would have it write for itself.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("GITHUB_ACTIONS").env_remove("GITHUB_STEP_SUMMARY");
    command
}

/// Runs the binary in an empty folder.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    command(arguments).current_dir(folder.path()).output().expect("the binary starts")
}

/// Exit code, and what was printed, for messages of failed assertions.
pub(crate) fn told(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// Workers of one build, and a folder for what they write.
pub(crate) struct Bench {
    pub(crate) build: Build,
    workplace: Workplace,
    folder: tempfile::TempDir,
}

impl Bench {
    /// Opens a build by name or folder.
    pub(crate) fn open(build: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let time_limit = Duration::from_secs(300);
        let workplace =
            Workplace { binary: binary(), folder: folder.path().to_owned(), time_limit, memory: None };
        let build = Build::open(Some(build), &workplace).unwrap_or_else(|e| panic!("build {build}: {e}"));
        Self { build, workplace, folder }
    }

    /// Whether the build offers this device here.
    pub(crate) fn offers(&self, device: &str) -> bool {
        self.build.check(&device.parse().expect("a selector")).is_ok()
    }

    /// The folder for files of the test.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs one mode of a model on a device for each of `inputs`, by a real worker.
    pub(crate) fn captures(
        &self,
        device: &str,
        model: &Path,
        mode: Mode,
        inputs: &[Inputs],
    ) -> Vec<CaptureReader> {
        let device: DeviceSelector = device.parse().expect("a selector");
        let opened = Model::open(model).unwrap_or_else(|e| panic!("{e}"));
        let cells: Vec<JobCell> = inputs
            .iter()
            .enumerate()
            .map(|(i, inputs)| {
                // The number keeps the ids of one job apart.
                let case: Case = format!("m/f32/{mode}?n={}", i + 1).parse().expect("a case id");
                let id = CellId::new(case, "b", &device);
                let name = format!("{}-{i}.safetensors", id.device.to_string().replace(['@', '+'], "-"));
                JobCell {
                    id,
                    path: model.to_owned(),
                    model: ModelInfo {
                        name: "m".to_owned(),
                        sha256: opened.file.sha256().expect("readable"),
                        architecture: opened.hparams.architecture.name().to_owned(),
                    },
                    inputs: inputs.clone(),
                    replay: None,
                    capture: self.folder.path().join(name),
                    lost: None,
                    fault: None,
                    pins: None,
                }
            })
            .collect();
        let job = RunJob {
            folder: self.build.folder.clone(),
            build: self.build.info.clone(),
            device,
            threads: 1,
            cells: cells.clone(),
        };
        let ended = worker::run(&self.workplace, &job, &self.build.environment, |_| {})
            .unwrap_or_else(|failure| panic!("{}", failure.message));
        cells
            .iter()
            .map(|cell| {
                assert_eq!(ended.get(&cell.id), Some(&Ended::Captured), "{}", cell.id);
                CaptureReader::open(&cell.capture).unwrap_or_else(|e| panic!("{e}"))
            })
            .collect()
    }

    /// The same for one input.
    pub(crate) fn capture(&self, device: &str, model: &Path, mode: Mode, inputs: &Inputs) -> CaptureReader {
        self.captures(device, model, mode, std::slice::from_ref(inputs)).remove(0)
    }
}

/// Inputs of given tokens.
pub(crate) fn tokens(prompt: &[i32], follow: usize) -> Inputs {
    Inputs {
        prompt: prompt.iter().map(|&t| u32::try_from(t).expect("a token")).collect(),
        follow,
        steps: 16,
        schedule: runtime::generate::masked::Schedule::Linear,
        is_text: true,
        draft: None,
    }
}

/// NMSE of `test` against `reference`, in f64.
pub(crate) fn nmse(test: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(test.len(), reference.len());
    let square = |pairs: f64, (x, r): (&f64, &f64)| pairs + (x - r) * (x - r);
    let noise = test.iter().zip(reference).fold(0.0, square);
    noise / reference.iter().map(|r| r * r).sum::<f64>()
}
