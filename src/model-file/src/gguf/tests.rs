//! Hostile headers, mutations and round trips, all in memory.

use std::path::Path;

use proptest::prelude::*;

use super::header::Header;
use super::*;
use crate::error::{Error, ErrorKind};
use crate::{GgufWriter, TensorType};

fn read(bytes: &[u8]) -> Result<Header, Error> {
    Header::read(bytes, bytes.len() as u64, Path::new("x.gguf"))
}

/// Bytes put together by hand, with the offset at which the fault is expected.
#[derive(Clone, Default)]
struct Bytes {
    bytes: Vec<u8>,
    fault_at: u64,
}

impl Bytes {
    /// Magic, version and the two counts.
    fn header(n_tensors: u64, n_entries: u64) -> Self {
        Self::default().raw(b"GGUF").u32(3).u64(n_tensors).u64(n_entries)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.raw(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.raw(&v.to_le_bytes())
    }

    fn text(self, s: &str) -> Self {
        self.u64(s.len() as u64).raw(s.as_bytes())
    }

    /// A tensor's entry.
    fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let b = self.text(name).u32(shape.len() as u32);
        shape.iter().fold(b, |b, &n| b.u64(n)).u32(ty).u64(offset)
    }

    /// A u32 under a key.
    fn entry(self, key: &str, v: u32) -> Self {
        self.text(key).u32(4).u32(v)
    }

    /// The fault is in what comes next.
    fn fault(mut self) -> Self {
        self.fault_at = self.bytes.len() as u64;
        self
    }

    /// Up to the next multiple of 32 and `n` bytes of data.
    fn data(mut self, n: usize) -> Self {
        let start = self.bytes.len().next_multiple_of(32);
        self.bytes.resize(start + n, 0);
        self
    }
}

struct Case {
    bytes: Bytes,
    kind: ErrorKind,
    field: &'static str,
    value: Option<&'static str>,
    says: &'static str,
}

fn malformed(bytes: Bytes, field: &'static str, value: &'static str, says: &'static str) -> Case {
    let value = (!value.is_empty()).then_some(value);
    Case { bytes, kind: ErrorKind::Malformed, field, value, says }
}

fn not_gguf(bytes: &[u8], value: &'static str, says: &'static str) -> Case {
    Case {
        bytes: Bytes::default().raw(bytes),
        kind: ErrorKind::NotGguf,
        field: "magic",
        value: Some(value),
        says,
    }
}

fn version(version: u32, value: &'static str, says: &'static str) -> Case {
    Case {
        bytes: Bytes::default().raw(b"GGUF").fault().u32(version).u64(0).u64(0),
        kind: ErrorKind::Version,
        field: "version",
        value: Some(value),
        says,
    }
}

fn alignment(bytes: Bytes, value: &'static str, says: &'static str) -> Case {
    Case { bytes, kind: ErrorKind::Metadata, field: ALIGNMENT_KEY, value: Some(value), says }
}

/// A file with one F32 tensor `t` whose entry begins with the fault.
fn one_tensor(name: &str, shape: &[u64], ty: u32, offset: u64) -> Bytes {
    Bytes::header(1, 0).fault().tensor(name, shape, ty, offset).data(256)
}

/// The same with the fault `skip` bytes into the entry.
fn inside_tensor(skip: u64, shape: &[u64], ty: u32, offset: u64) -> Bytes {
    let mut b = one_tensor("t", shape, ty, offset);
    b.fault_at += skip;
    b
}

// Offsets inside the entry of a tensor named "t".
const DIMS: u64 = 9;
const SHAPE: u64 = 13;

fn type_at(n_dims: u64) -> u64 {
    SHAPE + 8 * n_dims
}

fn offset_at(n_dims: u64) -> u64 {
    type_at(n_dims) + 4
}

