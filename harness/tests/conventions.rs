//! Files of both converters: the second one names its keys `diffuse.*` and leaves Q and K as the paper has them,
//! where llama.cpp's reorders LLaDA's for RoPE over neighbouring pairs. The same network in both forms must
//! compute the same.

mod common;

use common::{Bench, nmse, tokens};
use ggml_parity::plan::Mode;
use model_file::{Convention, GenerateSpec, GgufFile, GgufWriter, generate};
use std::path::Path;

/// Rows of one head from pairs `(2i, 2i + 1)` to halves `(i, i + d / 2)`, for every head of an F32 matrix.
fn pairs_to_halves(bytes: &[u8], row_bytes: usize, head: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = bytes.chunks_exact(row_bytes).collect();
    rows.chunks_exact(head)
        .flat_map(|head| {
            let even = head.iter().step_by(2);
            let odd = head.iter().skip(1).step_by(2);
            even.chain(odd).copied().collect::<Vec<_>>()
        })
        .flatten()
        .copied()
        .collect()
}

/// Writes the network of `from` under the metadata of `like`, with Q and K reordered where `reorder` says so.
fn rewrite(from: &Path, like: &Path, to: &Path, reorder: Option<usize>) {
    let (from, like) = (GgufFile::open(from).unwrap(), GgufFile::open(like).unwrap());
    let mut writer = GgufWriter::new().all_metadata(like.metadata());
    for info in from.tensors() {
        let bytes = from.map(info).unwrap().to_vec();
        let is_qk = info.name.ends_with("attn_q.weight") || info.name.ends_with("attn_k.weight");
        let bytes = match reorder.filter(|_| is_qk) {
            Some(head) => pairs_to_halves(&bytes, usize::try_from(info.shape[0]).unwrap() * 4, head),
            None => bytes,
        };
        writer = writer.tensor_bytes(info.name.clone(), &info.shape, info.ty, bytes);
    }
    writer.write(to).unwrap();
}

#[test]
fn the_same_network_in_both_forms_computes_the_same() {
    let bench = Bench::open(&common::default_build());
    for (preset, reorders) in [("gen-dream", false), ("gen-llada", true)] {
        let spec = GenerateSpec::preset(preset).unwrap();
        let file = |name: &str| bench.folder().join(format!("{preset}-{name}.gguf"));
        let (ours, like, theirs) = (file("llamacpp"), file("like"), file("diffuse"));
        generate(&spec, &ours).unwrap();
        generate(&GenerateSpec { convention: Convention::Diffuse, ..spec.clone() }, &like).unwrap();
        rewrite(&ours, &like, &theirs, reorders.then_some(spec.head_dim));
        let inputs = tokens(&(4..28).collect::<Vec<_>>(), 0);
        let logits = |path: &Path| {
            let mut capture = bench.capture("CPU", path, Mode::Full, &inputs);
            let mut all = Vec::new();
            let rows = capture.rows();
            capture.logits(0, rows, &mut all).unwrap();
            all
        };
        let (first, second) = (logits(&ours), logits(&theirs));
        let found = nmse(&second, &first);
        assert!(found <= 1e-10, "{preset}: {found:e}");
        // Read with the other kind of RoPE it is another network: what is compared depends on the reading.
        if reorders {
            rewrite(&ours, &like, &theirs, None);
            let wrong = nmse(&logits(&theirs), &first);
            assert!(wrong > 1e-3, "{preset}: {wrong:e}");
        }
    }
}
