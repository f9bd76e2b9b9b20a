//! The text of tokens that a cell's figures name: captures and figures hold ids alone.

use super::Cell;
use crate::compare::Metrics;
use model_file::{SpecialTokens, Tokenizer};
use std::collections::BTreeSet;

/// Writes the text of every named token into the cells. `tokenizer_of` is asked only where a token is named; models
/// without a tokenizer keep their ids.
pub fn decode<'a>(cells: &mut [Cell], tokenizer_of: impl Fn(&Cell) -> Option<&'a Tokenizer>) {
    for cell in cells {
        let named = cell.metrics.as_ref().map(named).unwrap_or_default();
        if named.is_empty() {
            continue;
        }
        let Some(tokenizer) = tokenizer_of(cell) else { continue };
        cell.pieces = named.into_iter().filter_map(|id| Some((id, piece(tokenizer, id)?))).collect();
    }
}

/// The tokens that figures name: of mismatches, and of the first greedy difference.
fn named(metrics: &Metrics) -> BTreeSet<u64> {
    let mismatches = metrics.top_token.list.iter().flat_map(|found| [found.reference, found.test]);
    let first = metrics.greedy.as_ref().and_then(|greedy| greedy.first_difference.as_ref());
    let signed = first.into_iter().flat_map(|first| [first.reference, first.test]);
    let signed = signed.map(|token| token.and_then(|token| u64::try_from(token).ok()));
    mismatches.chain(signed).flatten().collect()
}

/// One token's text. A part of a character is no text of its own, and is written as the vocabulary spells it.
pub(crate) fn piece(tokenizer: &Tokenizer, id: u64) -> Option<String> {
    let id = u32::try_from(id).ok()?;
    let spelled = tokenizer.token_text(id)?;
    let text = tokenizer.decode_with(&[id], SpecialTokens::Render);
    Some(if text.contains('\u{FFFD}') { spelled.to_owned() } else { text })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::diverged;
    use super::*;
    use model_file::{GenerateSpec, GgufFile};

    #[test]
    fn tokens_of_mismatches_and_of_the_greedy_run_are_decoded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        model_file::generate(&GenerateSpec::preset("gen-llama").unwrap(), &path).unwrap();
        let tokenizer = Tokenizer::from_gguf(&GgufFile::open(&path).unwrap()).unwrap();
        let mut cells = [diverged(), diverged()];
        decode(&mut cells, |_| Some(&tokenizer));
        let ids: Vec<u64> = cells[1].pieces.keys().copied().collect();
        assert_eq!(ids, [7, 9, 42]);
        let special = SpecialTokens::Render;
        assert_eq!(cells[1].pieces[&42], tokenizer.decode_with(&[42], special));
    }

    #[test]
    fn ids_outside_the_vocabulary_and_models_without_a_tokenizer_have_no_text() {
        let mut cells = [diverged()];
        decode(&mut cells, |_| None);
        assert!(cells[0].pieces.is_empty());
    }
}
