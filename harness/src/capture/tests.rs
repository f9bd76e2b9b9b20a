//! Captures written and read back, and files that are none.

use super::sample::Sample;
use super::*;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A folder for one test and a path in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture.safetensors");
    (dir, path)
}

/// A tensor of a handmade file: name, type, shape, bytes.
type Raw = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn ints(name: &'static str, values: &[i32]) -> Raw {
    (name, Dtype::I32, vec![values.len()], values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

fn floats(name: &'static str, shape: &[usize]) -> Raw {
    let count: usize = shape.iter().product();
    (name, Dtype::F32, shape.to_vec(), (0..count).flat_map(|v| (v as f32).to_le_bytes()).collect())
}

/// The tensors that every capture needs: two rows of three logits.
fn least() -> Vec<Raw> {
    vec![
        floats("logits", &[2, 3]),
        ints("positions", &[0, 1]),
        ints("step", &[0, 0]),
        ints("tokens", &[5, 6]),
    ]
}

fn write(path: &Path, tensors: &[Raw], metadata: Option<HashMap<String, String>>) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, metadata, path).unwrap();
}

fn metadata() -> HashMap<String, String> {
    let document = serde_json::to_string(&Sample::new(1, 1).meta).unwrap();
    HashMap::from([("schema".to_owned(), SCHEMA.to_owned()), ("ggml-parity".to_owned(), document)])
}

/// The message with which a handmade file is refused.
fn refused(tensors: &[Raw], metadata: Option<HashMap<String, String>>) -> String {
    let (_dir, path) = place();
    write(&path, tensors, metadata);
    let message = CaptureReader::open(&path).err().expect("the file is refused").to_string();
    assert!(message.starts_with(path.to_str().unwrap()), "{message}");
    message
}

#[test]
fn a_capture_reads_back_as_written() {
    let mut sample = Sample::new(6, 9);
    sample.greedy = Some(vec![1, 2]);
    sample.greedy_margin = Some(vec![0.5, f32::INFINITY]);
    sample.unmask = Some(Unmask { step: vec![0, 1], position: vec![4, 2], token: vec![8, 7] });
    let mut reader = sample.open();
    assert_eq!(*reader.meta(), sample.meta);
    assert_eq!((reader.rows(), reader.vocab(), reader.layers()), (6, 9, 2));
    assert_eq!(reader.tokens(), sample.tokens);
    assert_eq!((reader.positions(), reader.step()), (&sample.positions[..], &sample.step[..]));
    assert_eq!(reader.greedy(), sample.greedy.as_deref());
    assert_eq!(reader.greedy_margin(), Some(&[0.5, f64::INFINITY][..]));
    assert_eq!(reader.unmask(), sample.unmask.as_ref());
    assert_eq!(reader.kv_shape(Cache::V, 1), Sample::KV);
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let mut out = Vec::new();
    reader.logits(2, 3, &mut out).unwrap();
    assert_eq!(out, wide(&sample.logits[2..5].concat()));
    reader.kv(Cache::V, 1, 3, 2, &mut out).unwrap();
    assert_eq!(out, wide(&sample.layers[1][1][3 * 8..]));
    reader.logits(6, 0, &mut out).unwrap();
    assert!(out.is_empty());
}

