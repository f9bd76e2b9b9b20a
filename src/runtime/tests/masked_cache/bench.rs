//! What tests on a real ggml build share: the build, models, and a figure.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use ggml_sys::{Ggml, Selection};
use model_file::{GenerateSpec, Model};
use runtime::{DeviceRequest, Options, Session};

/// The build that is used where the environment names none.
const DEFAULT_BUILD: &str = "npm-3.21.1";

static GGML: LazyLock<&'static Ggml> = LazyLock::new(|| {
    let folder = build_folder();
    match Ggml::open(&folder, &Selection::Cpu) {
        Ok(ggml) => ggml,
        Err(error) => panic!(
            "no ggml build to test with: {error}; `ggml-parity ggml fetch {DEFAULT_BUILD}` gets one, \
             or set GGML_PARITY_GGML to a folder"
        ),
    }
});

/// `GGML_PARITY_GGML`, a folder or the name of a build in the cache, else the default build in the cache.
fn build_folder() -> PathBuf {
    let given = std::env::var("GGML_PARITY_GGML").unwrap_or_else(|_| DEFAULT_BUILD.to_owned());
    if Path::new(&given).is_dir() {
        return PathBuf::from(given);
    }
    let cache = match (std::env::var_os("GGML_PARITY_CACHE"), std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, home) => match std::env::var_os("XDG_CACHE_HOME") {
            Some(cache) => PathBuf::from(cache).join("ggml-parity"),
            None => PathBuf::from(home.unwrap_or_default()).join(".cache/ggml-parity"),
        },
    };
    cache.join("ggml").join(given)
}

/// To be held while ggml computes: the CPU backends of builds of mid-2025 and before mix up the work of two threads
/// that compute at once.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The build under test, its best CPU variant alone.
pub(crate) fn ggml() -> &'static Ggml {
    *GGML
}

/// The model of `spec`; its weights stay mapped when the file is gone.
pub(crate) fn model(spec: &GenerateSpec) -> Model {
    let work = tempfile::tempdir().expect("a folder for the model");
    let path = work.path().join("model.gguf");
    model_file::generate(spec, &path).expect("the model is written");
    Model::open(&path).expect("the model is whole")
}

/// A session of `model` on the CPU.
pub(crate) fn on_cpu(model: &Model, options: Options) -> Session {
    Session::open(ggml(), &DeviceRequest::plain("CPU"), model, options).expect("the CPU takes the model")
}

/// The model of a preset on the CPU.
pub(crate) fn session(preset: &str, options: Options) -> Session {
    on_cpu(&model(&GenerateSpec::preset(preset).expect("a preset")), options)
}

/// `sum((x - ref)^2) / sum(ref^2)`.
pub(crate) fn nmse(reference: &[f32], x: &[f32]) -> f64 {
    nmse64(&reference.iter().map(|&r| f64::from(r)).collect::<Vec<_>>(), x)
}

/// The same against f64.
pub(crate) fn nmse64(reference: &[f64], x: &[f32]) -> f64 {
    assert_eq!(reference.len(), x.len());
    let error: f64 = reference.iter().zip(x).map(|(r, &x)| (f64::from(x) - r).powi(2)).sum();
    error / reference.iter().map(|r| r * r).sum::<f64>()
}
