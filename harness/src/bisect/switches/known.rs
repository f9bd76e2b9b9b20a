//! What can be switched in a build: the environment variables that a backend reads, where its library has their names,
//! and what a case itself can do without.

use crate::bisect::Subject;
use crate::named::named_enum;
use crate::pipeline::{Build, RunError};
use crate::plan::{Attention, DeviceSelector, KvType};
use regex::bytes::Regex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

named_enum! {
    /// What kind of thing is switched.
    pub enum Kind as "kind of switch" {
        /// An environment variable of the device's backend.
        Environment = "environment",
        /// Explicit attention in place of flash, or flash in place of explicit.
        Attention = "attention",
        /// Another type of the K/V cache.
        Kv = "kv",
        /// Another library of the CPU backend, or plain buffers.
        Flavour = "flavour",
    }
}

/// One thing that can be set otherwise: `GGML_VK_DISABLE_F16=1`, `attn=explicit`, `kv=f32`, `device=CPU@x64`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Switch {
    /// What kind it is of.
    pub kind: Kind,
    /// What is set.
    pub name: String,
    /// To what.
    pub value: String,
    /// What that does.
    pub what: String,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// A variable: the libraries that read it (a prefix of the part's name), its name, a value, what that does.
struct Variable(&'static str, &'static str, &'static str, &'static str);

/// Variables that may change what is computed, or when and where. Those for logs, sizes of allocations and choice of
/// devices are none.
const VARIABLES: [Variable; 29] = [
    Variable("vulkan", "GGML_VK_DISABLE_COOPMAT", "1", "no cooperative matrices (KHR)"),
    Variable("vulkan", "GGML_VK_DISABLE_COOPMAT2", "1", "no cooperative matrices (NV, version 2)"),
    Variable(
        "vulkan",
        "GGML_VK_DISABLE_COOPMAT2_DECODE_VECTOR",
        "1",
        "no vector decode in cooperative matrices 2",
    ),
    Variable("vulkan", "GGML_VK_DISABLE_INTEGER_DOT_PRODUCT", "1", "no integer dot products"),
    Variable("vulkan", "GGML_VK_DISABLE_DOT2", "1", "no dot products of two halves"),
    Variable("vulkan", "GGML_VK_DISABLE_F16", "1", "no arithmetic in 16 bits"),
    Variable("vulkan", "GGML_VK_DISABLE_BFLOAT16", "1", "no BF16 shaders"),
    Variable("vulkan", "GGML_VK_DISABLE_FUSION", "1", "no fused operations"),
    Variable("vulkan", "GGML_VK_DISABLE_MULTI_ADD", "1", "no fused additions"),
    Variable("vulkan", "GGML_VK_DISABLE_GRAPH_OPTIMIZE", "1", "nodes in the graph's own order"),
    Variable("vulkan", "GGML_VK_DISABLE_MMVQ", "1", "no products with 8-bit activations for vectors"),
    Variable("vulkan", "GGML_VK_FORCE_MMVQ", "1", "products with 8-bit activations for vectors everywhere"),
    Variable("vulkan", "GGML_VK_DISABLE_ASYNC", "1", "no asynchronous transfers"),
    Variable("vulkan", "GGML_VK_DISABLE_HOST_VISIBLE_VIDMEM", "1", "no device memory that the host sees"),
    Variable("vulkan", "GGML_VK_PREFER_HOST_MEMORY", "1", "buffers in host memory"),
    Variable("vulkan", "GGML_VK_SERIALIZE_SUBMISSIONS", "1", "one submission after the other"),
    Variable("cuda", "GGML_CUDA_DISABLE_GRAPHS", "1", "no CUDA graphs"),
    Variable("cuda", "GGML_CUDA_DISABLE_FUSION", "1", "no fused operations"),
    Variable("cuda", "GGML_CUDA_GRAPH_OPT", "1", "branches of the graph on several streams"),
    Variable("cuda", "GGML_CUDA_CUBLAS_COMPUTE_TYPE", "f32", "cuBLAS computes in 32 bits"),
    Variable("cuda", "GGML_CUDA_MMQ_PREC", "q8", "activations of 8 bits in quantised products"),
    Variable("cuda", "GGML_CUDA_PDL", "0", "no programmatic dependent launch"),
    Variable("cuda", "GGML_CUDA_NO_PINNED", "1", "no pinned host memory"),
    Variable("metal", "GGML_METAL_FUSION_DISABLE", "1", "no fused operations"),
    Variable("metal", "GGML_METAL_GRAPH_OPTIMIZE_DISABLE", "1", "nodes in the graph's own order"),
    Variable("metal", "GGML_METAL_CONCURRENCY_DISABLE", "1", "one kernel after the other"),
    Variable("metal", "GGML_METAL_TENSOR_DISABLE", "1", "no tensor operations"),
    Variable("metal", "GGML_METAL_BF16_DISABLE", "1", "no BF16"),
    Variable("cpu", "GGML_CPU_DISABLE_FUSION", "1", "no fused operations"),
];

