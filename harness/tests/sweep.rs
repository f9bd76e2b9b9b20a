//! `ggml-parity sweep` with the real binary, real models and real ggml libraries.

mod common;

use common::{binary, default_build, told};
use ggml_parity::sweep::render;
use ggml_parity::sweep::result::{Judgement, PairingKind, Row, RowStatus, Sweep};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

/// `ggml-parity sweep` of a few arithmetic items, in two steps each.
fn command(out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["sweep", "--corpus", "arithmetic", "--model", "dream-arith", "--threads", "1"]);
    command.args(["--steps", "2", "--ggml", &default_build(), "--out"]).arg(out).args(more);
    command
}

fn sweep(out: &Path, more: &[&str]) -> Sweep {
    let (code, text) = told(&command(out, more).output().unwrap());
    assert_eq!(code, 0, "{text}");
    render::read(out).unwrap()
}

/// The result without what differs between two runs of the same.
fn settled(sweep: &Sweep) -> String {
    let mut sweep = sweep.clone();
    sweep.run = Default::default();
    sweep.parts.clear();
    for row in &mut sweep.rows {
        (row.seconds, row.forced_seconds) = (0.0, 0.0);
    }
    sweep.summaries.iter_mut().for_each(|summary| summary.seconds = 0.0);
    render::json::render(&sweep)
}

fn is_right(row: &Row) -> bool {
    row.answer.as_ref().is_some_and(|answer| answer.judged == Judgement::Right)
}

#[test]
fn a_device_is_held_against_the_cpu_and_a_cache_against_none() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let modes = ["--mode", "full", "--mode", "sparse", "--reference", "mode=full"];
    let found = sweep(&out, &[&["--device", DEVICE, "--limit", "3"], &modes[..]].concat());
    // Two modes on two devices, three items.
    assert_eq!((found.arms.len(), found.items.len(), found.rows.len()), (4, 3, 12));
    assert!(found.rows.iter().all(|row| row.status == RowStatus::Done && row.nodes[0] > 0));
    let control = found.rows.iter().filter(|row| row.item == "arithmetic/15x23");
    for row in control.clone() {
        let answer = row.answer.as_ref().unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.exactly),
            ("15*20+15*3=300+45=345", Some(true)),
            "{}",
            row.arm
        );
        assert!(answer.ended && answer.read.as_deref() == Some("345"));
    }
    assert_eq!(control.count(), 4);
    let sparse = found.arms.iter().find(|arm| arm.pairings.len() == 2).unwrap();
    let kinds: Vec<PairingKind> = sparse.pairings.iter().map(|pairing| pairing.kind).collect();
    assert_eq!(kinds, [PairingKind::Parity, PairingKind::Baseline]);
    let summary = found.summary(&sparse.id, None).unwrap();
    assert_eq!(summary.accuracy.trials, 3);
    let [parity, baseline] = &summary.against[..] else { panic!() };
    // Two flavours of the CPU agree closer than a sparse cache does with none, which is the better for not being 0.
    let (near, far) = (parity.kl.unwrap().max, baseline.kl.unwrap().max);
    assert!(near < 1e-6 && far > 1e-9 && near < far, "{near:e} {far:e}");
    // Two steps of sixteen masks each: 32 and 16 rows an item.
    assert_eq!((parity.kl.unwrap().rows, parity.same_top.trials), (144, 144));
    assert!(parity.nmse.unwrap().max > 0.0, "another kernel computes something else");
    assert_eq!((parity.counts.items(), parity.mcnemar.unwrap().p), (3, 1.0));
    assert_eq!((found.correction.all_items, found.run.computed, found.run.resumed), (3, 12, 0));

    for (file, lines) in [("items.csv", 13), ("arms.csv", 1 + 4 * 4)] {
        let text = std::fs::read_to_string(out.join(file)).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(reader.records().filter(|record| record.is_ok()).count() + 1, lines, "{file}");
    }
    let summary = std::fs::read_to_string(out.join("summary.md")).unwrap();
    assert!(summary.contains("corrected by Holm's method: over the 3 comparisons of all items"), "{summary}");
    // Nothing but the result is left.
    let mut left: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["arms.csv", "index.html", "items.csv", "summary.md", "sweep.json"]);
}

