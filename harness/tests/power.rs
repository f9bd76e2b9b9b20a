//! `ggml-parity power` as people use it.

mod common;

use common::{run, told};

#[test]
fn the_worked_example_of_the_help_is_what_is_printed() {
    let (code, text) =
        told(&run(&["power", "--corpus", "instruct", "--discordance", "0.1", "--difference", "5%"]));
    assert_eq!(code, 0, "{text}");
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(text.contains("corpus instruct: 224 items, 224 with an answer"), "{text}");
    assert!(lines.contains(&"10.0 % assumed 6.1 % - -".to_owned()), "{text}");
    assert!(lines.contains(&"10.0 % assumed 337".to_owned()), "{text}");
    let (_, needed) = told(&run(&["power", "--items", "224", "--difference", "5%", "--json"]));
    let document: serde_json::Value = serde_json::from_str(&needed).unwrap_or_else(|_| panic!("{needed}"));
    let items = |row: usize| document["rows"][row]["needed"][0]["needed"]["items"].clone();
    assert_eq!((items(0), items(2)), (157.into(), 337.into()), "nothing else flips; a tenth flips");
    let (_, help) = told(&run(&["power", "--help"]));
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for figure in ["finds a difference of 6.1 % four times in five", "takes 337 items", "and 157 where"] {
        assert!(words.contains(figure), "{figure}: {help}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let refused = |arguments: &[&str]| {
        let (code, text) = told(&run(&[&["power"], arguments].concat()));
        assert_eq!(code, 2, "{text}");
        text
    };
    let text = refused(&["--corpus", "passages"]);
    assert!(text.contains("corpus passages: no item expects an answer"), "{text}");
    let text = refused(&["--corpus", "nowhere"]);
    assert!(text.contains("`nowhere`") && text.contains("instruct"), "{text}");
    let text = refused(&["--items", "100", "--discordance", "10"]);
    assert!(text.contains("discordance is 10"), "{text}");
    assert!(refused(&[]).contains("--corpus"));
}
