//! Model files with something changed, and the facts of one that can be misread.

use model_file::{GgufFile, GgufWriter, Metadata, Model, TensorType, Value};
use std::path::{Path, PathBuf};

/// A fact of a model file that every arm reads by the same code.
pub(crate) struct Misreading {
    pub(crate) what: &'static str,
    /// The architectures whose anchors and generated models have it.
    pub(crate) architectures: &'static [&'static str],
    /// Whether captures show it by their shapes.
    pub(crate) shapes: bool,
    /// Writes the file that says what the misreading would make of it.
    pub(crate) write: fn(&Path, &Path) -> PathBuf,
}

/// What can be misread without the file's tensors giving it away.
pub(crate) const MISREADINGS: [Misreading; 7] = [
    Misreading {
        what: "base of RoPE's frequencies",
        architectures: &["dream", "llada", "qwen2", "llama"],
        shapes: false,
        write: |model, to| with_keys(model, to, |h, set| set("rope.freq_base", (h.rope_base * 0.99).into())),
    },
    Misreading {
        what: "epsilon of the norms",
        architectures: &["dream", "llada", "qwen2", "llama"],
        shapes: false,
        // The two values in use.
        write: |model, to| {
            let other = |eps: f32| if eps < 5e-6 { 1e-5f32 } else { 1e-6 };
            with_keys(model, to, |h, set| set("attention.layer_norm_rms_epsilon", other(h.rms_eps).into()))
        },
    },
    Misreading {
        what: "number of heads, of half the size each",
        architectures: &["dream", "llada", "qwen2"],
        shapes: true,
        write: |model, to| {
            with_keys(model, to, |h, set| {
                let twice = |n: usize| Value::from(u32::try_from(2 * n).unwrap());
                set("attention.head_count", twice(h.n_head));
                set("attention.head_count_kv", twice(h.n_head_kv));
                // The same pairs are rotated in the first half of each of the old heads.
                set("rope.dimension_count", u32::try_from(h.head_dim / 2).unwrap().into());
            })
        },
    },
    Misreading {
        what: "dimensions that are rotated",
        architectures: &["dream", "llada", "qwen2"],
        shapes: false,
        write: |model, to| {
            with_keys(model, to, |h, set| {
                set("rope.dimension_count", u32::try_from(h.rope_dim / 2).unwrap().into());
            })
        },
    },
    // Llama takes biases and tied heads too, and rotates neighbours where Qwen2 rotates halves.
    Misreading {
        what: "RoPE of neighbours instead of halves",
        architectures: &["qwen2"],
        shapes: false,
        write: |model, to| rewritten(model, to, |m| renamed(m, "qwen2", "llama"), |_| true),
    },
    Misreading {
        what: "RoPE of halves instead of neighbours",
        architectures: &["llada"],
        shapes: false,
        write: |model, to| {
            let change = |m: &mut Metadata| {
                renamed(m, "llada", "diffuse");
                m.insert("diffuse.model_type", "llada");
            };
            rewritten(model, to, change, |_| true)
        },
    },
    Misreading {
        what: "a head of its own",
        architectures: &["dream", "llada", "llama"],
        shapes: false,
        write: |model, to| rewritten(model, to, |_| {}, |tensor| tensor != "output.weight"),
    },
];

/// Copies a model file with its metadata changed, and without the tensors that `keep` does not want.
pub(crate) fn rewritten(
    model: &Path,
    to: &Path,
    change: impl FnOnce(&mut Metadata),
    keep: impl Fn(&str) -> bool,
) -> PathBuf {
    let file = GgufFile::open(model).unwrap();
    let mut metadata = file.metadata().clone();
    change(&mut metadata);
    let mut writer = GgufWriter::new().all_metadata(&metadata);
    for tensor in file.tensors().iter().filter(|tensor| keep(&tensor.name)) {
        let bytes = file.map(tensor).unwrap().to_vec();
        writer = writer.tensor_bytes(tensor.name.clone(), &tensor.shape, tensor.ty, bytes);
    }
    writer.write(to).unwrap();
    to.to_owned()
}

/// Sets keys of the architecture's own prefix.
pub(crate) fn with_keys(
    model: &Path,
    to: &Path,
    set: impl FnOnce(&model_file::HyperParams, &mut dyn FnMut(&str, Value)),
) -> PathBuf {
    let h = Model::open(model).unwrap().hparams;
    let change =
        |m: &mut Metadata| set(&h, &mut |key, value| m.insert(format!("{}.{key}", h.architecture), value));
    rewritten(model, to, change, |_| true)
}

/// The keys of one architecture as those of another.
fn renamed(metadata: &mut Metadata, from: &str, to: &str) {
    let all: Vec<(String, Value)> = metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    for (key, value) in all {
        if let Some(key) = key.strip_prefix(&format!("{from}.")) {
            metadata.insert(format!("{to}.{key}"), value);
        }
    }
    metadata.insert("general.architecture", to);
}

/// Copies a model file with one tensor changed: `change` gets its values, which are F32.
pub(crate) fn with_tensor(
    model: &Path,
    tensor: &str,
    to: &Path,
    change: impl Fn(usize, f32) -> f32,
) -> PathBuf {
    let file = Model::open(model).unwrap().file;
    let info = file.tensor(tensor).unwrap_or_else(|| panic!("no {tensor}")).clone();
    assert_eq!(info.ty, TensorType::F32, "{tensor}");
    let mut bytes = std::fs::read(model).unwrap();
    let first = usize::try_from(info.offset).unwrap();
    let values = &mut bytes[first..first + usize::try_from(info.bytes).unwrap()];
    for (i, value) in values.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *value = change(i, f32::from_le_bytes(*value)).to_le_bytes();
    }
    std::fs::write(to, bytes).unwrap();
    to.to_owned()
}