#[test]
fn shards_put_together_are_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let whole = sweep(&at("whole"), &["--device", DEVICE, "--limit", "3"]);
    for shard in ["1/2", "2/2"] {
        let out = at("parts").join(&shard[..1]);
        let part = sweep(&out, &["--device", DEVICE, "--limit", "3", "--shard", shard]);
        assert_eq!(part.items.len(), if shard == "1/2" { 2 } else { 1 });
    }
    let merged = |from: &Path| {
        let mut command = Command::new(binary());
        command.arg("merge").arg(from).arg("--out").arg(at("merged"));
        told(&command.output().unwrap())
    };
    let (code, text) = merged(&at("parts"));
    assert_eq!(code, 0, "{text}");
    let all = render::read(&at("merged")).unwrap();
    assert_eq!(settled(&all), settled(&whole));
    assert_eq!(all.parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [4, 2]);
    let (code, text) = merged(&at("parts").join("1"));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("1 of 3 items are missing"), "{text}");
}

/// A changed copy is asked as its original is, padding and all, where a manifest of the user's own says so.
#[test]
fn a_copy_that_the_users_manifest_lists_is_held_against_its_original() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path();
    let original = ggml_parity::plan::models::resolve("dream-arith", work).unwrap();
    let file = &original.model.file;
    let writer =
        model_file::GgufWriter::new().all_metadata(file.metadata()).metadata("general.version", "copy");
    let writer = file.tensors().iter().fold(writer, |writer, info| {
        writer.tensor_bytes(info.name.clone(), &info.shape, info.ty, file.map(info).unwrap().to_vec())
    });
    writer.write(&work.join("copy.gguf")).unwrap();
    let manifest = work.join("models.toml");
    let asked = |settings: &str| {
        let text = format!("[[model]]\nname = \"copy\"\nfile = \"copy.gguf\"\n{settings}");
        std::fs::write(&manifest, format!("schema = \"ggml-parity.models/1\"\n{text}")).unwrap();
        let out = work.join("out");
        let more = ["--model", "copy", "--reference", "model=dream-arith", "--device", "CPU", "--limit", "2"];
        let output = command(&out, &more).env("GGML_PARITY_MODELS", &manifest).output().unwrap();
        (told(&output), render::read(&out))
    };
    let ((code, text), found) = asked("pad_left = { token = \"bos\", to = 8 }\n");
    assert_eq!(code, 0, "{text}");
    let found = found.unwrap();
    let arm = found.arms.iter().find(|arm| arm.id.to_string().starts_with("copy/f16/")).unwrap();
    let against = &found.summary(&arm.id, None).unwrap().against;
    assert_eq!(against.last().unwrap().exact.hits, 2, "{against:?}");
    let ((code, text), _) = asked("pad_left = { token = \"bos\" }\n");
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("models.toml") && text.contains("missing field `to`"), "{text}");
}

#[test]
fn an_interrupted_sweep_goes_on_and_repeats_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let more = ["--device", DEVICE, "--limit", "4"];
    let journal = out.join("sweep-journal.jsonl");
    let rows = || {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut child = command(&out, &more).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    // Some rows of the device are there, and not all.
    while rows().len() < 6 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = rows();
    assert!((6..8).contains(&before.len()), "{} rows when it was killed", before.len());

    let mut command = Command::new(binary());
    command.args(["sweep", "--resume"]).arg(&out).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let told: Vec<String> =
        BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{told:?}");
    let found = render::read(&out).unwrap();
    assert_eq!((found.run.resumed as usize, found.run.computed as usize), (before.len(), 8 - before.len()));
    assert!(found.rows.iter().all(|row| row.status == RowStatus::Done));
    for line in before {
        let row: Row = serde_json::from_str(&line).unwrap();
        assert_eq!(found.row(&row.item, &row.arm), Some(&row), "as it was, its seconds too");
    }
    assert!(!journal.exists());
    let whole = sweep(&folder.path().join("whole"), &more);
    assert_eq!(settled(&found), settled(&whole));
}

