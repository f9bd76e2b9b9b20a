//! A capture file in memory, to be changed and written back. It knows no more of the format than names, types and
//! shapes, so that it can hold what no reader accepts.

use super::SelftestError;
use crate::capture::{CaptureError, CaptureMeta, META_KEY};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// The tensors and the metadata of a capture.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Image {
    /// What the file says of itself.
    pub(crate) meta: CaptureMeta,
    path: PathBuf,
    metadata: HashMap<String, String>,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The floats of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floats {
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Its values, row-major.
    pub(crate) values: Vec<f64>,
}

impl Floats {
    /// Values of one entry of the first dimension.
    pub(crate) fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// One entry of the first dimension.
    pub(crate) fn row(&self, row: usize) -> &[f64] {
        let n = self.row_len();
        &self.values[row * n..(row + 1) * n]
    }

    /// One entry of the first dimension.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f64] {
        let n = self.row_len();
        &mut self.values[row * n..(row + 1) * n]
    }
}

impl Image {
    /// Reads a capture that one of our workers wrote.
    ///
    /// # Errors
    /// A file that is no safetensors file or has no metadata of ours.
    pub(crate) fn load(path: &Path) -> Result<Self, SelftestError> {
        let bytes = std::fs::read(path).map_err(|source| SelftestError::io(path, source))?;
        let malformed = |reason: String| CaptureError::Header { path: path.to_owned(), reason };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| malformed(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| malformed(error.to_string()))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let document = metadata.get(META_KEY).ok_or_else(|| malformed(format!("no `{META_KEY}`")))?;
        let meta = serde_json::from_str(document).map_err(|error| malformed(error.to_string()))?;
        let tensors = file.iter().map(|(name, view)| {
            let tensor =
                Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            (name.to_owned(), tensor)
        });
        Ok(Self { meta, path: path.to_owned(), tensors: tensors.collect(), metadata })
    }

    /// Writes the capture.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn save(&self, path: &Path) -> Result<(), SelftestError> {
        let refused = |error: String| SelftestError::io(path, std::io::Error::other(error));
        let mut metadata = self.metadata.clone();
        let document = serde_json::to_string(&self.meta).map_err(|error| refused(error.to_string()))?;
        metadata.insert(META_KEY.to_owned(), document);
        let views: Result<Vec<_>, _> = self
            .tensors
            .iter()
            .map(|(name, t)| Ok((name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes)?)))
            .collect();
        let views = views.map_err(|error: safetensors::SafeTensorError| refused(error.to_string()))?;
        safetensors::serialize_to_file(views, Some(metadata), path)
            .map_err(|error| refused(error.to_string()))
    }

    /// How many layers have keys.
    pub(crate) fn layers(&self) -> usize {
        (0..).take_while(|layer| self.tensors.contains_key(&format!("k.{layer}"))).count()
    }

    /// The floats of a tensor.
    ///
    /// # Errors
    /// A tensor that is not there or is of another type than F32 and F64.
    pub(crate) fn floats(&self, name: &str) -> Result<Floats, SelftestError> {
        let tensor = self.tensor(name)?;
        let values = match tensor.dtype {
            Dtype::F32 => chunks(&tensor.bytes).map(|b| f64::from(f32::from_le_bytes(b))).collect(),
            Dtype::F64 => chunks(&tensor.bytes).map(f64::from_le_bytes).collect(),
            other => return Err(self.lacks(format!("`{name}` of type F32 or F64: it is {other:?}"))),
        };
        Ok(Floats { shape: tensor.shape.clone(), values })
    }

    /// The integers of a list.
    ///
    /// # Errors
    /// A list that is not there or is of another type than I32.
    pub(crate) fn integers(&self, name: &str) -> Result<Vec<i32>, SelftestError> {
        let tensor = self.tensor(name)?;
        match tensor.dtype {
            Dtype::I32 => Ok(chunks(&tensor.bytes).map(i32::from_le_bytes).collect()),
            other => Err(self.lacks(format!("`{name}` of type I32: it is {other:?}"))),
        }
    }

    /// Puts floats in the place of those of a tensor, in its type.
    ///
    /// # Errors
    /// A tensor that is not there.
    pub(crate) fn set_floats(&mut self, name: &str, floats: Floats) -> Result<(), SelftestError> {
        let dtype = self.tensor(name)?.dtype;
        let bytes = match dtype {
            Dtype::F64 => floats.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => floats.values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
        };
        self.tensors.insert(name.to_owned(), Tensor { dtype, shape: floats.shape, bytes });
        Ok(())
    }

    /// Puts integers in the place of those of a list.
    pub(crate) fn set_integers(&mut self, name: &str, values: &[i32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor { dtype: Dtype::I32, shape: vec![values.len()], bytes };
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// Takes a tensor out.
    pub(crate) fn remove(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// An error about something that a fault needs and this capture lacks.
    pub(crate) fn lacks(&self, what: impl ToString) -> SelftestError {
        SelftestError::Lacks { path: self.path.clone(), what: what.to_string() }
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, SelftestError> {
        self.tensors.get(name).ok_or_else(|| self.lacks(format!("`{name}`")))
    }
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{CaptureReader, sample::Sample};

    #[test]
    fn a_capture_goes_through_memory_unchanged_but_for_what_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture.safetensors");
        let sample = Sample::new(3, 8);
        sample.write(&path);
        let mut image = Image::load(&path).unwrap();
        assert_eq!((image.layers(), &image.meta), (2, &sample.meta));
        assert_eq!(image.integers("tokens").unwrap(), sample.tokens);
        let mut logits = image.floats("logits").unwrap();
        assert_eq!((logits.shape.as_slice(), logits.row_len()), (&[3, 8][..], 8));
        logits.row_mut(1)[2] = f64::NAN;
        image.set_floats("logits", logits).unwrap();
        image.save(&path).unwrap();
        let mut reader = CaptureReader::open(&path).unwrap();
        let (mut row, wanted) = (Vec::new(), sample.logits[2].iter().map(|&v| f64::from(v)));
        reader.logits(2, 1, &mut row).unwrap();
        assert_eq!(row, wanted.collect::<Vec<_>>());
        reader.logits(1, 1, &mut row).unwrap();
        assert!(row[2].is_nan() && !row[1].is_nan());
    }

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture.safetensors");
        Sample::new(3, 8).write(&path);
        let image = Image::load(&path).unwrap();
        assert!(image.floats("k.7").unwrap_err().to_string().ends_with("lacks `k.7`"));
        assert!(image.floats("tokens").unwrap_err().to_string().ends_with("it is I32"));
        std::fs::write(&path, b"<html>").unwrap();
        assert!(Image::load(&path).unwrap_err().to_string().contains("not a capture"));
    }
}
