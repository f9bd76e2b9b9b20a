//! Planted faults: each must be found, and by the metric that is there for it.

use super::*;
use crate::capture::{Cache, Placement, sample::Noise, sample::Sample};
use crate::verdict::{Limits, Status, Verdict, judge};
use proptest::prelude::*;

const LIMIT: f64 = 1e-9;

fn metrics_at(reference: &Sample, test: &Sample, limits: &Limits) -> Metrics {
    compare(&mut reference.open(), &mut test.open(), limits).unwrap()
}

fn metrics(reference: &Sample, test: &Sample) -> Metrics {
    metrics_at(reference, test, &Limits::uniform(LIMIT))
}

/// The verdict with all work on the CPU.
fn verdict(metrics: &Metrics, limits: &Limits) -> Verdict {
    let mut placement = Placement::default();
    placement.backends.push(crate::capture::BackendNodes {
        name: "CPU".to_owned(),
        compute_nodes: 1,
        ..Default::default()
    });
    judge(metrics, &placement, limits, true)
}

/// The reason why `test` is red against `reference`.
fn reason_at(reference: &Sample, test: &Sample, limits: &Limits) -> String {
    let verdict = verdict(&metrics_at(reference, test, limits), limits);
    assert_eq!(verdict.status, Status::Diverged);
    verdict.reason
}

fn reason(reference: &Sample, test: &Sample) -> String {
    reason_at(reference, test, &Limits::uniform(LIMIT))
}

/// The error of two captures that cannot be compared, which makes the cell red.
fn refusal(reference: &Sample, test: &Sample) -> String {
    let error = compare(&mut reference.open(), &mut test.open(), &Limits::uniform(LIMIT)).unwrap_err();
    let verdict = Verdict::from(error);
    assert_eq!(verdict.status, Status::Diverged);
    verdict.reason
}

/// A planted change of a sample.
fn planted(sample: &Sample, change: impl FnOnce(&mut Sample)) -> Sample {
    let mut changed = sample.clone();
    change(&mut changed);
    changed
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap()
}

#[test]
fn equal_captures_pass_with_zeros() {
    let sample = Sample::new(24, 160);
    let found = metrics(&sample, &sample);
    assert_eq!((found.logits.overall, found.logits.worst.nmse), (0.0, 0.0));
    assert_eq!((found.kv.as_ref().unwrap().k, found.kv.as_ref().unwrap().v), (0.0, 0.0));
    assert_eq!((found.distribution.kl_max, found.distribution.overlap_min), (0.0, 1.0));
    assert_eq!(verdict(&found, &Limits::uniform(LIMIT)).status, Status::Pass);
}

#[test]
fn noise_within_the_limit_passes_and_its_size_is_measured() {
    let sample = Sample::new(24, 160);
    let found = metrics(&sample, &sample.with_noise(1e-5));
    assert!((found.logits.overall / 1e-10 - 1.0).abs() < 0.2, "{}", found.logits.overall);
    assert_eq!(verdict(&found, &Limits::uniform(LIMIT)).status, Status::Pass);
    let reason = reason(&sample, &sample.with_noise(2e-4));
    assert!(reason.starts_with("logits NMSE ") && reason.contains("e-8 > 1e-9, worst row "), "{reason}");
}

#[test]
fn a_nan_at_the_argmax_fails_everywhere() {
    let sample = Sample::new(24, 160);
    let column = argmax(&sample.logits[3]);
    let test = planted(&sample, |s| s.logits[3][column] = f32::NAN);
    let found = metrics(&sample, &test);
    assert_eq!((found.nonfinite.nan(), found.top_token.real), (1, 1));
    assert!(found.logits.overall.is_nan() && found.distribution.kl_max.is_nan());
    assert!(found.distribution.max_abs_error.is_nan() && found.distribution.max_rel_error.is_nan());
    assert_eq!(found.logits.worst.place.row, 3);
    let wanted = format!("1 NaN and 0 unmatched infinities, first in logits row 3 column {column}: ");
    assert!(reason(&sample, &test).starts_with(&wanted));
    // The other way round, and in both arms: a NaN that the reference has too is no agreement.
    assert!(reason(&test, &sample).starts_with("1 NaN"));
    assert!(reason(&test, &test).starts_with("2 NaN"));
    // No limit forgives it.
    let limits = Limits { max_real_mismatches: 99, ..Limits::uniform(f64::INFINITY) };
    assert!(reason_at(&sample, &test, &limits).starts_with("1 NaN"));
}

