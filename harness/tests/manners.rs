//! Help, completions, manual pages and colours.

mod common;

use common::{run, told};
use std::process::Command;

/// Every command that is not hidden.
const COMMANDS: [&[&str]; 32] = [
    &[],
    &["run"],
    &["sweep"],
    &["selftest"],
    &["capture"],
    &["compare"],
    &["merge"],
    &["report"],
    &["golden"],
    &["golden", "check"],
    &["golden", "bless"],
    &["calibrate"],
    &["trace"],
    &["depth"],
    &["answers"],
    &["power"],
    &["devices"],
    &["model"],
    &["model", "generate"],
    &["model", "quantize"],
    &["model", "inspect"],
    &["ggml"],
    &["ggml", "fetch"],
    &["ggml", "build"],
    &["ggml", "list"],
    &["gate"],
    &["gate", "check"],
    &["completions"],
    &["man"],
    &["cache"],
    &["cache", "list"],
    &["cache", "prune"],
];

#[test]
fn every_help_has_an_example_and_the_exit_codes() {
    for command in COMMANDS {
        let (code, text) = told(&run(&[command, &["--help"]].concat()));
        assert_eq!(code, 0, "{command:?}: {text}");
        let example = text.find("Example").unwrap_or_else(|| panic!("{command:?}: {text}"));
        assert!(text[example..].contains("\n  ggml-parity "), "{command:?}: {text}");
        assert!(
            text[example..].contains("Exit codes:\n  0  every declared cell passed"),
            "{command:?}: {text}"
        );
    }
    let (_, text) = told(&run(&["run", "--help"]));
    for words in
        ["Of a flag, an environment variable, the gate file and the default", "GGML_PARITY_GATE", "--memory"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn shells_get_completions_of_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, text) = told(&run(&["completions", shell]));
        assert_eq!(code, 0, "{text}");
        for word in ["completions", "keep-captures", "quantize"] {
            assert!(text.contains(word), "{shell} lacks {word}");
        }
    }
    let script = String::from_utf8(run(&["completions", "bash"]).stdout).unwrap();
    let after = script.split("complete -F ").nth(1).expect("a function is registered");
    let function = after.split(' ').next().unwrap_or_default().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ggml-parity.bash");
    std::fs::write(&path, script).unwrap();
    // What the shell itself makes of `ggml-parity ru<TAB>`.
    let ask = format!(
        "source {}; COMP_WORDS=(ggml-parity ru); COMP_CWORD=1; {function} ggml-parity ru ggml-parity; \
         echo \"${{COMPREPLY[@]}}\"",
        path.display()
    );
    match Command::new("bash").args(["--norc", "-c", &ask]).output() {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "run", "{output:?}"),
        Err(_) => eprintln!("NOT CHECKED: there is no bash here"),
    }
    let (code, text) = told(&run(&["completions", "tcsh"]));
    assert_eq!(code, 2, "{text}");
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    let (code, text) = told(&run(&["man", pages.to_str().unwrap()]));
    assert_eq!(code, 0, "{text}");
    for command in COMMANDS {
        let name = [&["ggml-parity"], command].concat().join("-");
        let page = std::fs::read_to_string(pages.join(format!("{name}.1")))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".TH") && page.contains("Exit codes"), "{name}");
    }
    // No command has come without being listed above, and workers are not for people.
    let written: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.contains("-help"))
        .collect();
    assert_eq!(written.len(), COMMANDS.len(), "{written:?}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let run = |variables: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let device = if cfg!(target_arch = "x86_64") { "CPU@x64" } else { "CPU+repack" };
        let output = Command::new(common::binary())
            .args(["run", "--model", "gen-qwen2", "--mode", "prefill", "--no-oracle", "--threads", "1"])
            .args(["--device", device])
            .current_dir(folder.path())
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let (code, text) = told(&output);
        assert_eq!(code, 0, "{text}");
        text.contains('\u{1b}')
    };
    assert!(!run(&[]), "a pipe is no terminal");
    assert!(run(&[("CLICOLOR_FORCE", "1")]));
    assert!(!run(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}

#[test]
fn mistyped_names_get_a_hint() {
    for (arguments, hint) in [
        (&["run", "--model", "gen-dreem"][..], "did you mean `gen-dream`?"),
        (&["model", "generate", "gen-lama"], "did you mean `gen-llama`?"),
        (&["runn"], "'run'"),
        (&["run", "--modell", "x"], "'--model'"),
    ] {
        let (code, text) = told(&run(arguments));
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(hint), "{text}");
    }
}
