//! Searches over trials that nobody has to run.

use super::*;
use std::convert::Infallible;

fn unit(text: &str) -> Unit {
    text.parse().unwrap()
}

/// A trial of a made-up cell with three layers of three ops each.
fn trial(pins: Option<Pins>, status: Status) -> Trial {
    let units = ["ADD", "MUL_MAT", "ROPE"];
    let units = units.iter().flat_map(|op| (0..3).map(move |layer| Unit { layer, op: (*op).to_owned() }));
    let pinned = units.filter(|unit| pins.as_ref().is_some_and(|pins| pins.contains(unit)));
    Trial {
        pinned: pinned.map(|unit| (unit, 1)).collect(),
        pins,
        status,
        reason: String::new(),
        logits_nmse: Some(f64::NAN),
        kv_nmse: None,
        oracle_nmse: None,
        seconds: 0.5,
    }
}

/// Searches a cell that passes where `passes` says so of what is pinned.
fn found(status: impl Fn(&Pins) -> Status) -> Found {
    search(|pins| {
        let status = pins.as_ref().map_or(Status::Diverged, &status);
        Ok::<_, Infallible>(trial(pins, status))
    })
    .unwrap()
}

fn passes_with(needed: &[&str]) -> impl Fn(&Pins) -> Status {
    let needed: Vec<Unit> = needed.iter().map(|text| unit(text)).collect();
    move |pins| if needed.iter().all(|unit| pins.contains(unit)) { Status::Pass } else { Status::Diverged }
}

#[test]
fn units_of_two_layers_are_found_by_layers_first() {
    let found = found(passes_with(&["MUL_MAT@1", "ROPE@2"]));
    assert_eq!(found.finding, Finding::Smallest(vec![unit("MUL_MAT@1"), unit("ROPE@2")]));
    assert_eq!(found.units.len(), 9);
    assert_eq!(found.after().unwrap().status, Status::Pass);
    assert_eq!(found.before().unwrap().status, Status::Diverged);
    // Nothing pinned, everything, nothing by hand; then layers 1 and 2 of three; then two of their six units.
    assert!(found.trials.len() < 25, "{}", found.trials.len());
    let Some(Pins::These(first)) = &found.trials[3].pins else { panic!("{:?}", found.trials[3].pins) };
    assert_eq!(first.len() % 3, 0, "whole layers: {first:?}");
}

#[test]
fn a_trial_that_crashes_has_not_restored_parity_and_the_search_goes_on() {
    let needed = passes_with(&["ROPE@2"]);
    // Pinning two whole layers crashes.
    let found = found(|pins| match pins {
        Pins::These(set) if set.len() == 6 => Status::Crashed,
        pins => needed(pins),
    });
    assert_eq!(found.finding, Finding::Smallest(vec![unit("ROPE@2")]));
    assert!(found.trials.iter().any(|trial| trial.outcome() == Outcome::Unresolved));
}

#[test]
fn a_cell_that_passes_has_nothing_to_find() {
    let found = search(|pins| Ok::<_, Infallible>(trial(pins, Status::Pass))).unwrap();
    assert_eq!((found.finding.clone(), found.trials.len()), (Finding::NothingToFind, 1));
    assert_eq!(found.after(), None);
}

#[test]
fn what_the_cpu_does_not_repair_is_no_matter_of_placement() {
    for status in [Status::Diverged, Status::Crashed, Status::Timeout, Status::Unsupported] {
        let found = found(|_| status);
        assert_eq!((found.finding.clone(), found.trials.len()), (Finding::NotPlacement, 2));
    }
}

#[test]
fn a_fault_that_goes_when_nodes_are_placed_by_hand_is_the_schedulers() {
    let found = found(|_| Status::Pass);
    assert_eq!(found.finding, Finding::Scheduling);
    assert_eq!(found.after().unwrap().pins, Some(Pins::These(BTreeSet::new())));
}

#[test]
fn trials_are_kept_as_json_with_a_nan() {
    let trial = trial(Some(Pins::These([unit("ROPE@2")].into())), Status::Diverged);
    let json = serde_json::to_string(&trial).unwrap();
    assert!(json.contains(r#""these":["ROPE@2"]"#) && json.contains(r#""logits_nmse":"nan""#), "{json}");
    let read: Trial = serde_json::from_str(&json).unwrap();
    assert!(read.logits_nmse.unwrap().is_nan());
    assert_eq!((read.pins, read.pinned), (trial.pins, trial.pinned));
}
