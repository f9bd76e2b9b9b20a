//! Pairing and judging of captures in files.

use super::*;
use crate::capture::sample::Sample;
use crate::capture::{BackendNodes, BuildInfo, DeviceKind, ORACLE};
use crate::verdict::{Status, Tolerances};

/// A capture of `case` on `device`, with noise of `size`.
fn sample(case: &str, device: &str, size: f32) -> Sample {
    let mut sample = Sample::new(4, 16);
    if size != 0.0 {
        sample = sample.with_noise(size);
    }
    sample.meta.case = case.to_owned();
    sample.meta.build = BuildInfo { name: "b".to_owned(), ..BuildInfo::default() };
    sample.meta.device.selector = device.to_owned();
    sample.meta.device.kind = if device.starts_with("Vulkan") { DeviceKind::Gpu } else { DeviceKind::Cpu };
    let name = if device.starts_with("CPU") { "CPU" } else { device };
    sample.meta.placement.backends =
        vec![BackendNodes { name: name.to_owned(), compute_nodes: 9, view_nodes: 0, ops: BTreeMap::new() }];
    sample
}

/// Writes captures under the names `0`, `1`, …
fn folder(samples: &[Sample]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (i, sample) in samples.iter().enumerate() {
        sample.write(&folder.path().join(format!("{i}.safetensors")));
    }
    folder
}

/// The logits of a sample as another runtime writes them.
fn foreign(sample: &Sample, path: &Path, case: Option<&str>, with_caches: bool) {
    let words = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let logits = words(&sample.logits.concat());
    let tokens: Vec<u8> = sample.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let caches: Vec<[Vec<u8>; 2]> = sample.layers.iter().map(|[k, v]| [words(k), words(v)]).collect();
    let shape = vec![sample.logits.len(), sample.logits[0].len()];
    let view =
        |dtype, shape: Vec<usize>, bytes| safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap();
    use safetensors::Dtype::{F32, I32};
    let mut tensors = vec![
        ("logits".to_owned(), view(F32, shape, &logits)),
        ("tokens".to_owned(), view(I32, vec![sample.tokens.len()], &tokens)),
    ];
    for (layer, [k, v]) in caches.iter().enumerate().filter(|_| with_caches) {
        tensors.push((format!("k.{layer}"), view(F32, Sample::KV.to_vec(), k)));
        tensors.push((format!("v.{layer}"), view(F32, Sample::KV.to_vec(), v)));
    }
    let metadata = case.map(|case| [("case".to_owned(), case.to_owned())].into());
    safetensors::serialize_to_file(tensors, metadata, path).unwrap();
}

fn paired(a: &Path, b: &Path, oracle: Option<&Path>, case: Option<&str>) -> Result<Vec<Pair>, PairError> {
    let (mut a, mut b) = (Captures::open(a)?, Captures::open(b)?);
    let mut oracle = oracle.map(Captures::open).transpose()?;
    let mut arms = vec![&mut a, &mut b];
    arms.extend(oracle.as_mut());
    name_cases(&mut arms, case.map(|case| case.parse().unwrap()).as_ref())?;
    pair(&a, &b, oracle.as_ref())
}

/// Id, status and reason of every pair.
fn judged(pairs: &[Pair]) -> Vec<(String, Status, String)> {
    let tolerances = Tolerances::embedded();
    let held = Held { tolerances: &tolerances, weights: None, kind: DeviceKind::Cpu };
    pairs
        .iter()
        .map(|pair| {
            let cell = judge(pair, &held).unwrap();
            (cell.id.to_string(), cell.status, cell.reason)
        })
        .collect()
}

