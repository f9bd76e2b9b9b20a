//! Whether a capture is of the cell it is taken for. Two captures that agree with each other may both be of another
//! model or build, and a device's capture may be a copy of the reference's: only what was asked for tells.

use crate::capture::{BuildInfo, CaptureError, CaptureMeta, ModelInfo};
use crate::plan::CellId;
use std::path::Path;

/// What the metadata of a cell's capture must say.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    /// The cell: its case and its device.
    pub cell: &'a CellId,
    /// The model.
    pub model: ModelInfo,
    /// The build, with the hashes of its libraries.
    pub build: BuildInfo,
}

impl Expected<'_> {
    /// Checks the metadata of the capture in `path`.
    ///
    /// # Errors
    /// The first field that says something else, with what was found and what was expected.
    pub fn check(&self, path: &Path, meta: &CaptureMeta) -> Result<(), CaptureError> {
        let same = |field: &str, found: &str, expected: &str| {
            if found == expected { Ok(()) } else { Err(CaptureError::field(path, field, found, expected)) }
        };
        let told = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let (model, build) = (&self.model, &self.build);
        same("case", &meta.case, &self.cell.case.to_string())?;
        same("model.name", &meta.model.name, &model.name)?;
        same("model.sha256", &meta.model.sha256, &model.sha256)?;
        same("model.architecture", &meta.model.architecture, &model.architecture)?;
        same("device.selector", &meta.device.selector, &self.cell.device.to_string())?;
        same("device.name", &meta.device.name, &self.cell.device.base)?;
        same("build.name", &meta.build.name, &build.name)?;
        same("build.version", &told(&meta.build.version), &told(&build.version))?;
        same("build.commit", &told(&meta.build.commit), &told(&build.commit))?;
        let (found, files) = (&meta.build.files, &build.files);
        same("build.files", &format!("{} long", found.len()), &format!("{} long", files.len()))?;
        for (found, file) in found.iter().zip(files) {
            same("build.files", &found.name, &file.name)?;
            same(&format!("build.files.{}", file.name), &found.sha256, &file.sha256)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{BuildFile, sample::Sample};

    /// The metadata that is expected, changed, and what the check says of it.
    fn said(change: impl FnOnce(&mut CaptureMeta)) -> Result<(), String> {
        let cell: CellId = "m/f32/prefill@b:CPU@x64".parse().unwrap();
        let mut meta = Sample::new(1, 1).meta;
        meta.case = "m/f32/prefill".to_owned();
        meta.device.selector = "CPU@x64".to_owned();
        meta.device.name = "CPU".to_owned();
        let file = |name: &str| BuildFile { name: name.to_owned(), sha256: "ab".repeat(32) };
        meta.build.name = "b".to_owned();
        meta.build.files = vec![file("libggml.so"), file("libggml-base.so")];
        let expected = Expected { cell: &cell, model: meta.model.clone(), build: meta.build.clone() };
        change(&mut meta);
        expected.check(Path::new("x.safetensors"), &meta).map_err(|error| error.to_string())
    }

    #[test]
    fn what_was_asked_for_passes() {
        assert_eq!(said(|_| {}), Ok(()));
    }

    #[test]
    fn every_other_origin_is_named_with_what_was_found_and_expected() {
        type Change = fn(&mut CaptureMeta);
        let changes: [(&str, Change); 11] = [
            ("`case` is m/f32/decode, expected m/f32/prefill", |m| m.case = "m/f32/decode".to_owned()),
            ("`model.name` is n, expected sample", |m| m.model.name = "n".to_owned()),
            ("`model.sha256` is 00, expected 5a5a", |m| m.model.sha256 = "00".to_owned()),
            ("`model.architecture` is llada, expected", |m| m.model.architecture = "llada".to_owned()),
            ("`device.selector` is CPU, expected CPU@x64", |m| m.device.selector = "CPU".to_owned()),
            ("`device.name` is Vulkan0, expected CPU", |m| m.device.name = "Vulkan0".to_owned()),
            ("`build.name` is c, expected b", |m| m.build.name = "c".to_owned()),
            ("`build.version` is 1, expected unknown", |m| m.build.version = Some("1".to_owned())),
            ("`build.commit` is 1, expected unknown", |m| m.build.commit = Some("1".to_owned())),
            ("`build.files` is 1 long, expected 2 long", |m| drop(m.build.files.pop())),
            ("`build.files.libggml-base.so` is 00, expected abab", |m| {
                m.build.files[1].sha256 = "00".to_owned();
            }),
        ];
        for (wanted, change) in changes {
            let error = said(change).unwrap_err();
            assert!(error.contains(wanted) && error.contains("x.safetensors"), "{error}");
        }
    }
}