#[test]
fn a_nan_in_a_cache_fails() {
    let sample = Sample::new(4, 16);
    let test = planted(&sample, |s| s.layers[1][1][9] = f32::NAN);
    assert!(reason(&sample, &test).contains("first in v.1 row 1 column 1: "));
    let limits = Limits::uniform(f64::INFINITY);
    assert!(reason_at(&sample, &test, &limits).contains("NMSE of v.1 NaN"));
}

#[test]
fn a_matched_infinity_passes_and_the_rest_of_the_row_is_scored() {
    let sample = planted(&Sample::new(4, 16), |s| s.logits[1][2] = f32::NEG_INFINITY);
    let found = metrics(&sample, &sample);
    assert_eq!(found.nonfinite.tensors["logits"].matched_infinite, 1);
    assert_eq!(verdict(&found, &Limits::uniform(LIMIT)).status, Status::Pass);
    let test = planted(&sample, |s| s.logits[1][3] += 1.0);
    assert!(reason(&sample, &test).starts_with("logits NMSE "));
}

#[test]
fn an_unmatched_infinity_fails() {
    let sample = Sample::new(4, 16);
    let infinite = planted(&sample, |s| s.logits[1][2] = f32::NEG_INFINITY);
    let opposite = planted(&sample, |s| s.logits[1][2] = f32::INFINITY);
    for (reference, test) in [(&sample, &infinite), (&infinite, &sample), (&infinite, &opposite)] {
        assert!(reason(reference, test).starts_with("0 NaN and 1 unmatched infinities"));
    }
}

#[test]
fn one_row_five_times_too_large_among_a_thousand_fails_through_the_worst_row() {
    let sample = Sample::new(1000, 16);
    let test = planted(&sample, |s| s.logits[617].iter_mut().for_each(|v| *v *= 5.0));
    let limits = Limits::uniform(3e-2);
    let found = metrics_at(&sample, &test, &limits);
    assert!(limits.logits_nmse.holds(found.logits.overall), "the mean forgives it");
    assert!(found.logits.p99 == 0.0, "and so does the quantile");
    assert_eq!(found.top_token.mismatches, 0, "and the top token is the same");
    let reason = reason_at(&sample, &test, &limits);
    let largest = |a: &usize, b: &usize| {
        let size = |column: usize| sample.logits[617][column].abs();
        size(*a).total_cmp(&size(*b))
    };
    let column = (0..16).max_by(largest).unwrap();
    let wanted = format!(
        "NMSE of row 617 of 1000 (position 617, step 0, largest error in column {column}) 1.6e1 > 3e-1"
    );
    assert_eq!(reason, wanted);
}

#[test]
fn a_zeroed_row_fails() {
    let sample = Sample::new(1000, 16);
    let test = planted(&sample, |s| s.logits[5].fill(0.0));
    assert!(reason_at(&sample, &test, &Limits::uniform(3e-2)).starts_with("NMSE of row 5 of 1000"));
}

#[test]
fn swapped_rows_fail() {
    let sample = Sample::new(1000, 64);
    let test = planted(&sample, |s| s.logits.swap(10, 11));
    let reason = reason_at(&sample, &test, &Limits::uniform(3e-2));
    assert!(reason.starts_with("NMSE of row 1"), "{reason}");
    assert!(reason.contains("2 real top-token mismatches in 1000 rows"), "{reason}");
}

