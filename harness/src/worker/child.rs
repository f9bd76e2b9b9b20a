//! The worker's side: `ggml-parity worker`.

use super::execute::{Loaded, execute};
use super::memory::{self, MemoryLimit};
use super::oracle;
use super::protocol::{Event, Failure, FailureKind, Job, JobCell, Probed, ProbedDevice, ProbedFile, RunJob};
use super::{sweep, trace};
use crate::capture::{DeviceInfo, DeviceKind};
use crate::plan::DeviceSelector;
use crate::verdict::ExitCode;
use ggml_sys::{Device, Ggml, Selection};
use serde::Serialize;
use std::io::{BufRead, Write};
use std::path::Path;

/// Limits its own memory where asked to, reads the job from standard input, does it, and says how it goes on standard output.
#[must_use]
pub fn main(memory: Option<MemoryLimit>) -> ExitCode {
    if let Some(Err(error)) = memory.map(|limit| memory::limit(limit.bytes())) {
        say(&Event::Fatal(Failure { kind: FailureKind::Environment, message: error }));
        return ExitCode::Environment;
    }
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).is_err() {
        return ExitCode::Usage;
    }
    let job: Job = match serde_json::from_str(&line) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("worker: the first line of standard input is no job: {error}");
            return ExitCode::Usage;
        }
    };
    // When the parent is gone there is nobody to work for.
    std::thread::spawn(|| {
        let mut rest = String::new();
        while std::io::stdin().lock().read_line(&mut rest).is_ok_and(|n| n > 0) {
            rest.clear();
        }
        std::process::exit(ExitCode::Worker.code().into());
    });
    let done = match job {
        Job::Probe(folder) => offered(&folder).map(|probed| say(&Event::Probed(probed))),
        Job::Run(job) => run(&job),
        Job::Oracle(cells) => {
            compute(&cells);
            Ok(())
        }
        Job::Trace(job) => one(&job.run, |ggml| trace::trace(ggml, &job)),
        Job::Replay(job) => one(&job.run, |ggml| trace::replay(ggml, &job)),
        Job::Sweep(job) => open(&job.folder, &job.device).and_then(|ggml| sweep::execute(ggml, &job, tell)),
    };
    match done {
        Ok(()) => ExitCode::Success,
        Err(failure) => {
            let code = match failure.kind {
                FailureKind::Environment => ExitCode::Environment,
                FailureKind::Input => ExitCode::Usage,
                FailureKind::Unsupported => ExitCode::Incomplete,
                FailureKind::OutOfMemory | FailureKind::Fault | FailureKind::Storage => ExitCode::Worker,
            };
            say(&Event::Fatal(failure));
            code
        }
    }
}

/// Says something of a cell.
fn say(event: &Event) {
    tell(event);
}

/// One event, one line, at once: the parent must see what was said before a crash.
fn tell<I: Serialize>(event: &Event<I>) {
    let line = serde_json::to_string(event).expect("events are plain data");
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(ExitCode::Worker.code().into());
    }
}

/// The build in `folder`, with the libraries that `device` needs.
fn open(folder: &Path, device: &DeviceSelector) -> Result<&'static Ggml, Failure> {
    let selection = match (&device.variant, device.base.as_str()) {
        (Some(variant), _) => Selection::CpuVariant(variant.clone()),
        (None, "CPU") => Selection::Cpu,
        _ => Selection::Everything,
    };
    Ggml::open(folder, &selection).map_err(|error| Failure::from(&error))
}