#[test]
fn values_that_are_not_finite_survive() {
    let mut sample = Sample::new(1, 3);
    sample.logits[0] = vec![f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
    let mut out = Vec::new();
    sample.open().logits(0, 1, &mut out).unwrap();
    assert!(out[0].is_nan());
    assert_eq!(out[1..], [f64::NEG_INFINITY, f64::INFINITY]);
}

#[test]
fn writing_leaves_one_file() {
    let (dir, path) = place();
    Sample::new(1, 3).write(&path);
    Sample::new(2, 3).write(&path);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(CaptureReader::open(&path).unwrap().rows(), 2);
}

#[test]
fn other_float_and_integer_types_are_read() {
    type Encode = fn(f32) -> Vec<u8>;
    let types: [(Dtype, Encode); 3] = [
        (Dtype::F16, |v| half::f16::from_f32(v).to_le_bytes().to_vec()),
        (Dtype::BF16, |v| half::bf16::from_f32(v).to_le_bytes().to_vec()),
        (Dtype::F64, |v| f64::from(v).to_le_bytes().to_vec()),
    ];
    for (dtype, bytes) in types {
        let (_dir, path) = place();
        let mut tensors = least();
        let values = [0.5, -2.0, f32::INFINITY, 1.0, 0.0, 3.0];
        tensors[0] = ("logits", dtype, vec![2, 3], values.iter().flat_map(|&v| bytes(v)).collect());
        tensors[3] = ("tokens", Dtype::I64, vec![1], 7i64.to_le_bytes().to_vec());
        write(&path, &tensors, Some(metadata()));
        let mut reader = CaptureReader::open(&path).unwrap();
        let mut out = Vec::new();
        reader.logits(0, 2, &mut out).unwrap();
        assert_eq!(out, values.map(f64::from));
        assert_eq!(reader.tokens(), [7]);
    }
}

#[test]
fn missing_tensors_are_named() {
    for missing in ["logits", "positions", "step", "tokens"] {
        let tensors: Vec<Raw> = least().into_iter().filter(|t| t.0 != missing).collect();
        assert!(refused(&tensors, Some(metadata())).ends_with(&format!("`{missing}` is missing")));
    }
    let with = |extra: Raw| refused(&[least(), vec![extra]].concat(), Some(metadata()));
    assert!(with(floats("k.0", &[2, 1, 4])).ends_with("`v.0` is missing"));
    assert!(with(floats("v.1", &[2, 1, 4])).ends_with("`k.0` is missing"));
    assert!(with(floats("k.4000000000", &[2, 1, 4])).ends_with("`k.0` is missing"));
    assert!(with(ints("unmask.step", &[1])).ends_with("`unmask.position` is missing"));
    assert!(with(floats("greedy.margin", &[1])).ends_with("`greedy` is missing"));
}

#[test]
fn wrong_shapes_and_types_are_named_with_their_values() {
    let with = |index: usize, tensor: Raw| {
        let mut tensors = least();
        tensors[index] = tensor;
        refused(&tensors, Some(metadata()))
    };
    assert!(with(0, floats("logits", &[6])).contains("`logits` is [6], expected 2 dimensions"));
    assert!(with(0, floats("logits", &[0, 3])).contains("`logits` is [0, 3]"));
    assert!(with(0, floats("logits", &[2, 0])).contains("`logits` is [2, 0]"));
    assert!(with(0, ints("logits", &[1])).contains("`logits` is I32, expected F32"));
    assert!(with(1, ints("positions", &[0])).contains("`positions` is 1 long, expected 2 entries"));
    assert!(with(2, floats("step", &[2])).contains("`step` is F32, expected integers"));
    let wide = ("tokens", Dtype::I64, vec![1], (1i64 << 40).to_le_bytes().to_vec());
    assert!(with(3, wide).contains("`tokens` is I64, expected integers of 32 bits"));

    let caches = |k: &[usize], v: &[usize]| {
        refused(&[least(), vec![floats("k.0", k), floats("v.0", v)]].concat(), Some(metadata()))
    };
    assert!(caches(&[2, 4], &[2, 1, 4]).contains("`k.0` is [2, 4], expected 3 dimensions"));
    assert!(caches(&[2, 1, 4], &[3, 1, 4]).contains("`v.0` is [3, 1, 4], expected 2 positions and 1 heads"));
    assert!(caches(&[0, 1, 4], &[0, 1, 4]).contains("`k.0` is [0, 1, 4]"));
}

#[test]
fn metadata_is_required_and_checked() {
    let with = |key: &str, value: Option<&str>| {
        let mut metadata = metadata();
        metadata.remove(key);
        metadata.extend(value.map(|value| (key.to_owned(), value.to_owned())));
        refused(&least(), Some(metadata))
    };
    assert!(refused(&least(), None).ends_with("`__metadata__.schema` is missing"));
    assert!(with("ggml-parity", None).ends_with("`__metadata__.ggml-parity` is missing"));
    assert!(with("schema", Some("ggml-parity.capture/2")).contains("is ggml-parity.capture/2, expected"));
    assert!(with("ggml-parity", Some("{}")).contains("missing field"));
    let no_hash = metadata()["ggml-parity"].replace(&"5a".repeat(32), "");
    assert!(with("ggml-parity", Some(&no_hash)).contains("`model.sha256` is empty"));
}

#[test]
fn files_that_are_no_captures_are_refused_without_reading_what_they_claim() {
    let (_dir, path) = place();
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let message = CaptureReader::open(&path).err().expect("the file is refused").to_string();
        assert!(message.contains("not a capture"), "{message}");
        message
    };
    open(b"");
    open(b"1234567");
    assert!(open(b"<html><body>Not found</body></html>").contains("in a file of 35"));
    open(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    open(&[&4u64.to_le_bytes()[..], b"{}  more"].concat());
    open(&[&2u64.to_le_bytes()[..], b"[]"].concat());
    let huge = br#"{"logits":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}"#;
    open(&[&(huge.len() as u64).to_le_bytes()[..], huge, &[0; 16]].concat());
    assert!(CaptureReader::open(Path::new("/nowhere/at.all")).is_err());
}

#[test]
fn a_truncated_capture_is_refused() {
    let (_dir, path) = place();
    Sample::new(3, 8).write(&path);
    let whole = std::fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(matches!(CaptureReader::open(&path), Err(CaptureError::Header { .. })), "{length}");
    }
}

