//! Which devices a build offers, asked of a worker so that a driver that crashes takes only the worker along.

use super::dispatch::{Workplace, ask};
use super::protocol::{Event, Failure, FailureKind, Job, Probed};
use std::collections::BTreeMap;
use std::path::Path;

/// ggml leaves out Vulkan devices of type CPU, as llvmpipe is, unless they are named in this variable.
const VISIBLE_DEVICES: &str = "GGML_VK_VISIBLE_DEVICES";

/// Asks the build in `folder` what it offers. Where it has a Vulkan library, no Vulkan device shows and the
/// user has not set [`VISIBLE_DEVICES`], it is asked again with that set to 0; the variables that the
/// answer depends on are returned with it, to be set for every worker.
///
/// # Errors
/// When the folder is no build that loads, or the worker dies.
pub fn probe(workplace: &Workplace, folder: &Path) -> Result<(Probed, BTreeMap<String, String>), Failure> {
    let plain = BTreeMap::new();
    let first = ask_devices(workplace, folder, &plain)?;
    let has = |part: &str| first.files.iter().any(|file| file.part == part && file.skipped.is_none());
    let shows = first.devices.iter().any(|device| device.info.name.starts_with("Vulkan"));
    if !has("vulkan") || shows || std::env::var_os(VISIBLE_DEVICES).is_some() {
        return Ok((first, plain));
    }
    let switched = BTreeMap::from([(VISIBLE_DEVICES.to_owned(), "0".to_owned())]);
    match ask_devices(workplace, folder, &switched) {
        Ok(second) if second.devices.len() > first.devices.len() => Ok((second, switched)),
        _ => Ok((first, plain)),
    }
}

fn ask_devices(
    workplace: &Workplace,
    folder: &Path,
    environment: &BTreeMap<String, String>,
) -> Result<Probed, Failure> {
    match ask(workplace, &Job::Probe(folder.to_owned()), environment)? {
        Event::Probed(probed) => Ok(probed),
        Event::Fatal(failure) => Err(failure),
        other => Err(Failure { kind: FailureKind::Fault, message: format!("a worker answered {other:?}") }),
    }
}
