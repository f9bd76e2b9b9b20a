//! What corpora hold, in tokens of a model. Prints Markdown.
//!
//! ```text
//! cargo run --release --example corpus -- "$(ci/fetch-model smollm2-135m-instruct)" [CORPUS...]
//! ```
//!
//! A corpus is a name or a file; without one, all that are embedded. Turns of conversations are counted without the
//! chat template's own tokens.

use anyhow::{Context, Result};
use ggml_parity::sweep::corpus::{Corpus, Input, known};
use model_file::{GgufFile, Tokenizer};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().context("the path of a model is wanted")?;
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(model.as_ref())?)?;
    let mut corpora: Vec<String> = arguments.collect();
    if corpora.is_empty() {
        corpora = known().into_iter().map(str::to_owned).collect();
    }
    println!("| corpus | items | with an answer | tokens | longest |");
    println!("|---|--:|--:|--:|--:|");
    for given in corpora {
        let corpus = Corpus::open(&given)?;
        let mut lengths = Vec::with_capacity(corpus.items.len());
        for item in &corpus.items {
            lengths.push(tokens(&item.input, &tokenizer).with_context(|| format!("{given}: {}", item.id))?);
        }
        let (all, longest) = (lengths.iter().sum::<usize>(), lengths.iter().max().unwrap_or(&0));
        println!("| {} | {} | {} | {all} | {longest} |", corpus.name, corpus.items.len(), corpus.judged());
    }
    Ok(())
}

fn tokens(input: &Input, tokenizer: &Tokenizer) -> Result<usize> {
    Ok(match input {
        Input::Prompt(text) | Input::Text(text) => tokenizer.encode(text)?.len(),
        Input::Messages(messages) => {
            messages.iter().map(|m| Ok(tokenizer.encode(&m.content)?.len())).sum::<Result<usize>>()?
        }
        Input::Repeated(repeated) => repeated.encode(|text| tokenizer.encode(text))?.len(),
    })
}
