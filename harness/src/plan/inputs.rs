//! What a case computes on: tokens, and how many are to follow. A function of model, mode and options alone,
//! so that a case id is enough to run a cell again.

use super::models::{ModelError, ResolvedModel};
use super::{Case, Mode};
use runtime::generate::masked::Schedule;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// Sequence length of models without prompts: one more than a multiple of every tile size in use.
const DEFAULT_LENGTH: usize = 33;
/// Tokens to decode where the manifest does not say.
const DEFAULT_GENERATE: usize = 8;
/// Steps for which a canvas of block diffusion is denoised where nothing says how many.
const DEFAULT_DENOISING: usize = 8;
/// Canvases of a generation of block diffusion where nothing says how many tokens.
const DEFAULT_CANVASES: usize = 2;
/// Tokens to decode in runs of several, as a draft's proposals are.
const DEFAULT_LONG: usize = 24;

/// What a case computes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Masks after it, or tokens to decode.
    pub follow: usize,
    /// Steps of a masked generation.
    pub steps: usize,
    /// Masks a step.
    pub schedule: Schedule,
    /// Whether the tokens are text, so that results are worth decoding.
    pub is_text: bool,
    /// The draft model of `speculative`; the model itself without half its layers where none.
    #[serde(default)]
    pub draft: Option<PathBuf>,
}

impl Inputs {
    /// Nothing to compute on, for jobs that bring their own.
    #[must_use]
    pub fn none() -> Self {
        let schedule = Schedule::default();
        Self { prompt: Vec::new(), follow: 0, steps: 0, schedule, is_text: false, draft: None }
    }
}

/// What the command line may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// A text to start from.
    pub prompt: Option<String>,
    /// Tokens to generate.
    pub generate: Option<usize>,
    /// Steps of a masked generation.
    pub steps: Option<usize>,
    /// The file of a draft model.
    pub draft: Option<PathBuf>,
    /// Which draw of generated tokens, or which of the model's own prompts, in turn.
    pub sample: u32,
}

/// The inputs of `case` on `model`.
///
/// # Errors
/// When a prompt cannot be tokenised or a setting of the manifest makes no sense.
pub fn inputs(model: &ResolvedModel, case: &Case, wishes: &Wishes) -> Result<Inputs, ModelError> {
    let settings = &model.settings;
    let own = settings.prompts.iter().cycle().nth(wishes.sample as usize);
    let text = wishes.prompt.as_ref().or(own);
    let length = case.options.n.map(|n| n as usize);
    let diffusion = model.model.hparams.architecture.is_diffusion();
    let schedule = case.options.masked.schedule(settings.schedule.unwrap_or_default());
    let draft = wishes.draft.clone().filter(|_| case.mode == Mode::Speculative);
    let follow = wishes.generate.or(settings.generate);
    let default_follow = match case.mode {
        Mode::Generate | Mode::Speculative => DEFAULT_LONG,
        _ => DEFAULT_GENERATE,
    };
    if let Some(block) = model.model.hparams.block {
        return canvases(model, case, wishes, block.canvas);
    }
    let steps = |masks: usize| wishes.steps.or(settings.steps).unwrap_or_else(|| masks.div_ceil(2)).max(1);
    if let Some(text) = text.filter(|_| length.is_none()) {
        let prompt = tokenise(model, text)?;
        let follow = match (diffusion, case.mode) {
            (false, Mode::Prefill | Mode::Batch | Mode::Lifecycle) => 0,
            (false, _) => follow.unwrap_or(default_follow),
            (true, _) => follow.unwrap_or(DEFAULT_GENERATE),
        };
        return Ok(Inputs { prompt, follow, steps: steps(follow), schedule, is_text: true, draft });
    }
    // Without text, a seeded sequence: half of it masks for masked diffusion.
    let length = length.unwrap_or(DEFAULT_LENGTH);
    let (prompt, follow) = match (diffusion, case.mode) {
        (true, _) => (length / 2, length - length / 2),
        (false, Mode::Prefill | Mode::Batch | Mode::Lifecycle) => (length, 0),
        (false, _) => (length, follow.unwrap_or(default_follow)),
    };
    Ok(Inputs {
        prompt: random_tokens(model, prompt, wishes.sample),
        follow,
        steps: steps(follow),
        schedule,
        is_text: false,
        draft,
    })
}

/// The inputs of block diffusion: one canvas after the prompt, or as many as hold the tokens to generate.
fn canvases(
    model: &ResolvedModel,
    case: &Case,
    wishes: &Wishes,
    canvas: usize,
) -> Result<Inputs, ModelError> {
    let settings = &model.settings;
    let own = settings.prompts.iter().cycle().nth(wishes.sample as usize);
    let length = case.options.n.map(|n| n as usize);
    let text = wishes.prompt.as_ref().or(own).filter(|_| length.is_none());
    let follow = match (case.mode, wishes.generate.or(settings.generate)) {
        (Mode::Generate, Some(tokens)) => tokens.div_ceil(canvas).max(1) * canvas,
        (Mode::Generate, None) => DEFAULT_CANVASES * canvas,
        _ => canvas,
    };
    let prompt = match text {
        Some(text) => tokenise(model, text)?,
        None => random_tokens(model, length.unwrap_or(DEFAULT_LENGTH), wishes.sample),
    };
    Ok(Inputs {
        prompt,
        follow,
        steps: wishes.steps.or(settings.steps).unwrap_or(DEFAULT_DENOISING).max(1),
        is_text: text.is_some(),
        ..Inputs::none()
    })
}

