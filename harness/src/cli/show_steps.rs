//! `run --show-steps`: the canvas of each masked generation after every step, as text.

use crate::capture::{Canvas, CaptureReader, canvases};
use crate::pipeline::{Folders, Plan, capture_path};
use crate::plan::CellId;
use crate::plan::models::ResolvedModel;
use model_file::tokenizer::{SpecialTokens, Tokenizer};
use std::collections::BTreeSet;

/// What stands for a mask.
const MASK: char = '░';

/// The generations of a run, each once: all arms follow the trajectory of the reference.
pub(super) fn render(plan: &Plan, folders: &Folders) -> String {
    let references: BTreeSet<CellId> = plan.cells.iter().map(|id| plan.reference_of(id)).collect();
    let mut text = String::new();
    for id in references {
        let same = |m: &&ResolvedModel| m.name == id.case.model && m.weights == id.case.weights;
        let Some(model) = plan.models.iter().find(same) else { continue };
        // A reference that failed has no capture; the report says why.
        let Ok(capture) = CaptureReader::open(&capture_path(folders, &id)) else { continue };
        let mask = model.model.hparams.mask_token.and_then(|token| i32::try_from(token).ok());
        let steps = canvases(&capture, mask);
        if steps.is_empty() {
            continue;
        }
        text.push_str(&format!("{id}\n"));
        let tokenizer = model.tokenizer().ok();
        for canvas in steps {
            text.push_str(&line(&canvas, tokenizer));
        }
        text.push('\n');
    }
    text
}

/// `  3 +2  15*2░?…`: the step, how many positions it filled, the canvas.
fn line(canvas: &Canvas, tokenizer: Option<&Tokenizer>) -> String {
    let mut text = String::new();
    let mut run: Vec<u32> = Vec::new();
    for token in &canvas.tokens {
        match token.and_then(|token| u32::try_from(token).ok()) {
            Some(token) => run.push(token),
            None => {
                text.push_str(&decoded(&run, tokenizer));
                run.clear();
                text.push(MASK);
            }
        }
    }
    text.push_str(&decoded(&run, tokenizer));
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{:>5} +{:<3} {text}\n", canvas.step, canvas.unmasked.len())
}

/// Tokens as text, or their ids where the model's tokenizer cannot be read.
fn decoded(tokens: &[u32], tokenizer: Option<&Tokenizer>) -> String {
    match tokenizer {
        Some(tokenizer) => tokenizer.decode_with(tokens, SpecialTokens::Render),
        None => tokens.iter().map(|token| format!("[{token}]")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_tokens_stand_in_their_places() {
        let canvas = Canvas { step: 3, tokens: vec![Some(7), None, None, Some(9)], unmasked: vec![3] };
        assert_eq!(line(&canvas, None), "    3 +1   [7]░░[9]\n");
    }
}
