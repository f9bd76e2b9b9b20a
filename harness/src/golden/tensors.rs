//! A golden's file: named tensors whose rows (of the first dimension) have checksums of their own, so that a value
//! that was edited is found in its row. A CRC-32 sees every change of up to 32 bits in a row, as any single value of
//! a golden is.

use super::GoldenError;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// The first row that differs: a tensor and an index of its first dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tensor: String,
    pub(super) row: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tensor {} row {}", self.tensor, self.row)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// All tensors of a file by name, and its metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensors {
    tensors: BTreeMap<String, Tensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Tensors {
    /// Reads a safetensors file.
    pub(super) fn read(path: &Path) -> Result<Self, GoldenError> {
        let bytes = std::fs::read(path).map_err(GoldenError::io(path))?;
        Self::parse(&bytes).map_err(|why| GoldenError::Malformed { path: path.to_owned(), why })
    }

    /// Reads the bytes of such a file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
            let tensor =
                Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            (name.to_owned(), tensor)
        };
        let tensors = file.iter().map(tensor).collect();
        let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Self { tensors, metadata })
    }

    /// Takes over those of `names` that `other` has and this file lacks.
    pub(super) fn adopt(&mut self, other: &Self, names: &[&str]) {
        for name in names {
            if let Some(tensor) = other.tensors.get(*name) {
                self.tensors.entry((*name).to_owned()).or_insert_with(|| tensor.clone());
            }
        }
    }

    /// Rounds what is F64 to F32.
    pub(super) fn round(&mut self) {
        for tensor in self.tensors.values_mut().filter(|tensor| tensor.dtype == Dtype::F64) {
            let round = |value: &[u8; 8]| (f64::from_le_bytes(*value) as f32).to_le_bytes();
            tensor.bytes = tensor.bytes.as_chunks::<8>().0.iter().flat_map(round).collect();
            tensor.dtype = Dtype::F32;
        }
    }

    /// The file: the same bytes for the same tensors and metadata, which the safetensors crate does not promise of
    /// metadata.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_owned(), json!(self.metadata));
        let mut end = 0;
        for (name, tensor) in &self.tensors {
            let first = end;
            end += tensor.bytes.len();
            let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [first, end]});
            header.insert(name.clone(), entry);
        }
        let mut text = serde_json::Value::Object(header).to_string().into_bytes();
        // Data begin at a multiple of eight bytes.
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        self.tensors.values().for_each(|tensor| bytes.extend(&tensor.bytes));
        bytes
    }

    /// The checksums of all rows by tensor: eight hexadecimal digits a row.
    pub(super) fn checksums(&self) -> BTreeMap<String, String> {
        let all = |tensor: &Tensor| tensor.rows().map(checksum).collect();
        self.tensors.iter().map(|(name, tensor)| (name.clone(), all(tensor))).collect()
    }

    /// The first row whose checksum is not the one listed.
    pub(super) fn first_change(&self, listed: &BTreeMap<String, String>) -> Option<Place> {
        let found = self.checksums();
        let place = |tensor: &String, row| Some(Place { tensor: tensor.clone(), row });
        for (name, listed) in listed {
            let found = found.get(name).map(String::as_str).unwrap_or_default();
            let rows = |text: &str| text.as_bytes().chunks(8).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let (found, listed) = (rows(found), rows(listed));
            if let Some(row) =
                (0..found.len().max(listed.len())).find(|&row| found.get(row) != listed.get(row))
            {
                return place(name, row);
            }
        }
        found.keys().find(|name| !listed.contains_key(*name)).and_then(|name| place(name, 0))
    }

    /// The first row of this file that is not what `computed` has, which another machine's oracle may have put out:
    /// floats may differ by what rounding to F32 makes of 1e-12 of the row's largest value. Tensors that only this
    /// file has are passed over.
    pub(super) fn first_difference(&self, computed: &Self) -> Option<Place> {
        for (name, other) in &computed.tensors {
            let place = |row| Some(Place { tensor: name.clone(), row });
            let Some(tensor) = self.tensors.get(name) else { return place(0) };
            if (tensor.dtype, &tensor.shape) != (other.dtype, &other.shape) {
                return place(0);
            }
            let same = |(a, b): (&[u8], &[u8])| match tensor.dtype {
                Dtype::F32 => close(a, b),
                _ => a == b,
            };
            if let Some(row) = tensor.rows().zip(other.rows()).position(|pair| !same(pair)) {
                return place(row);
            }
        }
        None
    }
}