fn not_gguf_cases() -> Vec<Case> {
    let page = b"<!DOCTYPE html><html><head><title>Not found</title>";
    vec![
        not_gguf(b"", "", "the file is empty"),
        not_gguf(b"GG", "GG", "cut short inside the magic"),
        not_gguf(b"FUGG\x00\x00\x00\x03", "FUGG", "the magic is byte-swapped"),
        not_gguf(page, "<!DO", "this looks like a web page"),
        not_gguf(b"\r\n <html lang=en>", "\\r\\n <", "this looks like a web page"),
        not_gguf(b"\xEF\xBB\xBF  <HTML>", "\\xef\\xbb\\xbf ", "this looks like a web page"),
        not_gguf(b"<?xml version='1.0'?><Error>", "<?xm", "this looks like a web page"),
        not_gguf(b"version https://git-lfs.github.com/spec/v1\n", "vers", "a Git LFS pointer"),
        not_gguf(b"tjgg\x03\0\0\0", "tjgg", "an older ggml format"),
        not_gguf(b"PK\x03\x04....", "PK\\x03\\x04", "a ZIP archive"),
        not_gguf(b"\x40\0\0\0\0\0\0\0{\"a\":", "@\\x00\\x00\\x00", "looks like safetensors"),
        not_gguf(&[0; 512], "\\x00\\x00\\x00\\x00", "must begin with \"GGUF\""),
    ]
}

fn version_cases() -> Vec<Case> {
    vec![
        version(0, "0", "no GGUF version 0"),
        version(1, "1", "GGUF version 1 has 32-bit counts"),
        version(4, "4", "unknown GGUF version"),
        version(3u32.swap_bytes(), "50331648", "the file is big-endian"),
        version(u32::MAX, "4294967295", "unknown GGUF version"),
    ]
}

fn count_and_metadata_cases() -> Vec<Case> {
    let after_counts = |n: u64| Bytes::header(0, n).fault();
    let array = |element: u32, n: u64| {
        let mut b = after_counts(1).text("a").u32(9).fault().u32(element).u64(n);
        b.fault_at += 4;
        b
    };
    let counts = |tensors: u64, entries: u64, at: u64| {
        let mut b = Bytes::header(tensors, entries);
        b.fault_at = at;
        b
    };
    vec![
        malformed(counts(u64::MAX, 0, 8), "tensor_count", "18446744073709551615", "only 8 are left"),
        malformed(counts(500_000_000, 0, 8), "tensor_count", "500000000", "only 8 are left"),
        malformed(counts(0, u64::MAX, 16), "metadata_kv_count", "18446744073709551615", "only 0 are left"),
        malformed(counts(0, 500_000_000, 16), "metadata_kv_count", "500000000", "only 0 are left"),
        malformed(
            after_counts(1).u64(u64::MAX).raw(&[0; 32]),
            "metadata[0].key (length)",
            "18446744073709551615",
            "beyond the end of the file: 32 bytes are left",
        ),
        malformed(
            after_counts(1).u64(70_000).raw(&[b'k'; 70_010]),
            "metadata[0].key (length)",
            "70000",
            "longer than 65535 bytes",
        ),
        malformed(after_counts(1).entry("", 1), "metadata[0].key", "\"\"", "the key is empty"),
        malformed(
            Bytes::header(0, 2).entry("k", 1).fault().entry("k", 2),
            "metadata[1].key",
            "\"k\"",
            "the key occurs twice",
        ),
        malformed(
            after_counts(1).u64(2).raw(b"\xC3\x28").u32(4).u32(1),
            "metadata[0].key",
            "\"\u{FFFD}(\"",
            "not UTF-8",
        )
        .shifted(8),
        malformed(
            Bytes::header(0, 1).text("k").fault().u32(13).u32(0),
            "k (type)",
            "13",
            "unknown value type",
        ),
        malformed(Bytes::header(0, 1).text("k").u32(7).fault().raw(&[2]), "k", "2", "a bool is 0 or 1"),
        malformed(
            Bytes::header(0, 1).text("kk").u32(10).fault().u32(1),
            "kk",
            "",
            "needs 8 more bytes, but only 4",
        ),
        malformed(
            Bytes::header(0, 1).text("k").u32(8).fault().u64(1 << 40).raw(b"abc"),
            "k (length)",
            "1099511627776",
            "beyond the end of the file",
        ),
        malformed(array(4, 1 << 61), "a (length)", "2305843009213693952", "only 0 are left"),
        malformed(array(8, 500_000_000), "a (length)", "500000000", "at least 8 bytes each"),
        malformed(array(9, 1), "a (element type)", "9", "arrays of arrays").shifted(-4),
        malformed(array(77, 1), "a (element type)", "77", "unknown element type").shifted(-4),
        malformed(
            Bytes::header(0, 1).text("a").u32(9).u32(8).u64(2).text("x").fault().u64(99).raw(&[0; 8]),
            "a[1] (length)",
            "99",
            "beyond the end of the file: 8 bytes are left",
        ),
    ]
}

