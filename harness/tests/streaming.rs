//! Comparison takes little memory however large the captures are.

use ggml_parity::capture::CaptureReader;
use ggml_parity::compare::compare;
use ggml_parity::verdict::Limits;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// The most that comparison may take.
const MOST: u64 = 512 << 20;
/// More than that, in each of the two largest tensors.
const ROWS: usize = 900;
const VOCAB: usize = 152_064;
const KV: [usize; 3] = [33_500, 8, 512];

/// A capture of another runtime in which all is 0 but one logit of the last row, with holes for zeros.
fn capture(path: &Path, last: f32) {
    let mut end = 0;
    let mut tensor = |name: &str, dtype: &str, shape: &[usize]| {
        let first = end;
        end += 4 * shape.iter().product::<usize>();
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{first},{end}]}}"#)
    };
    let tensors = [
        tensor("tokens", "I32", &[ROWS]),
        tensor("k.0", "F32", &KV),
        tensor("v.0", "F32", &[KV[0], KV[1], 1]),
        tensor("logits", "F32", &[ROWS, VOCAB]),
    ];
    let header = format!("{{{}}}", tensors.join(","));
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    file.seek(SeekFrom::End(-4)).unwrap();
    file.write_all(&last.to_le_bytes()).unwrap();
}

#[test]
fn captures_of_more_than_a_gigabyte_are_compared_in_half_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let [reference, test] = ["reference", "test"].map(|name| folder.path().join(name));
    capture(&reference, 1.0);
    capture(&test, 1.5);
    assert!(test.metadata().unwrap().len() > 2 * MOST);
    let open = |path: &Path| CaptureReader::open_foreign(path).unwrap();
    let metrics = compare(&mut open(&reference), &mut open(&test), &Limits::uniform(1e-9)).unwrap();
    assert_eq!(metrics.logits.overall, 0.25);
    assert_eq!(metrics.logits.worst.place.row, ROWS as u64 - 1);
    assert_eq!(metrics.kv.unwrap().k, 0.0);
    if let Some(peak) = runtime::peak_resident_bytes() {
        assert!(peak < MOST, "{} MiB", peak >> 20);
    }
}
