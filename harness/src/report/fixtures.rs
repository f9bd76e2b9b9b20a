//! Cells and reports whose volatile values are fixed, for the tests of every renderer.

use super::{Arm, Attribution, Cell, Environment, Report, Run};
use crate::capture::{
    BackendNodes, BuildFile, BuildInfo, Cache, DeviceInfo, DeviceKind, Fallback, Moved, Placement, Traffic,
};
use crate::compare::{
    BadCache, BadStep, Distribution, FirstDifference, Greedy, KvNmse, LayerNmse, LogitsNmse, Metrics,
    Mismatch, MismatchKind, NonFinite, NonFiniteCounts, NonFinitePlace, RowPlace, StepKv, StepNmse, Steps,
    TopToken, WorstCache, WorstRow,
};
use crate::gate::{Declaration, Declared};
use crate::plan::CellId;
use crate::verdict::{Limits, Status, Verdict};

pub(super) fn id(text: &str) -> CellId {
    text.parse().unwrap()
}

/// Figures of a cell whose logits NMSE is `nmse`.
fn metrics(nmse: f64) -> Metrics {
    let place = RowPlace { row: 17, position: 17, step: 0 };
    Metrics {
        logits: LogitsNmse {
            overall: nmse,
            rows: 24,
            worst: WorstRow { place, nmse: 2.5 * nmse, column: None },
            p50: 0.75 * nmse,
            p99: 2.5 * nmse,
        },
        steps: None,
        kv: Some(KvNmse {
            k: 0.25 * nmse,
            v: 0.5 * nmse,
            layers: vec![
                LayerNmse { layer: 0, k: 0.125 * nmse, v: 0.25 * nmse },
                LayerNmse { layer: 1, k: 0.375 * nmse, v: 0.75 * nmse },
            ],
            first_bad: None,
            worst: WorstCache {
                cache: Cache::V,
                layer: 1,
                nmse: 0.75 * nmse,
                head: 1,
                position: 3,
                heads: vec![0.5 * nmse, nmse],
                positions: vec![0.5 * nmse, 0.5 * nmse, 0.5 * nmse, 1.5 * nmse],
            },
        }),
        kv_before_storing: None,
        top_token: TopToken {
            rows: 24,
            mismatches: 0,
            ties: 0,
            real: 0,
            rate: 0.0,
            interval: vec![0.0, 0.125],
            list: Vec::new(),
        },
        experts: None,
        greedy: None,
        nonfinite: NonFinite::default(),
        distribution: Distribution {
            kl_mean: 0.5 * nmse,
            kl_p99: nmse,
            kl_max: 2.0 * nmse,
            top_k: 10,
            overlap_mean: 1.0,
            overlap_min: 1.0,
            entropy_max_difference: nmse,
            max_abs_error: 4.0 * nmse,
            max_rel_error: 8.0 * nmse,
        },
    }
}

fn placement(device: &str, on_device: u64, on_cpu: u64) -> Placement {
    let nodes = |name: &str, compute_nodes: u64| BackendNodes {
        name: name.to_owned(),
        compute_nodes,
        view_nodes: 12,
        ops: [("MUL_MAT f32".to_owned(), compute_nodes)].into(),
    };
    let fallbacks = Fallback { op: "ROPE f32".to_owned(), node: "q-0".to_owned(), count: on_cpu };
    Placement {
        graphs: 1,
        splits: 1 + 2 * on_cpu,
        backends: vec![nodes(device, on_device), nodes("CPU", on_cpu)],
        fallbacks: if on_cpu > 0 { vec![fallbacks] } else { Vec::new() },
        ..Placement::default()
    }
}

