//! A ggml build as a run sees it: where it lies, what it offers, and the environment its workers need.

use super::RunError;
use crate::builds::{self, Manifest, catalogue::hex};
use crate::capture::{BuildFile, BuildInfo, DeviceInfo};
use crate::plan::DeviceSelector;
use crate::plan::models::ResolvedModel;
use crate::worker::{self, Probed, Workplace};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A build that was asked what it offers.
pub struct Build {
    /// Its folder.
    pub folder: PathBuf,
    /// What `--ggml` was given, to be repeated in re-run commands.
    pub given: Option<String>,
    /// For captures and reports.
    pub info: BuildInfo,
    /// What it offers.
    pub probed: Probed,
    /// Variables to set for its workers.
    pub environment: BTreeMap<String, String>,
}

impl Build {
    /// Finds the build that `--ggml` names (the default one where nothing is given) and asks it what it offers.
    ///
    /// # Errors
    /// When there is none, or it does not load.
    pub fn open(given: Option<&str>, workplace: &Workplace) -> Result<Self, RunError> {
        let folder = builds::resolve(given)?;
        let (probed, environment) = worker::probe(workplace, &folder)?;
        let mut files = Vec::new();
        for file in probed.files.iter().filter(|file| file.skipped.is_none()) {
            // Streamed: a library for CUDA has hundreds of megabytes.
            let mut sha256 = Sha256::new();
            std::fs::File::open(&file.path)
                .and_then(|mut library| std::io::copy(&mut library, &mut sha256))
                .map_err(|source| RunError::Io { path: file.path.clone(), source })?;
            let name = file.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            files.push(BuildFile { name, sha256: hex(&sha256.finalize()) });
        }
        check_manifest(&folder, &files)?;
        let info = BuildInfo {
            name: build_name(&folder, &probed, &files),
            version: probed.version.clone(),
            commit: probed.commit.clone(),
            files,
        };
        Ok(Self { folder, given: given.map(str::to_owned), info, probed, environment })
    }

    /// Every selector this build answers to here: its devices, and its CPU variants.
    #[must_use]
    pub fn selectors(&self) -> Vec<DeviceSelector> {
        let variants = self.probed.cpu_variants.iter().filter(|_| self.probed.cpu_variants.len() > 1);
        let variants = variants.map(|v| DeviceSelector { variant: Some(v.clone()), ..DeviceSelector::cpu() });
        self.probed.devices.iter().map(|device| device.selector.clone()).chain(variants).collect()
    }

    /// Checks that `selector` is one of them.
    ///
    /// # Errors
    /// An error that lists the names there are.
    pub fn check(&self, selector: &DeviceSelector) -> Result<(), RunError> {
        let known = self.selectors();
        if known.contains(&selector.without_build()) {
            return Ok(());
        }
        let names: Vec<String> = known.iter().map(ToString::to_string).collect();
        Err(RunError::Environment(format!(
            "no device `{selector}` in build {} on this machine; there are: {}",
            self.info.name,
            names.join(", ")
        )))
    }

    /// Whether a matrix of `model` can lie where `selector` wants it: extra buffer types take some types only.
    #[must_use]
    pub fn takes(&self, selector: &DeviceSelector, model: &ResolvedModel) -> bool {
        let probed = self.probed.devices.iter().find(|device| device.selector == *selector);
        let types = probed.and_then(|device| device.takes.as_ref());
        types
            .is_none_or(|types| model.matrix_types.iter().any(|ty| types.contains(&ty.name().to_lowercase())))
    }

    /// What the build says of the device that `selector` names.
    #[must_use]
    pub fn device(&self, selector: &DeviceSelector) -> Option<&DeviceInfo> {
        let same = |d: &&worker::ProbedDevice| d.selector == *selector;
        let base = |d: &&worker::ProbedDevice| d.selector.base == selector.base;
        let devices = &self.probed.devices;
        devices.iter().find(same).or_else(|| devices.iter().find(base)).map(|device| &device.info)
    }
}

/// A build that came through `ggml fetch` or `ggml build` must still hold the libraries it came with.
fn check_manifest(folder: &Path, files: &[BuildFile]) -> Result<(), RunError> {
    let Some(manifest) = Manifest::read(folder) else { return Ok(()) };
    for file in files {
        let listed = manifest.files.iter().find(|entry| Path::new(&entry.name).ends_with(&file.name));
        if listed.is_none_or(|entry| entry.sha256 != file.sha256) {
            return Err(RunError::Environment(format!(
                "{}: {} is not the one that build {} came with: libraries of several builds are mixed",
                folder.display(),
                file.name,
                manifest.name
            )));
        }
    }
    Ok(())
}

/// The name in the manifest, or one made of version and content.
fn build_name(folder: &Path, probed: &Probed, files: &[BuildFile]) -> String {
    if let Some(manifest) = Manifest::read(folder) {
        return manifest.name;
    }
    let all: String = files.iter().map(|file| file.sha256.as_str()).collect();
    let hash = hex(&Sha256::digest(all.as_bytes()));
    let version = probed.version.as_deref().unwrap_or("unversioned");
    crate::plan::safe_name(&format!("ggml-{version}-{}", &hash[..8]))
}