/// Does what concerns the one cell of `job`.
fn one(job: &RunJob, what: impl FnOnce(&'static Ggml) -> Result<(), Failure>) -> Result<(), Failure> {
    let ggml = open(&job.folder, &job.device)?;
    let Some(id) = job.cells.first().map(|cell| cell.id.clone()) else { return Ok(()) };
    say(&Event::Started(id.clone()));
    match what(ggml) {
        Ok(()) => say(&Event::Finished(id)),
        Err(failure) => say(&Event::Failed(id, failure)),
    }
    Ok(())
}

fn run(job: &RunJob) -> Result<(), Failure> {
    let ggml = open(&job.folder, &job.device)?;
    let mut loaded: Option<Loaded> = None;
    for cell in &job.cells {
        say(&Event::Started(cell.id.clone()));
        match execute(ggml, job, cell, &mut loaded, None) {
            Ok(()) => say(&Event::Finished(cell.id.clone())),
            Err(failure) => say(&Event::Failed(cell.id.clone(), failure)),
        }
    }
    Ok(())
}

/// The oracle's cells.
fn compute(cells: &[JobCell]) {
    let mut loaded = None;
    for cell in cells {
        say(&Event::Started(cell.id.clone()));
        match oracle::execute(cell, &mut loaded) {
            Ok(()) => say(&Event::Finished(cell.id.clone())),
            Err(failure) => say(&Event::Failed(cell.id.clone(), failure)),
        }
    }
}

fn offered(folder: &Path) -> Result<Probed, Failure> {
    let failure = |error: ggml_sys::Error| Failure::from(&error);
    let cpu_variants = Ggml::cpu_variants(folder).map_err(failure)?;
    let ggml = Ggml::open(folder, &Selection::Everything).map_err(failure)?;
    let devices = ggml.devices();
    let probed = runtime::DeviceRequest::known(ggml).into_iter().map(|name| {
        let selector: DeviceSelector = name.parse().map_err(|error| Failure {
            kind: FailureKind::Environment,
            message: format!("the build names a device `{name}`: {error}"),
        })?;
        let device = devices
            .iter()
            .find(|device| device.name() == selector.base)
            .expect("selectors are made from devices");
        let (free, _) = device.memory();
        Ok(ProbedDevice {
            info: describe(device, &selector),
            memory_free: (free > 0).then_some(free as u64),
            features: device.features(),
            takes: takes(ggml, &selector)?,
            selector,
        })
    });
    Ok(Probed {
        version: ggml.version().map(str::to_owned),
        commit: ggml.commit().map(str::to_owned),
        cpu_variant: ggml.cpu_variant().map(str::to_owned),
        cpu_variants,
        devices: probed.collect::<Result<_, Failure>>()?,
        files: ggml
            .files()
            .iter()
            .map(|file| ProbedFile {
                path: file.path.clone(),
                part: file.part.clone(),
                skipped: file.skipped.clone(),
            })
            .collect(),
        lacks: ggml
            .optional_functions()
            .into_iter()
            .filter(|(_, there)| !there)
            .map(|(name, _)| name.to_owned())
            .collect(),
    })
}

/// The types of matrices that the extra buffer type of `selector` takes.
fn takes(ggml: &'static Ggml, selector: &DeviceSelector) -> Result<Option<Vec<String>>, Failure> {
    if selector.buft.is_none() {
        return Ok(None);
    }
    let request = runtime::DeviceRequest { name: selector.base.clone(), buffer: selector.buft.clone() };
    let types = request.matrix_types(ggml).map_err(|error| Failure::from(&error))?;
    Ok(Some(types.into_iter().map(|ty| ty.name().to_lowercase()).collect()))
}

/// What is known of a device.
pub(super) fn describe(device: &Device, selector: &DeviceSelector) -> DeviceInfo {
    let (_, total) = device.memory();
    let description = device.description();
    DeviceInfo {
        selector: selector.to_string(),
        name: device.name(),
        kind: match device.kind() {
            ggml_sys::DeviceKind::Cpu => DeviceKind::Cpu,
            ggml_sys::DeviceKind::IntegratedGpu => DeviceKind::IntegratedGpu,
            ggml_sys::DeviceKind::Accelerator => DeviceKind::Accelerator,
            // Several GPUs that act as one, and whatever comes after them, are held to a GPU's limits.
            ggml_sys::DeviceKind::Gpu | ggml_sys::DeviceKind::Meta | ggml_sys::DeviceKind::Unknown(_) => {
                DeviceKind::Gpu
            }
        },
        driver: driver(&description),
        description,
        memory_total: (total > 0).then_some(total as u64),
    }
}

/// The driver's version, where the system tells it: ggml does not.
fn driver(description: &str) -> Option<String> {
    if !description.contains("NVIDIA") {
        return None;
    }
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?;
    let version = line
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))?;
    Some(format!("NVIDIA {version}"))
}
