//! Each fault changes what it is said to change, and nothing else.

use super::*;
use crate::capture::{BuildFile, Cache, CaptureReader, sample::Sample};
use crate::compare::compare;
use crate::selftest::image::Floats;
use crate::selftest::kinds::Scale;
use crate::verdict::Limits;
use model_file::{HyperParams, Model};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const ROWS: usize = 5;
const COLUMNS: usize = 16;

/// A capture of five steps, with a library in its build.
fn sample(selector: &str) -> Sample {
    let mut sample = Sample::new(ROWS, COLUMNS);
    sample.step = (0..5).collect();
    sample.meta.device.selector = selector.to_owned();
    sample.meta.build.files = vec![BuildFile { name: "libggml.so".to_owned(), sha256: "ab".repeat(32) }];
    sample
}

/// Captures of a reference, a device and an oracle that are equal but for their devices.
fn arms() -> Arms {
    let folder = tempfile::tempdir().unwrap();
    let image = |selector: &str| {
        let path = folder.path().join(selector);
        sample(selector).write(&path);
        Image::load(&path).unwrap()
    };
    Arms { reference: image("CPU"), device: image("CPU@x64"), oracle: Some(image("oracle")) }
}

fn anchor(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/anchors").join(name)
}

fn model(name: &str) -> Model {
    Model::open(&anchor(&format!("{name}-anchor.gguf"))).unwrap()
}

/// A rotation of heads of [`Sample::KV`].
fn rope() -> Rope {
    let width = Sample::KV[2];
    Rope::new(&HyperParams { rope_dim: width, head_dim: width, ..model("qwen2").hparams }, None)
}

/// The captures with a fault of `size`, and its place.
fn planted(kind: Kind, size: f64) -> (Arms, Place) {
    let mut changed = arms();
    let place = plant(kind, size, &mut changed, &rope()).unwrap();
    (changed, place)
}

fn logits(image: &Image) -> Floats {
    image.floats("logits").unwrap()
}

/// The names of tensors that differ, and `meta` where the metadata do.
fn changed(before: &Image, after: &Image) -> String {
    let mut names: Vec<String> = ["logits", "positions", "step", "tokens"].map(str::to_owned).into();
    names.extend((0..2).flat_map(|layer| Cache::ALL.iter().map(move |cache| cache.tensor(layer))));
    // As text: a NaN is equal to itself there.
    let content =
        |image: &Image, name: &str| format!("{:?} {:?}", image.floats(name).ok(), image.integers(name).ok());
    names.retain(|name| content(before, name) != content(after, name));
    names.extend((before.meta != after.meta).then(|| "meta".to_owned()));
    names.join(" ")
}

#[test]
fn every_fault_changes_its_tensors_and_no_others() {
    for &kind in Kind::ALL {
        let wanted = match kind {
            Kind::KHeadScaled | Kind::KStale => "k.1",
            Kind::VHeadPermuted | Kind::VPositionZeroed | Kind::ConstantTensor => "v.1",
            Kind::KWithoutRope => "k.0 k.1",
            Kind::MissingLayer => "k.1 v.1",
            Kind::FewerRows | Kind::MoreRows => "logits positions step",
            Kind::OtherTokens => "tokens",
            Kind::WrongModelHash | Kind::WrongBuild | Kind::CopyOfReference => "meta",
            Kind::AllZeros => "logits k.0 v.0 k.1 v.1",
            _ => "logits",
        };
        let (before, (after, place)) = (arms(), planted(kind, kind.scale().full()));
        assert_eq!(changed(&before.device, &after.device), wanted, "{kind}");
        let others = match kind {
            Kind::MatchedInfinity | Kind::DenormalFlush => "logits",
            _ => "",
        };
        assert_eq!(changed(&before.reference, &after.reference), others, "{kind}");
        let oracles = |arms: &Arms| arms.oracle.clone().unwrap();
        assert_eq!(changed(&oracles(&before), &oracles(&after)), others, "{kind}");
        assert!(!place.words.is_empty() && !place.named_in(""), "{kind}");
    }
}

