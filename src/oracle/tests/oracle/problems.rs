//! The arithmetic problems and how `dream-arith` answers them: used by the tests and by the example.

use std::path::Path;

use model_file::{Model, Tokenizer};
use oracle::generate::masked::{self, Generated};
use oracle::{Error, Network};

/// Length that prompts are padded to on the left.
const PROMPT: usize = 8;
/// Tokens that are generated.
const MASKS: usize = 32;
/// Steps of the generation.
const STEPS: usize = 16;

/// A problem with its answer.
#[derive(Debug)]
pub(crate) struct Problem {
    /// As `15*23?`.
    pub(crate) prompt: String,
    /// As `15*20+15*3=300+45=345`.
    pub(crate) answer: String,
}

/// Reads `{"prompt", "answer"}` lines, without the control, which is no held-out problem.
pub(crate) fn read(path: &Path) -> Vec<Problem> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON"))
        .filter(|value| !value["tags"].as_array().expect("tags").iter().any(|tag| tag == "control"))
        .map(|value| {
            let field = |name: &str| value[name].as_str().expect("a text").to_string();
            Problem { prompt: field("prompt"), answer: field("answer") }
        })
        .collect()
}

/// The model with its tokenizer.
#[derive(Debug)]
pub(crate) struct Solver {
    network: Network,
    tokenizer: Tokenizer,
}

impl Solver {
    /// Opens the model.
    pub(crate) fn open(path: &Path) -> Self {
        let model = Model::open(path).expect("a model");
        let tokenizer = Tokenizer::from_gguf(&model.file).expect("a tokenizer");
        Self { network: Network::open(&model).expect("a network"), tokenizer }
    }

    /// The network.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// The prompt's tokens, padded.
    pub(crate) fn tokens(&self, prompt: &str) -> Vec<u32> {
        let tokens = self.tokenizer.encode(prompt).expect("tokens");
        let bos = self.network.hparams().bos_token.expect("a bos token");
        let mut padded = vec![bos; PROMPT.saturating_sub(tokens.len())];
        padded.extend(tokens);
        padded
    }

    /// Generates an answer: linear schedule, every pass full.
    pub(crate) fn generate(&self, prompt: &str) -> Result<Generated, Error> {
        let plan = masked::Plan { masks: MASKS, steps: STEPS, ..masked::Plan::default() };
        masked::generate(&self.network, &self.tokens(prompt), plan, None, |_| {})
    }

    /// The answer: the generated text up to the first end of generation.
    pub(crate) fn answer(&self, prompt: &str) -> Result<String, Error> {
        let tokens = &self.generate(prompt)?.tokens[PROMPT..];
        let end = tokens.iter().position(|t| self.tokenizer.eog_ids().contains(t)).unwrap_or(tokens.len());
        Ok(self.tokenizer.decode(&tokens[..end]))
    }
}
