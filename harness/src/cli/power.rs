//! `ggml-parity power`: what a corpus can find, before a sweep is run.

use super::Failed;
use crate::sweep::corpus::{self, Corpus};
use crate::sweep::power::{Assumption, Measured, Question};
use crate::sweep::render;
use crate::verdict::ExitCode;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ggml-parity power --corpus arithmetic --accuracy 0.986
      the differences of accuracies that 501 problems find, and the items that other differences take
  ggml-parity power --corpus instruct --discordance 0.1 --comparisons 8
      for one of eight arms, where a tenth of the items is expected to flip in either direction
  ggml-parity power --corpus instruct --measured reports/sweep --difference 3%
      with the discordances that the arms of an earlier sweep had
  ggml-parity power --items 150 --difference 5% --json

A worked example: a corpus of 224 items, of which a tenth is answered rightly by one arm alone, finds a difference of
6.1 % four times in five (--corpus instruct --discordance 0.1). A difference of 5 % takes 337 items at that discordance,
and 157 where nothing but the difference flips answers; noise that flips answers both ways hides a difference.";

/// Arguments of `power`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A corpus: arithmetic, instruct, or a file of JSON Lines
    #[arg(long, value_name = "FILE|NAME", required_unless_present_any = ["items", "measured"])]
    corpus: Option<String>,
    /// So many items with an answer, instead of a corpus
    #[arg(long, value_name = "N", conflicts_with = "corpus", value_parser = clap::value_parser!(u64).range(1..))]
    items: Option<u64>,
    /// An earlier sweep, whose discordances are taken, and its accuracy where all references have the same
    #[arg(long, value_name = "SWEEP", conflicts_with = "discordance")]
    measured: Option<PathBuf>,
    /// The accuracy that is expected of the reference, as 0.6 or 60%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    accuracy: Option<f64>,
    /// The share of items that one arm alone answers rightly, as 0.1 or 10%; repeat for several
    /// [default: 5 %, 10 %, 20 % and the ends of what can be]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    discordance: Vec<f64>,
    /// A difference whose items are counted, as 0.05 or 5%; repeat for several [default: 1 %, 2 %, 5 %, 10 %]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    difference: Vec<f64>,
    /// How many comparisons of the sweep share the confidence: arms, times tags where these are looked at
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    comparisons: u64,
    /// The probability with which no difference is called one
    #[arg(long, value_name = "SHARE", default_value = "95%", value_parser = share)]
    confidence: f64,
    /// The probability with which a difference is to be found
    #[arg(long, value_name = "SHARE", default_value = "80%", value_parser = share)]
    power: f64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let usage = |error: &dyn std::fmt::Display| Failed::new(ExitCode::Usage, error);
    let measured = match &args.measured {
        Some(path) => {
            let sweep = render::read(path).map_err(|error| usage(&error))?;
            let found = Measured::of(&sweep);
            Some(found.map_err(|error| usage(&format!("{}: {error}", path.display())))?)
        }
        None => None,
    };
    let mut question = match (&args.corpus, args.items.or(measured.as_ref().map(|found| found.items))) {
        (Some(given), _) => Question::of(&Corpus::open(given).map_err(|error| usage(&error))?),
        (None, Some(items)) => Question::items(items),
        (None, None) => {
            let known = corpus::known().join(", ");
            return Err(usage(&format!("--corpus or --items is wanted; known corpora: {known}")));
        }
    };
    question.accuracy = args.accuracy.or(measured.as_ref().and_then(|found| found.accuracy));
    question.assumptions = measured.map_or_else(Vec::new, |found| found.assumptions);
    let given = args.discordance.iter().map(|&value| (Assumption::Given, value));
    question.assumptions.extend(given);
    if !args.difference.is_empty() {
        question.differences.clone_from(&args.difference);
    }
    question.comparisons = args.comparisons;
    // 1 - 0.95 would be 0.05000000000000004.
    question.alpha = ((1.0 - args.confidence) * 1e12).round() / 1e12;
    question.power = args.power;
    let forecast = question.answer().map_err(|error| usage(&error))?;
    if args.json {
        print!("{}", forecast.json());
    } else {
        print!("{}", forecast.text());
    }
    Ok(ExitCode::Success)
}

/// Reads `0.05` or `5%`.
fn share(text: &str) -> Result<f64, String> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(digits) => (digits.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let number: f64 = digits.parse().map_err(|_| "a share as 0.05 or 5% is wanted".to_owned())?;
    Ok(number / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_percentages() {
        assert_eq!(share("0.05"), Ok(0.05));
        assert_eq!(share("5%"), Ok(0.05));
        assert_eq!(share("12.5 %"), Ok(0.125));
        assert!(share("5 percent").is_err() && share("").is_err());
    }
}