fn tokenise(model: &ResolvedModel, text: &str) -> Result<Vec<u32>, ModelError> {
    let tokens = padded(model, model.tokenizer()?.encode(text)?)?;
    if tokens.is_empty() {
        return Err(ModelError::Setting {
            name: model.name.clone(),
            field: "prompt",
            value: text.to_owned(),
            why: "no token is left of it".to_owned(),
        });
    }
    Ok(tokens)
}

/// A prompt padded as the manifest says.
pub(crate) fn padded(model: &ResolvedModel, mut tokens: Vec<u32>) -> Result<Vec<u32>, ModelError> {
    if let Some(pad) = &model.settings.pad_left {
        let h = &model.model.hparams;
        let token = match pad.token.as_str() {
            "bos" => h.bos_token,
            "eos" => h.eos_token,
            "pad" => h.pad_token,
            _ => None,
        };
        let token = token.ok_or_else(|| ModelError::Setting {
            name: model.name.clone(),
            field: "pad_left.token",
            value: pad.token.clone(),
            why: "`bos`, `eos` or `pad` is wanted, and the model must have that token".to_owned(),
        })?;
        let missing = pad.to.saturating_sub(tokens.len());
        tokens.splice(0..0, std::iter::repeat_n(token, missing));
    }
    Ok(tokens)
}

/// `n` tokens that depend on the model's vocabulary, `n` and the draw only: digests of draw and position, so that they
/// are the same on every platform. Never the mask token.
fn random_tokens(model: &ResolvedModel, n: usize, sample: u32) -> Vec<u32> {
    let h = &model.model.hparams;
    let vocab = u64::try_from(h.n_vocab).expect("a vocabulary fits 64 bits");
    (0..n)
        .map(|i| {
            let draw = if sample == 0 { String::new() } else { format!("draw {sample}, ") };
            let digest = Sha256::digest(format!("ggml-parity tokens {draw}{i}"));
            let word = u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"));
            let token = u32::try_from(word % vocab).expect("token ids fit 32 bits");
            if Some(token) == h.mask_token { (token + 1) % vocab as u32 } else { token }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::models::resolve;

    fn case(id: &str) -> Case {
        id.parse().unwrap()
    }

    #[test]
    fn prompts_are_padded_as_the_manifest_says() {
        let work = tempfile::tempdir().unwrap();
        let model = resolve("dream-arith", work.path()).unwrap();
        let inputs = inputs(&model, &case("dream-arith/f16/generate"), &Wishes::default()).unwrap();
        assert_eq!(inputs.prompt, [3, 3, 9, 13, 20, 10, 11, 22]);
        assert_eq!((inputs.follow, inputs.steps, inputs.schedule), (32, 16, Schedule::Linear));
    }

    #[test]
    fn a_prompt_is_followed_by_whole_canvases() {
        let work = tempfile::tempdir().unwrap();
        let model = resolve("gen-diffusion-gemma", work.path()).unwrap();
        let sizes = |mode: &str, wishes: Wishes| {
            let inputs = inputs(&model, &case(&format!("gen-diffusion-gemma/f32/{mode}")), &wishes).unwrap();
            (inputs.prompt.len(), inputs.follow, inputs.steps)
        };
        let generate = |tokens| Wishes { generate: Some(tokens), steps: Some(3), ..Wishes::default() };
        assert_eq!(sizes("unified", Wishes::default()), (33, 8, 8));
        assert_eq!(sizes("prompt-kv?n=5", generate(99)), (5, 8, 3));
        assert_eq!(sizes("generate", Wishes::default()), (33, 16, 8));
        assert_eq!(sizes("generate", generate(17)), (33, 24, 3));
    }

    #[test]
    fn another_sample_is_another_prompt_in_turn() {
        let work = tempfile::tempdir().unwrap();
        let model = resolve("dream-arith", work.path()).unwrap();
        let prompt = |sample| {
            let wishes = Wishes { sample, ..Wishes::default() };
            inputs(&model, &case("dream-arith/f16/generate"), &wishes).unwrap().prompt
        };
        let count = u32::try_from(model.settings.prompts.len()).unwrap();
        assert_eq!(prompt(0), prompt(count));
        assert_eq!(count > 1, prompt(0) != prompt(1));
    }

    #[test]
    fn generated_models_get_the_same_tokens_every_time_and_never_the_mask() {
        let work = tempfile::tempdir().unwrap();
        let model = resolve("gen-dream", work.path()).unwrap();
        let tokens = random_tokens(&model, 500, 0);
        assert_eq!(tokens[..33], random_tokens(&model, 33, 0));
        assert_ne!(tokens[..33], random_tokens(&model, 33, 1));
        assert!(tokens.iter().all(|&t| (t as usize) < model.model.hparams.n_vocab));
        assert!(!tokens.contains(&model.model.hparams.mask_token.unwrap()));
        let seven = inputs(&model, &case("gen-dream/f32/full?n=7"), &Wishes::default()).unwrap();
        assert_eq!((seven.prompt.len(), seven.follow), (3, 4));
    }
}
