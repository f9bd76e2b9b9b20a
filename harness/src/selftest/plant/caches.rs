//! Faults in K and V, `[positions, kv_heads, head_dim]`. Where one layer is enough it is the last.

use super::mix;
use crate::capture::Cache;
use crate::selftest::SelftestError;
use crate::selftest::image::{Floats, Image};
use crate::selftest::place::Place;
use model_file::{HyperParams, Model, RopeKind, TensorType};

/// How a model rotates its keys.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians a position, for each pair of elements.
    frequencies: Vec<f64>,
    kind: RopeKind,
}

impl Rope {
    /// Frequencies `base^(-2i/dim)`, each divided by its factor where the model has such.
    pub(crate) fn new(h: &HyperParams, factors: Option<&[f64]>) -> Self {
        let (base, dim) = (f64::from(h.rope_base), h.rope_dim as f64);
        let frequency = |i: usize| base.powf(-2.0 * i as f64 / dim) / factors.map_or(1.0, |f| f[i]);
        Self { frequencies: (0..h.rope_dim / 2).map(frequency).collect(), kind: h.rope_kind }
    }

    /// That of a model; `None` where it has factors that are not F32, one for each pair.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let h = &model.hparams;
        if !h.has_rope_freqs {
            return Some(Self::new(h, None));
        }
        let info = model.file.tensor("rope_freqs.weight").filter(|info| info.ty == TensorType::F32)?;
        let bytes = model.file.map(info).ok()?.to_vec();
        let factors: Vec<f64> =
            bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        (factors.len() == h.rope_dim / 2).then(|| Self::new(h, Some(&factors)))
    }

    /// Turns one head back by `share` of the angles that it has at `position`.
    pub(super) fn turn_back(&self, head: &mut [f64], position: usize, share: f64) {
        let half = self.frequencies.len();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (-share * position as f64 * frequency).sin_cos();
            let (a, b) = match self.kind {
                RopeKind::Norm => (2 * i, 2 * i + 1),
                RopeKind::Neox => (i, i + half),
            };
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
}

fn last_layer(image: &Image) -> Result<usize, SelftestError> {
    image.layers().checked_sub(1).ok_or_else(|| image.lacks("K and V"))
}

/// Changes one cache of one layer, of at least two positions; heads have at least two elements.
fn change<T>(
    image: &mut Image,
    cache: Cache,
    layer: usize,
    with: impl FnOnce(&mut Floats) -> T,
) -> Result<T, SelftestError> {
    let name = cache.tensor(layer);
    let mut floats = image.floats(&name)?;
    if floats.shape.len() != 3 || floats.shape[0] < 2 || floats.shape[2] < 2 {
        return Err(image.lacks(format!("positions and heads of `{name}`: it is {:?}", floats.shape)));
    }
    let done = with(&mut floats);
    image.set_floats(&name, floats)?;
    Ok(done)
}

/// A head of every position, in turn.
fn heads(floats: &mut Floats, head: usize) -> impl Iterator<Item = &mut [f64]> {
    let (count, width) = (floats.shape[1], floats.shape[2]);
    floats.values.chunks_exact_mut(width).skip(head).step_by(count)
}

fn at_head(name: &str, head: usize) -> Place {
    Place::all(format!("{name} head {head}"), [format!("worst {name}"), format!("head {head}")])
}

fn at_position(name: &str, position: usize) -> Place {
    let parts = [format!("worst {name}"), format!("position {position}")];
    Place::all(format!("{name} position {position}"), parts)
}

/// The last head of K times `factor`.
pub(super) fn scale_k_head(factor: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let layer = last_layer(image)?;
    change(image, Cache::K, layer, |k| {
        let head = k.shape[1] - 1;
        heads(k, head).flatten().for_each(|value| *value *= factor);
        at_head(&Cache::K.tensor(layer), head)
    })
}

/// Every element of the last head of V moved by `share` of the way to its right neighbour.
pub(super) fn permute_v_head(share: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let layer = last_layer(image)?;
    change(image, Cache::V, layer, |v| {
        let head = v.shape[1] - 1;
        for values in heads(v, head) {
            let mut turned = values.to_vec();
            turned.rotate_left(1);
            mix(values, &turned, share);
        }
        at_head(&Cache::V.tensor(layer), head)
    })
}

/// The last position of K moved by `share` of the way to the one before.
pub(super) fn k_stale(share: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let layer = last_layer(image)?;
    change(image, Cache::K, layer, |k| {
        let last = k.shape[0] - 1;
        let before = k.row(last - 1).to_vec();
        mix(k.row_mut(last), &before, share);
        at_position(&Cache::K.tensor(layer), last)
    })
}

/// K of every layer turned back by `share` of its angles.
pub(super) fn k_without_rope(share: f64, image: &mut Image, rope: &Rope) -> Result<Place, SelftestError> {
    for layer in 0..=last_layer(image)? {
        change(image, Cache::K, layer, |k| {
            let width = k.shape[2];
            for position in 0..k.shape[0] {
                for head in k.row_mut(position).chunks_exact_mut(width) {
                    rope.turn_back(head, position, share);
                }
            }
        })?;
    }
    let first = Cache::K.tensor(0);
    Ok(Place::all(format!("K from {first} on"), [format!("NMSE of {first}")]))
}

/// The middle position of V times `factor`.
pub(super) fn scale_v_position(factor: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let layer = last_layer(image)?;
    change(image, Cache::V, layer, |v| {
        let position = v.shape[0] / 2;
        v.row_mut(position).iter_mut().for_each(|value| *value *= factor);
        at_position(&Cache::V.tensor(layer), position)
    })
}

/// V moved by `share` of the way to its mean.
pub(super) fn constant_v(share: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let layer = last_layer(image)?;
    change(image, Cache::V, layer, |v| {
        let mean = v.values.iter().sum::<f64>() / v.values.len() as f64;
        let means = vec![mean; v.values.len()];
        mix(&mut v.values, &means, share);
        let name = Cache::V.tensor(layer);
        Place::all(name.clone(), [format!("NMSE of {name}")])
    })
}

/// Logits and all caches times `factor`.
pub(super) fn scale_all(factor: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let caches =
        (0..image.layers()).flat_map(|layer| Cache::ALL.iter().map(move |cache| cache.tensor(layer)));
    let names: Vec<String> = ["logits".to_owned()].into_iter().chain(caches).collect();
    for name in names {
        let mut floats = image.floats(&name)?;
        floats.values.iter_mut().for_each(|value| *value *= factor);
        image.set_floats(&name, floats)?;
    }
    let parts = ["logits NMSE".to_owned(), format!("NMSE of {}", Cache::K.tensor(0))];
    Ok(Place::all("logits, K and V", parts))
}
