//! Writes the report of a run that never was, with every status there is and every kind of finding, for looking at
//! what the renderers make of it and for the browser's checks:
//!
//! ```text
//! cargo run --release --example every_status -- FOLDER [CASES]
//! ```
//!
//! Figures are made up and the same each time; verdicts are those of the harness.

use ggml_parity::capture::{
    BackendNodes, BuildFile, BuildInfo, Cache, Check, CheckBound, DeviceInfo, DeviceKind, Fallback, Moved,
    Placement, Traffic,
};
use ggml_parity::compare::{
    BadCache, BadStep, Distribution, FirstDifference, Greedy, KvNmse, LayerNmse, LogitsNmse, Metrics,
    Mismatch, MismatchKind, NonFinite, NonFiniteCounts, NonFinitePlace, RowPlace, StepKv, StepNmse, Steps,
    TopToken, WorstCache, WorstRow,
};
use ggml_parity::gate::{Declaration, Declared, Found};
use ggml_parity::plan::CellId;
use ggml_parity::report::{self, Arm, Attribution, Cell, Environment, Report, Run};
use ggml_parity::verdict::{Limits, Status, Verdict, judge};
use std::path::Path;

const LIMIT: f64 = 1e-5;
const DEVICES: [&str; 3] = ["CPU@x64", "CPU+repack", "Vulkan0"];
const MODES: [&str; 6] =
    ["full", "full-cache", "sparse?keep=2", "prefill", "decode?attn=flash&kv=q8_0", "generate?cache=sparse"];
/// A name that would be a script in a page that does not escape, and a text that would end one.
const HOSTILE: &str =
    "<script>alert(1)</script> \"'&amp; </style></script><img src=x onerror=alert(2)> ]]> | `x` %0A::error::";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: every_status FOLDER [CASES]")?;
    let cases: usize = arguments.next().map_or(Ok(12), |n| n.parse())?;
    let cells = (0..cases).flat_map(|case| DEVICES.map(|device| cell(case, device))).collect();
    let missing = id("gen-qwen2", 0, "Vulkan0");
    let mut declared: Vec<CellId> = (0..cases).flat_map(|c| DEVICES.map(|d| id(&model(c), c, d))).collect();
    declared.push(missing);
    report::write(Path::new(&folder), &Report::new(run(), environment(), &declared, cells))?;
    Ok(())
}

fn model(case: usize) -> String {
    let names = ["dream-arith", "gen-llama", "smollm2-135m-instruct"];
    let n = case / MODES.len();
    if n < names.len() { names[n].to_owned() } else { format!("gen-{n}") }
}

fn id(model: &str, case: usize, device: &str) -> CellId {
    let mode = MODES[case % MODES.len()];
    format!("{model}/f16/{mode}@npm-3.21.1:{device}").parse().expect("an id")
}