#[test]
fn a_fault_of_no_size_leaves_the_device_as_the_reference_is() {
    for &kind in Kind::ALL.iter().filter(|kind| matches!(kind.scale(), Scale::Size { .. })) {
        let (after, _) = planted(kind, 0.0);
        assert_eq!(changed(&after.reference, &after.device), "meta", "{kind}");
    }
}

#[test]
fn values_that_are_not_finite_stand_where_they_are_said_to() {
    let before = logits(&arms().device);
    let top = (0..COLUMNS).reduce(|a, b| if before.row(2)[b] > before.row(2)[a] { b } else { a }).unwrap();
    for (kind, is) in [
        (Kind::Nan, f64::NAN),
        (Kind::NanAtTop, f64::NAN),
        (Kind::PlusInfinity, f64::INFINITY),
        (Kind::MinusInfinity, f64::NEG_INFINITY),
    ] {
        let (after, place) = planted(kind, 1.0);
        let after = logits(&after.device);
        let bad: Vec<usize> = (0..after.values.len()).filter(|&i| !after.values[i].is_finite()).collect();
        let [at] = bad[..] else { panic!("{kind}: {bad:?}") };
        assert_eq!(after.values[at].to_string(), is.to_string());
        assert_eq!((at / COLUMNS, at % COLUMNS == top), (2, kind == Kind::NanAtTop), "{kind}");
        assert!(place.named_in(&format!("first in logits row 2 column {}: NaN", at % COLUMNS)), "{kind}");
    }
}

#[test]
fn rows_are_scaled_swapped_and_moved_by_a_step() {
    let before = logits(&arms().device);
    let after = |kind: Kind, size: f64| logits(&planted(kind, size).0.device);
    let scaled = after(Kind::RowScaled, 4.0);
    assert!(scaled.row(2).iter().zip(before.row(2)).all(|(x, r)| (x - 5.0 * r).abs() < 1e-5));
    assert_eq!(after(Kind::RowZeroed, 1.0).row(2), [0.0; COLUMNS]);
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
    let swapped = after(Kind::RowsSwapped, 1.0);
    assert!(close(swapped.row(2), before.row(3)) && close(swapped.row(3), before.row(2)));
    let stale = after(Kind::LastRowStale, 1.0);
    assert!(close(stale.row(4), before.row(3)) && stale.row(3) == before.row(3));
    let late = after(Kind::OffByOneStep, 1.0);
    assert_eq!(late.row(0), before.row(0));
    assert!((1..ROWS).all(|row| close(late.row(row), before.row(row - 1))));
}

#[test]
fn a_matched_infinity_is_in_every_arm_and_only_the_device_is_wrong_beside_it() {
    let (after, _) = planted(Kind::MatchedInfinity, 1001.0);
    let row = |image: &Image| logits(image).row(2).to_vec();
    let (reference, device) = (row(&after.reference), row(&after.device));
    let oracle = row(after.oracle.as_ref().unwrap());
    assert_eq!(reference, oracle);
    let infinite = reference.iter().position(|value| value.is_infinite()).unwrap();
    for (column, (r, x)) in reference.iter().zip(&device).enumerate() {
        assert!(if column == infinite { r == x } else { (x + 1000.0 * r).abs() < 1e-3 }, "{column}");
    }
}

#[test]
fn a_row_of_denormal_numbers_is_lost_on_the_device_alone() {
    let (after, _) = planted(Kind::DenormalFlush, 1.0);
    let reference = logits(&after.reference);
    for value in reference.row(2) {
        assert!((*value as f32).is_subnormal() && f64::from(*value as f32) == *value, "{value:e}");
    }
    assert_eq!(logits(&after.device).row(2), [0.0; COLUMNS]);
    assert_eq!(logits(&after.device).row(1), reference.row(1));
    let half = logits(&planted(Kind::DenormalFlush, 0.5).0.device);
    assert_eq!(half.row(2).iter().filter(|value| **value == 0.0).count(), COLUMNS / 2);
}