#[test]
fn one_head_of_k_off_by_a_hundredth_is_named() {
    let sample = Sample::new(4, 16);
    let [_, heads, width] = Sample::KV;
    let test = planted(&sample, |s| {
        s.layers[1][0].chunks_mut(heads * width).for_each(|p| p[width..].iter_mut().for_each(|v| *v *= 1.01));
    });
    let found = metrics(&sample, &test);
    let kv = found.kv.as_ref().unwrap();
    assert_eq!((kv.worst.cache, kv.worst.layer, kv.worst.head), (Cache::K, 1, 1));
    assert_eq!(kv.worst.heads[0], 0.0);
    assert!((kv.worst.heads[1] / 1e-4 - 1.0).abs() < 1e-3);
    assert_eq!(kv.worst.positions.len(), Sample::KV[0]);
    assert_eq!((kv.layers[0].k, kv.layers[0].v, kv.layers[1].v, kv.v), (0.0, 0.0, 0.0, 0.0));
    assert_eq!(kv.worst_of(Cache::K), (1, kv.layers[1].k));
    assert_eq!(kv.first_bad.as_ref().map(|bad| (bad.cache, bad.layer)), Some((Cache::K, 1)));
    assert!(reason(&sample, &test).starts_with("NMSE of k.1 "));
}

#[test]
fn the_first_bad_layer_and_the_worst_are_told_apart() {
    let sample = Sample::new(4, 16);
    let test = planted(&sample, |s| {
        s.layers[0][1][3] += 0.01;
        s.layers[1][0][17] += 1.0;
    });
    let reason = reason(&sample, &test);
    assert!(reason.contains("NMSE of v.0 "), "{reason}");
    assert!(reason.contains("worst k.1 with ") && reason.contains("(head 0, position 2)"), "{reason}");
}

#[test]
fn captures_of_other_things_are_refused() {
    let sample = planted(&Sample::new(4, 16), |s| s.greedy = Some(vec![1]));
    let refused = |wanted: &str, change: &dyn Fn(&mut Sample)| {
        let test = planted(&sample, change);
        for (reference, test) in [(&sample, &test), (&test, &sample)] {
            let reason = refusal(reference, test);
            assert!(reason.starts_with("the captures differ in ") && reason.contains(wanted), "{reason}");
        }
    };
    refused("layers of K/V", &|s| s.layers.truncate(1));
    refused("layers of K/V", &|s| s.layers.clear());
    refused("rows of logits", &|s| {
        s.logits.pop();
        s.positions.pop();
        s.step.pop();
    });
    refused("vocabulary", &|s| s.logits.iter_mut().for_each(|row| row.truncate(15)));
    refused("tokens at index 2", &|s| s.tokens[2] += 1);
    refused("the number of tokens", &|s| s.tokens.push(1));
    refused("positions at index 3", &|s| s.positions[3] = 0);
    refused("step at index 0", &|s| s.step[0] = 1);
    refused("the model's hash", &|s| s.meta.model.sha256 = "00".repeat(32));
    refused("the greedy run", &|s| s.greedy = None);
    refused("the number of unmask.step", &|s| {
        s.unmask = Some(crate::capture::Unmask { step: vec![0], position: vec![1], token: vec![2] });
    });
}

#[test]
fn caches_that_neither_capture_holds_are_not_a_pass() {
    let sample = planted(&Sample::new(4, 16), |s| s.layers.clear());
    assert_eq!(reason(&sample, &sample), "K/V were to be compared, but the captures hold none");
    let limits = Limits { kv_nmse: None, ..Limits::uniform(LIMIT) };
    assert_eq!(verdict(&metrics_at(&sample, &sample, &limits), &limits).status, Status::Pass);
}

#[test]
fn a_reference_of_zeros_passes_only_zeros() {
    let zeros = planted(&Sample::new(4, 16), |s| s.logits.iter_mut().for_each(|row| row.fill(0.0)));
    assert_eq!(verdict(&metrics(&zeros, &zeros), &Limits::uniform(LIMIT)).status, Status::Pass);
    let test = planted(&zeros, |s| s.logits[2][1] = 1e-20);
    let reason = reason(&zeros, &test);
    assert!(reason.starts_with("logits NMSE inf > 1e-9, worst row 2 of 4"), "{reason}");
}