/// One cell; which kind of outcome it has depends on its place.
fn cell(case: usize, device: &str) -> Cell {
    let mut cell = Cell::new(id(&model(case), case, device));
    let place = DEVICES.iter().position(|name| *name == device).unwrap_or(0);
    cell.reference = Some(CellId { device: "CPU".parse().expect("a device"), ..cell.id.clone() }.to_string());
    cell.timings = [("load".to_owned(), 0.12), ("compute".to_owned(), 1.5 + case as f64)].into();
    let ended = |status, reason: &str| Verdict::new(status, reason);
    match (case, place) {
        (1, 2) => {
            cell.set_verdict(ended(Status::Crashed, "signal 6 (SIGABRT): GGML_ASSERT(x->ne[0] == 1) failed"))
        }
        (2, 2) => cell.set_verdict(ended(Status::Timeout, "no result within 600 s")),
        (3, 2) => {
            cell.set_verdict(ended(Status::OutOfMemory, "the device has 8 GiB and was asked for 9.1 GiB"))
        }
        (4, 1) => {
            cell.set_verdict(ended(Status::Unsupported, "build npm-3.21.1 lacks `ggml_set_rows`"));
            cell.declared = Some(declared("unsupported", "builds before mid-2025 cannot scatter", true));
        }
        (4, 0) => {
            cell.set_verdict(ended(Status::Unsupported, "supports_op denies FLASH_ATTN_EXT f16 [64, 40, 4]"))
        }
        (5, 0) => cell.set_verdict(ended(Status::Crashed, HOSTILE)),
        _ => compared(&mut cell, case, place),
    }
    match (case, place) {
        (5, 1) => {
            cell.set_verdict(ended(Status::UnexpectedPass, "declared to diverge, and does not"));
            cell.declared = Some(declared("diverged with logits_nmse <= 1e-4", "rounds to 8 bits", false));
        }
        (0, 1) => {
            cell.set_verdict(ended(Status::Expected, "logits NMSE 3.0e-6, declared up to 1e-4"));
            cell.declared = Some(declared("diverged with logits_nmse <= 1e-4", "rounds to 8 bits", true));
            let reason = "logits NMSE 3.0e-6 > 1e-6".to_owned();
            cell.found = Some(Found { status: Status::Diverged, reason });
        }
        _ => {}
    }
    cell
}

/// What a gate file declares of a cell.
fn declared(expected: &str, reason: &str, holds: bool) -> Declared {
    let declaration = Declaration {
        expected: expected.to_owned(),
        reason: reason.to_owned(),
        link: Some("https://example.org/issues/1".to_owned()),
        expires: Some("2027-06-30".to_owned()),
        place: "ci/gate.toml:40".to_owned(),
    };
    Declared { holds, declarations: vec![declaration] }
}

/// Figures, and what the harness says of them.
fn compared(cell: &mut Cell, case: usize, place: usize) {
    let size = match (case, place) {
        (0, 2) => 3.0,
        (1, 1) => 40.0 * LIMIT,
        (7, 2) => 1.4 * LIMIT,
        (5, 2) => f64::NAN,
        _ => LIMIT * 10f64.powi(-((case * 5 + place * 3) as i32 % 7)) * 0.7,
    };
    let metrics = metrics(size, case);
    let placement = placement(cell, if (case, place) == (8, 2) { 6 } else { 0 });
    let limits = Limits::uniform(LIMIT);
    cell.set_verdict(judge(&metrics, &placement, &limits, cell.device.is_cpu()));
    let off = !(size <= LIMIT);
    cell.attribution = Some(Attribution {
        verdict: if off { Arm::Device } else { Arm::Agree },
        reference_nmse: 2e-7,
        device_nmse: size,
        reference_kv_nmse: Some(1e-7),
        device_kv_nmse: Some(size * 0.9),
    });
    if case == 6 {
        cell.attribution = None;
        cell.without_oracle =
            Some("3e10 tokens x parameters are more than 2.5e10, which --oracle lifts".to_owned());
        cell.checks = vec![Check {
            name: "going on from a restored cache".to_owned(),
            value: 0.0,
            bound: CheckBound::Exact,
            detail: "bit-equal".to_owned(),
        }];
    }
    if case == 7 && place == 0 {
        cell.retried = Some("signal 11 (SIGSEGV)".to_owned());
    }
    cell.text =
        Some(if off { "15*20+15*3=300+44=344".to_owned() } else { "15*20+15*3=300+45=345".to_owned() });
    cell.reference_text = Some("15*20+15*3=300+45=345".to_owned());
    cell.pieces = [(42, " the".to_owned()), (7, "\n".to_owned()), (99, HOSTILE.to_owned())].into();
    let moved = |total, largest| Moved { total, largest };
    cell.traffic = Some(Traffic {
        cache_written: 0,
        graphs: 24,
        to_device: moved(40_960, 4096),
        from_device: moved(4 << 20, 196_608),
        cache_read: 1 << 20,
    });
    cell.peak_rss_bytes = Some(212 << 20);
    cell.metrics = Some(metrics);
    cell.limits = Some(limits);
    cell.placement = Some(placement);
}

