//! Files of llama.cpp's `llama-results`, read as captures of another runtime: logits of a prompt, no caches.
//!
//! | | expected |
//! |---|---|
//! | container | GGUF |
//! | tensor `tokens` | I32, one dimension of n: the prompt |
//! | tensor `logits` | F32, two dimensions in either order: `rows` and `vocab`; the data are row after row of `vocab` values |
//! | key `decode_steps` | U32 d, optional, 0 where it is missing |
//! | key `path_model` | a string, optional, told in reports |
//!
//! The tool names the extents of `logits` the other way round than it fills them, so their order decides nothing: the
//! one that is `rows` counts the rows. `rows` is n, one row a token; with d decode steps it is 2n + d + 1: the prompt,
//! d steps, the prompt again in an emptied cache, and one step from a restored cache.

use super::header::TensorFile;
use super::{CaptureError, CaptureMeta};
use model_file::{GgufFile, TensorType};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The position and the step of each row.
type Rows = (Vec<i32>, Vec<i32>);

/// Whether a file begins as GGUF files do.
pub(super) fn is_gguf(path: &Path) -> Result<bool, CaptureError> {
    let file = File::open(path).map_err(|source| CaptureError::io(path, source))?;
    let mut magic = Vec::new();
    file.take(4).read_to_end(&mut magic).map_err(|source| CaptureError::io(path, source))?;
    Ok(magic == b"GGUF")
}

/// Opens such a file.
pub(super) fn open(path: &Path) -> Result<(TensorFile, Rows, CaptureMeta), CaptureError> {
    let gguf = GgufFile::open(path).map_err(|error| CaptureError::header(path, error))?;
    let tokens = tensor(&gguf, path, "tokens", TensorType::I32, 1)?;
    let logits = tensor(&gguf, path, "logits", TensorType::F32, 2)?;
    let decoded = gguf.metadata().opt_u32("decode_steps").map_err(|e| CaptureError::header(path, e))?;
    let decoded = usize::try_from(decoded.unwrap_or(0)).expect("32 bits fit");
    let n = tokens.shape[0];
    let fits = i32::try_from(n.saturating_mul(2).saturating_add(decoded).saturating_add(1)).is_ok();
    let rows = if decoded == 0 { n } else { n.saturating_mul(2).saturating_add(decoded).saturating_add(1) };
    let vocab = match logits.shape[..] {
        [a, b] if a == rows => b,
        [a, b] if b == rows => a,
        _ => 0,
    };
    if vocab == 0 || !fits {
        let expected = format!("{rows} rows: `tokens` are {n} and `decode_steps` is {decoded}");
        return Err(CaptureError::field(path, "logits", format!("{:?}", logits.shape), expected));
    }
    let logits = TensorInfo { shape: vec![rows, vocab], ..logits };
    let tensors = HashMap::from([("tokens".to_owned(), tokens), ("logits".to_owned(), logits)]);
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut meta = CaptureMeta::foreign(&name);
    let model = gguf.metadata().opt_str("path_model").map_err(|e| CaptureError::header(path, e))?;
    meta.device.description = format!("llama-results of llama.cpp, model {}", model.unwrap_or("unknown"));
    Ok((TensorFile::of_tensors(path, tensors)?, places(n, decoded), meta))
}

/// Position and step of each row of a prompt of `n` tokens and `decoded` steps after it.
fn places(n: usize, decoded: usize) -> Rows {
    let prompt = |step: usize| (0..n).map(move |position| (position, step));
    let steps = (0..decoded).map(|i| (n + i, 1 + i));
    let again = prompt(decoded + 1).chain([(n + decoded, decoded + 2)]).filter(|_| decoded > 0);
    let int = |value: usize| i32::try_from(value).expect("checked when the file was opened");
    prompt(0).chain(steps).chain(again).map(|(position, step)| (int(position), int(step))).unzip()
}

