//! `trace` with real workers: it blames nothing that is right, and names the node that is not.

mod common;

use common::{Bench, run, told};
use ggml_parity::pipeline::{Build, OracleUse, Plan};
use ggml_parity::plan::inputs::Wishes;
use ggml_parity::plan::models::{ResolvedModel, resolve};
use ggml_parity::plan::{CellId, DeviceSelector, matrix};
use ggml_parity::planted::{Plant, Planted, Plantings};
use ggml_parity::trace::{Culprit, Finding, GraphChoice, Trace, TraceError, trace};
use ggml_parity::verdict::{ExitCode, Tolerances};
use ggml_parity::worker::{self, Ended, Fault, Job, JobCell, RunJob, TraceJob, TraceStage, Workplace};
use model_file::{GgufFile, GgufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Builds, a folder, and what is to be traced there.
struct Traced {
    work: tempfile::TempDir,
    workplace: Workplace,
    build: Option<Build>,
}

impl Traced {
    fn new() -> Self {
        let work = tempfile::tempdir().unwrap();
        let time_limit = Duration::from_secs(300);
        let workplace =
            Workplace { binary: common::binary(), folder: work.path().to_owned(), time_limit, memory: None };
        let build = Build::open(Some(&common::default_build()), &workplace).expect("a ggml build");
        Self { work, workplace, build: Some(build) }
    }

    /// A flavour of the CPU that is not the reference.
    fn second_cpu(&self) -> DeviceSelector {
        let probed = &self.build.as_ref().unwrap().probed;
        let offered: Vec<DeviceSelector> = probed.devices.iter().map(|d| d.selector.clone()).collect();
        let all = matrix::default_devices(&offered, &probed.cpu_variants, probed.cpu_variant.as_deref());
        all.into_iter().find(DeviceSelector::is_cpu).expect("a second flavour of the CPU")
    }

    fn model(&self, name: &str) -> ResolvedModel {
        resolve(name, self.work.path()).unwrap()
    }

    /// The case on `device`, with what is planted there.
    fn trace(
        &mut self,
        case: &str,
        device: &DeviceSelector,
        fault: Option<Fault>,
        planted: Option<PathBuf>,
        graph: GraphChoice,
    ) -> Result<Trace, TraceError> {
        let build = self.build.take().unwrap();
        let case: ggml_parity::plan::Case = case.parse().unwrap();
        let own = case.weights == "f32";
        let model = if own {
            self.model(&case.model)
        } else {
            self.model(&format!("{}:{}", case.model, case.weights))
        };
        let device_plant = Plant { model: planted, fault };
        let plant = Planted { device: device_plant, ..Planted::default() };
        let plan = Plan {
            planted: Plantings::from([(case.clone(), plant)]),
            cells: vec![CellId::new(case, &build.info.name, device)],
            builds: vec![build],
            models: vec![model],
            wishes: Wishes::default(),
            threads: 1,
            tolerances: Tolerances::embedded(),
            oracle: OracleUse::Never,
        };
        let spools = tempfile::tempdir_in(self.work.path()).unwrap();
        let bench =
            ggml_parity::trace::Bench { workplace: &self.workplace, work: spools.path(), tell: &|_| {} };
        let result = trace(&plan, graph, &bench).map(|(trace, _)| trace);
        self.build = plan.builds.into_iter().next();
        result
    }
}

/// `model` with the sign of one value of `tensor` turned, which must be of 32-bit floats.
fn with_one_value_turned(model: &Path, tensor: &str, value: usize, to: &Path) {
    let file = GgufFile::open(model).unwrap();
    let mut writer = GgufWriter::new().all_metadata(file.metadata());
    for info in file.tensors() {
        let mut bytes = file.map(info).unwrap().to_vec();
        if info.name == tensor {
            bytes[value * 4 + 3] ^= 0x80;
        }
        writer = writer.tensor_bytes(info.name.clone(), &info.shape, info.ty, bytes);
    }
    writer.write(to).unwrap();
}

/// Nothing is found, and every node has an f64 value that the reference keeps to within `most`.
fn assert_clean(trace: &Trace, most: f64) {
    assert_eq!(trace.finding, Finding::Clean, "{}", ggml_parity::trace::render::console(trace));
    assert_eq!(trace.exit_code(), ExitCode::Success);
    assert!(trace.nodes.len() > 40, "{} nodes", trace.nodes.len());
    for node in &trace.nodes {
        assert_eq!(node.without_truth, None, "{}", node.name);
        let truth = node.reference_truth.unwrap();
        assert!(truth <= most, "{} {}: {truth:e} from f64", node.op, node.name);
        assert!(node.total.as_ref().unwrap().nmse >= 0.0 && node.differs.is_empty(), "{node:?}");
    }
}

#[test]
fn two_flavours_of_the_cpu_agree_at_every_node_and_with_f64() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    for case in [
        "gen-llama/f32/prefill",
        "gen-qwen2/f32/decode",
        "gen-llada/f32/sparse",
        "gen-dream/f32/full",
        "gen-llama/f32/batch?attn=flash",
        "gen-qwen2/f32/prefill?ub=7",
    ] {
        let found = bench.trace(case, &device, None, None, GraphChoice::Last).unwrap();
        assert_clean(&found, 1e-10);
        assert_eq!(found.graph + 1, found.graphs.len());
    }
    let heads = |trace: &Trace, name: &str| {
        trace.nodes.iter().find(|node| node.name == name).map(|node| node.heads.len())
    };
    let prefill = bench.trace("gen-llama/f32/prefill", &device, None, None, GraphChoice::FirstBad).unwrap();
    let h = bench.model("gen-llama").model.hparams;
    assert_eq!(heads(&prefill, "q_rope-0"), Some(h.n_head));
    assert_eq!(heads(&prefill, "k_rope-1"), Some(h.n_head_kv));
    assert_eq!(heads(&prefill, "kq_soft_max-1"), Some(h.n_head));
}