/// Sends a signal to the worker that computes the reference's second item or a later one; the exit code and the result.
#[cfg(target_os = "linux")]
fn struck(out: &Path, signal: &str) -> (Option<i32>, Sweep) {
    let more = ["--device", DEVICE, "--limit", "3", "--quiet"];
    let mut child = command(out, &more).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let rows =
        || std::fs::read_to_string(out.join("sweep-journal.jsonl")).map_or(0, |text| text.lines().count());
    // The head and one row.
    while rows() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let workers = std::fs::read_to_string(children).unwrap();
    let worker = workers.split_whitespace().next().expect("a worker");
    assert!(Command::new("kill").args([signal, worker]).status().unwrap().success());
    let code = child.wait().unwrap().code();
    (code, render::read(out).unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_dies_costs_one_item_at_most() {
    let folder = tempfile::tempdir().unwrap();
    // One that dies by its own fault is tried again.
    let (code, found) = struck(&folder.path().join("abort"), "-ABRT");
    assert_eq!(code, Some(0));
    assert!(found.rows.iter().all(|row| row.status == RowStatus::Done), "{}", found.verdict());
    let retried: Vec<&str> = found.rows.iter().filter_map(|row| row.retried.as_deref()).collect();
    assert!(retried.len() == 1 && retried[0].contains("SIGABRT"), "{retried:?}");
    // One that was killed is not; its item has no reference then, and the others stand.
    let (code, found) = struck(&folder.path().join("kill"), "-KILL");
    assert_eq!(code, Some(5), "{}", found.verdict());
    let (lost, done): (Vec<&Row>, Vec<&Row>) =
        found.rows.iter().partition(|row| row.status == RowStatus::Crashed);
    assert_eq!((lost.len(), done.len()), (1, 5));
    let compared = done.iter().filter(|row| !row.against.is_empty()).count();
    let device = found.arms.iter().find(|arm| arm.declared).unwrap();
    assert_eq!((compared, found.summary(&device.id, None).unwrap().against[0].items), (2, 2));
}

#[test]
fn a_limit_on_the_drop_needs_something_to_judge() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let found = sweep(&out, &["--device", DEVICE, "--limit", "1", "--fail-if-drop"]);
    assert!(found.rows.iter().all(is_right));
    assert_eq!((found.limit.as_ref().unwrap().points, found.limit.unwrap().exceeded.len()), (0.0, 0));
    // The CPU alone is held against nothing.
    let (code, text) = told(&command(&out, &["--device", "CPU", "--limit", "1"]).output().unwrap());
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("nothing was compared; exit 3"), "{text}");
}

