use super::*;
use crate::sweep::answer::Expected;
use proptest::prelude::*;

fn parse(lines: &str) -> Result<Corpus, CorpusError> {
    Corpus::parse("test", "test.jsonl", lines.as_bytes())
}

fn error(lines: &str) -> String {
    parse(lines).unwrap_err().to_string()
}

#[test]
fn the_embedded_corpora_are_what_the_readme_says() {
    let of = |name: &str| Corpus::open(name).unwrap_or_else(|error| panic!("{error}"));
    let arithmetic = of("arithmetic");
    assert_eq!((arithmetic.items.len(), arithmetic.judged()), (501, 501));
    let by_tag = |tag: &str| arithmetic.items.iter().filter(|item| item.tags == [tag]).count();
    assert_eq!((by_tag("product"), by_tag("sum"), by_tag("difference")), (250, 121, 129));
    assert_eq!((by_tag("control"), arithmetic.items[0].id.as_str()), (1, "15x23"));
    let instruct = of("instruct");
    assert!(instruct.judged() >= 150 && instruct.judged() == instruct.items.len());
    assert!(instruct.items.iter().all(|item| matches!(item.input, Input::Messages(_))));
    for name in ["passages", "long-context", "edge"] {
        assert_eq!(of(name).judged(), 0, "{name}");
    }
    assert!(of("passages").items.iter().all(|item| matches!(item.input, Input::Text(_))));
    let lengths: BTreeSet<usize> = of("long-context")
        .items
        .iter()
        .map(|item| match &item.input {
            Input::Repeated(repeated) => repeated.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((lengths.first(), lengths.last()), (Some(&256), Some(&4096)));
}

#[test]
fn every_arithmetic_answer_is_right() {
    for item in Corpus::open("arithmetic").unwrap().items {
        let Input::Prompt(prompt) = &item.input else { panic!("{item:?}") };
        let problem = prompt.trim_end_matches('?');
        let place = problem.find(['*', '+', '-']).unwrap();
        let (a, b): (i64, i64) = (problem[..place].parse().unwrap(), problem[place + 1..].parse().unwrap());
        let value = match &problem[place..=place] {
            "*" => a * b,
            "+" => a + b,
            _ => a - b,
        };
        let expected = item.expected.unwrap();
        assert!(expected.judge(&value.to_string()).right, "{prompt}");
        assert!(!expected.judge(&(value + 1).to_string()).right, "{prompt}");
        let answer = expected.answer().unwrap().to_owned();
        assert_eq!(expected.exactly(&answer), Some(true));
    }
}

/// The longest edge prompt and the emptiest one.
#[test]
fn edge_prompts_are_as_long_as_they_say() {
    let edge = Corpus::open("edge").unwrap();
    let length = |id: &str| match &edge.items.iter().find(|item| item.id == id).unwrap().input {
        Input::Prompt(prompt) => prompt.chars().count(),
        other => panic!("{other:?}"),
    };
    assert_eq!((length("empty"), length("ten-thousand-characters")), (0, 10_000));
}

/// No question gives its answer away, and no answer is right for saying nothing.
#[test]
fn instructions_are_not_fulfilled_by_silence_or_refusal() {
    for item in Corpus::open("instruct").unwrap().items {
        let expected = item.expected.unwrap();
        for text in ["", "I am sorry, I cannot help with that.", "?????", "<|im_end|>"] {
            assert!(!expected.judge(text).right, "{}: {text:?}", item.id);
        }
    }
}

#[test]
fn a_file_is_read_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.jsonl");
    let lines = concat!(
        r#"{"id": "a", "prompt": "2+2=", "answer": "4", "tags": ["sum", "easy"], "max_tokens": 8}"#,
        "\r\n\n",
        r#"{"id": "b", "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": "Sky?"}], "answer": "blue", "choices": ["blue", "red"]}"#,
        "\n",
        r#"{"id": "c", "text": "Once."}"#,
        "\n",
        r#"{"id": "d", "repeat": {"of": ["c", "harbour-clock"], "tokens": 64}}"#,
    );
    std::fs::write(&path, lines).unwrap();
    let corpus = Corpus::open(path.to_str().unwrap()).unwrap();
    assert_eq!((corpus.name.as_str(), corpus.items.len(), corpus.judged()), ("mine", 4, 2));
    assert_eq!(corpus.tags().into_iter().collect::<Vec<_>>(), ["easy", "sum"]);
    assert_eq!(corpus.sha256, format!("{:x}", Sha256::digest(lines)));
    let [a, b, c, d] = &corpus.items[..] else { panic!() };
    assert_eq!((a.max_tokens, &a.input), (Some(8), &Input::Prompt("2+2=".to_owned())));
    assert!(matches!(a.expected, Some(Expected::Exact(_))));
    let Input::Messages(messages) = &b.input else { panic!() };
    assert_eq!((messages[0].role, messages[1].content.as_str()), (Role::System, "Sky?"));
    assert_eq!(c.input, Input::Text("Once.".to_owned()));
    let Input::Repeated(repeated) = &d.input else { panic!() };
    let words = |text: &str| Ok::<_, ()>(text.split_whitespace().map(|word| word.len() as u32).collect());
    assert_eq!(repeated.encode(words).unwrap().len(), 64);
}

#[test]
fn a_corpus_that_is_not_there_lists_those_that_are() {
    let error = Corpus::open("arithmetics").unwrap_err().to_string();
    assert!(error.contains("`arithmetics`") && error.contains("arithmetic, instruct, passages"), "{error}");
    assert!(Corpus::open(".").is_err());
}

#[test]
fn errors_name_file_line_field_and_value() {
    let good = r#"{"id": "a", "prompt": "x"}"#;
    for (line, expected) in [
        (
            r#"{"id": "b", "promt": "x"}"#,
            "test.jsonl:2: promt is `\"x\"`: there is no such field; known: id, ",
        ),
        (r#"{"id": "b", "prompt": 7}"#, "test.jsonl:2: prompt is `7`: invalid type"),
        (r#"{"id": "b", "prompt": null}"#, "test.jsonl:2: prompt is `null`: invalid type"),
        (r#"{"id": "a", "prompt": "x"}"#, "test.jsonl:2: id is `a`: line 1 has the same id"),
        (r#"{"id": "b", "id": "c", "prompt": "x"}"#, "test.jsonl:2: id is `\"c\"`: the field is given twice"),
        (r#"{"prompt": "x"}"#, "test.jsonl:2: id is ``: the field is missing"),
        (r#"{"id": "a b", "prompt": "x"}"#, "test.jsonl:2: id is `a b`: letters"),
        (r#"{"id": "b"}"#, "test.jsonl:2: input is ``: exactly one"),
        (r#"{"id": "b", "prompt": "x", "text": "y"}"#, "test.jsonl:2: input is `prompt, text`: exactly one"),
        (r#"{"id": "b", "text": " "}"#, "test.jsonl:2: text is ` `: there is nothing to score"),
        (
            r#"{"id": "b", "text": "y", "max_tokens": 3}"#,
            "test.jsonl:2: max_tokens is `3`: an item with `text`",
        ),
        (r#"{"id": "b", "text": "y", "regex": "y"}"#, "test.jsonl:2: regex is `given`: an item with `text`"),
        (
            r#"{"id": "b", "prompt": "x", "max_tokens": 0}"#,
            "test.jsonl:2: max_tokens is `0`: a number from 1",
        ),
        (
            r#"{"id": "b", "prompt": "x", "max_tokens": -1}"#,
            "test.jsonl:2: max_tokens is `-1`: invalid value",
        ),
        (
            r#"{"id": "b", "prompt": "x", "tags": ["t", "t"]}"#,
            "test.jsonl:2: tags is `t`: the tag is given twice",
        ),
        (
            r#"{"id": "b", "prompt": "x", "regex": "(x"}"#,
            "test.jsonl:2: regex is `(x`: error: unclosed group",
        ),
        (r#"{"id": "b", "prompt": "x", "regex": "x*"}"#, "test.jsonl:2: regex is `x*`: it matches the empty"),
        (r#"{"id": "b", "prompt": "x", "answer": ""}"#, "test.jsonl:2: answer is ``: an empty answer"),
        (
            r#"{"id": "b", "prompt": "x", "answer": "y", "regex": "y"}"#,
            "test.jsonl:2: regex is `y`: there is an",
        ),
        (
            r#"{"id": "b", "prompt": "x", "choices": ["y", "z"]}"#,
            "test.jsonl:2: choices is `y, z`: `answer` says",
        ),
        (
            r#"{"id": "b", "prompt": "x", "answer": "w", "choices": ["y", "z"]}"#,
            "test.jsonl:2: answer is `w`: it is none of the choices",
        ),
        (
            r#"{"id": "b", "prompt": "x", "answer": "w", "judge": "last-number"}"#,
            "test.jsonl:2: answer is `w`: it is judged by its last number",
        ),
        (r#"{"id": "b", "prompt": "x", "judge": "exact"}"#, "test.jsonl:2: judge is `exact`: it says how"),
        (
            r#"{"id": "b", "prompt": "x", "answer": "1", "judge": "best"}"#,
            "test.jsonl:2: judge is `\"best\"`: unknown",
        ),
        (r#"{"id": "b", "messages": []}"#, "test.jsonl:2: messages is ``: the last turn"),
        (
            r#"{"id": "b", "messages": [{"role": "robot", "content": "x"}]}"#,
            r#"test.jsonl:2: messages is `[{"role":"robot","content":"x"}]`: role `robot` is unknown"#,
        ),
        (
            r#"{"id": "b", "messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}, {"role": "user", "content": "x"}]}"#,
            "test.jsonl:2: messages[1].role is `system`: only the first",
        ),
        (
            r#"{"id": "b", "repeat": {"of": ["zz"], "tokens": 9}}"#,
            "test.jsonl:2: repeat.of is `zz`: no item with",
        ),
        (
            r#"{"id": "b", "repeat": {"of": ["a"], "tokens": 9}}"#,
            "test.jsonl:2: repeat.of is `a`: no item with",
        ),
        (
            r#"{"id": "b", "repeat": {"of": [], "tokens": 9}}"#,
            "test.jsonl:2: repeat.of is `[]`: at least one",
        ),
        (
            r#"{"id": "b", "repeat": {"of": ["c"]}}"#,
            "test.jsonl:2: repeat is ``: one of tokens and characters",
        ),
        (
            r#"{"id": "b", "repeat": {"of": ["c"], "tokens": 0}}"#,
            "test.jsonl:2: repeat.tokens is `0`: a number",
        ),
        (
            r#"{"id": "b", "repeat": {"of": ["c"], "times": 2}}"#,
            "test.jsonl:2: repeat is `{\"of\":[\"c\"],\"times\":2}`",
        ),
        (
            "{\"id\": \"b\"",
            "test.jsonl:2: line is `{\"id\": \"b\"`: EOF while parsing an object, at column 10",
        ),
        ("[1]", "test.jsonl:2: line is `[1]`: invalid type: sequence, expected a JSON object"),
        ("{} {}", "test.jsonl:2: line is `{} {}`: trailing characters"),
    ] {
        let found = error(&format!("{good}\n{line}\n"));
        assert!(found.starts_with(expected), "{line}\n  {found}\n  {expected}");
    }
    assert_eq!(error(" \n\n"), "test.jsonl: no items");
    let found = Corpus::parse("t", "t.jsonl", b"{\"id\": \"\xff\"}").unwrap_err().to_string();
    assert!(found.starts_with("t.jsonl:1: line is `") && found.contains("invalid utf-8"), "{found}");
    let long = format!(r#"{{"id": "b", "prompt": "x", "odd": "{}"}}"#, "y".repeat(500));
    assert!(error(&long).len() < 300 && error(&long).contains('…'), "{}", error(&long));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(content in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Corpus::parse("t", "t.jsonl", &content);
    }

    #[test]
    fn prompts_come_through_unchanged(prompt in any::<String>(), tokens in 1u32..100) {
        let line = serde_json::json!({"id": "a", "prompt": prompt, "max_tokens": tokens}).to_string();
        let corpus = parse(&line).unwrap();
        prop_assert_eq!(&corpus.items[0].input, &Input::Prompt(prompt));
        prop_assert_eq!(corpus.items[0].max_tokens, Some(tokens));
    }
}