#[test]
fn quantised_caches_and_weights_are_clean_too() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    for case in
        ["gen-llama/f32/decode?kv=q8_0", "gen-llama/f32/decode?attn=flash&kv=f16", "gen-llama/q4_k_m/prefill"]
    {
        let found = bench.trace(case, &device, None, None, GraphChoice::FirstBad).unwrap();
        assert_clean(&found, 2e-3);
    }
}

/// Experts and canvases: a graph is walked with what the reference's experts and logits made of it.
#[test]
fn experts_and_canvases_are_walked_along_the_reference() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    for case in [
        "gen-llada-moe/f32/generate",
        "gen-diffusion-gemma/f32/unified",
        "gen-diffusion-gemma-e300/f32/prompt-kv",
        "gen-diffusion-gemma/f32/generate",
    ] {
        let found = bench.trace(case, &device, None, None, GraphChoice::Last).unwrap();
        // ggml's CPU reads GELU from a table of 16-bit values.
        assert_clean(&found, 1e-6);
        assert_eq!(found.graph + 1, found.graphs.len());
        for graph in &found.graphs {
            assert_eq!(graph.differs, None, "{case}");
            // A set of experts that is the device's own, or a canvas conditioned on other logits, is far beyond this.
            assert!(graph.logits.is_none_or(|nmse| nmse <= 1e-6), "{case}: {:?}", graph.logits);
        }
    }
}

/// What conditions a canvas is in the second graph only, and is found there.
#[test]
fn a_turned_weight_of_self_conditioning_is_found_in_the_canvas_that_has_it() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    let model = bench.model("gen-diffusion-gemma");
    let planted = bench.work.path().join("planted.gguf");
    with_one_value_turned(&model.path, "self_cond_down.weight", 5, &planted);
    let case = "gen-diffusion-gemma/f32/unified";
    let found = bench.trace(case, &device, None, Some(planted), GraphChoice::FirstBad).unwrap();
    assert_eq!((found.graph, found.graphs.len()), (1, 2));
    let node = found.bad_node().unwrap_or_else(|| panic!("{:?}", found.finding));
    assert_eq!((node.name.as_str(), node.culprit()), ("self_cond_down-0", Culprit::Device), "{node:?}");
}

