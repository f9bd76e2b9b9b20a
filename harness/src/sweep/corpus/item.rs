//! One item, from its fields.

use super::fields::{Fields, Problem};
use super::repeat::{self, Recipe, Repeated};
use crate::named::named_enum;
use crate::sweep::answer::Expected;
use serde::{Deserialize, Serialize};

/// The fields of an item.
const FIELDS: [&str; 11] = [
    "id",
    "prompt",
    "messages",
    "text",
    "repeat",
    "answer",
    "judge",
    "choices",
    "regex",
    "tags",
    "max_tokens",
];
/// No item asks for more new tokens than this.
const MOST_NEW_TOKENS: u32 = 1 << 16;

/// One item of a corpus.
#[derive(Clone, Debug)]
pub struct Item {
    /// Unique in its corpus.
    pub id: String,
    /// What the model gets.
    pub input: Input,
    /// What it should answer; `None` where only arms are compared with each other.
    pub expected: Option<Expected>,
    /// Groups that the item belongs to, in the order given.
    pub tags: Vec<String>,
    /// How many tokens may be generated; `None` leaves it to the model's own settings.
    pub max_tokens: Option<u32>,
}

/// What a model gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text as it is, to be continued. It may be empty.
    Prompt(String),
    /// Turns that the model's chat template puts together.
    Messages(Vec<Message>),
    /// A text whose tokens are scored; nothing is generated.
    Text(String),
    /// A long text whose tokens are scored; generated from where `max_tokens` is given.
    Repeated(Repeated),
}