fn placement(cell: &Cell, on_cpu: u64) -> Placement {
    let ops = |n: u64| [("MUL_MAT f16", 7 * n), ("ADD f32", 2 * n), ("RMS_NORM f32", 2 * n), ("ROPE f32", n)];
    let nodes = |name: &str, n: u64| BackendNodes {
        name: name.to_owned(),
        compute_nodes: 12 * n,
        view_nodes: 4 * n,
        ops: ops(n).map(|(op, n)| (op.to_owned(), n)).into(),
    };
    if cell.device.is_cpu() {
        return Placement {
            graphs: 24,
            splits: 24,
            backends: vec![nodes("CPU", 12)],
            fallbacks: Vec::new(),
            ..Placement::default()
        };
    }
    let cpu = BackendNodes {
        name: "CPU".to_owned(),
        compute_nodes: on_cpu,
        view_nodes: 0,
        ops: [("ROPE f32".to_owned(), on_cpu)].into(),
    };
    let fallback = Fallback { op: "ROPE f32".to_owned(), node: "q-0".to_owned(), count: on_cpu };
    Placement {
        graphs: 24,
        splits: 24 + 2 * on_cpu,
        backends: vec![nodes("Vulkan0", 12), cpu],
        fallbacks: if on_cpu > 0 { vec![fallback] } else { Vec::new() },
        ..Placement::default()
    }
}

/// The course of a figure over `n` places up to `size`, the same each time.
fn course(size: f64, n: usize) -> impl Iterator<Item = f64> {
    let wave = |i: usize| 0.6 + 0.4 * ((i * 7919 % 13) as f64 / 13.0);
    (0..n).map(move |i| size * 10f64.powf(3.0 * (i as f64 / (n - 1) as f64 - 1.0)) * wave(i))
}

