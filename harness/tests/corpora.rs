//! The corpora under a real tokenizer: as many tokens as `corpus/README.md` states, and lengths that are met exactly.

mod common;

use ggml_parity::sweep::corpus::{Corpus, Input};
use model_file::Tokenizer;

fn smollm2() -> Option<Tokenizer> {
    let path = common::smollm2()?;
    Some(Tokenizer::from_gguf(&model_file::GgufFile::open(&path).unwrap()).unwrap())
}

#[test]
fn the_passages_are_twenty_thousand_tokens_and_do_not_repeat_themselves() {
    let Some(tokenizer) = smollm2() else { return };
    let passages = Corpus::open("passages").unwrap();
    let (mut tokens, mut sentences) = (0, std::collections::BTreeSet::new());
    for item in &passages.items {
        let Input::Text(text) = &item.input else { panic!("{item:?}") };
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(&tokenizer.decode(&ids), text, "{}: the text survives", item.id);
        tokens += ids.len();
        for sentence in text.split_inclusive(['.', '!', '?']).filter(|s| s.split_whitespace().count() > 8) {
            assert!(sentences.insert(sentence.trim()), "{}: twice: {sentence}", item.id);
        }
    }
    assert!(tokens >= 20_000, "{tokens} tokens");
}

#[test]
fn long_inputs_have_exactly_their_length_and_shorter_ones_are_beginnings() {
    let Some(tokenizer) = smollm2() else { return };
    let mut longest: std::collections::BTreeMap<String, Vec<u32>> = std::collections::BTreeMap::new();
    // From the longest to the shortest.
    for item in Corpus::open("long-context").unwrap().items.iter().rev() {
        let Input::Repeated(repeated) = &item.input else { panic!("{item:?}") };
        let ids = repeated.encode(|text| tokenizer.encode(text)).unwrap();
        assert_eq!(ids.len(), repeated.len(), "{}", item.id);
        let texts = item.id.split('-').next().unwrap().to_owned();
        let long = longest.entry(texts).or_insert_with(|| ids.clone());
        assert_eq!(ids, long[..ids.len()], "{}", item.id);
    }
    assert_eq!(longest.len(), 3);
}

#[test]
fn edge_prompts_become_tokens_and_text_again() {
    let Some(tokenizer) = smollm2() else { return };
    let mut single = 0;
    for item in Corpus::open("edge").unwrap().items {
        let Input::Prompt(prompt) = &item.input else { continue };
        let ids = tokenizer.encode(prompt).unwrap_or_else(|error| panic!("{}: {error}", item.id));
        if item.tags.iter().any(|tag| tag == "one-token") {
            assert_eq!(ids.len(), 1, "{}", item.id);
            single += 1;
        }
        // Names of special tokens become the tokens, which are no text.
        if !item.tags.iter().any(|tag| tag == "special") {
            assert_eq!(&tokenizer.decode(&ids), prompt, "{}", item.id);
        }
    }
    assert!(single >= 3);
}
