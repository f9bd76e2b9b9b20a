//! `ggml-parity answers`: the answers of a sweep, the same item side by side on all arms.

use super::Failed;
use crate::hint;
use crate::sweep::answers::text::{Marking, item};
use crate::sweep::answers::{Answers, OnAllArms};
use crate::sweep::render;
use crate::sweep::result::PairingKind;
use crate::verdict::ExitCode;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ggml-parity answers reports/sweep --differing
      items that an arm answers otherwise than what it is held against, with what differs in brackets
  ggml-parity answers reports/sweep --item 'arithmetic/mul-0007'
  ggml-parity answers reports/sweep --wrong --tag product --against baseline --most 10";

/// Arguments of `answers`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The folder of a sweep, or its sweep.json
    #[arg(value_name = "SWEEP")]
    sweep: PathBuf,
    /// An item by its id, with or without its corpus; repeat for several
    #[arg(long, value_name = "ID")]
    item: Vec<String>,
    /// Only items that an arm answers otherwise than its reference, of the kind of --against
    #[arg(long)]
    differing: bool,
    /// Only items that an arm answers wrongly
    #[arg(long)]
    wrong: bool,
    /// Only items with this tag; repeat for several, one of which is enough
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Only items with this text in prompt or answer, in any case
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// What marks are against: parity, the plain CPU, or baseline, what `sweep --reference` named
    /// [default: parity where an arm has it]
    #[arg(long, value_name = "KIND")]
    against: Option<PairingKind>,
    /// So many items at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    most: Option<u32>,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let sweep = render::read(&args.sweep).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let has = |kind| sweep.arms.iter().any(|arm| arm.pairings.iter().any(|pairing| pairing.kind == kind));
    let default = if has(PairingKind::Parity) { PairingKind::Parity } else { PairingKind::Baseline };
    let kind = args.against.unwrap_or(default);
    let names = |id: &str| id.split_once('/').map_or([id, id], |(_, short)| [id, short]).map(str::to_owned);
    let known: Vec<String> = sweep.items.iter().map(|item| item.id.clone()).collect();
    for wanted in &args.item {
        if !known.iter().any(|id| names(id).contains(wanted)) {
            let near = hint::nearest(wanted, known.iter().map(String::as_str));
            let why = format!("--item `{wanted}`: none of the {} items of the sweep{near}", known.len());
            return Err(Failed::new(ExitCode::Usage, why));
        }
    }
    let all = Answers::of(&sweep);
    let picked = |found: &OnAllArms<'_>| {
        let id = names(&found.item.id);
        (args.item.is_empty() || args.item.iter().any(|wanted| id.contains(wanted)))
            && (!args.differing || all.differs(found, kind))
            && (!args.wrong || found.has_wrong())
            && (args.tag.is_empty() || args.tag.iter().any(|tag| found.item.tags.contains(tag)))
            && args.text.as_ref().is_none_or(|text| has_text(found, &text.to_lowercase()))
    };
    let marking = if super::colour() { Marking::Colour } else { Marking::Brackets };
    let mut found: Vec<OnAllArms<'_>> =
        sweep.items.iter().map(|item| all.item(item)).filter(picked).collect();
    let count = found.len();
    found.truncate(args.most.map_or(count, |most| most as usize));
    for shown in &found {
        println!("{}", item(&all, shown, kind, marking));
    }
    println!("{} of {} items shown, {count} found", found.len(), sweep.items.len());
    Ok(ExitCode::Success)
}

/// Whether prompt or answers have a text.
fn has_text(item: &OnAllArms<'_>, text: &str) -> bool {
    let mut answers = item.distinct.iter().map(|distinct| &distinct.answer.text);
    item.item.prompt.to_lowercase().contains(text)
        || answers.any(|answer| answer.to_lowercase().contains(text))
}