#[test]
fn folders_pair_by_case_and_what_has_no_partner_is_missing() {
    let a = folder(&[sample("m/f32/full", "CPU", 0.0), sample("m/f32/prefill", "CPU", 0.0)]);
    let b = folder(&[sample("m/f32/full", "Vulkan0", 1e-6), sample("m/f32/decode", "Vulkan0", 1e-6)]);
    let found = judged(&paired(a.path(), b.path(), None, None).unwrap());
    let short: Vec<_> = found.iter().map(|(id, status, _)| (id.as_str(), *status)).collect();
    assert_eq!(
        short,
        [
            ("m/f32/full@b:Vulkan0", Status::Pass),
            ("m/f32/prefill@b:CPU", Status::Missing),
            ("m/f32/decode@b:Vulkan0", Status::Missing)
        ]
    );
    assert!(found[1].2.contains("by the test") && found[1].2.contains("1.safetensors"), "{}", found[1].2);
    assert!(found[2].2.contains("by the reference"), "{}", found[2].2);
}

#[test]
fn the_limits_are_those_of_the_noisier_device() {
    let gpu = folder(&[sample("m/f32/full", "Vulkan0", 1e-3)]);
    let cpu = folder(&[sample("m/f32/full", "CPU", 0.0)]);
    let variant = folder(&[sample("m/f32/full", "CPU@x64", 1e-3)]);
    let status = |a: &tempfile::TempDir, b: &tempfile::TempDir| {
        judged(&paired(a.path(), b.path(), None, None).unwrap())[0].1
    };
    assert_eq!(status(&cpu, &gpu), Status::Pass);
    assert_eq!(status(&gpu, &cpu), Status::Pass);
    assert_eq!(status(&cpu, &variant), Status::Diverged, "1e-6 is beyond the limit of a CPU");
}

#[test]
fn a_folder_of_a_run_is_taken_apart() {
    let arms = [
        sample("m/f32/full", "CPU", 0.0),
        sample("m/f32/full", "Vulkan0", 1e-6),
        sample("m/f32/full", ORACLE, 1e-7),
    ];
    let run = folder(&[]);
    std::fs::create_dir(run.path().join("captures")).unwrap();
    for (i, sample) in arms.iter().enumerate() {
        sample.write(&run.path().join(format!("captures/{i}.safetensors")));
    }
    // The reference is not compared with itself, and the oracle is asked for only by name.
    let pairs = paired(run.path(), run.path(), None, None).unwrap();
    assert_eq!(pairs.len(), 1);
    assert!(pairs[0].oracle.is_none());
    let pairs = paired(run.path(), run.path(), Some(run.path()), None).unwrap();
    assert!(pairs[0].oracle.as_ref().is_some_and(|oracle| oracle.oracle));
    assert_eq!(judged(&pairs)[0].1, Status::Pass);
}

#[test]
fn the_oracle_decides_which_arm_is_off() {
    let a = folder(&[sample("m/f32/full", "CPU", 0.3)]);
    let b = folder(&[sample("m/f32/full", "Vulkan0", 0.0)]);
    let oracle = folder(&[sample("m/f32/full", ORACLE, 1e-7)]);
    let found = judged(&paired(a.path(), b.path(), Some(oracle.path()), None).unwrap());
    assert_eq!(found[0].1, Status::Pass);
    assert!(found[0].2.starts_with("reference off"), "{}", found[0].2);
    let other = folder(&[sample("m/f32/decode", ORACLE, 0.0)]);
    let error = paired(a.path(), b.path(), Some(other.path()), None).unwrap_err();
    assert!(matches!(error, PairError::NoOracle(_)), "{error}");
}

