//! Conversations, written as the file's own Jinja template says (`tokenizer.chat_template`).
//!
//! Templates are written for `transformers`, so they get what they get there: blocks are trimmed, strings
//! have Python's methods, `raise_exception` and `strftime_now` exist, and `tojson` writes like Python.

use std::time::{Duration, SystemTime};

use fancy_regex::{Captures, Regex};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, ErrorKind as JinjaErrorKind, context};
use serde::{Deserialize, Serialize};

use super::{EncodeOptions, Tokenizer};
use crate::error::{Error, ErrorKind, quoted};
use crate::gguf::Metadata;

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Most steps a template may take: a hostile one ends in an error, not in a hang.
const FUEL: u64 = 5_000_000;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatOptions {
    /// Whether the prompt ends where the assistant is to answer.
    pub add_generation_prompt: bool,
    /// What templates that ask for the date are told, in UTC. By default 26 July 2024, the date that
    /// Llama 3's template falls back to: a prompt must not change from one day to the next.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    fn default() -> Self {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_952_000);
        Self { add_generation_prompt: true, now }
    }
}

/// The template's source. It is parsed when it is used: a file whose template is beyond this engine still
/// has a tokenizer.
pub(super) struct Template(String);

impl Template {
    pub(super) fn read(m: &Metadata) -> Result<Option<Self>, Error> {
        let Some(source) = m.opt_str(TEMPLATE_KEY)? else { return Ok(None) };
        // transformers' own block, which marks what the assistant says, for training: blocks without effect
        // take its place, and whitespace is trimmed as around it.
        let marks = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
            .map_err(|e| m.fault(TEMPLATE_KEY, e.to_string()))?;
        let source = marks.replace_all(source, |found: &Captures<'_>| {
            let block = if found.get(2).is_some() { "endif" } else { "if true" };
            format!("{{%{} {block} {}%}}", &found[1], &found[3])
        });
        Ok(Some(Self(source.into_owned())))
    }
}

impl Tokenizer {
    /// Whether the file has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a conversation, ending where the assistant is to answer. Special tokens spelled out in
    /// messages are recognised, as in llama.cpp. A begin-of-sequence token that the template writes itself
    /// is not added a second time; no end of sequence is added, since the answer is to come.
    ///
    /// An error if the file has no template, if the template refuses the messages, or if a character has
    /// no token.
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        self.chat_with(messages, ChatOptions::default())
    }

    /// The same with options.
    pub fn chat_with(&self, messages: &[Message], options: ChatOptions) -> Result<Vec<u32>, Error> {
        let text = self.render_chat(messages, options)?;
        let bos = self.roles.bos.filter(|_| self.roles.add_bos);
        let written = bos.and_then(|id| self.token_text(id)).is_some_and(|bos| text.starts_with(bos));
        let mut ids: Vec<u32> = bos.filter(|_| !written).into_iter().collect();
        ids.extend(self.encode_with(&text, EncodeOptions { add_special: false, parse_special: true })?);
        Ok(ids)
    }

    /// The text of a conversation. An error if the file has no template or if the template refuses the
    /// messages.
    pub fn render_chat(&self, messages: &[Message], options: ChatOptions) -> Result<String, Error> {
        let fault =
            |message: String| Error::new(ErrorKind::Tokenizer, message).field(TEMPLATE_KEY).file(&self.file);
        let Some(Template(source)) = &self.template else {
            return Err(fault("missing, a template is needed for messages with roles".to_string()));
        };
        let render = || {
            let mut env = environment(options.now);
            env.add_template("chat_template", source)?;
            let token = |id: Option<u32>| match id.and_then(|id| self.token_text(id)) {
                Some(text) => Value::from(text),
                None => Value::UNDEFINED,
            };
            env.get_template("chat_template")?.render(context! {
                messages => messages,
                add_generation_prompt => options.add_generation_prompt,
                tools => (),
                documents => (),
                bos_token => token(self.roles.bos),
                eos_token => token(self.roles.eos),
                unk_token => token(self.roles.unknown),
                pad_token => token(self.roles.padding),
            })
        };
        render().map_err(|e: minijinja::Error| {
            let what =
                e.detail().map_or_else(|| e.kind().to_string(), |detail| format!("{}: {detail}", e.kind()));
            match e.line() {
                Some(line) => {
                    let text = source.lines().nth(line.saturating_sub(1)).unwrap_or_default();
                    fault(format!("line {line}: {what}")).value(quoted(text.trim()))
                }
                None => fault(what),
            }
        })
    }
}

/// An engine set up as `transformers` sets up its own.
fn environment(now: SystemTime) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", to_json);
    env.set_formatter(|out, state, value| match value.kind() {
        // Python has its own way of writing these; other text would be another prompt.
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            Err(invalid(format!("the template writes a {} without a filter such as tojson", value.kind())))
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(invalid(format!("the template refuses the messages: {message}")))
    });
    env.add_function("strftime_now", move |format: String| strftime(&format, now));
    env
}

fn invalid(message: impl Into<String>) -> minijinja::Error {
    minijinja::Error::new(JinjaErrorKind::InvalidOperation, message.into())
}

fn strftime(format: &str, now: SystemTime) -> Result<String, minijinja::Error> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).map_err(|e| invalid(e.to_string()))?;
    let seconds = i64::try_from(since.as_secs()).map_err(|e| invalid(e.to_string()))?;
    let stamp = jiff::Timestamp::from_second(seconds).map_err(|e| invalid(e.to_string()))?;
    let date = stamp.to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &date).map_err(|e| invalid(format!("{}: {e}", quoted(format))))
}

/// JSON as Python's `json.dumps` writes it: spaces after colons and commas, nothing escaped for HTML.
fn to_json(value: Value, arguments: Rest<Value>, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = match arguments.first() {
        Some(indent) => Some(usize::try_from(indent.clone())?),
        None => options.get("indent")?,
    };
    // What else Python takes (`ensure_ascii`, `separators`, `sort_keys`) would change the text.
    options.assert_all_used()?;
    let spaces = " ".repeat(indent.unwrap_or(0));
    let mut out = Vec::new();
    let done = match indent {
        Some(_) => {
            let format = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, format))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, OneLine)),
    };
    done.map_err(|e| invalid(format!("tojson: {e}")))?;
    let text = String::from_utf8(out).map_err(|e| invalid(format!("tojson: {e}")))?;
    Ok(Value::from_safe_string(text))
}

/// `{"a": 1, "b": [2, 3]}`.
struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