fn metrics(size: f64, case: usize) -> Metrics {
    let layers = if case % 3 == 2 { 30 } else { 4 };
    let place = |row: u64| RowPlace { row, position: row as i32, step: (row / 2) as i32 };
    let list: Vec<StepNmse> = course(size, 24)
        .enumerate()
        .map(|(i, nmse)| {
            let nmse = if i == 0 { 0.0 } else { nmse };
            let worst = BadCache { cache: Cache::V, layer: 1, nmse: nmse * 2.0 };
            let kv = StepKv { positions: 2, k: nmse * 0.8, v: nmse * 1.5, worst };
            StepNmse { step: i as i32, rows: 2, nmse: Some(nmse), kv: Some(kv) }
        })
        .collect();
    let off = |step: &StepNmse| !step.nmse.is_some_and(|nmse| nmse <= LIMIT);
    let first_bad = list.iter().find(|step| off(step)).map(|step| BadStep {
        step: step.step,
        nmse: step.nmse,
        cache: step.kv.map(|kv| kv.worst),
    });
    let step_layers = vec![LayerNmse { layer: 0, k: size * 0.4, v: size }];
    let steps = Steps { first_bad, worst: list[23], list, layers: step_layers };
    let kv_layers: Vec<LayerNmse> = (0..)
        .zip(course(size * 0.8, layers).zip(course(size * 2.0, layers)))
        .map(|(layer, (k, v))| LayerNmse { layer, k, v })
        .collect();
    let bad = kv_layers.iter().find(|l| !(l.v <= LIMIT)).map(|l| BadCache {
        cache: Cache::V,
        layer: l.layer,
        nmse: l.v,
    });
    let last = &kv_layers[layers - 1];
    let worst = WorstCache {
        cache: Cache::V,
        layer: last.layer,
        nmse: last.v,
        head: 1,
        position: 38,
        heads: course(last.v, 4).collect(),
        positions: course(last.v, 48).collect(),
    };
    let off = first_bad.is_some();
    let mismatch = |row, kind, reference, test| Mismatch {
        place: place(row),
        kind,
        reference,
        test,
        margin: if kind == MismatchKind::Tie { 2e-3 } else { 1.25 },
        gap: 0.75,
        allowed: 0.02,
    };
    let mismatches = if off {
        vec![
            mismatch(17, MismatchKind::Real, Some(42), Some(99)),
            mismatch(21, MismatchKind::Real, Some(7), None),
            mismatch(9, MismatchKind::Tie, Some(42), Some(7)),
        ]
    } else {
        Vec::new()
    };
    let found = mismatches.len() as u64;
    let difference =
        FirstDifference { decision: 11, index: 19, reference: Some(42), test: Some(99), margin: Some(1.25) };
    let nan = size.is_nan();
    let counts = NonFiniteCounts { test_nan: 3, ..NonFiniteCounts::default() };
    let at = NonFinitePlace {
        tensor: "v.1".to_owned(),
        row: 17,
        column: 42,
        reference: "0.4375".to_owned(),
        test: "NaN".to_owned(),
    };
    Metrics {
        logits: LogitsNmse {
            overall: size,
            rows: 48,
            worst: WorstRow { place: place(17), nmse: size * 3.0, column: Some(17) },
            p50: size * 0.6,
            p99: size * 2.9,
        },
        steps: Some(steps),
        kv: Some(KvNmse { k: size * 0.4, v: size, layers: kv_layers, first_bad: bad, worst }),
        kv_before_storing: None,
        top_token: TopToken {
            rows: 48,
            mismatches: found,
            ties: found / 3,
            real: found - found / 3,
            rate: found as f64 / 48.0,
            interval: vec![0.013, 0.172],
            list: mismatches,
        },
        experts: None,
        greedy: Some(Greedy {
            equal: !off,
            length: 24,
            required: 20,
            first_difference: off.then_some(difference),
        }),
        nonfinite: NonFinite {
            tensors: if nan { [("v.1".to_owned(), counts)].into() } else { [].into() },
            first: nan.then_some(at),
        },
        distribution: Distribution {
            kl_mean: size * 0.5,
            kl_p99: size,
            kl_max: size * 2.0,
            top_k: 10,
            overlap_mean: 0.99,
            overlap_min: 0.9,
            entropy_max_difference: size,
            max_abs_error: size.sqrt(),
            max_rel_error: size.sqrt() * 3.0,
        },
    }
}

fn run() -> Run {
    Run {
        name: "every-status".to_owned(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        seconds: 312.5,
        command: "ggml-parity run --preset full".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Run::default()
    }
}

fn environment() -> Environment {
    let device = |selector: &str, kind, description: &str, driver: Option<&str>| DeviceInfo {
        selector: selector.to_owned(),
        name: selector.split(['@', '+']).next().unwrap_or_default().to_owned(),
        kind,
        description: description.to_owned(),
        driver: driver.map(str::to_owned),
        memory_total: Some(16 << 30),
    };
    Environment {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpu: Some("Some Processor with 2 cores".to_owned()),
        builds: vec![BuildInfo {
            name: "npm-3.21.1".to_owned(),
            version: Some("0.23.0".to_owned()),
            commit: Some("abcdef0".to_owned()),
            files: ["libggml-base.so", "libggml.so", "libggml-vulkan.so"]
                .map(|name| BuildFile { name: name.to_owned(), sha256: "0123456789abcdef".repeat(4) })
                .into(),
        }],
        devices: vec![
            device("CPU@x64", DeviceKind::Cpu, "Some Processor with 2 cores", None),
            device("CPU+repack", DeviceKind::Cpu, "Some Processor with 2 cores", None),
            device("Vulkan0", DeviceKind::IntegratedGpu, HOSTILE, Some("Mesa 22.3.6")),
        ],
        switches: [("GGML_VK_VISIBLE_DEVICES".to_owned(), "0".to_owned())].into(),
    }
}