impl Case {
    /// The fault lies this far from the mark.
    fn shifted(mut self, by: i64) -> Self {
        self.bytes.fault_at = self.bytes.fault_at.checked_add_signed(by).unwrap();
        self
    }
}

fn alignment_cases() -> Vec<Case> {
    let with = |a: u32| Bytes::header(0, 1).text(ALIGNMENT_KEY).u32(4).fault().u32(a);
    vec![
        alignment(with(0), "0", "must be a power of two"),
        alignment(with(13), "13", "must be a power of two"),
        alignment(with(1 << 31), "2147483648", "must be a power of two from 1 to 1048576"),
        alignment(
            Bytes::header(0, 1).text(ALIGNMENT_KEY).u32(10).fault().u64(32),
            "32",
            "is of type u64, must be u32",
        ),
        alignment(
            Bytes::header(0, 1).text(ALIGNMENT_KEY).u32(8).fault().text("32"),
            "\"32\"",
            "is of type string, must be u32",
        ),
    ]
}

fn tensor_cases() -> Vec<Case> {
    let max = u64::MAX;
    let huge = [4_194_305, 4_194_305, 211_106_198_978_564];
    let name64 = "n".repeat(64);
    vec![
        malformed(one_tensor(&name64, &[8], 0, 0), "tensor[0].name (length)", "64", "longer than 63 bytes"),
        malformed(one_tensor("", &[8], 0, 0), "tensor[0].name", "", "the name is empty"),
        malformed(
            Bytes::header(2, 0).tensor("t", &[8], 0, 0).fault().tensor("t", &[8], 0, 32).data(64),
            "tensor[1].name",
            "\"t\"",
            "the name occurs twice",
        ),
        malformed(inside_tensor(DIMS, &[1; 5], 0, 0), "t (dimensions)", "5", "1 to 4 dimensions"),
        malformed(
            Bytes::header(1, 0).text("t").fault().u32(u32::MAX).raw(&[0; 64]),
            "t (dimensions)",
            "4294967295",
            "1 to 4 dimensions",
        ),
        malformed(
            Bytes::header(1, 0).text("t").fault().u32(0).raw(&[0; 64]),
            "t (dimensions)",
            "0",
            "1 to 4 dimensions",
        ),
        malformed(inside_tensor(SHAPE, &[8, 0], 0, 0), "t (shape)", "[8, 0] F32", "dimension 1 is 0"),
        malformed(
            inside_tensor(SHAPE, &[max], 0, 0),
            "t (shape)",
            "[18446744073709551615] F32",
            "the number of elements overflows",
        ),
        malformed(
            inside_tensor(SHAPE, &huge, 0, 0),
            "t (shape)",
            "[4194305, 4194305, 211106198978564] F32",
            "overflows",
        ),
        malformed(
            inside_tensor(SHAPE, &[1 << 31, 1 << 31], 0, 0),
            "t (shape)",
            "[2147483648, 2147483648] F32",
            "the size in bytes overflows",
        ),
        malformed(inside_tensor(type_at(1), &[8], 99, 0), "t (type)", "99", "unknown tensor type"),
        malformed(
            inside_tensor(type_at(1), &[8], u32::MAX, 0),
            "t (type)",
            "4294967295",
            "unknown tensor type",
        ),
        malformed(inside_tensor(type_at(1), &[32], 4, 0), "t (type)", "4", "was removed from ggml"),
        malformed(
            inside_tensor(SHAPE, &[33], TensorType::Q4_0.id(), 0),
            "t (shape)",
            "[33] Q4_0",
            "a row of 33 is not a multiple of Q4_0's block of 32",
        ),
        malformed(
            inside_tensor(offset_at(1), &[8], 0, 31),
            "t (offset)",
            "31",
            "not a multiple of the alignment 32",
        ),
        malformed(
            inside_tensor(offset_at(1), &[8], 0, max),
            "t (offset)",
            "18446744073709551615",
            "not a multiple of the alignment",
        ),
        malformed(
            inside_tensor(offset_at(1), &[8], 0, max - 31),
            "t (offset)",
            "18446744073709551584",
            "overflows",
        ),
        malformed(
            inside_tensor(offset_at(1), &[8], 0, 1 << 40),
            "t (offset)",
            "1099511627776",
            "lies past its end",
        ),
        malformed(inside_tensor(offset_at(1), &[1024], 0, 0), "t (offset)", "0", "the file is cut short"),
        malformed(
            Bytes::header(1, 0).tensor("t", &[8], 0, 0).data(31),
            "t (offset)",
            "0",
            "the tensor's data is bytes 64 to 96, but the file has only 95: the file is cut short",
        )
        .shifted(24 + offset_at(1) as i64),
        malformed(
            Bytes::header(2, 0).tensor("a", &[16], 0, 0).fault().tensor("b", &[8], 0, 32).data(96),
            "b (offset)",
            "32",
            "overlaps the data of a, bytes 96 to 160",
        )
        .shifted(offset_at(1) as i64),
        malformed(
            Bytes::header(2, 0).fault().tensor("a", &[8], 0, 0).tensor("b", &[8], 0, 0).data(64),
            "b (offset)",
            "0",
            "overlaps the data of a",
        )
        .shifted((offset_at(1) + 8 + offset_at(1)) as i64),
    ]
}