named_enum! {
    /// Who speaks.
    pub enum Role as "role" {
        /// Instructions for the whole conversation; only the first turn.
        System = "system",
        /// The user.
        User = "user",
        /// The model.
        Assistant = "assistant",
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// How an answer is judged; the field `judge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Judge {
    /// Letter for letter.
    Exact,
    /// By its last number.
    LastNumber,
}

/// An item whose repetitions are not expanded yet.
pub(super) struct Draft {
    pub(super) id: String,
    input: DraftInput,
    expected: Option<Expected>,
    tags: Vec<String>,
    max_tokens: Option<u32>,
}

enum DraftInput {
    Ready(Input),
    Repeat(Recipe),
}

impl Draft {
    /// Reads one line.
    pub(super) fn parse(line: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::parse(line, &FIELDS)?;
        let id = fields.take::<String>("id")?.ok_or_else(|| missing("id"))?;
        check_name("id", &id)?;
        let input = input(&mut fields)?;
        let expected = expected(&mut fields)?;
        let tags: Vec<String> = fields.take("tags")?.unwrap_or_default();
        for (index, tag) in tags.iter().enumerate() {
            check_name("tags", tag)?;
            if tags[..index].contains(tag) {
                return Err(Problem::new("tags", tag, "the tag is given twice"));
            }
        }
        let max_tokens: Option<u32> = fields.take("max_tokens")?;
        if let Some(count) = max_tokens.filter(|count| !(1..=MOST_NEW_TOKENS).contains(count)) {
            let why = format!("a number from 1 to {MOST_NEW_TOKENS} is wanted");
            return Err(Problem::new("max_tokens", count, why));
        }
        let draft = Self { id, input, expected, tags, max_tokens };
        draft.check_scored()?;
        Ok(draft)
    }

    /// A text that is scored has no answer and generates nothing.
    fn check_scored(&self) -> Result<(), Problem> {
        if self.text().is_none() {
            return Ok(());
        }
        let why = "an item with `text` is scored and generates nothing";
        match (&self.expected, self.max_tokens) {
            (_, Some(count)) => Err(Problem::new("max_tokens", count, why)),
            (Some(expected), _) => {
                let answer = expected.answer();
                Err(Problem::new(
                    if answer.is_some() { "answer" } else { "regex" },
                    answer.unwrap_or("given"),
                    why,
                ))
            }
            _ => Ok(()),
        }
    }

    /// The text that others may repeat.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.input {
            DraftInput::Ready(Input::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The item; `look_up` finds texts by id.
    pub(super) fn finish(self, look_up: &impl Fn(&str) -> Option<String>) -> Result<Item, Problem> {
        let input = match self.input {
            DraftInput::Ready(input) => input,
            DraftInput::Repeat(recipe) => expand(&recipe, look_up)?,
        };
        let Self { id, expected, tags, max_tokens, .. } = self;
        Ok(Item { id, input, expected, tags, max_tokens })
    }
}

fn missing(field: &str) -> Problem {
    Problem::new(field, "", "the field is missing")
}

/// Ids and tags stand in files' names, tables and on the command line.
fn check_name(field: &str, name: &str) -> Result<(), Problem> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.is_empty() && name.chars().all(fits) {
        return Ok(());
    }
    Err(Problem::new(field, name, "letters, digits, `-`, `_` and `.` of ASCII are wanted"))
}

fn input(fields: &mut Fields) -> Result<DraftInput, Problem> {
    let prompt = fields.take("prompt")?.map(Input::Prompt);
    let messages = fields.take::<Vec<Message>>("messages")?;
    if let Some(messages) = &messages {
        check_messages(messages)?;
    }
    let text = fields.take::<String>("text")?;
    if let Some(text) = text.as_ref().filter(|text| text.trim().is_empty()) {
        return Err(Problem::new("text", text, "there is nothing to score"));
    }
    let recipe = fields.take::<Recipe>("repeat")?;
    if let Some(recipe) = &recipe {
        check_recipe(recipe)?;
    }
    let ready =
        [("prompt", prompt), ("messages", messages.map(Input::Messages)), ("text", text.map(Input::Text))];
    let ready = ready.into_iter().filter_map(|(name, input)| Some((name, DraftInput::Ready(input?))));
    let mut given: Vec<(&str, DraftInput)> =
        ready.chain(recipe.map(|recipe| ("repeat", DraftInput::Repeat(recipe)))).collect();
    let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
    match (given.pop(), given.len()) {
        (Some((_, input)), 0) => Ok(input),
        _ => {
            let why = "exactly one of prompt, messages, text, repeat is wanted";
            Err(Problem::new("input", names.join(", "), why))
        }
    }
}

fn check_messages(messages: &[Message]) -> Result<(), Problem> {
    let ends_with_user = messages.last().is_some_and(|message| message.role == Role::User);
    if !ends_with_user {
        let last = messages.last().map_or("", |message| message.role.name());
        return Err(Problem::new("messages", last, "the last turn is the user's, which the model answers"));
    }
    match messages.iter().skip(1).position(|message| message.role == Role::System) {
        Some(index) => {
            Err(Problem::new(format!("messages[{}].role", index + 1), "system", "only the first turn may be"))
        }
        None => Ok(()),
    }
}

fn check_recipe(recipe: &Recipe) -> Result<(), Problem> {
    if recipe.of.is_empty() {
        return Err(Problem::new("repeat.of", "[]", "at least one id is wanted"));
    }
    let (field, count) = match (recipe.tokens, recipe.characters) {
        (Some(tokens), None) => ("repeat.tokens", tokens),
        (None, Some(characters)) => ("repeat.characters", characters),
        (tokens, _) => {
            let given = if tokens.is_some() { "tokens, characters" } else { "" };
            return Err(Problem::new("repeat", given, "one of tokens and characters is wanted"));
        }
    };
    if (1..=repeat::MOST).contains(&count) {
        return Ok(());
    }
    Err(Problem::new(field, count, format!("a number from 1 to {} is wanted", repeat::MOST)))
}

fn expand(recipe: &Recipe, look_up: &impl Fn(&str) -> Option<String>) -> Result<Input, Problem> {
    let find = |id: &String| {
        look_up(id).ok_or_else(|| {
            Problem::new(
                "repeat.of",
                id,
                "no item with `text` has that id, here or among the embedded passages",
            )
        })
    };
    let texts = recipe.of.iter().map(find).collect::<Result<Vec<String>, _>>()?;
    Ok(match (recipe.tokens, recipe.characters) {
        (Some(tokens), _) => Input::Repeated(Repeated::new(&texts, tokens)),
        (None, characters) => Input::Prompt(repeat::characters(&texts, characters.unwrap_or_default())),
    })
}

fn expected(fields: &mut Fields) -> Result<Option<Expected>, Problem> {
    let answer = fields.take::<String>("answer")?;
    let judge = fields.take::<Judge>("judge")?;
    let judge_written = if judge == Some(Judge::LastNumber) { "last-number" } else { "exact" };
    let regex = fields.take::<String>("regex")?;
    let choices = fields.take::<Vec<String>>("choices")?;
    let only_with = |field, value: String, why| Err(Problem::new(field, value, why));
    let Some(answer) = answer else {
        if judge.is_some() {
            return only_with(
                "judge",
                judge_written.to_owned(),
                "it says how `answer` is judged, and there is none",
            );
        }
        if let Some(choices) = choices {
            return only_with(
                "choices",
                choices.join(", "),
                "`answer` says which one is right, and there is none",
            );
        }
        let pattern =
            |regex: String| Expected::pattern(&regex).map_err(|error| Problem::new("regex", &regex, error));
        return regex.map(pattern).transpose();
    };
    if let Some(regex) = regex {
        return only_with("regex", regex, "there is an `answer` already");
    }
    if answer.trim().is_empty() {
        return only_with("answer", answer, "an empty answer would make silence right");
    }
    if judge.is_some() && choices.is_some() {
        return only_with("judge", judge_written.to_owned(), "with `choices` the first one named counts");
    }
    let expected = match (judge.unwrap_or(Judge::Exact), &choices) {
        (_, Some(choices)) => Expected::choice(&answer, choices),
        (Judge::LastNumber, None) => Expected::last_number(&answer),
        (Judge::Exact, None) => Ok(Expected::Exact(answer.clone())),
    };
    expected.map(Some).map_err(|error| Problem::new("answer", &answer, error))
}