#[test]
fn a_flip_of_a_near_tie_is_forgiven_and_a_real_one_is_not() {
    // NMSE 1e-4 allows noise of 0.01 in logits of unit size, so margins up to 0.04 are ties.
    let limits = Limits::uniform(1e-4);
    let flipped = |margin: f32| {
        let sample = planted(&Sample::new(24, 160), |s| {
            s.logits[7][20] = 6.0;
            s.logits[7][90] = 6.0 - margin;
        });
        let test = planted(&sample, |s| s.logits[7].swap(20, 90));
        (sample, test)
    };
    let (sample, test) = flipped(0.02);
    let found = metrics_at(&sample, &test, &limits);
    assert_eq!((found.top_token.ties, found.top_token.real), (1, 0));
    let mismatch = &found.top_token.list[0];
    assert_eq!((mismatch.kind, mismatch.place.row), (MismatchKind::Tie, 7));
    assert_eq!((mismatch.reference, mismatch.test), (Some(20), Some(90)));
    assert!((mismatch.margin - 0.02).abs() < 1e-6 && mismatch.margin == mismatch.gap);
    assert_eq!(verdict(&found, &limits).status, Status::Pass);

    // The row is still within its limit: only the margin tells.
    let (sample, test) = flipped(0.2);
    let found = metrics_at(&sample, &test, &limits);
    assert!(limits.row_nmse.holds(found.logits.worst.nmse));
    assert_eq!((found.top_token.ties, found.top_token.real), (0, 1));
    assert!(reason_at(&sample, &test, &limits).contains("1 real top-token mismatches in 24 rows > 0"));
}

#[test]
fn garbage_is_not_forgiven() {
    let sample = Sample::new(200, 160);
    let mut noise = Noise::new(99);
    let test = planted(&sample, |s| s.logits.iter_mut().for_each(|row| *row = noise.values(160)));
    for limit in [1e-9, 1e-4, 3e-2] {
        let found = metrics_at(&sample, &test, &Limits::uniform(limit)).top_token;
        assert_eq!(found.ties, 0);
        assert!(found.real > 190 && found.interval[0] > 0.9, "{found:?}");
    }
}

#[test]
fn a_near_tie_in_a_row_of_garbage_is_real() {
    let sample = planted(&Sample::new(24, 160), |s| (s.logits[7][20], s.logits[7][90]) = (6.0, 5.999));
    let mut noise = Noise::new(99);
    let test = planted(&sample, |s| s.logits[7] = noise.values(160));
    assert_eq!(metrics_at(&sample, &test, &Limits::uniform(1e-4)).top_token.real, 1);
}

/// A sample whose free run is what its rows decide: three tokens from position 2 on, the second a near tie.
fn free_run() -> Sample {
    planted(&Sample::new(5, 16), |s| {
        for (row, token) in [(1, 3), (2, 4), (3, 5)] {
            s.logits[row][token] = 9.0;
        }
        s.logits[2][11] = 8.99;
        s.tokens = vec![1, 2, 3, 4, 5];
        s.greedy = Some(vec![3, 4, 5]);
    })
}

#[test]
fn greedy_is_required_up_to_the_first_near_tie() {
    let sample = free_run();
    let limits = Limits::uniform(1e-4);
    let found = metrics_at(&sample, &sample, &limits).greedy.unwrap();
    assert_eq!((found.equal, found.length, found.required), (true, 3, 1));
    let later = planted(&sample, |s| s.greedy = Some(vec![3, 11, 0]));
    let found = metrics_at(&sample, &later, &limits);
    let first = found.greedy.as_ref().unwrap().first_difference.as_ref().unwrap();
    assert_eq!((first.index, first.test), (1, Some(11)));
    assert!((first.margin.unwrap() - 0.01).abs() < 1e-6);
    assert_eq!(verdict(&found, &limits).status, Status::Pass);
    let before = planted(&sample, |s| s.greedy = Some(vec![7, 4, 5]));
    let reason = reason_at(&sample, &before, &limits);
    assert!(
        reason.starts_with("greedy run differs at token 0 of 3: 3 in the reference, 7 in the test, margin ")
    );
}