#[test]
fn one_turned_weight_is_localised_to_its_layer_and_op() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    let model = bench.model("gen-llama");
    let planted = bench.work.path().join("planted.gguf");
    for (tensor, name, op, layer) in [
        ("blk.1.ffn_up.weight", "ffn_up-1", "MUL_MAT", 1),
        ("blk.0.attn_k.weight", "attn_k-0", "MUL_MAT", 0),
        ("blk.1.attn_norm.weight", "attn_norm-1", "MUL", 1),
    ] {
        with_one_value_turned(&model.path, tensor, 5, &planted);
        let found = bench
            .trace("gen-llama/f32/prefill", &device, None, Some(planted.clone()), GraphChoice::FirstBad)
            .unwrap();
        let node = found.bad_node().unwrap_or_else(|| panic!("{tensor}: {:?}", found.finding));
        assert_eq!((node.name.as_str(), node.op.as_str(), node.layer), (name, op, Some(layer)));
        assert_eq!(node.culprit(), Culprit::Device, "{node:?}");
        assert_eq!(found.nodes.iter().filter(|node| node.is_bad()).count(), 1, "what follows is innocent");
        let last = found.nodes.last().unwrap();
        assert!(last.total.as_ref().unwrap().nmse > last.limit, "but inherits");
        assert_eq!(found.exit_code(), ExitCode::Diverged);
    }
}

#[test]
fn a_graph_that_is_asked_for_something_else_is_named() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    let fault = Some(Fault::PredecessorsLeftOut);
    let found = bench.trace("gen-dream/f32/sparse", &device, fault, None, GraphChoice::FirstBad).unwrap();
    let Finding::Structure(what) = &found.finding else { panic!("{:?}", found.finding) };
    assert!(what.contains("are left out") && found.graph > 0, "{what}");
    assert_eq!(found.exit_code(), ExitCode::Diverged);
}

#[test]
fn a_node_goes_into_a_file_and_comes_out_the_same() {
    let build = Bench::open(&common::default_build()).build.info.name;
    let device = Traced::new().second_cpu().to_string();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let file = folder.path().join("repro.safetensors");
    let ggml = common::default_build();
    let replay =
        || told(&run(&["trace", "--repro", file.to_str().unwrap(), "--device", &device, "--ggml", &ggml]));
    for (case, nodes) in [
        ("gen-llama/q4_k_m/decode?kv=q8_0", &["attn_q-0", "k_store-1", "k_f32-0"][..]),
        (
            "gen-llama/f32/prefill",
            &["kq-1", "kq_soft_max-0", "v_transposed-1", "q_rope-0", "ffn_silu-1", "embedding-0"],
        ),
        ("gen-llama/f32/batch?attn=flash", &["kqv_flash-1", "attn_norm_rms-1"]),
    ] {
        let id = format!("{case}@{build}:{device}");
        for node in nodes {
            let arguments =
                ["trace", &id, "--ggml", &ggml, "--out", out, "--write-repro", node, "--graph", "last"];
            let (code, text) = told(&run(&arguments));
            assert_eq!(code, 0, "{case} {node}: {text}");
            let (code, text) = replay();
            assert_eq!(code, 0, "{case} {node}: {text}");
            assert!(text.contains(node) && !text.contains("over the limit"), "{text}");
        }
    }
    for name in ["trace.json", "trace.md", "nodes.csv"] {
        assert!(folder.path().join(name).metadata().is_ok_and(|m| m.len() > 0), "{name}");
    }
    // A value that is another than it was.
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len();
    for at in (end - 4096..end).step_by(4) {
        bytes[at + 3] ^= 0x40;
    }
    std::fs::write(&file, &bytes).unwrap();
    let (_, text) = replay();
    assert!(text.contains("over the limit"), "{text}");
    std::fs::write(&file, &bytes[..end - 1]).unwrap();
    let (code, text) = replay();
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("repro.safetensors"), "{text}");
}