#[test]
fn one_bit_of_one_logit_is_flipped() {
    let before = logits(&arms().device);
    for (kind, bit) in [(Kind::ExponentBit, 23), (Kind::TopMantissaBit, 22), (Kind::LowestMantissaBit, 0)] {
        let after = logits(&planted(kind, kind.scale().full()).0.device);
        let bits = |value: f64| (value as f32).to_bits();
        let flips = before.values.iter().zip(&after.values).map(|(&r, &x)| bits(r) ^ bits(x));
        assert_eq!(flips.filter(|flip| *flip != 0).collect::<Vec<_>>(), [1 << bit], "{kind}");
    }
}

#[test]
fn caches_change_in_the_head_or_the_position_that_is_named() {
    let [positions, heads, width] = Sample::KV;
    let places = |kind: Kind, name: &str| {
        let (after, place) = planted(kind, kind.scale().full());
        let (before, after) = (arms().device.floats(name).unwrap(), after.device.floats(name).unwrap());
        let differs = |&i: &usize| before.values[i] != after.values[i];
        let found: Vec<usize> = (0..before.values.len()).filter(differs).collect();
        (found, place)
    };
    for (kind, name) in [(Kind::KHeadScaled, "k.1"), (Kind::VHeadPermuted, "v.1")] {
        let (found, place) = places(kind, name);
        assert_eq!(found.len(), positions * width);
        assert!(found.iter().all(|i| i / width % heads == 1));
        assert!(place.named_in(&format!("worst {name} with 1.0e-4 (head 1, position 3)")), "{kind}");
    }
    for (kind, name, position) in [(Kind::KStale, "k.1", 4), (Kind::VPositionZeroed, "v.1", 2)] {
        let (found, place) = places(kind, name);
        assert!(found.len() == heads * width && found.iter().all(|i| i / (heads * width) == position));
        assert!(place.named_in(&format!("worst {name} with 1.0e0 (head 0, position {position})")), "{kind}");
    }
    let (after, _) = planted(Kind::ConstantTensor, 1.0);
    let constant = after.device.floats("v.1").unwrap().values;
    assert!(constant.iter().all(|value| (value - constant[0]).abs() < 1e-6));
}