pub(super) fn passed() -> Cell {
    let mut cell = Cell::new(id("dream-gen/f32/full@npm-3.21.1:CPU@x64"));
    let limits = Limits::uniform(1e-9);
    let mut placement = placement("CPU", 80, 0);
    placement.backends.truncate(1);
    let metrics = metrics(4e-14);
    cell.reference = Some("dream-gen/f32/full@npm-3.21.1:CPU".to_owned());
    cell.set_verdict(crate::verdict::judge(&metrics, &placement, &limits, true));
    cell.metrics = Some(metrics);
    cell.limits = Some(limits);
    cell.placement = Some(placement);
    let moved = |total, largest| Moved { total, largest };
    cell.traffic = Some(Traffic {
        cache_written: 0,
        graphs: 1,
        to_device: moved(396, 396),
        from_device: moved(17_160, 17_160),
        cache_read: 0,
    });
    cell.without_oracle =
        Some("9e11 tokens x parameters are more than 2.5e10, which --oracle lifts".to_owned());
    cell.peak_rss_bytes = Some(64 << 20);
    cell.timings = [("load".to_owned(), 0.25), ("compute".to_owned(), 1.5)].into();
    cell
}

pub(super) fn diverged() -> Cell {
    let mut cell = Cell::new(id("smollm2-135m/q4_1/decode?attn=flash&kv=f16@npm-3.21.1:Vulkan0"));
    let nmse_limit = 3e-3;
    let limits = Limits::uniform(nmse_limit);
    let placement = placement("Vulkan0", 900, 4);
    let mut metrics = metrics(f64::NAN);
    let place = RowPlace { row: 3, position: 7, step: 1 };
    metrics.logits.worst.place = place;
    metrics.kv = metrics.kv.map(|kv| KvNmse {
        v: f64::INFINITY,
        first_bad: Some(BadCache { cache: Cache::V, layer: 1, nmse: f64::INFINITY }),
        ..kv
    });
    let steps = [(0, 16, nmse_limit / 2.0), (1, 8, f64::NAN)];
    let cache = BadCache { cache: Cache::V, layer: 1, nmse: f64::INFINITY };
    let kv = StepKv { positions: 16, k: 1e-6, v: f64::INFINITY, worst: cache };
    let steps = steps.map(|(step, rows, nmse)| StepNmse { step, rows, nmse: Some(nmse), kv: Some(kv) });
    let first_bad = BadStep { step: 1, nmse: Some(f64::NAN), cache: Some(cache) };
    let layers = vec![LayerNmse { layer: 0, k: 1e-6, v: 2e-6 }];
    metrics.steps = Some(Steps { first_bad: Some(first_bad), worst: steps[1], list: steps.to_vec(), layers });
    metrics.top_token = TopToken {
        rows: 24,
        mismatches: 3,
        ties: 2,
        real: 1,
        rate: 0.125,
        interval: vec![0.026_5, 0.323_5],
        list: vec![Mismatch {
            place,
            kind: MismatchKind::Real,
            reference: Some(42),
            test: None,
            margin: 0.5,
            gap: f64::NAN,
            allowed: 0.25,
        }],
    };
    metrics.greedy = Some(Greedy {
        equal: false,
        length: 32,
        required: 20,
        first_difference: Some(FirstDifference {
            decision: 11,
            index: 11,
            reference: Some(7),
            test: Some(9),
            margin: Some(0.5),
        }),
    });
    let counts = NonFiniteCounts { test_nan: 1, ..NonFiniteCounts::default() };
    metrics.nonfinite = NonFinite {
        tensors: [("logits".to_owned(), counts)].into(),
        first: Some(NonFinitePlace {
            tensor: "logits".to_owned(),
            row: 3,
            column: 42,
            reference: "8.25".to_owned(),
            test: "NaN".to_owned(),
        }),
    };
    cell.reference = Some("smollm2-135m/q4_1/decode?attn=flash&kv=f16@npm-3.21.1:CPU".to_owned());
    cell.set_verdict(crate::verdict::judge(&metrics, &placement, &limits, false));
    cell.metrics = Some(metrics);
    cell.limits = Some(limits);
    cell.placement = Some(placement);
    cell.attribution = Some(Attribution {
        verdict: Arm::Device,
        reference_nmse: 2.5e-4,
        device_nmse: f64::INFINITY,
        reference_kv_nmse: Some(1e-4),
        device_kv_nmse: None,
    });
    cell
}

