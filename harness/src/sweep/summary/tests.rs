use super::*;
use crate::plan::CellId;
use crate::sweep::fixtures::sweep;
use crate::verdict::ExitCode;

fn gpu() -> CellId {
    "m/f32/generate@b:Vulkan0".parse().unwrap()
}

#[test]
fn figures_by_hand() {
    let sweep = sweep(20, 8);
    let all = sweep.summary(&gpu(), None).unwrap();
    assert_eq!((all.items, all.done, all.accuracy.hits, all.accuracy.trials), (20, 20, 12, 20));
    assert_eq!(all.accuracy.value, 0.6);
    assert!((all.perplexity.unwrap() - 2.2f64.exp()).abs() < 1e-9);
    let pair = &all.against[0];
    assert_eq!((pair.counts.both, pair.counts.lost, pair.counts.gained), (12, 8, 0));
    // Two tails of 8 of 8 fair coins.
    assert!((pair.mcnemar.unwrap().p - 2.0 / 256.0).abs() < 1e-12);
    assert_eq!(pair.corrected_p, Some(pair.mcnemar.unwrap().p), "one comparison is a family of one");
    assert_eq!(pair.difference, -0.4);
    assert!(pair.difference_interval.contains(-0.4) && !pair.difference_interval.contains(0.0));
    assert_eq!((pair.exact.hits, pair.same_top.hits, pair.same_top.trials), (12, 32, 40));
    let ppl = pair.perplexity.unwrap();
    assert!((ppl.ratio.value - 0.2f64.exp()).abs() < 1e-12 && ppl.tokens == 200);
    let kl = pair.kl.unwrap();
    assert_eq!((kl.rows, kl.mean.value, kl.p99, kl.max), (40, 0.5, 0.75, 0.75));
    assert_eq!((pair.nmse.unwrap().median, pair.nmse.unwrap().max), (1e-6 * 10.0, 1e-6 * 20.0));
    assert_eq!((pair.divergence.parted, pair.parted_by.tenth, pair.parted_by.half), (8, Some(1), None));
    let even = sweep.summary(&gpu(), Some("even")).unwrap();
    assert_eq!((even.items, even.against[0].counts.lost), (10, 4));
    // Twice 1/8, of a family of two.
    assert!((even.against[0].corrected_p.unwrap() - 0.25).abs() < 1e-12);
    assert_eq!((sweep.correction.all_items, sweep.correction.by_tag), (1, 2));
    assert!(sweep.correction.sentence.contains("Holm's method: over the 1 comparisons of all items"));
    assert_eq!(sweep.exit_code(), ExitCode::Success, "{:?}", sweep.faults());
}

#[test]
fn only_rows_that_are_done_on_both_arms_count() {
    let mut sweep = sweep(20, 8);
    // The reference lacks an item that the arm lost, the arm one that it had.
    for row in &mut sweep.rows {
        let cpu = row.against.is_empty();
        if (cpu && row.item == "c/i0") || (!cpu && row.item == "c/i19") {
            *row = Row { status: RowStatus::Crashed, answer: None, against: Vec::new(), ..row.clone() };
        }
    }
    summarise(&mut sweep);
    let all = sweep.summary(&gpu(), None).unwrap();
    assert_eq!((all.done, all.accuracy.trials, all.against[0].items), (19, 19, 18));
    assert_eq!((all.against[0].counts.both, all.against[0].counts.lost), (11, 7));
    assert_eq!(sweep.exit_code(), ExitCode::Worker);
    assert!(sweep.verdict().contains("2 of 40 rows crashed"), "{}", sweep.verdict());
}

#[test]
fn a_limit_fails_a_significant_drop_that_is_larger() {
    let limited = |lost, points| {
        let mut sweep = sweep(20, lost);
        set_limit(&mut sweep, points);
        sweep
    };
    let exceeded = limited(8, 0.0);
    assert_eq!(exceeded.exit_code(), ExitCode::Diverged);
    let text = &exceeded.limit.as_ref().unwrap().exceeded[0];
    assert!(text.contains("40.0 points worse than m/f32/generate@b:CPU (corrected p 7.81e-3)"), "{text}");
    assert_eq!(limited(8, 40.5).exit_code(), ExitCode::Success, "not by so much");
    assert_eq!(limited(5, 0.0).exit_code(), ExitCode::Success, "five of five may be chance");
    let mut unjudged = sweep(4, 0);
    unjudged.rows.iter_mut().for_each(|row| row.answer = None);
    summarise(&mut unjudged);
    set_limit(&mut unjudged, 0.0);
    assert_eq!(unjudged.exit_code(), ExitCode::Incomplete);
    assert!(unjudged.correction.sentence.starts_with("No item was judged"));
}

#[test]
fn what_gives_no_figures_is_red() {
    let mut nan = sweep(4, 0);
    nan.rows[1].against[0].logits.as_mut().unwrap().nmse = f64::NAN;
    assert_eq!(nan.exit_code(), ExitCode::Diverged);
    let with = |status| {
        let mut sweep = sweep(4, 0);
        sweep.rows[1].status = status;
        sweep.exit_code()
    };
    assert_eq!(with(RowStatus::Fallback), ExitCode::Diverged);
    assert_eq!(with(RowStatus::Unsupported), ExitCode::Incomplete);
    assert_eq!(with(RowStatus::Missing), ExitCode::Incomplete);
    assert_eq!(with(RowStatus::Timeout), ExitCode::Worker);
    assert_eq!(with(RowStatus::Inapplicable), ExitCode::Success);
    let mut alone = sweep(4, 0);
    alone.rows.iter_mut().for_each(|row| row.against.clear());
    assert_eq!(alone.exit_code(), ExitCode::Incomplete);
    assert!(alone.verdict().ends_with("nothing was compared; exit 3"), "{}", alone.verdict());
}