#[test]
fn a_foreign_file_needs_only_logits_and_tokens() {
    let (_dir, path) = place();
    let tensors: Vec<Raw> = least().into_iter().filter(|t| t.0 == "logits" || t.0 == "tokens").collect();
    write(&path, &tensors, None);
    let reader = CaptureReader::open_foreign(&path).unwrap();
    assert!(reader.is_foreign());
    assert_eq!((reader.positions(), reader.step()), (&[0, 1][..], &[0, 0][..]));
    assert_eq!(reader.meta().model.name, "capture");
    write(&path, &least(), Some(metadata()));
    assert!(!CaptureReader::open_foreign(&path).unwrap().is_foreign());
}

#[test]
fn caches_before_storing_and_profiles_read_back_as_written() {
    let (_dir, path) = place();
    let mut writer = CaptureWriter::new(2);
    writer.row(0, 0, &[1.0, 2.0]);
    writer.tokens(&[3]);
    writer.layer(&[1.0, 2.0], [1, 1, 2], &[3.0, 4.0], [1, 1, 2]);
    writer.layer_before_storing(0, &[1.5, 2.5], &[3.5, 4.5], [1, 1, 2]);
    writer.profile(&LayerProfile { impact: vec![0.5, 2.0], skipped: vec![1] });
    writer.write(&path, &Sample::new(1, 1).meta).unwrap();
    let mut reader = CaptureReader::open(&path).unwrap();
    assert_eq!(KvSet::ALL.map(|set| reader.layers_of(set)), [1, 1, 0]);
    assert_eq!(reader.kv_shape_of(KvSet::BeforeStoring, Cache::V, 0), [1, 1, 2]);
    let mut out = Vec::new();
    reader.kv_of(KvSet::BeforeStoring, Cache::V, 0, 0, 1, &mut out).unwrap();
    assert_eq!(out, [3.5, 4.5]);
    reader.kv(Cache::K, 0, 0, 1, &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0]);
    let profile = LayerProfile { impact: vec![0.5, 2.0], skipped: vec![1] };
    assert_eq!(reader.profile(), Some(&profile));
}

#[test]
fn a_gap_between_layers_before_storing_is_a_missing_tensor() {
    let message = refused(
        &[least(), vec![floats("k_raw.1", &[1, 1, 2]), floats("v_raw.1", &[1, 1, 2])]].concat(),
        Some(metadata()),
    );
    assert!(message.contains("k_raw.0"), "{message}");
}

#[test]
fn rows_by_step_read_back_as_written() {
    let (_dir, path) = place();
    let mut writer = CaptureWriter::new(2);
    writer.row(0, 0, &[1.0, 2.0]);
    writer.tokens(&[3]);
    writer.layer(&[1.0, 2.0], [1, 1, 2], &[3.0, 4.0], [1, 1, 2]);
    // Both steps computed the one position.
    let rows = StepRows { step: vec![0, 1], position: vec![0, 0] };
    writer.step_rows(&rows);
    writer.layer_by_step(0, &[5.0, 6.0, 1.0, 2.0], &[7.0, 8.0, 3.0, 4.0], [2, 1, 2]);
    writer.write(&path, &Sample::new(1, 1).meta).unwrap();
    let mut reader = CaptureReader::open(&path).unwrap();
    assert_eq!(reader.step_rows(), Some(&rows));
    assert_eq!(KvSet::ALL.map(|set| reader.layers_of(set)), [1, 0, 1]);
    let mut out = Vec::new();
    reader.kv_of(KvSet::Steps, Cache::V, 0, 0, 1, &mut out).unwrap();
    assert_eq!(out, [7.0, 8.0]);
}

#[test]
fn an_index_of_rows_by_step_that_does_not_fit_is_refused() {
    let with = |step: &[i32], position: &[i32], rows: Option<usize>| {
        let mut tensors = least();
        tensors.extend([floats("k.0", &[2, 1, 4]), floats("v.0", &[2, 1, 4])]);
        tensors.extend([ints("kv_step", step), ints("kv_position", position)]);
        if let Some(rows) = rows {
            tensors.extend([floats("step_k.0", &[rows, 1, 4]), floats("step_v.0", &[rows, 1, 4])]);
        }
        refused(&tensors, Some(metadata()))
    };
    assert!(with(&[0, 1], &[0], None).contains("`kv_position` is 1 long, expected 2 entries"));
    assert!(with(&[1, 0], &[0, 1], None).contains("`kv_step` is 0 after 1"));
    assert!(with(&[0, 0], &[0, -1], None).contains("`kv_position` is -1"));
    assert!(with(&[0, 0], &[0, 2], None).contains("`kv_position` is 2, expected positions below 2"));
    assert!(with(&[0, 1], &[1, 1], None).contains("`kv_position` is 1, expected each position once"));
    assert!(with(&[0, 1], &[1, 1], Some(3)).contains("`step_k.0` is 3 long, expected 2 entries"));
    let tensors = [least(), vec![ints("kv_step", &[0])]].concat();
    assert!(refused(&tensors, Some(metadata())).ends_with("`kv_position` is missing"));
}