/// A cell whose reference is farther from the oracle than its limit.
fn noted() -> Cell {
    let mut cell = Cell { id: id("gen-llama/q4_1/prefill@npm-3.21.1:Vulkan0"), ..passed() };
    cell.without_oracle = None;
    cell.reason = "reference off: the reference against the oracle: logits NMSE 5.0e-3 > 3e-3".to_owned();
    cell.attribution = Some(Attribution {
        verdict: Arm::Reference,
        reference_nmse: 5e-3,
        device_nmse: 1.2e-3,
        reference_kv_nmse: None,
        device_kv_nmse: None,
    });
    cell
}

/// A cell without figures.
pub(super) fn ended(text: &str, status: Status, reason: &str) -> Cell {
    let mut cell = Cell::new(id(text));
    cell.set_verdict(Verdict::new(status, reason));
    cell
}

/// A report with every kind of outcome, its cells given in another order than declared.
pub(super) fn sample() -> Report {
    let mut unsupported =
        ended("dream-gen/f32/generate@old:CPU", Status::Unsupported, "build old lacks `ggml_set_rows`");
    unsupported.declared = Some(Declared {
        holds: true,
        declarations: vec![Declaration {
            expected: "unsupported for want of ggml_set_rows".to_owned(),
            reason: "needs a build of mid-2025 | see *notes*".to_owned(),
            link: None,
            expires: Some("2026-12-31".to_owned()),
            place: "ci/gate.toml:7".to_owned(),
        }],
    });
    let crashed = ended(
        "dream-gen/f32/prefill@npm-3.21.1:Vulkan0",
        Status::Crashed,
        "signal 6 (SIGABRT): GGML_ASSERT(x->ne[0] == 1) failed\nbacktrace",
    );
    let declared = [
        "dream-gen/f32/full@npm-3.21.1:CPU@x64",
        "smollm2-135m/q4_1/decode?attn=flash&kv=f16@npm-3.21.1:Vulkan0",
        "dream-gen/f32/prefill@npm-3.21.1:Vulkan0",
        "dream-gen/f32/decode@npm-3.21.1:Vulkan0",
        "dream-gen/f32/generate@old:CPU",
        "gen-llama/q4_1/prefill@npm-3.21.1:Vulkan0",
    ]
    .map(id);
    let run = Run {
        name: "2026-01-02-030405".to_owned(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        seconds: 61.5,
        command: "ggml-parity run".to_owned(),
        version: "0.1.0".to_owned(),
        ..Run::default()
    };
    let environment = Environment {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpu: Some("Some Processor".to_owned()),
        builds: vec![BuildInfo {
            name: "npm-3.21.1".to_owned(),
            version: Some("0.23.0".to_owned()),
            commit: Some("abcdef0".to_owned()),
            files: vec![BuildFile { name: "libggml-base.so".to_owned(), sha256: "00ff".to_owned() }],
        }],
        devices: vec![DeviceInfo {
            selector: "Vulkan0".to_owned(),
            name: "Vulkan0".to_owned(),
            kind: DeviceKind::IntegratedGpu,
            description: "llvmpipe (LLVM 15.0.6, 256 bits)".to_owned(),
            driver: Some("Mesa 22.3.6".to_owned()),
            memory_total: Some(8 << 30),
        }],
        switches: [("GGML_VK_VISIBLE_DEVICES".to_owned(), "0".to_owned())].into(),
    };
    Report::new(run, environment, &declared, vec![unsupported, noted(), crashed, diverged(), passed()])
}

/// A report of these cells on no machine in particular.
pub(super) fn report_of(cells: Vec<Cell>) -> Report {
    Report::new(Run::default(), Environment::default(), &[], cells)
}