#[test]
fn what_cannot_be_traced_is_refused() {
    let build = Bench::open(&common::default_build()).build.info.name;
    let ggml = common::default_build();
    for (case, more, code, says) in [
        ("gen-llama/f32/prefill@BUILD:Vulkan7", &[][..], 4, "`Vulkan7`"),
        ("gen-llama/f32/prefill@other:CPU", &[], 4, "no build `other`"),
        ("gen-llama/f32/speculative@BUILD:CPU", &[], 2, "two models"),
        ("gen-llama/f32/lifecycle@BUILD:CPU", &[], 2, "caches"),
        ("gen-llama/f32/full@BUILD:CPU", &[], 2, "no mode full"),
        ("gen-llama/f32/prefil@BUILD:CPU", &[], 2, "prefil"),
        ("gen-llama/f32/prefill@BUILD:CPU", &["--graph", "99"], 2, "the case has 1 graphs"),
        ("gen-llama/f32/prefill@BUILD:CPU", &["--graph", "middle"], 2, "middle"),
        ("gen-llama/f32/prefill@BUILD:CPU", &["--write-repro", "attn_q-77"], 2, "attn_q-77"),
        ("gen-llama/f32/decode@BUILD:CPU", &["--columns", "1,2"], 2, "decode"),
        ("gen-llama/f32/prefill@BUILD:CPU", &["--timeout", "1", "--columns", "0"], 2, "0"),
    ] {
        let id = case.replace("BUILD", &build);
        let arguments = [&["trace", &id, "--ggml", &ggml], more].concat();
        let (is, text) = told(&run(&arguments));
        assert_eq!(is, code, "{id} {more:?}: {text}");
        assert!(text.contains(says), "{id} {more:?}: {text}");
    }
    let (code, text) = told(&run(&["trace", "--repro", "nowhere.safetensors", "--device", "CPU"]));
    assert_eq!((code, text.contains("nowhere.safetensors")), (2, true), "{text}");
}

#[test]
fn columns_are_compared_by_product() {
    let build = Bench::open(&common::default_build()).build.info.name;
    let folder = tempfile::tempdir().unwrap();
    let (out, ggml) = (folder.path().to_str().unwrap(), common::default_build());
    let id = format!("gen-llama/q4_k/prefill@{build}:{}", Traced::new().second_cpu());
    let (code, text) = told(&run(&["trace", &id, "--ggml", &ggml, "--out", out, "--columns", "1,2,5"]));
    assert_eq!(code, 0, "{text}");
    let table: Vec<ggml_parity::trace::columns::Row> =
        serde_json::from_slice(&std::fs::read(folder.path().join("columns.json")).unwrap()).unwrap();
    let q4: Vec<_> = table.iter().filter(|row| row.types.starts_with("q4_k")).collect();
    assert!(!q4.is_empty(), "{text}");
    for row in q4 {
        assert_eq!(row.errors.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 5], "{row:?}");
        assert!(row.errors.iter().all(|(_, nmse)| nmse.0 <= 2e-3), "{row:?}");
    }
}

#[test]
fn a_software_vulkan_device_is_clean_in_32_bits() {
    let mut bench = Traced::new();
    let device: DeviceSelector = "Vulkan0".parse().unwrap();
    if bench.build.as_ref().unwrap().check(&device).is_err() {
        eprintln!("NOT CHECKED: no Vulkan device");
        return;
    }
    let mut once = || bench.trace("gen-llama/f32/prefill", &device, None, None, GraphChoice::FirstBad);
    // Software drivers die at random.
    let found = once().or_else(|_| once()).unwrap();
    assert_clean(&found, 1e-10);
    assert_eq!(found.placement.keys().collect::<Vec<_>>(), ["Vulkan0"]);
}