#[test]
fn malformed_headers_are_refused_with_field_value_and_offset() {
    let cases: Vec<Case> =
        [not_gguf_cases(), version_cases(), count_and_metadata_cases(), alignment_cases(), tensor_cases()]
            .into_iter()
            .flatten()
            .collect();
    assert!(cases.len() > 50);
    for case in cases {
        let e = read(&case.bytes.bytes).expect_err(case.says);
        assert!(e.message().contains(case.says), "{e}\n  should say {}", case.says);
        assert_eq!(e.kind(), case.kind, "{e}");
        assert_eq!(e.field_name(), Some(case.field), "{e}");
        assert_eq!(e.field_value(), case.value, "{e}");
        assert_eq!(e.file_offset(), Some(case.bytes.fault_at), "{e}");
        assert_eq!(e.path(), Some(Path::new("x.gguf")), "{e}");
    }
}

/// A small file with every value type and several tensors.
fn small_file() -> Vec<u8> {
    let mut bytes = Vec::new();
    GgufWriter::new()
        .metadata("general.architecture", "llama")
        .metadata("u8", 200u8)
        .metadata("i8", -7i8)
        .metadata("u16", 60_000u16)
        .metadata("i16", -30_000i16)
        .metadata("u32", u32::MAX)
        .metadata("i32", i32::MIN)
        .metadata("f32", 1.5f32)
        .metadata("bool", true)
        .metadata("u64", u64::MAX)
        .metadata("i64", i64::MIN)
        .metadata("f64", -0.25f64)
        .metadata("strings", vec!["a".to_string(), String::new(), "ĠĊ".to_string()])
        .metadata("numbers", vec![1i32, -2, 3])
        .metadata("flags", vec![true, false])
        .metadata("none", Vec::<f64>::new())
        .tensor_bytes("a", &[3], TensorType::F32, vec![1; 12])
        .tensor_bytes("blk.0.attn_q.weight", &[32, 2], TensorType::Q8_0, vec![2; 68])
        .tensor_bytes("c", &[2, 3, 1, 2], TensorType::F16, vec![3; 24])
        .write_to(&mut bytes)
        .unwrap();
    bytes
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small_file();
    let header = read(&bytes).unwrap();
    let last = header.tensors.last().unwrap();
    let needed = (last.offset + last.bytes) as usize;
    assert!(needed < bytes.len(), "the last tensor is padded");
    for n in 0..needed {
        let e = read(&bytes[..n]).expect_err("truncated");
        assert!(e.file_offset().is_some(), "{e}");
    }
    // Padding after the last tensor may be missing.
    assert!(read(&bytes[..needed]).is_ok());
}

