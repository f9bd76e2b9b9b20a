//! What the tests share: models, tensors from safetensors files, NMSE.

use std::path::{Path, PathBuf};

use model_file::{GenerateSpec, Model, generate};
use oracle::Network;
use safetensors::SafeTensors;

/// A path in the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Opens the network of a file.
pub(crate) fn open(path: &Path) -> Network {
    Network::open(&Model::open(path).unwrap()).unwrap()
}

/// A generated model. The weights stay mapped when the file is gone.
pub(crate) fn generated(spec: &GenerateSpec) -> Network {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("generated.gguf");
    generate(spec, &path).unwrap();
    open(&path)
}

/// A preset's model.
pub(crate) fn preset(name: &str) -> Network {
    generated(&GenerateSpec::preset(name).unwrap())
}

/// `n` tokens spread over a vocabulary, never the mask.
pub(crate) fn tokens(network: &Network, n: usize) -> Vec<u32> {
    let h = network.hparams();
    (0..n as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % h.n_vocab as u32)
        .map(|t| if Some(t) == h.mask_token { t + 1 } else { t })
        .collect()
}

/// sum((x - ref)^2) / sum(ref^2); infinite for other lengths.
pub(crate) fn nmse(x: &[f64], reference: &[f64]) -> f64 {
    if x.len() != reference.len() {
        return f64::INFINITY;
    }
    let error: f64 = x.iter().zip(reference).map(|(a, b)| (a - b) * (a - b)).sum();
    error / reference.iter().map(|b| b * b).sum::<f64>()
}

/// A safetensors file.
pub(crate) struct Tensors(Vec<u8>);

impl Tensors {
    /// `golden/anchors/NAME.safetensors`
    pub(crate) fn anchor(name: &str) -> Self {
        let path = repository("golden/anchors").join(format!("{name}.safetensors"));
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn bytes<const N: usize>(&self, name: &str) -> Vec<[u8; N]> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(name).unwrap();
        let (values, rest) = tensor.data().as_chunks();
        assert!(rest.is_empty() && tensor.shape().iter().product::<usize>() == values.len(), "{name}");
        values.to_vec()
    }

    pub(crate) fn f64(&self, name: &str) -> Vec<f64> {
        self.bytes(name).into_iter().map(f64::from_le_bytes).collect()
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f64> {
        self.bytes(name).into_iter().map(|b| f64::from(f32::from_le_bytes(b))).collect()
    }

    pub(crate) fn bytes_of(&self, name: &str) -> Vec<u8> {
        self.bytes::<1>(name).concat()
    }

    pub(crate) fn tokens(&self, name: &str) -> Vec<u32> {
        self.bytes(name).into_iter().map(|b| u32::try_from(i32::from_le_bytes(b)).unwrap()).collect()
    }
}
