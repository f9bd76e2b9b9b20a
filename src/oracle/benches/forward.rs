//! Forward passes: a generated model, the trained model, and SmolLM2-135M where `GGML_PARITY_SMOLLM2` names its file.

use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_main};
use model_file::{GenerateSpec, Model, generate};
use oracle::{Network, Rows};

fn open(path: &Path) -> Network {
    Network::open(&Model::open(path).expect("a model file")).expect("a network")
}

/// Tokens spread over the vocabulary.
fn tokens(network: &Network, n: usize) -> Vec<u32> {
    let vocabulary = network.hparams().n_vocab as u32;
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary).collect()
}

fn forward(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let generated = dir.path().join("gen-dream-576.gguf");
    generate(&GenerateSpec::preset("gen-dream-576").expect("a preset"), &generated).expect("a model");
    let trained = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/models/dream-arith-4.8m-f16.gguf");
    let smollm2 = std::env::var_os("GGML_PARITY_SMOLLM2");

    let mut group = criterion.benchmark_group("forward");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for (name, path, n) in [("gen-dream-576", &generated, 128), ("dream-arith", &trained, 40)] {
        let network = open(path);
        let tokens = tokens(&network, n);
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(format!("{name}/{n}"), |b| {
            b.iter(|| network.full(&tokens, Rows::All).expect("a pass"))
        });
    }
    if let Some(path) = smollm2 {
        let network = open(Path::new(&path));
        for n in [1, 128] {
            let tokens = tokens(&network, n);
            group.throughput(Throughput::Elements(n as u64));
            group.bench_function(format!("smollm2-135m/{n}"), |b| {
                b.iter(|| network.full(&tokens, Rows::All).expect("a pass"))
            });
        }
    }
    group.finish();
}

// The macro makes a public function without documentation.
mod group {
    #![allow(missing_docs)]
    criterion::criterion_group!(benches, super::forward);
}

criterion_main!(group::benches);