/// Versions 2 and 3 have one layout on little-endian machines.
#[test]
fn version_2_is_read_like_3() {
    let mut bytes = small_file();
    bytes[4] = 2;
    let header = read(&bytes).unwrap();
    assert_eq!(header.version, 2);
    assert_eq!(header.tensors, read(&small_file()).unwrap().tensors);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let f32s =
        |name: &str, shape: &[u64]| GgufWriter::new().tensor_bytes(name, shape, TensorType::F32, vec![0; 4]);
    let write = |w: GgufWriter<'_>| w.write_to(&mut Vec::new()).unwrap_err().to_string();
    for (writer, says) in [
        (GgufWriter::new().metadata("", 1u32), "a key has 1 to 65535 bytes"),
        (GgufWriter::new().alignment(12), "must be a power of two"),
        (f32s("", &[1]), "name has 1 to 63 bytes"),
        (f32s(&"n".repeat(64), &[1]), "name has 1 to 63 bytes"),
        (f32s("t", &[]), "1 to 4 dimensions"),
        (f32s("t", &[1, 1, 1, 1, 1]), "1 to 4 dimensions"),
        (f32s("t", &[1, 0]), "dimension 1 is 0"),
        (f32s("t", &[u64::MAX, 2]), "overflows"),
        (f32s("t", &[2]), "4 bytes were written, 8 are needed"),
        (f32s("t", &[1]).tensor_bytes("t", &[1], TensorType::F32, vec![0; 4]), "there twice"),
        (GgufWriter::new().tensor_bytes("t", &[8], TensorType::Q4_0, vec![0; 18]), "block of 32"),
    ] {
        let message = write(writer);
        assert!(message.contains(says), "{message}\n  should say {says}");
    }
}

/// Writing is all or nothing, and leaves no temporary file.
#[test]
fn a_failed_write_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    GgufWriter::new().metadata("k", 1u32).write(&path).unwrap();
    let failing = GgufWriter::new()
        .metadata("k", 2u32)
        .tensor("t", &[1], TensorType::F32, |_| Err(Error::request("the source failed")));
    let e = failing.write(&path).unwrap_err();
    assert_eq!((e.field_name(), e.path()), (Some("t"), Some(path.as_path())));
    assert_eq!(GgufFile::open(&path).unwrap().metadata().u32("k").unwrap(), 1);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    GgufWriter::new().metadata("k", 3u32).write(&path).unwrap();
    assert_eq!(GgufFile::open(&path).unwrap().metadata().u32("k").unwrap(), 3);
}

#[test]
fn tensors_are_mapped_whole_and_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let data: Vec<u8> = (0..34 * 1000u32).map(|i| (i * 7) as u8).collect();
    GgufWriter::new()
        .tensor_bytes("before", &[5], TensorType::F32, vec![9; 20])
        .tensor_bytes("t", &[320, 100], TensorType::Q8_0, data.clone())
        .write(&path)
        .unwrap();
    let file = GgufFile::open(&path).unwrap();
    let t = file.tensor("t").unwrap();
    assert_eq!((t.elements(), t.rows(), t.bytes), (32_000, 100, 34_000));
    assert_eq!(&file.map(t).unwrap()[..], data);
    for size in [1, 34, 100, 4096, 33_999, 34_000, u64::MAX] {
        let mut all = Vec::new();
        for piece in file.chunks(t, size) {
            let (at, bytes) = piece.unwrap();
            assert_eq!(at, all.len() as u64);
            assert!(bytes.len() % 34 == 0 && bytes.len() as u64 <= size.max(34));
            all.extend_from_slice(&bytes);
        }
        assert_eq!(all, data, "{size}");
    }

    // A file cut after it was opened: an error, no fault signal.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20_000).unwrap();
    let pieces: Vec<_> = file.chunks(t, 8192).collect();
    assert!(pieces.last().unwrap().is_err());
    assert!(pieces.len() < 6);
    let e = file.map(t).unwrap_err();
    assert_eq!((e.kind(), e.field_name()), (ErrorKind::Io, Some("t")));
}

