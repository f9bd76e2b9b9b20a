//! The K/V cache: rows per position, before GQA expansion, in the memory of the device that computes the
//! layer, kept across graphs.

use ggml_sys::{BufferType, Context, DType, Ggml, Tensor};
use model_file::HyperParams;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::placement::{BufferUse, Purpose};

/// The type of cached keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// 32-bit float.
    #[default]
    F32,
    /// 16-bit float.
    F16,
}

impl KvType {
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}

/// Keys (after RoPE) and values of one layer, `[positions, kv_heads, head_dim]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKv {
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
}

pub(crate) struct KvCache {
    /// Per layer `[head_dim * kv_heads, capacity]`.
    pub(crate) k: Vec<Tensor>,
    pub(crate) v: Vec<Tensor>,
    /// Positions that may be filled.
    pub(crate) capacity: usize,
    /// Positions there is memory for, at least `capacity`.
    pub(crate) allocated: usize,
    /// Positions filled.
    pub(crate) used: usize,
    buffers: Vec<BufferUse>,
}

impl KvCache {
    /// A zeroed cache of `capacity` positions; layer `l` lies in `home(l)`.
    pub(crate) fn new(
        ggml: &'static Ggml,
        hparams: &HyperParams,
        kv: KvType,
        capacity: usize,
        home: impl Fn(usize) -> BufferType,
    ) -> Result<Self, Error> {
        let ne = [as_i64(hparams.head_dim * hparams.n_head_kv), as_i64(capacity)];
        let mut cache = Self {
            k: Vec::new(),
            v: Vec::new(),
            capacity,
            allocated: capacity,
            used: 0,
            buffers: Vec::new(),
        };
        let mut contexts: Vec<(BufferType, Context)> = Vec::new();
        for layer in 0..hparams.n_layer {
            let kind = home(layer);
            let at = match contexts.iter().position(|(k, _)| k.name() == kind.name()) {
                Some(at) => at,
                None => {
                    contexts.push((kind, Context::new(ggml, 2 * hparams.n_layer, 0)?));
                    contexts.len() - 1
                }
            };
            let context = &contexts[at].1;
            for (what, list) in [("k", &mut cache.k), ("v", &mut cache.v)] {
                let tensor = context.tensor(kv.dtype(), &ne);
                tensor.set_name(&format!("cache.{what}.{layer}"));
                list.push(tensor);
            }
        }
        for (kind, context) in &contexts {
            let bytes = context.allocate(kind, false)?;
            context.clear();
            cache.buffers.push(BufferUse {
                buffer: kind.name(),
                purpose: Purpose::Cache,
                bytes: bytes as u64,
            });
        }
        Ok(cache)
    }

    /// What the cache holds in memory.
    pub(crate) fn buffers(&self) -> &[BufferUse] {
        &self.buffers
    }

    /// Bytes of the filled positions of all layers.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.k.iter().chain(&self.v).map(|t| (t.nb()[1] * self.used) as u64).sum()
    }

    /// The filled positions of every layer, converted to F32.
    pub(crate) fn read(&self) -> Result<Vec<LayerKv>, Error> {
        let read = |t: &Tensor| -> Result<Vec<f32>, Error> {
            let mut bytes = vec![0u8; t.nb()[1] * self.used];
            t.read_bytes(0, &mut bytes)?;
            let mut out = vec![0f32; bytes.len() / t.nb()[0]];
            let ty = model_file::TensorType::from_id(t.dtype().0)
                .ok_or_else(|| Error::Input(format!("a K/V cache of type {}", t.dtype_name())))?;
            decode_floats(ty, &bytes, &mut out)?;
            Ok(out)
        };
        self.k.iter().zip(&self.v).map(|(k, v)| Ok(LayerKv { k: read(k)?, v: read(v)? })).collect()
    }
}

fn decode_floats(ty: model_file::TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    match ty {
        model_file::TensorType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        model_file::TensorType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        other => return Err(Error::Input(format!("a K/V cache of type {}", other.name()))),
    }
    Ok(())
}

/// A size as ggml wants it.
pub(crate) fn as_i64(n: usize) -> i64 {
    i64::try_from(n).expect("sizes of tensors fit 63 bits")
}
