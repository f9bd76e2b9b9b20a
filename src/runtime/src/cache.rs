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
    /// Blocks of 32 values in 8 bits with a 16-bit scale.
    Q8_0,
    /// Blocks of 32 values in 4 bits with a 16-bit scale.
    Q4_0,
}

impl KvType {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
            Self::Q4_0 => DType::Q4_0,
        }
    }

    /// Whether values are kept in blocks.
    #[must_use]
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// Checks that heads of the model are whole blocks: ggml cannot look at a part of one.
    pub(crate) fn check(self, hparams: &HyperParams, device: &str) -> Result<(), Error> {
        const BLOCK: usize = 32;
        let heads = (0..hparams.n_layer).map(|layer| hparams.layer(layer).head_dim);
        match heads.filter(|head| !head.is_multiple_of(BLOCK)).find(|_| self.is_quantised()) {
            None => Ok(()),
            Some(head) => Err(Error::UnsupportedNode {
                device: device.to_owned(),
                node: format!(
                    "a VIEW of one head of {head} values in a {self:?} cache, whose blocks hold {BLOCK}"
                ),
            }),
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
            let ne = [as_i64(hparams.layer(layer).kv_width()), as_i64(capacity)];
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
        let positions: Vec<usize> = (0..self.used).collect();
        Ok(self.read_rows(&positions)?.0)
    }

    /// These positions of every layer, converted to F32, and how many bytes were read for them: one range of each
    /// tensor, from the first of them to the last.
    pub(crate) fn read_rows(&self, positions: &[usize]) -> Result<(Vec<LayerKv>, u64), Error> {
        let (first, end) = match (positions.iter().min(), positions.iter().max()) {
            (Some(&first), Some(&last)) => (first, last + 1),
            _ => (0, 0),
        };
        if end > self.used {
            return Err(Error::Input(format!("position {} of {} cached ones", end - 1, self.used)));
        }
        let mut read_bytes = 0;
        let mut read = |t: &Tensor| -> Result<Vec<f32>, Error> {
            let ty = model_file::TensorType::from_id(t.dtype().0)
                .ok_or_else(|| Error::Input(format!("a K/V cache of type {}", t.dtype_name())))?;
            let stride = t.nb()[1];
            let mut range = vec![0u8; stride * (end - first)];
            t.read_bytes(stride * first, &mut range)?;
            read_bytes += range.len() as u64;
            let wanted: Vec<u8> =
                positions.iter().flat_map(|p| &range[stride * (p - first)..][..stride]).copied().collect();
            let width = usize::try_from(t.ne()[0]).expect("sizes are positive");
            let mut out = vec![0f32; width * positions.len()];
            model_file::dequantize(ty, &wanted, &mut out)?;
            Ok(out)
        };
        let each = self.k.iter().zip(&self.v).map(|(k, v)| Ok(LayerKv { k: read(k)?, v: read(v)? }));
        let layers = each.collect::<Result<_, Error>>()?;
        Ok((layers, read_bytes))
    }

    /// The filled rows of one tensor as they are stored.
    fn rows(&self, t: &Tensor) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0u8; t.nb()[1] * self.used];
        t.read_bytes(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The filled positions as bytes: a header that says of what, then K and V layer by layer as they are
    /// stored.
    pub(crate) fn save(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = MAGIC.to_vec();
        for (_, value) in self.header(self.used) {
            bytes.extend(value.to_le_bytes());
        }
        for t in self.k.iter().zip(&self.v).flat_map(|(k, v)| [k, v]) {
            bytes.extend(self.rows(t)?);
        }
        Ok(bytes)
    }

    /// Takes back what [`save`](Self::save) gave; the positions that were filled before are forgotten.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let fault = |why: String| Error::Input(format!("a saved cache: {why}"));
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| fault("it does not begin as one".to_owned()))?;
        let fields = self.header(0);
        let (header, mut data) = rest
            .split_at_checked(fields.len() * 8)
            .ok_or_else(|| fault(format!("{} bytes are too few for its header", bytes.len())))?;
        let words = header.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")));
        let mut positions = 0;
        for ((name, wanted), found) in fields.into_iter().zip(words) {
            match name {
                "positions" => positions = found,
                _ if found != wanted => {
                    return Err(fault(format!("{name} is {found}, this cache has {wanted}")));
                }
                _ => {}
            }
        }
        let used = usize::try_from(positions)
            .ok()
            .filter(|&used| used <= self.capacity)
            .ok_or(Error::CacheFull { used: 0, capacity: self.capacity, wanted: positions as usize })?;
        let row_bytes: usize = self.k.iter().chain(&self.v).map(|t| t.nb()[1]).sum();
        if data.len() != row_bytes * used {
            return Err(fault(format!("{} bytes of rows, {} expected", data.len(), row_bytes * used)));
        }
        for t in self.k.iter().zip(&self.v).flat_map(|(k, v)| [k, v]) {
            let (mine, others) = data.split_at(t.nb()[1] * used);
            t.write_bytes(0, mine)?;
            data = others;
        }
        self.used = used;
        Ok(())
    }

    /// What a saved cache must agree on, and how many positions it holds.
    fn header(&self, used: usize) -> [(&'static str, u64); 4] {
        [
            ("layers", self.k.len() as u64),
            ("type", u64::from(self.k[0].dtype().0)),
            ("rows of all layers", self.k.iter().map(|t| t.ne()[0].unsigned_abs()).sum()),
            ("positions", used as u64),
        ]
    }
}

/// What a saved cache begins with.
const MAGIC: &[u8] = b"ggml-parity K/V 2\0";

/// Appends the rows of each layer in `new` to those in `all`.
pub(crate) fn append(all: &mut Vec<LayerKv>, new: &[LayerKv]) {
    if all.is_empty() {
        all.resize(new.len(), LayerKv { k: Vec::new(), v: Vec::new() });
    }
    for (all, new) in all.iter_mut().zip(new) {
        all.k.extend_from_slice(&new.k);
        all.v.extend_from_slice(&new.v);
    }
}

/// Puts the rows of each layer in `new` where `positions` are in `all`, which is to hold `total` rows of as many values
/// as `width` gives for the layer.
pub(crate) fn overwrite(
    all: &mut Vec<LayerKv>,
    new: &[LayerKv],
    positions: &[usize],
    total: usize,
    width: impl Fn(usize) -> usize,
) {
    all.resize(new.len(), LayerKv { k: Vec::new(), v: Vec::new() });
    for (layer, (all, new)) in all.iter_mut().zip(new).enumerate() {
        let width = width(layer);
        for (all, new) in [(&mut all.k, &new.k), (&mut all.v, &new.v)] {
            all.resize(total * width, 0.0);
            for (row, position) in new.chunks_exact(width).zip(positions) {
                all[position * width..][..width].copy_from_slice(row);
            }
        }
    }
}

/// A size as ggml wants it.
pub(crate) fn as_i64(n: usize) -> i64 {
    i64::try_from(n).expect("sizes of tensors fit 63 bits")
}
