//! Which items a sweep asks, and what each is in tokens of a model.

use super::corpus::{self, Corpus, Input};
use super::result::{CorpusUse, Item, Settings, Templates};
use crate::hint;
use crate::pipeline::RunError;
use crate::plan::models::ResolvedModel;
use crate::plan::{Shard, inputs};
use crate::worker::sweep::{Scoring, TaskInput};
use model_file::Tokenizer;
use model_file::tokenizer::Message;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// New tokens where neither item, model nor command line say.
const DEFAULT_NEW: u64 = 128;
/// Characters that are shown of a text that is scored.
const SHOWN: usize = 200;

/// An item that is asked.
#[derive(Clone, Debug)]
pub struct Selected {
    /// As results tell of it.
    pub item: Item,
    /// As its corpus has it.
    pub source: corpus::Item,
}

/// Picks items: those with one of `tags`, of each corpus `limit` at most, evenly spaced, and of these the shard's.
///
/// # Errors
/// A tag that no item has, a corpus that is given twice, and a choice that leaves nothing.
pub fn select(
    corpora: &[Corpus],
    tags: &[String],
    limit: Option<usize>,
    shard: Option<Shard>,
) -> Result<(Vec<CorpusUse>, Vec<Selected>), RunError> {
    let known: BTreeSet<&str> = corpora.iter().flat_map(Corpus::tags).collect();
    if let Some(tag) = tags.iter().find(|tag| !known.contains(tag.as_str())) {
        let (hint, known) = (hint::nearest(tag, known.iter().copied()), Vec::from_iter(known).join(", "));
        return Err(RunError::Usage(format!("--tag {tag}: no item has it; there are: {known}{hint}")));
    }
    let mut uses: Vec<CorpusUse> = Vec::new();
    let mut selected: Vec<Selected> = Vec::new();
    for corpus in corpora {
        if uses.iter().any(|earlier| earlier.name == corpus.name) {
            let name = &corpus.name;
            return Err(RunError::Usage(format!("--corpus: two corpora have the name {name}")));
        }
        let tagged = |item: &&corpus::Item| tags.is_empty() || item.tags.iter().any(|tag| tags.contains(tag));
        let fitting: Vec<&corpus::Item> = corpus.items.iter().filter(tagged).collect();
        let count = limit.unwrap_or(usize::MAX).min(fitting.len());
        for i in 0..count {
            let source = fitting[i * fitting.len() / count];
            let item = shown(&corpus.name, source, selected.len() as u64);
            selected.push(Selected { item, source: source.clone() });
        }
        uses.push(CorpusUse {
            name: corpus.name.clone(),
            sha256: corpus.sha256.clone(),
            items: corpus.items.len() as u64,
            selected: count as u64,
        });
    }
    if let Some(shard) = shard {
        let all = selected.len();
        let (index, of) = (u64::from(shard.index), u64::from(shard.of));
        selected.retain(|selected| selected.item.index % of == index - 1);
        if selected.is_empty() {
            return Err(RunError::Usage(format!("--shard {shard}: nothing is left for it of {all} items")));
        }
    }
    if selected.is_empty() {
        return Err(RunError::Usage(format!("--limit, --tag: no item is left of {}", known_names(corpora))));
    }
    Ok((uses, selected))
}