impl Tensor {
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let rows = self.shape.first().copied().unwrap_or(1);
        self.bytes.chunks(self.bytes.len().checked_div(rows).unwrap_or(0).max(1))
    }
}

fn checksum(row: &[u8]) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(row);
    format!("{:08x}", crc.sum())
}

/// Whether two rows of F32 are the same up to an F64's last places before rounding.
fn close(a: &[u8], b: &[u8]) -> bool {
    let values = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
    };
    let (a, b) = (values(a), values(b));
    let largest = b.iter().fold(0f32, |most, v| most.max(v.abs()));
    let near = |(a, b): (&f32, &f32)| {
        // An infinity is equal to itself alone, a NaN to nothing.
        a == b || (a - b).abs() <= f32::EPSILON * b.abs() + 1e-12 * largest && b.is_finite()
    };
    a.len() == b.len() && a.iter().zip(&b).all(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{CaptureReader, sample::Sample};
    use proptest::prelude::*;

    fn sample() -> Tensors {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("sample");
        Sample::new(4, 16).write(&path);
        Tensors::read(&path).unwrap()
    }

    #[test]
    fn what_is_written_reads_back_and_is_a_capture() {
        let tensors = sample();
        assert_eq!(Tensors::parse(&tensors.bytes()).unwrap(), tensors);
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("golden");
        std::fs::write(&path, tensors.bytes()).unwrap();
        assert_eq!(CaptureReader::open(&path).unwrap().rows(), 4);
        assert!(Tensors::parse(&tensors.bytes()[..400]).is_err());
    }

    proptest! {
        #[test]
        fn any_bit_that_is_turned_is_found_in_its_row(tensor in 0usize..8, at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let right = sample();
            let listed = right.checksums();
            let mut wrong = right.clone();
            let count = wrong.tensors.len();
            let (name, changed) = wrong.tensors.iter_mut().nth(tensor % count).unwrap();
            let index = at.index(changed.bytes.len());
            changed.bytes[index] ^= 1 << bit;
            let row = index / (changed.bytes.len() / changed.shape[0]);
            let place = Place { tensor: name.clone(), row };
            prop_assert_eq!(wrong.first_change(&listed), Some(place));
            prop_assert_eq!(right.first_change(&listed), None);
        }
    }

    #[test]
    fn tensors_that_are_gone_or_new_are_changes() {
        let right = sample();
        let listed = right.checksums();
        let mut less = right.clone();
        less.tensors.remove("v.1");
        assert_eq!(less.first_change(&listed).unwrap().to_string(), "tensor v.1 row 0");
        let mut more = listed;
        more.remove("step");
        assert_eq!(right.first_change(&more).unwrap().to_string(), "tensor step row 0");
    }

    #[test]
    fn another_machines_last_places_are_no_difference_and_an_edit_is() {
        let right = sample();
        let edit = |name: &str, at: usize, change: &dyn Fn(f32) -> f32| {
            let mut other = right.clone();
            let bytes = &mut other.tensors.get_mut(name).unwrap().bytes[4 * at..4 * at + 4];
            let value = change(f32::from_le_bytes((&*bytes).try_into().unwrap()));
            bytes.copy_from_slice(&value.to_le_bytes());
            other.first_difference(&right).map(|place| place.to_string())
        };
        assert_eq!(edit("logits", 20, &f32::next_up), None);
        assert_eq!(edit("logits", 20, &|v| v * (1.0 + 4e-7)).unwrap(), "tensor logits row 1");
        assert_eq!(edit("k.1", 0, &|_| f32::NAN).unwrap(), "tensor k.1 row 0");
        assert_eq!(edit("logits", 63, &|_| f32::INFINITY).unwrap(), "tensor logits row 3");
    }
}
