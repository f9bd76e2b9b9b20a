//! Which cases have a golden: the generated models in every mode that the oracle computes, with every type of cache,
//! and quantised weights.

use crate::plan::models::{self, ModelError, ResolvedModel};
use crate::plan::{Case, Mode, Options, matrix};
use std::path::Path;

/// A golden's case.
pub struct GoldenCase {
    /// Its id.
    pub case: Case,
    /// The model as `--model` takes it.
    pub given: String,
}

/// Modes in steps get a shorter sequence: their rows are many.
const SHORT: &str = "n=17";

/// Model, mode, options.
const CASES: &[(&str, Mode, &str)] = &[
    ("gen-dream", Mode::Full, ""),
    ("gen-dream", Mode::FullCache, ""),
    ("gen-dream", Mode::Sparse, SHORT),
    ("gen-dream", Mode::Sparse, "n=17&kv=f16&keep=1&refresh=3"),
    ("gen-dream", Mode::Generate, SHORT),
    ("gen-dream", Mode::Generate, "n=17&cache=full"),
    ("gen-llada", Mode::Full, ""),
    ("gen-llada", Mode::FullCache, ""),
    ("gen-llada", Mode::Sparse, SHORT),
    ("gen-llada", Mode::Generate, SHORT),
    ("gen-llada", Mode::Generate, "n=17&cache=sparse&schedule=block&block=4"),
    ("gen-qwen2", Mode::Prefill, ""),
    ("gen-qwen2", Mode::Batch, ""),
    ("gen-qwen2", Mode::Decode, SHORT),
    ("gen-qwen2", Mode::Generate, SHORT),
    ("gen-llama", Mode::Prefill, ""),
    ("gen-llama", Mode::Batch, ""),
    ("gen-llama", Mode::Decode, SHORT),
    ("gen-llama", Mode::Decode, "n=17&kv=f16"),
    ("gen-llama", Mode::Decode, "n=17&kv=q8_0"),
    ("gen-llama", Mode::Decode, "n=17&kv=q4_0"),
    ("gen-llama", Mode::Decode, "n=17&window=7"),
    ("gen-llama", Mode::Generate, SHORT),
    ("gen-dream:f16", Mode::Full, ""),
    ("gen-dream:q4_k_m", Mode::Full, ""),
    ("gen-qwen2:q8_0", Mode::Decode, SHORT),
];

/// All of them, in order.
///
/// # Panics
/// Never: a test reads the table.
#[must_use]
pub fn declared() -> Vec<GoldenCase> {
    let case = |&(given, mode, options): &(&str, Mode, &str)| {
        let (model, weights) = given.split_once(':').unwrap_or((given, "f32"));
        let options: Options = options.parse().expect("the options of the table are valid");
        let case = Case { model: model.to_owned(), weights: weights.to_owned(), mode, options };
        GoldenCase { case, given: given.to_owned() }
    };
    CASES.iter().map(case).collect()
}

/// Those that `selectors` name: by id, or by its beginning up to a `/` or `?` (`gen-dream`, `gen-llama/f32/decode`).
/// No selector names all.
///
/// # Errors
/// The first selector that names none.
pub fn select(all: Vec<GoldenCase>, selectors: &[String]) -> Result<Vec<GoldenCase>, super::GoldenError> {
    let names = |selector: &str, case: &Case| {
        let id = case.to_string();
        id.strip_prefix(selector).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    };
    if let Some(selector) = selectors.iter().find(|s| !all.iter().any(|golden| names(s, &golden.case))) {
        let known = all.iter().map(|golden| golden.case.to_string()).collect();
        return Err(super::GoldenError::NoSuchCase { selector: selector.clone(), known });
    }
    let chosen =
        |golden: &GoldenCase| selectors.is_empty() || selectors.iter().any(|s| names(s, &golden.case));
    Ok(all.into_iter().filter(chosen).collect())
}

/// The models of `cases`, each once, made in `work`.
///
/// # Errors
/// A model that cannot be made.
pub fn models(cases: &[GoldenCase], work: &Path) -> Result<Vec<ResolvedModel>, ModelError> {
    let mut models: Vec<ResolvedModel> = Vec::new();
    for golden in cases {
        if !models.iter().any(|model| model.given == golden.given) {
            models.push(models::resolve(&golden.given, work)?);
        }
    }
    Ok(models)
}

/// The model of `golden` among `models`.
///
/// # Panics
/// When `models` was made of other cases.
#[must_use]
pub fn model_of<'a>(golden: &GoldenCase, models: &'a [ResolvedModel]) -> &'a ResolvedModel {
    let model = models.iter().find(|model| model.given == golden.given).expect("the model of a case");
    debug_assert_eq!(matrix::case(model, golden.case.mode, golden.case.options), golden.case);
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_one_that_the_oracle_computes_and_every_such_mode_is_there() {
        let all = declared();
        let work = tempfile::tempdir().unwrap();
        let models = models(&all, work.path()).unwrap();
        for golden in &all {
            golden.case.check().unwrap();
            let model = model_of(golden, &models);
            assert_eq!(matrix::case(model, golden.case.mode, golden.case.options), golden.case);
            assert!(matrix::has_mode(model, golden.case.mode), "{}", golden.case);
            let inputs = crate::plan::inputs::inputs(model, &golden.case, &Default::default()).unwrap();
            assert_eq!(crate::worker::lacks(&golden.case, &model.model.hparams, &inputs), None);
        }
        for mode in Mode::ALL {
            let without = matches!(
                mode,
                Mode::Profile
                    | Mode::Speculative
                    | Mode::Lifecycle
                    | Mode::Sampler
                    // Where a router flips, plain limits say nothing of a device.
                    | Mode::Unified
                    | Mode::PromptKv
            );
            assert_eq!(all.iter().any(|golden| golden.case.mode == *mode), !without, "{mode}");
        }
    }

    #[test]
    fn selectors_are_ids_or_their_beginnings() {
        let chosen = |selectors: &[&str]| {
            let selectors: Vec<String> = selectors.iter().map(|s| (*s).to_owned()).collect();
            select(declared(), &selectors).map(|found| found.len())
        };
        assert_eq!(chosen(&[]).unwrap(), CASES.len());
        assert_eq!(chosen(&["gen-llama/f32/decode"]).unwrap(), 5);
        assert_eq!(chosen(&["gen-llama/f32/decode?n=17"]).unwrap(), 1);
        assert_eq!(chosen(&["gen-qwen2/q8_0", "gen-dream/f32/full"]).unwrap(), 2);
        assert!(chosen(&["gen-dream", "gen-dr"]).unwrap_err().to_string().contains("`gen-dr`"));
    }
}
