//! The CI templates of `ci/templates`: they parse, their structure is what the systems want, and every command in them
//! is one that this binary takes.

use super::Cli;
use clap::Parser;
use std::collections::BTreeMap;
use yaml_rust2::{Yaml, YamlLoader};

const GITHUB: &str = include_str!("../../../ci/templates/github-actions.yml");
const GITLAB: &str = include_str!("../../../ci/templates/gitlab-ci.yml");
const SLURM: &str = include_str!("../../../ci/templates/slurm-array.sh");
const KUBERNETES: &str = include_str!("../../../ci/templates/kubernetes-job.yaml");

fn yaml(text: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Every string in a document.
fn strings(yaml: &Yaml) -> Vec<String> {
    match yaml {
        Yaml::String(text) => vec![text.clone()],
        Yaml::Array(list) => list.iter().flat_map(strings).collect(),
        Yaml::Hash(map) => map.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

/// The subcommand of every `ggml-parity …` line in a script, each parsed as the binary would.
fn commands(script: &str) -> Vec<String> {
    let values: BTreeMap<&str, &str> = [
        ("GGML", "npm-3.21.1"),
        ("DEVICE", "CUDA0"),
        ("MACHINE", "machine"),
        ("SHARD", "1/2"),
        ("OUT", "reports/shard-1"),
        ("REPORTS", "reports"),
        ("SLURM_CPUS_PER_TASK", "8"),
    ]
    .into();
    let joined = script.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in joined.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let Some(at) = line.find("ggml-parity ") else { continue };
        // A program's name, and not the end of a path or of an option's value.
        if line[..at].ends_with(|c: char| !(c.is_whitespace() || c == '"')) {
            continue;
        }
        let mut command = line[at..].split("||").next().unwrap_or_default().trim().to_owned();
        // The command of a wrapped job ends where its quotes do.
        if line[..at].ends_with('"') {
            command = command.trim_end_matches('"').to_owned();
        }
        for (name, value) in values.iter().rev() {
            command = command.replace(&format!("${name}"), value);
        }
        assert!(!command.contains('$'), "a variable that this test does not know: {command}");
        let words = shlex::split(&command).unwrap_or_else(|| panic!("quotes: {command}"));
        Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{command}\n{error}"));
        found.push(words[1].clone());
    }
    found
}

/// The commands in all strings of YAML documents.
fn commands_in(documents: &[Yaml]) -> Vec<String> {
    documents.iter().flat_map(strings).flat_map(|script| commands(&script)).collect()
}

#[test]
fn a_command_that_the_binary_does_not_take_is_noticed() {
    assert_eq!(commands("cargo install ggml-parity\n  ggml-parity devices --json || true"), ["devices"]);
    for wrong in ["ggml-parity run --sharde 1/2", "ggml-parity run --shard 3/2", "ggml-parity merj a --out b"]
    {
        assert!(std::panic::catch_unwind(|| commands(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn github_actions() {
    let workflow = &yaml(GITHUB)[0];
    assert_eq!(commands_in(std::slice::from_ref(workflow)), ["run", "merge"]);
    // YAML 1.1 reads `on` as true; GitHub does not.
    assert!(!workflow["on"]["pull_request"].is_badvalue());
    let (run, merge) = (&workflow["jobs"]["run"], &workflow["jobs"]["merge"]);
    assert_eq!(run["strategy"]["fail-fast"].as_bool(), Some(false));
    assert_eq!((merge["needs"].as_str(), merge["if"].as_str()), (Some("run"), Some("always()")));
    // Every machine's report is uploaded under the name that the merge reads.
    let script = strings(merge).into_iter().find(|text| text.contains("ggml-parity merge")).unwrap();
    assert!(script.contains("$GITHUB_STEP_SUMMARY"));
    let machines = run["strategy"]["matrix"]["include"].as_vec().unwrap();
    for machine in machines {
        let name = machine["machine"].as_str().unwrap();
        assert!(script.contains(&format!("{name}=parity/parity-{name} ")), "{name}");
        machine["device"].as_str().unwrap().parse::<crate::plan::DeviceSelector>().unwrap();
    }
    assert_eq!(script.matches("=parity/parity-").count(), machines.len());
    let upload =
        run["steps"].as_vec().unwrap().iter().find(|step| !step["with"]["path"].is_badvalue()).unwrap();
    assert_eq!(upload["if"].as_str(), Some("always()"));
    assert_eq!(upload["with"]["name"].as_str(), Some("parity-${{ matrix.machine }}"));
    // Values of the matrix reach scripts through the environment only.
    for step in run["steps"].as_vec().unwrap().iter().chain(merge["steps"].as_vec().unwrap()) {
        assert!(step["run"].as_str().is_none_or(|script| !script.contains("${{")), "{step:?}");
        assert!(step["uses"].as_str().is_some() != step["run"].as_str().is_some(), "{step:?}");
    }
}

#[test]
fn gitlab() {
    let pipeline = &yaml(GITLAB)[0];
    assert_eq!(commands_in(std::slice::from_ref(pipeline)), ["run", "merge"]);
    let (run, merge) = (&pipeline["parity"], &pipeline["parity-merge"]);
    assert!(run["parallel"].as_i64().is_some_and(|n| n > 1));
    assert!(strings(run).contains(&"SHARD=\"$CI_NODE_INDEX/$CI_NODE_TOTAL\"".to_owned()));
    assert_eq!(run["artifacts"]["when"].as_str(), Some("always"));
    assert_eq!((merge["needs"][0].as_str(), merge["when"].as_str()), (Some("parity"), Some("always")));
    let stages: Vec<&str> = pipeline["stages"].as_vec().unwrap().iter().filter_map(Yaml::as_str).collect();
    for job in [run, merge] {
        assert!(stages.contains(&job["stage"].as_str().unwrap()));
    }
}

#[test]
fn slurm() {
    assert_eq!(commands(SLURM), ["merge", "run"]);
    for wanted in ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "afterany:", "set -euo pipefail"] {
        assert!(SLURM.contains(wanted), "{wanted}");
    }
    // Directives count only before the first command.
    let last = SLURM.rfind("#SBATCH").unwrap();
    assert!(last < SLURM.find("set -euo").unwrap());
}

#[test]
fn kubernetes() {
    let documents = yaml(KUBERNETES);
    assert_eq!(commands_in(&documents), ["run", "merge"]);
    let [run, merge] = &documents[..] else { panic!("two Jobs are wanted") };
    for job in [run, merge] {
        assert_eq!((job["apiVersion"].as_str(), job["kind"].as_str()), (Some("batch/v1"), Some("Job")));
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(pod["restartPolicy"].as_str(), Some("Never"));
        let mounts = pod["containers"][0]["volumeMounts"].as_vec().unwrap();
        assert_eq!(mounts[0]["name"], pod["volumes"][0]["name"]);
    }
    assert_eq!(run["spec"]["completionMode"].as_str(), Some("Indexed"));
    let container = &run["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["env"][0]["name"].as_str(), Some("SHARDS"));
    let shards = container["env"][0]["value"].as_str().and_then(|n| n.parse::<i64>().ok());
    assert_eq!(shards, run["spec"]["completions"].as_i64(), "as many shards as pods");
    assert!(
        strings(container).iter().any(|text| text.contains("SHARD=$((JOB_COMPLETION_INDEX + 1))/$SHARDS"))
    );
}
