//! A model with other weight types: what quantising tools do, for the weights that parity runs need.

use std::fmt;
use std::io::Write;
use std::path::Path;

use rayon::prelude::*;

use crate::error::Error;
use crate::gguf::{GgufFile, GgufWriter, TensorInfo};
use crate::quant::{dequantize, quantize, supported};
use crate::{Model, TensorSpec, TensorType};

/// Bytes of a source tensor held at a time, about.
const WINDOW: u64 = 4 << 20;

/// Which type each weight matrix gets. Norms, biases, RoPE factors and the routers of experts keep theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum WeightMix {
    /// One type for all matrices.
    Uniform(TensorType),
    /// llama.cpp's mix of Q4_K and Q6_K: the output head (or the embedding, if it is the head) and about
    /// half of the `attn_v` and `ffn_down` matrices, those of experts too, in Q6_K.
    Q4_K_M,
}

impl WeightMix {
    /// The mix with this name, in any case: `Q4_K_M` or a type's.
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("Q4_K_M") {
            return Some(Self::Q4_K_M);
        }
        TensorType::from_name(name).filter(|&ty| supported().any(|s| s == ty)).map(Self::Uniform)
    }

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform(ty) => ty.name(),
            Self::Q4_K_M => "Q4_K_M",
        }
    }

    /// llama.cpp's number for `general.file_type`. One type for all matrices has a number of its own only
    /// for the older types; the K types get that of their small mix, which is the nearest.
    const fn file_type(self) -> Option<u32> {
        Some(match self {
            Self::Q4_K_M => 15,
            Self::Uniform(ty) => match ty {
                TensorType::F32 => 0,
                TensorType::F16 => 1,
                TensorType::Q4_0 => 2,
                TensorType::Q4_1 => 3,
                TensorType::Q8_0 => 7,
                TensorType::Q5_0 => 8,
                TensorType::Q5_1 => 9,
                TensorType::Q4_K => 14,
                TensorType::Q5_K => 16,
                TensorType::Q6_K => 18,
                TensorType::IQ4_NL => 25,
                TensorType::BF16 => 32,
                TensorType::MXFP4 => 38,
                _ => return None,
            },
        })
    }

    /// The type of a weight matrix.
    fn type_of(self, name: &str, n_layer: usize, tied: bool) -> TensorType {
        if let Self::Uniform(ty) = self {
            return ty;
        }
        let head = if tied { "token_embd.weight" } else { "output.weight" };
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let fine = match layer {
            None => name == head,
            Some((i, part)) => {
                let more = i.parse().is_ok_and(|i| uses_more_bits(i, n_layer));
                more && matches!(part, "attn_v.weight" | "ffn_down.weight" | "ffn_down_exps.weight")
            }
        };
        if fine { TensorType::Q6_K } else { TensorType::Q4_K }
    }
}

impl fmt::Display for WeightMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// llama.cpp's choice of layers whose sensitive matrices get more bits: the first and the last eighth, and
/// every third between.
const fn uses_more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// Writes `src` with the weight types of `target` to `path`, atomically.
///
/// Matrices that the network uses are converted; what already has its type, one-dimensional tensors, routers, whose
/// choices rounding would change, and unknown tensors are copied. A matrix whose rows are not whole blocks of its new type is an error that names
/// it, found before anything is written. The metadata stays but for `general.file_type` and
/// `general.quantization_version`.
pub fn requantize_model(src: &Model, target: WeightMix, path: &Path) -> Result<(), Error> {
    let file = &src.file;
    let mut writer = GgufWriter::new().all_metadata(file.metadata());
    if let Some(number) = target.file_type() {
        writer = writer.metadata("general.file_type", number);
    }
    if target.file_type().is_none_or(|n| !matches!(n, 0 | 1 | 32)) {
        writer = writer.metadata("general.quantization_version", 2u32);
    }

    let matrices: std::collections::HashSet<String> =
        src.tensors().filter(|(spec, _)| is_converted(spec)).map(|(spec, _)| spec.name).collect();
    for info in file.tensors() {
        let ty = if matrices.contains(&info.name) {
            target.type_of(&info.name, src.hparams.n_layer, src.hparams.tied_head)
        } else {
            info.ty
        };
        if ty != info.ty {
            check_types(file, info, ty)?;
        }
        writer = writer.tensor(&info.name, &info.shape, ty, move |out| convert(file, info, ty, out));
    }
    writer.write(path)
}

fn is_converted(spec: &TensorSpec) -> bool {
    spec.shape.len() > 1 && !spec.name.ends_with(".ffn_gate_inp.weight")
}

fn check_types(file: &GgufFile, info: &TensorInfo, ty: TensorType) -> Result<(), Error> {
    let fault = |error: Error| error.field(&info.name).file(file.path());
    for needed in [info.ty, ty] {
        if !supported().any(|s| s == needed) {
            let message = format!("cannot be converted to {ty}: values of {needed} are not implemented");
            return Err(fault(Error::unsupported(message)).value(format!("{:?} {}", info.shape, info.ty)));
        }
    }
    if ty.row_bytes(info.shape[0]).is_none() {
        let message =
            format!("its rows of {} are not whole blocks of {}, {ty}", info.shape[0], ty.block_len());
        return Err(fault(Error::request(message)).value(format!("{:?} {}", info.shape, info.ty)));
    }
    Ok(())
}

/// Writes a tensor's data as another type, some rows at a time.
fn convert(file: &GgufFile, info: &TensorInfo, ty: TensorType, out: &mut dyn Write) -> Result<(), Error> {
    let locate = |e: Error| e.field(&info.name);
    let write = |out: &mut dyn Write, bytes: &[u8]| {
        out.write_all(bytes).map_err(|e| Error::io("cannot write", &e).field(&info.name))
    };
    if ty == info.ty {
        for piece in file.chunks(info, WINDOW) {
            write(out, &piece?.1)?;
        }
        return Ok(());
    }
    // Whole rows are whole blocks of both types, so each row can be converted on its own.
    let row = info.bytes / info.rows();
    for piece in file.chunks(info, (WINDOW / row).max(1) * row) {
        let (_, piece) = piece?;
        let rows: Vec<Vec<u8>> = piece
            .par_chunks_exact(row as usize)
            .map(|row| {
                let mut values = vec![0.0; info.shape[0] as usize];
                dequantize(info.ty, row, &mut values)?;
                let mut bytes = Vec::new();
                quantize(ty, &values, &mut bytes)?;
                Ok(bytes)
            })
            .collect::<Result<_, Error>>()
            .map_err(locate)?;
        for row in &rows {
            write(out, row)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for ty in supported() {
            let mix = WeightMix::Uniform(ty);
            assert_eq!(WeightMix::from_name(&mix.name().to_lowercase()), Some(mix));
            assert!(mix.file_type().is_some(), "{ty}");
        }
        assert_eq!(WeightMix::from_name("q4_k_m"), Some(WeightMix::Q4_K_M));
        assert_eq!(WeightMix::from_name("I32"), None);
    }

    #[test]
    fn half_of_the_layers_use_more_bits() {
        let layers = |n| (0..n).filter(|&i| uses_more_bits(i, n)).collect::<Vec<_>>();
        assert_eq!(layers(2), [1]);
        assert_eq!(layers(6), [2, 5]);
        assert_eq!(layers(28), [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
    }
}
