use super::*;
use crate::plan::Shard;
use crate::sweep::fixtures::sweep;
use crate::sweep::render::json;
use crate::verdict::ExitCode;

/// The part of a sweep that one of `of` shards has.
fn part(whole: &Sweep, index: u32, of: u32) -> Sweep {
    let mut part = whole.clone();
    part.run = SweepRun { name: format!("part-{index}"), shard: Some(Shard { index, of }), ..part.run };
    part.items.retain(|item| item.index % u64::from(of) == u64::from(index) - 1);
    part.rows.retain(|row| part.items.iter().any(|item| item.id == row.item));
    summary::summarise(&mut part);
    part
}

#[test]
fn shards_are_the_sweep_that_one_machine_would_have_made() {
    let whole = sweep(20, 8);
    let parts = [part(&whole, 2, 3), part(&whole, 1, 3), part(&whole, 3, 3)];
    let merged = merge(&parts, whole.run.clone(), None).unwrap();
    assert_eq!(merged.parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [14, 14, 12]);
    let text = |sweep: &Sweep| json::render(&Sweep { parts: Vec::new(), ..sweep.clone() });
    assert_eq!(text(&merged), text(&whole));
    let back = json::parse(&json::render(&merged)).unwrap();
    assert_eq!(json::render(&back), json::render(&merged));
}

#[test]
fn a_shard_that_is_missing_makes_the_merged_sweep_incomplete() {
    let whole = sweep(20, 0);
    let merged = merge(&[part(&whole, 1, 2)], SweepRun::default(), None).unwrap();
    assert_eq!(merged.exit_code(), ExitCode::Incomplete);
    assert!(merged.verdict().contains("10 of 20 items are missing"), "{}", merged.verdict());
    assert_eq!(part(&whole, 1, 2).exit_code(), ExitCode::Success, "a shard alone is whole");
    assert_eq!(merge(&[], SweepRun::default(), None), Err(MergeError::Nothing));
}

#[test]
fn rows_that_differ_are_named() {
    let whole = sweep(4, 0);
    let mut other = whole.clone();
    "other".clone_into(&mut other.run.name);
    other.rows[1].seconds = 3.0;
    assert!(merge(&[whole.clone(), other.clone()], SweepRun::default(), None).is_ok(), "times may differ");
    other.rows[3].answer.as_mut().unwrap().text = "36".to_owned();
    other.run.started = "2026-01-02".to_owned();
    let error = merge(&[whole.clone(), other.clone()], SweepRun::default(), None).unwrap_err().to_string();
    assert!(error.starts_with("1 rows differ"), "{error}");
    assert!(
        error.contains("c/i1 on m/f32/generate@b:Vulkan0: fixture: done \"34\"; other: done \"36\""),
        "{error}"
    );
    let newest = merge(&[whole.clone(), other.clone()], SweepRun::default(), Some(Prefer::Newest)).unwrap();
    assert_eq!(newest.rows[3].answer.as_ref().unwrap().text, "36");
    other.rows[3].status = RowStatus::Crashed;
    let worst = merge(&[whole, other], SweepRun::default(), Some(Prefer::Worst)).unwrap();
    assert_eq!(worst.rows[3].status, RowStatus::Crashed);
}

#[test]
fn sweeps_of_other_things_are_refused() {
    let whole = sweep(4, 0);
    let refused = |change: &dyn Fn(&mut Sweep)| {
        let mut other = whole.clone();
        change(&mut other);
        merge(&[whole.clone(), other], SweepRun::default(), None).unwrap_err().to_string()
    };
    assert!(refused(&|s| s.corpora[0].sha256.push('1')).starts_with("the corpora differs"));
    assert!(refused(&|s| s.corpora[0].selected = 3).starts_with("the choice of items"));
    assert!(refused(&|s| s.settings.seed = 3).starts_with("the settings"));
    assert!(refused(&|s| s.items[2].prompt.push('?')).starts_with("item c/i2"));
    assert!(refused(&|s| s.arms[1].pairings.clear()).contains("held against"));
}

#[test]
fn labels_keep_machines_apart() {
    let (mut a, mut b) = (sweep(4, 0), sweep(4, 2));
    label(&mut a, "h100");
    label(&mut b, "mi300");
    let merged = merge(&[a, b], SweepRun::default(), None).unwrap();
    let arms: Vec<String> = merged.arms.iter().map(|arm| arm.id.to_string()).collect();
    assert_eq!(arms[1], "m/f32/generate@b.h100:Vulkan0");
    assert_eq!(arms[3], "m/f32/generate@b.mi300:Vulkan0");
    let lost = |id: &str| merged.summary(&id.parse().unwrap(), None).unwrap().against[0].counts.lost;
    assert_eq!((lost(&arms[1]), lost(&arms[3])), (0, 2));
    assert_eq!((merged.rows.len(), merged.exit_code()), (16, ExitCode::Success));
}