#[test]
fn autoregressive_models_generate_and_score_texts() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("mine.jsonl");
    let lines = [
        r#"{"id": "go-on", "prompt": "ab ab", "max_tokens": 6, "tags": ["free"]}"#,
        r#"{"id": "text", "text": "ab abab ab ab a b abab", "tags": ["scored"]}"#,
        r#"{"id": "empty", "prompt": "", "tags": ["free"]}"#,
    ];
    std::fs::write(&corpus, lines.join("\n")).unwrap();
    let out = folder.path().join("out");
    let mut command = Command::new(binary());
    command.args(["sweep", "--model", "gen-llama", "--device", DEVICE, "--threads", "1", "--context", "8"]);
    command.args(["--ggml", &default_build(), "--corpus"]).arg(&corpus).arg("--out").arg(&out);
    command.args(["--device", "CPU", "--reference", "model=gen-llama:q8_0"]);
    let (code, text) = told(&command.output().unwrap());
    assert_eq!(code, 0, "{text}");
    let found = render::read(&out).unwrap();
    let arm = found.arms.iter().find(|arm| arm.pairings.len() == 2).unwrap();
    let row = found.row("mine/text", &arm.id).unwrap();
    let loss = row.loss.unwrap();
    assert_eq!(loss.tokens + 1, row.prompt_tokens, "every token but the first, once");
    assert!(loss.nats > 0.0 && row.answer.is_none());
    assert_eq!(row.against[0].logits.as_ref().unwrap().rows, loss.tokens);
    let summary = found.summary(&arm.id, Some("scored")).unwrap();
    let ratio = |pair: usize| summary.against[pair].perplexity.unwrap().ratio.value;
    assert!((ratio(0) - 1.0).abs() < 1e-5, "two flavours of the CPU: {}", ratio(0));
    assert!((ratio(1) - 1.0).abs() > (ratio(0) - 1.0).abs(), "other weights: {}", ratio(1));
    let answer = found.row("mine/go-on", &arm.id).unwrap().answer.as_ref().unwrap();
    assert!((1..=6).contains(&answer.tokens.len()) && answer.judged == Judgement::Unjudged);
    let empty = found.rows.iter().filter(|row| row.item == "mine/empty");
    for row in empty {
        let without = row.status == RowStatus::Inapplicable && row.reason.contains("no token is left");
        assert!(without || row.prompt_tokens > 0, "{row:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let bad = folder.path().join("bad.jsonl");
    std::fs::write(&bad, "{\"id\": \"a\", \"prompt\": \"1?\"}\n{\"id\": \"b\", \"prompt\": 7}\n").unwrap();
    let bad = bad.to_str().unwrap().to_owned();
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        let (found, text) = told(&command(&out, more).output().unwrap());
        assert_eq!(found, code, "{more:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{more:?}: {text}");
        assert!(!out.exists(), "{more:?}");
    };
    refused(&["--tag", "produkt"], 2, &["--tag produkt: no item has it", "did you mean `product`?"]);
    refused(&["--corpus", &bad], 2, &["bad.jsonl:2: prompt is `7`"]);
    refused(&["--mode", "prefill"], 2, &["mode prefill: a sweep generates"]);
    refused(&["--mode", "generate?n=7"], 2, &["option `n`"]);
    refused(&["--chat"], 2, &["dream-arith", "no chat template"]);
    refused(&["--device", "CUDA7"], 4, &["no device `CUDA7`", "CPU"]);
    refused(&["--reference", "colour=red"], 2, &["--reference `colour=red`", "mode=MODE"]);
    refused(&["--shard", "7/9", "--limit", "2"], 2, &["--shard 7/9: nothing is left for it of 2 items"]);
    refused(&["--fail-if-drop", "much"], 2, &["a number is wanted"]);
    let mut command = Command::new(binary());
    command.args(["sweep", "--corpus", "arithmetic", "--model", "gen-llama", "--mode", "sparse"]);
    let (code, text) = told(&command.current_dir(folder.path()).output().unwrap());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("mode sparse: no model has it: gen-llama (llama)"), "{text}");
}

#[test]
fn vulkan_is_held_against_the_cpu() {
    let bench = common::Bench::open(&default_build());
    if !bench.offers("Vulkan0") {
        eprintln!("NOT CHECKED: no Vulkan0 here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let found = sweep(&folder.path().join("out"), &["--device", "Vulkan0", "--limit", "2"]);
    let gpu = found.arms.iter().find(|arm| arm.declared).unwrap();
    let pair = &found.summary(&gpu.id, None).unwrap().against[0];
    assert_eq!((pair.items, pair.kl.unwrap().rows), (2, 96));
    assert!(pair.kl.unwrap().max < 1e-2 && pair.kl.unwrap().max > 0.0, "{:?}", pair.kl);
}

#[test]
fn the_published_schema_describes_every_result() {
    let published = std::fs::read_to_string(common::root().join("reports/sweep.schema.json")).unwrap();
    assert_eq!(
        published,
        render::schema::render(),
        "cargo run --release --example sweep_schema > reports/sweep.schema.json"
    );
    let schema = serde_json::from_str(&published).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let found = sweep(&folder.path().join("out"), &["--device", DEVICE, "--limit", "1"]);
    let instance = serde_json::from_str(&render::json::render(&found)).unwrap();
    let errors: Vec<String> = validator.iter_errors(&instance).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}