#[test]
fn nodes_that_are_off_together_are_narrowed_down_on_a_real_device() {
    let bench = Traced::new();
    let build = bench.build.as_ref().unwrap();
    let model = bench.model("gen-llama");
    let file = |name: &str| bench.work.path().join(name);
    let stage = |device: &DeviceSelector, stage: TraceStage| {
        let case: ggml_parity::plan::Case = "gen-llama/f32/prefill".parse().unwrap();
        let cell = JobCell {
            id: CellId::new(case, &build.info.name, device),
            path: model.path.clone(),
            model: ggml_parity::capture::ModelInfo { sha256: "00".to_owned(), ..Default::default() },
            inputs: common::tokens(&(4..37).collect::<Vec<_>>(), 0),
            replay: None,
            capture: file("capture"),
            lost: None,
            fault: None,
            pins: None,
        };
        let run = RunJob {
            folder: build.folder.clone(),
            build: build.info.clone(),
            device: device.clone(),
            threads: 1,
            cells: vec![cell],
        };
        let job = |run| Job::Trace(Box::new(TraceJob { run, stage: stage.clone() }));
        let ended = worker::one(&bench.workplace, &run, &build.environment, job);
        assert_eq!(ended.unwrap_or_else(|f| panic!("{}", f.message)), Ended::Captured);
    };
    // The plainest flavour adds in another order than the best one; others need not.
    let plain: DeviceSelector = "CPU@x64".parse().unwrap();
    let apart = build.check(&plain).is_ok() && build.probed.cpu_variant.as_deref() != Some("x64");
    let device = if apart { plain } else { bench.second_cpu() };
    let cpu = DeviceSelector::cpu();
    let (recorded, reference) = (file("recorded"), file("reference"));
    stage(&cpu, TraceStage::Record { into: recorded.clone() });
    let into = reference.clone();
    stage(&cpu, TraceStage::Walk { recorded: recorded.clone(), graph: 0, into, force: None });
    let nodes = ggml_parity::trace::spool::Walked::open(&reference).unwrap().document.computed().count();
    let windows = |limit: f64| -> Option<ggml_parity::trace::windows::Together> {
        let (recorded, reference, into) = (recorded.clone(), reference.clone(), file("windows"));
        std::fs::create_dir_all(&into).unwrap();
        let limits = vec![limit; nodes];
        stage(&device, TraceStage::Windows { recorded, graph: 0, reference, limits, into: into.clone() });
        serde_json::from_slice(&std::fs::read(into.join("windows.json")).unwrap()).unwrap()
    };
    assert_eq!(windows(1e-9), None, "both flavours compute the same, together as alone");
    if !apart {
        eprintln!("NOT CHECKED: no flavour of the CPU that adds in another order");
        return;
    }
    // Held to less than rounding, the first two nodes that differ are found.
    let found = windows(1e-18).expect("sums in another order");
    assert!(found.nodes.len() == 2 && found.nodes.contains(&found.node) && found.nmse > 2e-18, "{found:?}");
}

/// Every fault that can be planted in a runtime: the first node that is off, or what the device was asked for instead.
#[test]
fn planted_faults_are_localised_to_their_layer_and_op() {
    let mut bench = Traced::new();
    let device = bench.second_cpu();
    let nodes = [
        (Fault::RopeKindSwapped, "gen-llama/f32/prefill", ("k_rope-0", "ROPE", 0)),
        // Keys and values are tiled over the query heads, in nodes that the reference has not.
        (Fault::HeadsMispaired, "gen-llama/f32/prefill", ("v_transposed-0", "CONT", 0)),
        (Fault::HeadFromEmbedding, "gen-qwen2-untied/f32/prefill", ("logits-2", "MUL_MAT", 2)),
        (Fault::EmbeddingFromHead, "gen-qwen2-untied/f32/prefill", ("embedding-0", "GET_ROWS", 0)),
        (Fault::MaskOffByOne, "gen-llama/f32/prefill", ("kq_soft_max-0", "SOFT_MAX", 0)),
        // What scales the keys lies between the rotation and the store, of which the reference has only these.
        (Fault::KeyHeadScaled, "gen-llama/f32/prefill", ("k_store-1", "SET_ROWS", 1)),
        (Fault::RowZeroed, "gen-llama/f32/prefill", ("layer-0", "ADD", 0)),
        (Fault::StaleRow, "gen-qwen2/f32/batch", ("k_store-0", "SET_ROWS", 0)),
    ];
    for (fault, case, (name, op, layer)) in nodes {
        let found = bench.trace(case, &device, Some(fault), None, GraphChoice::FirstBad).unwrap();
        let node = found.bad_node().unwrap_or_else(|| panic!("{fault:?}: {:?}", found.finding));
        assert_eq!((node.name.as_str(), node.op.as_str(), node.layer), (name, op, Some(layer)), "{fault:?}");
        assert_eq!(node.culprit(), Culprit::Device, "{fault:?}");
    }
    let structures = [
        (Fault::BiasDropped, "gen-qwen2/f32/prefill", "node attn_k_bias-1 is missing on the device"),
        (Fault::ShiftIgnored, "gen-dream/f32/sparse", "other rows of logits are wanted"),
    ];
    for (fault, case, wanted) in structures {
        let found = bench.trace(case, &device, Some(fault), None, GraphChoice::FirstBad).unwrap();
        let Finding::Structure(what) = &found.finding else { panic!("{fault:?}: {:?}", found.finding) };
        assert!(what.contains(wanted), "{fault:?}: {what}");
    }
}