/// The switches of `kinds` that a build and a subject have.
///
/// # Errors
/// A library that cannot be read.
pub(super) fn offered(
    build: &Build,
    subject: &Subject,
    kinds: &BTreeSet<Kind>,
) -> Result<Vec<Switch>, RunError> {
    let mut all = Vec::new();
    let part = part_of(&subject.device);
    if kinds.contains(&Kind::Environment) {
        let mut names = BTreeSet::new();
        let loaded = build.probed.files.iter().filter(|file| file.skipped.is_none());
        for file in loaded.filter(|file| file.part.starts_with(part)) {
            names.extend(names_in(&file.path)?);
        }
        let there = VARIABLES.iter().filter(|v| v.0 == part && names.contains(v.1));
        let unset = there.filter(|v| std::env::var_os(v.1).is_none());
        all.extend(unset.map(|v| switch(Kind::Environment, v.1, v.2, v.3)));
    }
    let options = &subject.case.options;
    if kinds.contains(&Kind::Attention) {
        let (other, what) = match options.attn {
            Attention::Flash => (Attention::Explicit, "attention in single operations"),
            Attention::Explicit => (Attention::Flash, "attention in one operation"),
        };
        all.push(switch(Kind::Attention, "attn", other.name(), what));
    }
    if kinds.contains(&Kind::Kv) {
        let others = KvType::ALL.iter().filter(|kv| **kv != options.kv);
        // A search for what restores parity needs one that loses nothing; a table has room for all.
        let what =
            |kv: &KvType| if *kv == KvType::F32 { "a cache that loses nothing" } else { "another cache" };
        all.extend(others.map(|kv| switch(Kind::Kv, "kv", kv.name(), what(kv))));
    }
    if kinds.contains(&Kind::Flavour) && subject.device.is_cpu() {
        let mut others: Vec<DeviceSelector> =
            build.selectors().into_iter().filter(|d| d.is_cpu() && *d != subject.device).collect();
        // The plainest comes first: variants are listed the best first.
        others.reverse();
        let named = others.iter().map(|device| (device.to_string(), "another library or buffers"));
        all.extend(named.map(|(name, what)| switch(Kind::Flavour, "device", &name, what)));
    }
    Ok(all)
}

fn switch(kind: Kind, name: &str, value: &str, what: &str) -> Switch {
    Switch { kind, name: name.to_owned(), value: value.to_owned(), what: what.to_owned() }
}

/// The library that computes on a device, as its part's name begins.
fn part_of(device: &DeviceSelector) -> &'static str {
    match device.base.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "Vulkan" => "vulkan",
        "CUDA" => "cuda",
        "MTL" | "Metal" => "metal",
        "BLAS" => "blas",
        _ => "cpu",
    }
}

/// The names of variables that stand in a library as texts of their own.
fn names_in(path: &Path) -> Result<BTreeSet<String>, RunError> {
    let bytes = std::fs::read(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
    Ok(names(&bytes))
}

fn names(bytes: &[u8]) -> BTreeSet<String> {
    let pattern = Regex::new(r"(?-u)\x00(GGML_[A-Z0-9_]+)").expect("a valid pattern");
    let found = pattern.captures_iter(bytes).filter_map(|found| found.get(1));
    // A name within a message is none.
    let whole = found.filter(|name| bytes.get(name.end()) == Some(&0));
    whole.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()).collect()
}

/// What a set of switches makes of a subject: the subject, and what is set for its worker. Of two that set the same
/// option the first counts.
#[must_use]
pub fn apply(subject: &Subject, set: &[Switch]) -> (Subject, BTreeMap<String, String>) {
    let (mut subject, mut environment) = (subject.clone(), BTreeMap::new());
    for switch in set.iter().rev() {
        match switch.kind {
            Kind::Environment => {
                environment.insert(switch.name.clone(), switch.value.clone());
            }
            Kind::Attention | Kind::Kv => {
                let set = subject.case.options.set(&switch.name, &switch.value);
                debug_assert!(set.is_ok(), "{switch}");
            }
            Kind::Flavour => {
                if let Ok(device) = switch.value.parse() {
                    subject.device = device;
                }
            }
        }
    }
    (subject, environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_of_their_own_are_names() {
        let bytes = b"\0GGML_VK_DISABLE_F16\0GGML_VK_DISABLE_FUSION\0x\0GGML_CUDA_FORCE_MMQ: no\0aGGML_VK_PERF\0GGML_";
        let found: Vec<String> = names(bytes).into_iter().collect();
        assert_eq!(found, ["GGML_VK_DISABLE_F16", "GGML_VK_DISABLE_FUSION"]);
        assert!(names(b"").is_empty());
    }

    #[test]
    fn the_table_names_nothing_twice_and_every_variable_by_its_backend() {
        let names: BTreeSet<&str> = VARIABLES.iter().map(|v| v.1).collect();
        assert_eq!(names.len(), VARIABLES.len());
        for Variable(part, name, value, what) in VARIABLES {
            let prefix = match part {
                "vulkan" => "GGML_VK_",
                "cuda" => "GGML_CUDA_",
                "metal" => "GGML_METAL_",
                _ => "GGML_CPU_",
            };
            assert!(name.starts_with(prefix) && !value.is_empty() && !what.is_empty(), "{name}");
        }
    }

    #[test]
    fn switches_change_a_subject_and_the_first_of_two_counts() {
        let subject: Subject = "m/f32/prefill?attn=flash&kv=q8_0@CPU".parse().unwrap();
        let set = [
            switch(Kind::Environment, "GGML_CPU_DISABLE_FUSION", "1", ""),
            switch(Kind::Attention, "attn", "explicit", ""),
            switch(Kind::Kv, "kv", "f32", ""),
            switch(Kind::Kv, "kv", "f16", ""),
            switch(Kind::Flavour, "device", "CPU@x64", ""),
        ];
        let (changed, environment) = apply(&subject, &set);
        assert_eq!(changed.to_string(), "m/f32/prefill@CPU@x64");
        assert_eq!(environment, BTreeMap::from([("GGML_CPU_DISABLE_FUSION".to_owned(), "1".to_owned())]));
        assert_eq!(apply(&subject, &[]), (subject, BTreeMap::new()));
    }
}