#[test]
fn what_another_runtime_lacks_is_named_and_what_it_has_is_held() {
    let ours = sample("m/f32/full", "CPU", 0.0);
    let theirs = tempfile::tempdir().unwrap();
    let file = theirs.path().join("theirs.safetensors");
    let a = folder(std::slice::from_ref(&ours));

    foreign(&ours.with_noise(1e-6), &file, None, false);
    let found = judged(&paired(a.path(), &file, None, None).unwrap());
    assert_eq!((found[0].0.as_str(), found[0].1), ("m/f32/full@foreign:foreign", Status::Pass));
    assert!(
        found[0].2.contains("K/V (absent in the test)") && found[0].2.contains("model's hash"),
        "{}",
        found[0].2
    );

    foreign(&ours.with_noise(1e-6), &file, None, true);
    let found = judged(&paired(&file, a.path(), None, None).unwrap());
    assert_eq!((found[0].0.as_str(), found[0].1), ("m/f32/full@b:CPU", Status::Pass));
    assert!(!found[0].2.contains("K/V"), "{}", found[0].2);

    let mut spoilt = ours.with_noise(1e-6);
    spoilt.layers[1][0][7] = f32::NAN;
    foreign(&spoilt, &file, None, true);
    let found = judged(&paired(a.path(), &file, None, None).unwrap());
    assert_eq!(found[0].1, Status::Diverged);
    assert!(found[0].2.contains("k.1"), "{}", found[0].2);

    foreign(&ours.with_noise(0.1), &file, None, false);
    assert_eq!(judged(&paired(a.path(), &file, None, None).unwrap())[0].1, Status::Diverged);
}

#[test]
fn the_case_of_another_runtime_comes_from_the_file_its_name_or_the_command_line() {
    let ours = [sample("m/f32/full", "CPU", 0.0), sample("m/f32/decode?kv=q8_0", "CPU", 0.0)];
    let a = folder(&ours);
    let theirs = tempfile::tempdir().unwrap();
    let stated = theirs.path().join("x.safetensors");
    foreign(&ours[0], &stated, Some("m/f32/full"), true);
    foreign(&ours[1], &theirs.path().join("m_f32_decode_kv-q8_0.safetensors"), None, true);
    let ids = |pairs: Vec<Pair>| pairs.iter().map(|pair| pair.id.case.to_string()).collect::<Vec<_>>();
    let pairs = paired(a.path(), theirs.path(), None, None).unwrap();
    assert!(pairs.iter().all(|pair| pair.reference.is_some() && pair.test.is_some()));
    assert_eq!(ids(pairs), ["m/f32/full", "m/f32/decode?kv=q8_0"]);

    let nameless = theirs.path().join("y.safetensors");
    foreign(&ours[0], &nameless, None, true);
    let error = paired(a.path(), theirs.path(), None, None).unwrap_err().to_string();
    assert!(error.contains("y.safetensors") && error.contains("--case"), "{error}");
    let pairs = paired(a.path(), &nameless, None, Some("m/f32/full")).unwrap();
    assert_eq!(pairs.iter().filter(|pair| pair.test.is_some()).count(), 1);

    foreign(&ours[0], &stated, Some("m/f32"), true);
    let error = Captures::open(&stated).unwrap_err().to_string();
    assert!(error.contains("x.safetensors") && error.contains("`__metadata__.case` is m/f32"), "{error}");
}

#[test]
fn a_copy_of_the_reference_is_no_test() {
    let arms = [sample("m/f32/full", "CPU", 0.0)];
    let (a, b) = (folder(&arms), folder(&arms));
    let found = judged(&paired(a.path(), b.path(), None, None).unwrap());
    assert_eq!(found[0].1, Status::Missing);
    assert!(found[0].2.contains("copy"), "{}", found[0].2);
    // A file is never compared with itself.
    assert_eq!(judged(&paired(a.path(), a.path(), None, None).unwrap())[0].1, Status::Missing);
}

#[test]
fn several_captures_of_one_cell_are_named() {
    let a = folder(&[sample("m/f32/full", "Vulkan0", 0.0), sample("m/f32/full", "CUDA0", 0.0)]);
    let b = folder(&[sample("m/f32/full", "Vulkan0", 0.0)]);
    let error = paired(a.path(), b.path(), None, None).unwrap_err().to_string();
    assert!(error.contains("0.safetensors") && error.contains("plain CPU"), "{error}");
    let twice = folder(&[sample("m/f32/full", "Vulkan0", 0.0), sample("m/f32/full", "Vulkan0", 1e-6)]);
    let error = paired(b.path(), twice.path(), None, None).unwrap_err().to_string();
    assert!(error.contains("m/f32/full@b:Vulkan0") && error.contains("1.safetensors"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert!(Captures::open(empty.path()).unwrap_err().to_string().contains("no capture"));
}
