//! Block formats: what `model-file` reads from and writes into blocks, against ggml's own code, bit for bit.

use ggml_sys::{Backend, Context, DType, Ggml, Scheduler, Selection};
use model_file::{TensorType, dequantize, quantize};
use std::path::PathBuf;

/// The build that the environment names, or the one that the set-up installs.
fn ggml() -> &'static Ggml {
    let folder = std::env::var_os("GGML_PARITY_GGML").map_or_else(
        || {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default())
                .join(".cache/ggml-parity/ggml/npm-3.21.1")
        },
        PathBuf::from,
    );
    Ggml::open(&folder, &Selection::Cpu)
        .unwrap_or_else(|error| panic!("these tests need a ggml build (ci/quickstart gets one): {error}"))
}

/// Values of all sizes, zeros and a block of equal ones among them; the same on every run.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    (0..n)
        .map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            match i / 256 {
                1 => 0.0,
                2 => 0.75,
                block => unit * 10f32.powi((block % 7) as i32 - 3),
            }
        })
        .collect()
}

/// Rows of a tensor of type `ty`, as ggml's CPU turns them into F32.
fn ggml_reads(ggml: &'static Ggml, ty: TensorType, bytes: &[u8], row: usize, rows: usize) -> Vec<f32> {
    let cpu = ggml.devices().into_iter().find(|device| device.name() == "CPU").expect("a CPU");
    let weights = Context::new(ggml, 1, 0).unwrap();
    let table = weights.tensor(DType(ty.id()), &[row as i64, rows as i64]);
    weights.allocate(&cpu.buffer_type(), true).unwrap();
    table.write_bytes(0, bytes).unwrap();
    let ctx = Context::new(ggml, 64, 64).unwrap();
    let graph = ctx.graph(64).unwrap();
    let indices = ctx.tensor(DType::I32, &[rows as i64]).input();
    let out = ctx.get_rows(&table, &indices).output();
    graph.expand(&out);
    let scheduler = Scheduler::new(vec![Backend::new(cpu).unwrap()], 64).unwrap();
    scheduler.allocate(&graph, &[]).unwrap();
    indices.write_i32(&(0..rows as i32).collect::<Vec<_>>()).unwrap();
    scheduler.compute(&graph).unwrap();
    out.read_f32().unwrap()
}

#[test]
fn blocks_are_read_and_written_as_ggml_does() {
    let ggml = ggml();
    let (row, rows) = (512, 16);
    let values = values(row * rows);
    let mut checked = 0;
    for ty in model_file::quant::supported() {
        let mut ours = Vec::new();
        quantize(ty, &values, &mut ours).unwrap();
        let mut read = vec![0f32; values.len()];
        dequantize(ty, &ours, &mut read).unwrap();
        if ggml.type_name(DType(ty.id())).to_lowercase() != ty.name().to_lowercase() {
            eprintln!("NOT CHECKED: this build has no type {}", ty.name());
            continue;
        }
        let theirs = ggml_reads(ggml, ty, &ours, row, rows);
        let differ = read.iter().zip(&theirs).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(differ, 0, "{}: {differ} of {} values are read differently", ty.name(), values.len());
        // The formats whose quantising leaves nothing to choose; K formats and IQ4_NL search for scales.
        let exact = matches!(
            ty,
            TensorType::F16
                | TensorType::BF16
                | TensorType::Q8_0
                | TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q5_0
                | TensorType::Q5_1
                | TensorType::MXFP4
        );
        if exact {
            assert_eq!(ours, ggml.quantize(DType(ty.id()), &values, row), "{}", ty.name());
        }
        checked += 1;
    }
    assert!(checked >= 12, "only {checked} types were checked");
}