#[test]
fn sha256_is_that_of_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    GgufWriter::new().write(&path).unwrap();
    let file = GgufFile::open(&path).unwrap();
    // An empty version 3 file: "GGUF", 3, two zero counts, padded to 32 bytes.
    use sha2::{Digest, Sha256};
    let expected: String =
        Sha256::digest(std::fs::read(&path).unwrap()).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(file.sha256().unwrap(), expected);
    assert_eq!(file.file_len(), 32);
}

fn values() -> impl Strategy<Value = Value> {
    let float = prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::INFINITE;
    let double = prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL;
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        float.prop_map(Value::from),
        double.prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::from),
        prop::collection::vec(float, 0..9).prop_map(Value::from),
        prop::collection::vec(".{0,8}", 0..9).prop_map(Value::from),
    ]
}

fn tensors() -> impl Strategy<Value = (TensorType, Vec<u64>, u8)> {
    (prop::sample::select(TensorType::ALL), prop::collection::vec(1u64..4, 1..=4), any::<u8>()).prop_map(
        |(ty, mut shape, fill)| {
            shape[0] *= ty.block_len();
            (ty, shape, fill)
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        entries in prop::collection::btree_map("[a-z.]{1,12}", values(), 0..8),
        tensors in prop::collection::btree_map("[a-z0-9._]{1,20}", tensors(), 0..6),
        alignment in prop::sample::select(vec![None, Some(1u32), Some(8), Some(32), Some(256), Some(4096)]),
    ) {
        let mut writer = GgufWriter::new();
        let mut expected = Metadata::new();
        for (key, value) in &entries {
            writer = writer.metadata(key, value.clone());
            expected.insert(key, value.clone());
        }
        if let Some(a) = alignment {
            writer = writer.alignment(a);
            expected.insert(ALIGNMENT_KEY, a);
        }
        for (name, (ty, shape, fill)) in &tensors {
            let (_, bytes) = measure(shape, *ty).unwrap();
            writer = writer.tensor_bytes(name, shape, *ty, vec![*fill; bytes as usize]);
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();

        let header = read(&bytes).unwrap();
        prop_assert_eq!(&header.metadata, &expected);
        prop_assert_eq!(header.alignment, u64::from(alignment.unwrap_or(32)));
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for (info, (name, (ty, shape, fill))) in header.tensors.iter().zip(&tensors) {
            prop_assert_eq!((&info.name, info.ty, &info.shape), (name, *ty, shape));
            prop_assert_eq!(info.offset % header.alignment, 0);
            let data = &bytes[info.offset as usize..(info.offset + info.bytes) as usize];
            prop_assert!(data.iter().all(|b| b == fill));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Whatever a few changed bytes do, the reader gives an answer: no panic, no overflow, no huge
    /// allocation (a test run has not the memory for one).
    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let mut bytes = small_file();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(header) = read(&bytes) {
            for t in &header.tensors {
                prop_assert!(t.offset + t.bytes <= bytes.len() as u64);
            }
        }
    }

    /// The same for 8-byte fields set to extreme values: lengths, counts, extents, offsets.
    #[test]
    fn extreme_fields_never_panic(
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            0, 1, 1 << 31, 1 << 32, 1 << 61, 1 << 62, 1 << 63, u64::MAX, u64::MAX - 31, i64::MAX as u64,
        ]),
    ) {
        let mut bytes = small_file();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let _ = read(&bytes);
    }
}