#[test]
fn margins_that_the_capture_states_count_before_those_of_its_rows() {
    let sample = planted(&free_run(), |s| s.greedy_margin = Some(vec![9.0, 9.0, 0.0]));
    let later = planted(&sample, |s| s.greedy = Some(vec![3, 11, 5]));
    let reason = reason_at(&sample, &later, &Limits::uniform(1e-4));
    assert!(reason.starts_with("greedy run differs at token 1 of 3"), "{reason}");
}

#[test]
fn margins_that_nothing_tells_are_required() {
    let other_tokens = planted(&free_run(), |s| s.tokens = vec![1, 2, 3, 9, 9]);
    let masked = planted(&free_run(), |s| s.unmask = Some(crate::capture::Unmask::default()));
    for sample in [other_tokens, masked] {
        let later = planted(&sample, |s| s.greedy = Some(vec![3, 4, 6]));
        assert!(reason_at(&sample, &later, &Limits::uniform(1e-4)).ends_with("margin unknown"));
    }
}

#[test]
fn limits_that_are_nan_forgive_nothing() {
    let sample = Sample::new(4, 16);
    assert!(reason_at(&sample, &sample, &Limits::uniform(f64::NAN)).starts_with("logits NMSE 0.0e0 > NaN"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_nan_anywhere_in_either_arm_fails_every_limit(
        in_caches: bool,
        in_reference: bool,
        one: prop::sample::Index,
        other: prop::sample::Index,
        limit in prop::sample::select(vec![1e-9, 1.0, f64::INFINITY]),
    ) {
        let sample = Sample::new(3, 8);
        let spoilt = planted(&sample, |s| {
            let mut tensors: Vec<&mut Vec<f32>> =
                if in_caches { s.layers.iter_mut().flatten().collect() } else { s.logits.iter_mut().collect() };
            let count = tensors.len();
            let values = &mut tensors[one.index(count)];
            let length = values.len();
            values[other.index(length)] = f32::NAN;
        });
        let (reference, test) = if in_reference { (&spoilt, &sample) } else { (&sample, &spoilt) };
        let limits = Limits { max_real_mismatches: u64::MAX, ..Limits::uniform(limit) };
        prop_assert!(reason_at(reference, test, &limits).starts_with("1 NaN"));
    }
}

#[test]
fn comparing_is_bit_stable() {
    let sample = Sample::new(24, 160);
    let test = sample.with_noise(1e-3);
    let json = || serde_json::to_string(&metrics(&sample, &test)).unwrap();
    assert_eq!(json(), json());
}

#[test]
fn metrics_round_trip_with_values_json_lacks() {
    let sample = Sample::new(4, 16);
    let test = planted(&sample, |s| s.logits[1][2] = f32::INFINITY);
    let json = serde_json::to_string(&metrics(&sample, &test)).unwrap();
    let back: Metrics = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
    assert!(json.contains("\"nan\"") || json.contains("\"inf\""));
}

/// The anchors from outside: llama.cpp against an f64 forward, both written without any code of ours.
#[test]
fn the_anchors_agree_as_their_readme_says() {
    let anchors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/anchors");
    for (name, measured) in [("dream", 3.1e-14), ("llada", 4.2e-14), ("qwen2", 2.9e-14), ("llama", 4.9e-14)] {
        let open = |kind: &str| {
            let path = anchors.join(format!("{name}-anchor.{kind}.safetensors"));
            crate::capture::CaptureReader::open_foreign(&path).unwrap()
        };
        let limits = Limits { kv_nmse: None, ..Limits::uniform(1e-11) };
        let found = compare(&mut open("f64"), &mut open("llamacpp"), &limits).unwrap();
        assert!((found.logits.overall / measured - 1.0).abs() < 0.02, "{name} {}", found.logits.overall);
        assert_eq!((found.logits.rows, found.top_token.mismatches), (24, 0));
        assert_eq!(verdict(&found, &limits).status, Status::Pass);
    }
}
