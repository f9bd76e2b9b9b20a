//! Chat templates against what transformers makes of them. The fixtures and how they were made:
//! `ci/tokenizer-fixtures`.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use model_file::tokenizer::{ChatOptions, Message};
use model_file::{GgufFile, GgufWriter, Metadata, Tokenizer};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer").join(name)
}

/// The metadata of the byte-level vocabulary, which has SmolLM2's template.
fn metadata() -> Metadata {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(fixture("bpe.gguf.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bpe.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufFile::open(&path).unwrap().metadata().clone()
}

fn tokenizer(metadata: &Metadata) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    GgufWriter::new().all_metadata(metadata).write(&path).unwrap();
    Tokenizer::from_gguf(&GgufFile::open(&path).unwrap()).unwrap()
}

fn with_template(template: &str) -> Tokenizer {
    let mut m = metadata();
    m.insert("tokenizer.chat_template", template);
    tokenizer(&m)
}

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn templates_render_as_in_transformers() {
    let cases: Vec<Case> =
        serde_json::from_str(&std::fs::read_to_string(fixture("chat.json")).unwrap()).unwrap();
    assert_eq!(cases.len(), 40);
    let (mut refused, mut wrong) = (0, Vec::new());
    let mut tokenizers = HashMap::new();
    for case in &cases {
        let t = tokenizers.entry(&case.template).or_insert_with(|| with_template(&case.template));
        let options =
            ChatOptions { add_generation_prompt: case.add_generation_prompt, ..ChatOptions::default() };
        match (t.render_chat(&case.messages, options), &case.text) {
            (Ok(text), Some(expected)) if text == *expected => {}
            (Err(e), None) => {
                let reason = case.error.as_deref().unwrap();
                assert!(e.message().contains(reason), "{}: {e}", case.name);
                refused += 1;
            }
            (found, _) => wrong.push(format!(
                "{} {}:\n  here         {found:?}\n  transformers {:?} {:?}",
                case.name, case.add_generation_prompt, case.text, case.error
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused >= 2, "the template that refuses messages was not tried");
}

#[test]
fn a_conversation_becomes_tokens_with_roles() {
    let t = tokenizer(&metadata());
    let ids = t.chat(&[Message::new("user", "Hi"), Message::new("assistant", "Ho")]).unwrap();
    let [start, end] = ["<|im_start|>", "<|im_end|>"].map(|text| t.token_id(text).unwrap());
    // system, user, assistant, and the assistant's next turn, which is open.
    assert_eq!(ids.iter().filter(|&&id| id == start).count(), 4);
    assert_eq!(ids.iter().filter(|&&id| id == end).count(), 3);
    assert!(t.decode(&ids).ends_with("user\nHi\nassistant\nHo\nassistant\n"), "{:?}", t.decode(&ids));

    let closed = ChatOptions { add_generation_prompt: false, ..ChatOptions::default() };
    let ids = t.chat_with(&[Message::new("user", "Hi")], closed).unwrap();
    assert_eq!(ids.iter().rposition(|&id| id == end), Some(ids.len() - 2));
}

#[test]
fn a_bos_that_the_template_writes_is_not_doubled_and_no_eos_follows() {
    for template in ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"] {
        let mut m = metadata();
        m.insert("tokenizer.chat_template", template);
        m.insert("tokenizer.ggml.add_bos_token", true);
        m.insert("tokenizer.ggml.add_eos_token", true);
        let t = tokenizer(&m);
        let ids = t.chat(&[Message::new("user", "a")]).unwrap();
        assert_eq!(ids, [t.bos_id().unwrap(), t.token_id("a").unwrap()], "{template}");
    }
}

#[test]
fn faults_name_the_template_its_line_and_the_file() {
    let hi = [Message::new("user", "Hi")];
    for (template, expected) in [
        (
            "{{ 1 }}\n{% if %}",
            "x.gguf: field tokenizer.chat_template: value \"{% if %}\": line 2: syntax error",
        ),
        (
            "\n{{ raise_exception('no!') }}",
            "line 2: invalid operation: the template refuses the messages: no!",
        ),
        ("{{ messages[0].content.nothing() }}", "line 1: unknown method"),
        ("{{ none.x.y }}", "line 1: undefined value"),
        ("{{ strftime_now('%') }}", "line 1: invalid operation: \"%\": "),
        ("{{ 'a b'.split() }}", "line 1: invalid operation: the template writes a sequence without a filter"),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            "engine ran out of fuel",
        ),
    ] {
        let e = with_template(template).chat(&hi).unwrap_err();
        assert!(e.to_string().contains(expected), "{e}\n  should contain\n{expected}");
    }

    let mut without = Metadata::new();
    for (key, value) in metadata().iter().filter(|(key, _)| *key != "tokenizer.chat_template") {
        without.insert(key, value.clone());
    }
    let t = tokenizer(&without);
    assert!(!t.has_chat_template());
    let e = t.chat(&hi).unwrap_err();
    assert!(e.to_string().contains("x.gguf: field tokenizer.chat_template: missing"), "{e}");
}
