//! What a cache costs in accuracy: `dream-arith` answers the held-out problems of `corpus/arithmetic-heldout.jsonl`
//! on the CPU, without a cache, through a full cache, and through a sparse one with several settings. Prints Markdown.
//!
//! ```text
//! cargo run --release --example arithmetic -- [--limit N] [BUILD]
//! ```
//!
//! `BUILD` is a folder or the name of a fetched build. An answer counts only if every character is right, its steps
//! included.

use anyhow::{Context, Result, bail};
use ggml_parity::builds;
use ggml_parity::plan::inputs::{Wishes, inputs};
use ggml_parity::plan::models::{ResolvedModel, resolve};
use ggml_parity::plan::{Mode, Options, matrix};
use ggml_sys::{Ggml, Selection};
use model_file::tokenizer::Tokenizer;
use runtime::generate::masked::{self, CacheUse, Plan};
use runtime::{DeviceRequest, Session};
use serde::Deserialize;
use std::time::Instant;

const PROBLEMS: &str = include_str!("../../corpus/arithmetic-heldout.jsonl");

/// The options of each row of the table.
const ROWS: [&str; 8] = [
    "",
    "cache=full",
    "cache=sparse",
    "cache=sparse&keep=1",
    "cache=sparse&keep=2",
    "cache=sparse&refresh=4",
    "cache=sparse&keep=1&refresh=4",
    "cache=sparse&keep=2&refresh=4",
];

#[derive(Deserialize)]
struct Problem {
    prompt: String,
    answer: String,
    tags: Vec<String>,
}

/// What one row of the table counts.
#[derive(Default)]
struct Score {
    products: [usize; 2],
    sums: [usize; 2],
    /// Answers that are those of the run without a cache, right or wrong.
    same: usize,
    /// Positions computed, and those that full forwards compute.
    computed: [usize; 2],
    seconds: f64,
}

fn main() -> Result<()> {
    let (mut limit, mut build) = (usize::MAX, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--limit" => limit = arguments.next().context("--limit wants a number")?.parse()?,
            flag if flag.starts_with('-') => bail!("unknown flag {flag}"),
            _ => build = Some(argument),
        }
    }
    let ggml = Ggml::open(&builds::resolve(build.as_deref())?, &Selection::Cpu)?;
    let work = tempfile::tempdir()?;
    let model = resolve("dream-arith", work.path())?;
    let tokenizer = Tokenizer::from_gguf(&model.model.file)?;
    let options = runtime::Options { threads: 1, ..runtime::Options::default() };
    let mut session = Session::open(ggml, &DeviceRequest::plain("CPU"), &model.model, options)?;
    let problems: Vec<Problem> = PROBLEMS.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    // The control was among the problems that the model was trained on.
    let held_out = problems.into_iter().filter(|problem| problem.tags != ["control"]);
    let problems: Vec<Problem> = held_out.take(limit).collect();

    println!(
        "| cache | exact | products | sums and differences | as without | positions computed | seconds |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let mut without: Vec<String> = Vec::new();
    for row in ROWS {
        let (score, answers) = answer(&mut session, &model, &tokenizer, &problems, row, &without)?;
        if without.is_empty() {
            without = answers;
        }
        let part = |[right, all]: [usize; 2]| format!("{right} of {all}");
        let right = score.products[0] + score.sums[0];
        println!(
            "| {} | **{right}** ({:.1} %) | {} | {} | {} | {:.1} % | {:.0} |",
            if row.is_empty() { "none" } else { row },
            100.0 * right as f64 / problems.len() as f64,
            part(score.products),
            part(score.sums),
            score.same,
            100.0 * score.computed[0] as f64 / score.computed[1] as f64,
            score.seconds
        );
    }
    Ok(())
}

/// Answers all problems with the options of one row.
fn answer(
    session: &mut Session,
    model: &ResolvedModel,
    tokenizer: &Tokenizer,
    problems: &[Problem],
    row: &str,
    without: &[String],
) -> Result<(Score, Vec<String>)> {
    let options: Options = row.parse()?;
    let case = matrix::case(model, Mode::Generate, options);
    case.check()?;
    let (mut score, mut answers, started) = (Score::default(), Vec::new(), Instant::now());
    for (i, problem) in problems.iter().enumerate() {
        let wishes = Wishes { prompt: Some(problem.prompt.clone()), ..Wishes::default() };
        let inputs = inputs(model, &case, &wishes)?;
        let plan = Plan {
            keep_kv: false,
            masks: inputs.follow,
            steps: inputs.steps,
            schedule: inputs.schedule,
            remasking: options.masked.remasking(),
            sampling: masked::Sampling {
                temperature: options.draws.temperature(),
                seed: options.draws.seed(),
            },
            cache: options.masked.cache_use(Mode::Generate),
        };
        let done = masked::generate(session, &inputs.prompt, plan, None, |view| {
            score.computed[0] += view.active.len();
            score.computed[1] += view.tokens.len();
        })?;
        let tokens = done.resolved(inputs.prompt.len());
        let end = tokens.iter().position(|t| tokenizer.eog_ids().contains(t)).unwrap_or(tokens.len());
        let text = tokenizer.decode(&tokens[..end]);
        let counts = if problem.prompt.contains('*') { &mut score.products } else { &mut score.sums };
        counts[0] += usize::from(text == problem.answer);
        counts[1] += 1;
        let same = plan.cache == CacheUse::None || without.get(i) == Some(&text);
        score.same += usize::from(same);
        answers.push(text);
    }
    score.seconds = started.elapsed().as_secs_f64();
    Ok((score, answers))
}