/// Before RoPE a key of the first layer depends on its token alone: turned back, the keys of equal tokens of a real
/// model are equal, and before they are not.
#[test]
fn keys_of_equal_tokens_are_equal_without_rope() {
    for (name, factors) in [("qwen2", false), ("llada", false), ("dream", false), ("llama", true)] {
        let model = model(name);
        assert_eq!(model.hparams.has_rope_freqs, factors, "{name}");
        let path = anchor(&format!("{name}-anchor.f64.safetensors"));
        let mut reader = CaptureReader::open_foreign(&path).unwrap();
        let [positions, heads, width] = reader.kv_shape(Cache::K, 0);
        let mut k = Vec::new();
        reader.kv(Cache::K, 0, 0, positions, &mut k).unwrap();
        let rope = Rope::of(&model).unwrap();
        let mut turned = k.clone();
        for (position, row) in turned.chunks_exact_mut(heads * width).enumerate() {
            row.chunks_exact_mut(width).for_each(|head| rope.turn_back(head, position, 1.0));
        }
        let distance = |k: &[f64], a: usize, b: usize| {
            let row = |i: usize| &k[i * heads * width..(i + 1) * heads * width];
            row(a).iter().zip(row(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
        };
        let tokens = reader.tokens().to_vec();
        let pairs = (0..positions).flat_map(|a| (0..a).map(move |b| (a, b)));
        let equal: Vec<_> = pairs.filter(|&(a, b)| tokens[a] == tokens[b]).collect();
        assert!(!equal.is_empty(), "{name}: no token twice");
        for (a, b) in equal {
            assert!(distance(&turned, a, b) < 1e-5, "{name}: positions {a} and {b}");
            assert!(distance(&k, a, b) > 1e-2, "{name}: positions {a} and {b} were equal before");
        }
    }
}

#[test]
fn the_file_says_what_it_is_made_to_say() {
    let device = |kind: Kind| planted(kind, 1.0).0.device;
    assert_eq!(
        (device(Kind::MissingLayer).layers(), device(Kind::MissingLogits).floats("logits").is_err()),
        (1, true)
    );
    for (kind, rows) in [(Kind::FewerRows, 4), (Kind::MoreRows, 6)] {
        let image = device(kind);
        assert_eq!(logits(&image).shape, [rows, COLUMNS]);
        let last = i32::try_from(rows).unwrap() - 1;
        assert_eq!(image.integers("positions").unwrap(), (0..=last).collect::<Vec<_>>());
    }
    let tokens = |image: &Image| image.integers("tokens").unwrap();
    let (before, after) = (tokens(&arms().device), tokens(&device(Kind::OtherTokens)));
    assert_eq!(before.iter().zip(&after).filter(|(a, b)| a != b).count(), 1);
    assert_ne!(before[2], after[2]);
    assert_eq!(device(Kind::CopyOfReference).meta.device.selector, "CPU");
    assert_ne!(device(Kind::WrongModelHash).meta.model.sha256, arms().device.meta.model.sha256);
    let hash = |image: &Image| image.meta.build.files[0].sha256.clone();
    let (before, after) = (hash(&arms().device), hash(&device(Kind::WrongBuild)));
    assert!(before != after && before.len() == after.len());
}

#[test]
fn captures_that_lack_what_a_fault_needs_are_refused() {
    let mut bare = arms();
    for name in ["k.0", "v.0", "k.1", "v.1"] {
        bare.device.remove(name);
    }
    bare.device.meta.build.files.clear();
    bare.device.set_integers("step", &[0; ROWS]);
    for kind in
        [Kind::KHeadScaled, Kind::KWithoutRope, Kind::MissingLayer, Kind::WrongBuild, Kind::OffByOneStep]
    {
        let error = plant(kind, 1.0, &mut bare.clone(), &rope()).unwrap_err().to_string();
        assert!(error.contains("the capture lacks"), "{kind}: {error}");
    }
    bare.device.remove("logits");
    for kind in [Kind::Nan, Kind::FewerRows, Kind::DenormalFlush, Kind::AllZeros] {
        let error = plant(kind, 1.0, &mut bare.clone(), &rope()).unwrap_err().to_string();
        assert!(error.ends_with("lacks `logits`"), "{kind}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_nan_anywhere_is_caught_and_its_place_is_named(
        tensor in prop::sample::select(vec!["logits", "k.0", "v.0", "k.1", "v.1"]),
        at: prop::sample::Index,
        bits in 1u32..(1 << 23),
        negative: bool,
    ) {
        let mut device = arms().device;
        let mut floats = device.floats(tensor).unwrap();
        let at = at.index(floats.values.len());
        let nan = f32::from_bits(bits | 0x7f80_0000 | (u32::from(negative) << 31));
        floats.values[at] = f64::from(nan);
        let (row, column) = (at / floats.row_len(), at % floats.row_len());
        device.set_floats(tensor, floats).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.safetensors");
        device.save(&path).unwrap();
        let mut reader = CaptureReader::open(&path).unwrap();
        // No limit forgives it.
        let limits = Limits { max_real_mismatches: u64::MAX, ..Limits::uniform(f64::INFINITY) };
        let metrics = compare(&mut sample("CPU").open(), &mut reader, &limits).unwrap();
        let mut placement = crate::capture::Placement::default();
        placement.backends.push(crate::capture::BackendNodes {
            name: "CPU".to_owned(),
            compute_nodes: 1,
            ..Default::default()
        });
        let verdict = crate::verdict::judge(&metrics, &placement, &limits, true);
        prop_assert!(!verdict.status.is_good());
        let words = format!("{tensor} row {row} column {column}");
        prop_assert!(Place::all(words.clone(), [words]).named_in(&verdict.reason), "{}", verdict.reason);
    }
}
