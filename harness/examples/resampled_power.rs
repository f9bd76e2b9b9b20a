//! Whether the power that `ggml-parity power` computes is the power that a sweep has: of a finished sweep's first judged
//! comparison, takes the measured difference and discordance, asks how many items find such a difference four times in
//! five, draws that many items 200 times with replacement, and counts how often McNemar's exact test finds it.
//!
//! ```text
//! cargo run --release --example resampled_power -- SWEEP
//! ```
//!
//! Ends with 1 where it is found in fewer than three quarters of the draws.

use anyhow::{Context, Result};
use ggml_parity::sweep::render;
use ggml_parity::sweep::result::{Judgement, Row, Sweep};
use ggml_parity::sweep::stats::{Paired, mcnemar, power};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::path::Path;
use std::process::ExitCode;

const DRAWS: usize = 200;

fn main() -> Result<ExitCode> {
    let folder = std::env::args().nth(1).context("usage: resampled_power SWEEP")?;
    let sweep = render::read(Path::new(&folder))?;
    let pairs = pairs(&sweep)?;
    let whole = Paired::tally(pairs.iter().copied());
    let items = whole.items() as f64;
    let difference = (whole.lost as f64 - whole.gained as f64) / items;
    let design = power::Design::common(whole.discordant() as f64 / items);
    let needed = power::items_needed(difference, &design)?.items;
    println!(
        "{} items: {} lost, {} gained; difference {:.1} %, discordance {:.1} %; {needed} items find it with 80 %",
        whole.items(),
        whole.lost,
        whole.gained,
        100.0 * difference,
        100.0 * design.discordance
    );
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut found = 0;
    for _ in 0..DRAWS {
        let drawn = (0..needed).map(|_| pairs[random.next_u64() as usize % pairs.len()]);
        found += usize::from(mcnemar::test(&Paired::tally(drawn)).p <= design.alpha);
    }
    let share = found as f64 / DRAWS as f64;
    println!("found in {found} of {DRAWS} draws of {needed} items, {:.1} %", 100.0 * share);
    Ok(if share >= 0.75 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether each item was answered rightly by the reference and by the arm, of the first arm that has one.
fn pairs(sweep: &Sweep) -> Result<Vec<(bool, bool)>> {
    let right =
        |row: &Row| row.answer.as_ref().map(|answer| answer.judged).filter(|j| *j != Judgement::Unjudged);
    let tested = sweep.rows.iter().find(|row| !row.against.is_empty() && right(row).is_some());
    let tested = tested.context("no arm of this sweep was compared and judged")?;
    let (arm, reference) = (&tested.arm, &tested.against[0].reference);
    let of = |item: &str| {
        let row = sweep.rows.iter().find(|row| row.item == item && row.arm == *reference)?;
        right(row).map(|judged| judged == Judgement::Right)
    };
    let rows = sweep.rows.iter().filter(|row| row.arm == *arm);
    let pairs = rows.filter_map(|row| Some((of(&row.item)?, right(row)? == Judgement::Right))).collect();
    println!("{arm} against {reference}");
    Ok(pairs)
}