/// A tensor of the file as safetensors would describe it, with its offsets from the start of the file.
fn tensor(
    gguf: &GgufFile,
    path: &Path,
    name: &str,
    ty: TensorType,
    dimensions: usize,
) -> Result<TensorInfo, CaptureError> {
    let info = gguf.tensor(name).ok_or_else(|| CaptureError::missing(path, name))?;
    let dtype = if ty == TensorType::I32 { Dtype::I32 } else { Dtype::F32 };
    if info.ty != ty {
        return Err(CaptureError::field(path, name, info.ty.name(), ty.name()));
    }
    // A tensor of one row, or of one column, may be written with fewer dimensions or with more of extent 1.
    let mut shape = info.shape.clone();
    while shape.len() > dimensions && shape.last() == Some(&1) {
        shape.pop();
    }
    while shape.len() < dimensions {
        shape.push(1);
    }
    if shape.len() != dimensions {
        let expected = format!("{dimensions} dimensions");
        return Err(CaptureError::field(path, name, format!("{:?}", info.shape), expected));
    }
    let size = |value: u64| usize::try_from(value).map_err(|error| CaptureError::header(path, error));
    let shape = shape.into_iter().map(size).collect::<Result<_, _>>()?;
    Ok(TensorInfo { dtype, shape, data_offsets: (size(info.offset)?, size(info.offset + info.bytes)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::CaptureReader;
    use model_file::GgufWriter;
    use std::path::PathBuf;

    fn bytes<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| bytes(value)).collect()
    }

    /// A file of three tokens and a vocabulary of two, changed by `change`.
    fn write(
        change: impl FnOnce(GgufWriter<'static>) -> GgufWriter<'static>,
    ) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.gguf");
        let writer = GgufWriter::new().metadata("path_model", "models/m.gguf");
        change(writer).write(&path).unwrap();
        (folder, path)
    }

    fn tokens(writer: GgufWriter<'static>, tokens: &[i32]) -> GgufWriter<'static> {
        let shape = [tokens.len() as u64];
        writer.tensor_bytes("tokens", &shape, TensorType::I32, bytes(tokens, i32::to_le_bytes))
    }

    fn logits(writer: GgufWriter<'static>, shape: &[u64]) -> GgufWriter<'static> {
        let values: Vec<f32> = (0..shape.iter().product::<u64>()).map(|i| i as f32).collect();
        writer.tensor_bytes("logits", shape, TensorType::F32, bytes(&values, f32::to_le_bytes))
    }

    #[test]
    fn rows_are_read_whichever_way_round_the_extents_are_named() {
        for shape in [[3, 2], [2, 3]] {
            let (_folder, path) = write(|w| logits(tokens(w, &[7, 8, 9]), &shape));
            let mut capture = CaptureReader::open_foreign(&path).unwrap();
            assert!(capture.is_foreign());
            assert_eq!((capture.rows(), capture.vocab(), capture.layers()), (3, 2, 0));
            assert_eq!((capture.tokens(), capture.positions()), (&[7, 8, 9][..], &[0, 1, 2][..]));
            assert_eq!(capture.step(), [0, 0, 0]);
            let mut row = Vec::new();
            capture.logits(1, 1, &mut row).unwrap();
            assert_eq!(row, [2.0, 3.0]);
            assert!(capture.meta().device.description.contains("models/m.gguf"));
        }
    }

    #[test]
    fn decode_steps_come_after_the_prompt_and_before_it_is_repeated() {
        let (_folder, path) =
            write(|w| logits(tokens(w.metadata("decode_steps", 2u32), &[7, 8, 9]), &[9, 4]));
        let capture = CaptureReader::open_foreign(&path).unwrap();
        assert_eq!(capture.positions(), [0, 1, 2, 3, 4, 0, 1, 2, 5]);
        assert_eq!(capture.step(), [0, 0, 0, 1, 2, 3, 3, 3, 4]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field_value_and_file() {
        type Change = Box<dyn FnOnce(GgufWriter<'static>) -> GgufWriter<'static>>;
        let cases: [(Change, [&str; 2]); 7] = [
            (Box::new(|w| tokens(w, &[7, 8])), ["`logits`", "missing"]),
            (Box::new(|w| logits(w, &[2, 3])), ["`tokens`", "missing"]),
            (Box::new(|w| logits(tokens(w, &[7, 8]), &[3, 5])), ["[3, 5]", "2 rows"]),
            (Box::new(|w| logits(tokens(w, &[7, 8]), &[2, 2, 2])), ["[2, 2, 2]", "2 dimensions"]),
            (
                Box::new(|w| logits(tokens(w.metadata("decode_steps", 3u32), &[7, 8]), &[2, 5])),
                ["[2, 5]", "8 rows"],
            ),
            (
                Box::new(|w| logits(tokens(w.metadata("decode_steps", "3"), &[7]), &[1, 5])),
                ["decode_steps", "u32"],
            ),
            (
                Box::new(|w| tokens(w, &[7]).tensor_bytes("logits", &[1, 2], TensorType::I32, vec![0; 8])),
                ["`logits` is I32", "F32"],
            ),
        ];
        for (change, parts) in cases {
            let (_folder, path) = write(change);
            let error = CaptureReader::open_foreign(&path).err().expect("refused").to_string();
            assert!(error.contains("results.gguf"), "{error}");
            for part in parts {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }
}