fn known_names(corpora: &[Corpus]) -> String {
    corpora.iter().map(|corpus| corpus.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// An item as results tell of it.
fn shown(corpus: &str, source: &corpus::Item, index: u64) -> Item {
    let prompt = match &source.input {
        Input::Prompt(prompt) => prompt.clone(),
        Input::Messages(messages) => {
            let turns: Vec<String> = messages.iter().map(|m| format!("{}: {}", m.role, m.content)).collect();
            turns.join("\n")
        }
        Input::Text(text) => {
            let beginning: String = text.chars().take(SHOWN).collect();
            if beginning.len() < text.len() { format!("{beginning}…") } else { beginning }
        }
        Input::Repeated(repeated) => format!("{} tokens of repeated text", repeated.len()),
    };
    let scored = matches!(source.input, Input::Text(_) | Input::Repeated(_));
    let generates = match source.input {
        Input::Text(_) => false,
        Input::Repeated(_) => source.max_tokens.is_some(),
        Input::Prompt(_) | Input::Messages(_) => true,
    };
    Item {
        id: format!("{corpus}/{}", source.id),
        index,
        corpus: corpus.to_owned(),
        tags: source.tags.clone(),
        prompt,
        expected: source.expected.as_ref().map(ToString::to_string),
        scored,
        generates,
    }
}

/// An item in tokens of `model`, or why it cannot be put to it.
///
/// # Errors
/// Messages, or `--chat`, for a model without a chat template; settings of the manifest that make no sense.
pub fn input(
    model: &ResolvedModel,
    tokenizer: &Tokenizer,
    selected: &Selected,
    settings: &Settings,
) -> Result<Result<TaskInput, String>, RunError> {
    let (item, source) = (&selected.item, &selected.source);
    let chat = |messages: Vec<Message>| {
        if tokenizer.has_chat_template() {
            return Ok(tokenizer.chat(&messages));
        }
        let why = match settings.chat {
            Templates::All => "--chat wants one".to_owned(),
            _ => format!("item {} has messages; --no-chat joins their contents", item.id),
        };
        Err(RunError::Usage(format!("model {}: there is no chat template, and {why}", model.name)))
    };
    let padded = |tokens: Result<Vec<u32>, model_file::Error>| match tokens {
        Ok(tokens) => inputs::padded(model, tokens).map(Ok),
        Err(error) => Ok(Err(error)),
    };
    let encoded = match &source.input {
        Input::Prompt(prompt) if settings.chat == Templates::All => {
            chat(vec![Message::new("user", prompt.clone())])?
        }
        Input::Prompt(prompt) => padded(tokenizer.encode(prompt))?,
        Input::Messages(messages) if settings.chat == Templates::None => {
            let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
            padded(tokenizer.encode(&contents.join("\n\n")))?
        }
        Input::Messages(messages) => {
            chat(messages.iter().map(|m| Message::new(m.role.name(), m.content.clone())).collect())?
        }
        Input::Text(text) => tokenizer.encode(text),
        Input::Repeated(repeated) => match repeated.encode(|text| tokenizer.encode(text)) {
            Ok(tokens) => Ok(tokens),
            Err(error) => return Ok(Err(error.to_string())),
        },
    };
    let tokens = match encoded {
        Ok(tokens) => tokens,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let follow = if item.generates { new_tokens(model, source, settings) } else { 0 };
    Ok(task(model, item, tokens, follow as usize, settings))
}

/// How many tokens are generated at most.
fn new_tokens(model: &ResolvedModel, source: &corpus::Item, settings: &Settings) -> u64 {
    let said = source.max_tokens.map(u64::from).or(model.settings.generate.map(|n| n as u64));
    said.unwrap_or(DEFAULT_NEW).min(settings.max_tokens.unwrap_or(u64::MAX))
}

fn task(
    model: &ResolvedModel,
    item: &Item,
    tokens: Vec<u32>,
    follow: usize,
    settings: &Settings,
) -> Result<TaskInput, String> {
    let h = &model.model.hparams;
    let (n, most) = (tokens.len(), h.n_ctx_train);
    if n == 0 {
        return Err("no token is left of the prompt".to_owned());
    }
    if follow > 0 && n + follow > most {
        return Err(format!("{n} tokens and {follow} more are over the model's context of {most}"));
    }
    let context = (settings.context as usize).min(most).max(2);
    let scoring = match (item.scored, h.architecture.is_diffusion()) {
        (false, _) => None,
        (true, _) if n < 2 => return Err("a text of one token has nothing to score".to_owned()),
        (true, false) => {
            Some(Scoring::Forward { context, stride: (settings.stride as usize).clamp(1, context - 1) })
        }
        (true, true) => Some(Scoring::Masked { context, masks: masks(&item.id, n, settings) }),
    };
    let steps = settings.steps.map(|n| n as usize).or(model.settings.steps);
    Ok(TaskInput {
        tokens,
        scoring,
        follow,
        steps: steps.unwrap_or_else(|| follow.div_ceil(2)).max(1),
        schedule: model.settings.schedule.unwrap_or_default(),
    })
}

/// The positions of a text of `n` tokens that are masked when a masked model scores it: each but the first with the
/// probability that the settings say, drawn by the digest of seed, item and position, and so the same everywhere. At least one.
fn masks(item: &str, n: usize, settings: &Settings) -> Vec<usize> {
    let drawn = |position: &usize| {
        let digest = Sha256::digest(format!("ggml-parity masks {} {item} {position}", settings.seed));
        let word = u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"));
        // The upper 53 bits: the same number in [0, 1) on every platform.
        ((word >> 11) as f64 / (1u64 << 53) as f64) < settings.mask_share
    };
    let masks: Vec<usize> = (1..n).filter(drawn).collect();
    if masks.is_empty() { vec![n / 2] } else { masks }
}

/// Bytes of logits that a reference keeps of an item at most.
#[must_use]
pub fn kept_bytes(input: &TaskInput, model: &ResolvedModel) -> u64 {
    let diffusion = model.model.hparams.architecture.is_diffusion();
    let scored = match &input.scoring {
        Some(Scoring::Forward { .. }) => input.tokens.len(),
        Some(Scoring::Masked { masks, .. }) => masks.len(),
        None => 0,
    };
    let steps = input.steps.min(input.follow);
    let generated = if diffusion { input.follow * (steps + 1) / 2 + input.follow } else { input.follow };
    let row = model.model.hparams.n_vocab * size_of::<f32>();
    ((scored + generated) * row) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::models::resolve;

    fn corpus(name: &str, lines: &str) -> Corpus {
        Corpus::parse(name, "t.jsonl", lines.as_bytes()).unwrap()
    }

    fn ten() -> Corpus {
        let line = |i| format!("{{\"id\": \"i{i}\", \"prompt\": \"{i}\", \"tags\": [\"t{}\"]}}\n", i % 2);
        corpus("ten", &(0..10).map(line).collect::<String>())
    }

    fn ids(selected: &[Selected]) -> Vec<&str> {
        selected.iter().map(|selected| selected.item.id.as_str()).collect()
    }

    #[test]
    fn a_limit_takes_items_evenly_and_shards_deal_them_out() {
        let ten = [ten()];
        let (uses, all) = select(&ten, &[], Some(4), None).unwrap();
        assert_eq!(ids(&all), ["ten/i0", "ten/i2", "ten/i5", "ten/i7"]);
        assert_eq!((uses[0].items, uses[0].selected), (10, 4));
        let (uses, odd) = select(&ten, &["t1".to_owned()], None, None).unwrap();
        assert_eq!((odd.len(), uses[0].selected), (5, 5));
        let mut dealt = Vec::new();
        for index in 1..=3 {
            let (uses, part) = select(&ten, &[], None, Some(Shard { index, of: 3 })).unwrap();
            assert_eq!(uses[0].selected, 10, "of all shards");
            dealt.extend(part.iter().map(|selected| selected.item.index));
        }
        dealt.sort_unstable();
        assert_eq!(dealt, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn what_leaves_nothing_is_refused() {
        let error = |corpora: &[Corpus], tags: &[&str], shard| {
            let tags: Vec<String> = tags.iter().map(|&tag| tag.to_owned()).collect();
            select(corpora, &tags, None, shard).unwrap_err().to_string()
        };
        let unknown = error(&[ten()], &["tone"], None);
        assert!(unknown.starts_with("--tag tone: no item has it; there are: t0, t1"), "{unknown}");
        assert!(error(&[ten(), ten()], &[], None).contains("two corpora have the name ten"));
        let last = Shard { index: 12, of: 12 };
        assert!(error(&[ten()], &[], Some(last)).contains("--shard 12/12: nothing is left for it of 10"));
    }

    fn settings() -> Settings {
        Settings {
            tags: Vec::new(),
            limit: None,
            chat: Templates::Messages,
            max_tokens: None,
            steps: None,
            context: 4096,
            stride: 2048,
            mask_share: 0.3,
            threads: 1,
            level: 0.95,
            resamples: 100,
            seed: 0,
        }
    }

    #[test]
    fn prompts_are_padded_and_answers_as_long_as_items_model_or_settings_say() {
        let work = tempfile::tempdir().unwrap();
        let model = resolve("dream-arith", work.path()).unwrap();
        let tokenizer = Tokenizer::from_gguf(&model.model.file).unwrap();
        let lines = "{\"id\": \"a\", \"prompt\": \"15*23?\", \"max_tokens\": 24}\n{\"id\": \"b\", \"prompt\": \"7?\"}\n\
                     {\"id\": \"c\", \"prompt\": \"x\"}\n{\"id\": \"d\", \"messages\": [{\"role\": \"user\", \"content\": \"7\"}]}\n\
                     {\"id\": \"e\", \"text\": \"15*23=345\"}\n";
        let (_, items) = select(&[corpus("c", lines)], &[], None, None).unwrap();
        let ask = |i: usize, settings: &Settings| input(&model, &tokenizer, &items[i], settings);
        let first = ask(0, &settings()).unwrap().unwrap();
        assert_eq!(first.tokens, [3, 3, 9, 13, 20, 10, 11, 22]);
        assert_eq!((first.follow, first.steps, first.scoring), (24, 16, None));
        assert_eq!(ask(1, &settings()).unwrap().unwrap().follow, 32, "the model's own");
        let short = Settings { max_tokens: Some(8), steps: Some(4), ..settings() };
        let first = ask(0, &short).unwrap().unwrap();
        assert_eq!((first.follow, first.steps), (8, 4));
        let lost = ask(2, &settings()).unwrap().unwrap_err();
        assert!(lost.contains("no token for \"x\""), "{lost}");
        let error = ask(3, &settings()).unwrap_err().to_string();
        assert!(error.contains("no chat template, and item c/d has messages"), "{error}");
        let joined = Settings { chat: Templates::None, ..settings() };
        assert_eq!(ask(3, &joined).unwrap().unwrap().tokens.len(), 8);
        let all = Settings { chat: Templates::All, ..settings() };
        assert!(ask(0, &all).unwrap_err().to_string().contains("--chat wants one"));
        let scored = ask(4, &settings()).unwrap().unwrap();
        assert_eq!(scored.follow, 0);
        let Some(Scoring::Masked { masks, .. }) = scored.scoring else { panic!() };
        assert!(!masks.is_empty() && masks.iter().all(|at| (1..9).contains(at)), "{masks:?}");
    }

    #[test]
    fn masks_are_drawn_by_seed_and_item_and_about_as_many_as_told() {
        let masks = |item, seed| super::masks(item, 2000, &Settings { seed, ..settings() });
        assert_eq!(masks("a", 0), masks("a", 0));
        assert_ne!(masks("a", 0), masks("b", 0));
        assert_ne!(masks("a", 0), masks("a", 1));
        assert!((520..680).contains(&masks("a", 0).len()), "{}", masks("a", 0).len());
        assert_eq!(super::masks("a", 9, &Settings { mask_share: 0.0, ..settings() }), [4]);
    }
}
