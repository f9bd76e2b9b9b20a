//! Which models there are: generated ones by preset, those of the manifest `corpus/models.toml` and of the user's own by
//! name, and any GGUF file by its path.

use crate::builds::cache;
use crate::plan::{Case, safe_name};
use model_file::tokenizer::Tokenizer;
use model_file::{GenerateSpec, Model, TensorType, WeightMix};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names a manifest of the user's own, in the form of `corpus/models.toml`.
pub const MODELS_ENV: &str = "GGML_PARITY_MODELS";

/// The manifest, as it was when this binary was built.
const MANIFEST: &str = include_str!("../../../corpus/models.toml");
/// The one model that is kept in the repository and so travels inside the binary.
const DREAM_ARITH: &[u8] = include_bytes!("../../../corpus/models/dream-arith-4.8m-f16.gguf");

/// A model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The manifest is malformed.
    #[error("{file}: {why}")]
    Manifest {
        /// Where it is.
        file: String,
        /// What is wrong, with line and column.
        why: String,
    },
    /// Neither a preset, nor in the manifest, nor a file.
    #[error(
        "model `{name}`: no such file, and none of the known models: {}{}",
        known.join(", "),
        crate::hint::nearest(name, known.iter().map(String::as_str))
    )]
    Unknown {
        /// The name as given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// In the manifest, but not on this machine.
    #[error("model `{name}` is not in the cache ({}); get it with `ci/fetch-model {name}`", path.display())]
    NotFetched {
        /// Its name.
        name: String,
        /// Where it would be.
        path: PathBuf,
    },
    /// The file is another than the manifest says.
    #[error("{}: sha256 is {is}, the manifest says {expected}", path.display())]
    Hash {
        /// The file.
        path: PathBuf,
        /// Its hash.
        is: String,
        /// The hash in the manifest.
        expected: String,
    },
    /// A setting names a token or schedule that there is not.
    #[error("model `{name}`: {field} is `{value}`: {why}")]
    Setting {
        /// The model.
        name: String,
        /// The field of the manifest.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file is no model that can be run.
    #[error(transparent)]
    File(#[from] model_file::Error),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// `corpus/models.toml`, or a file like it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    schema: String,
    #[serde(default)]
    model: Vec<Entry>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    file: Option<PathBuf>,
    sha256: Option<String>,
    #[serde(default, rename = "license")]
    _license: Option<String>,
    #[serde(default, rename = "description")]
    _description: Option<String>,
    #[serde(default, rename = "package", deserialize_with = "one_or_more")]
    _package: Vec<BTreeMap<String, String>>,
    pad_left: Option<PadLeft>,
    generate: Option<usize>,
    steps: Option<usize>,
    schedule: Option<runtime::generate::masked::Schedule>,
    #[serde(default)]
    prompts: Vec<String>,
    /// The folder of the user's manifest that lists it; none where ours does.
    #[serde(skip)]
    folder: Option<PathBuf>,
}

/// The packages that a model is in: one, or a list of several whose members follow each other.
fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<BTreeMap<String, String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Packages {
        One(BTreeMap<String, String>),
        Several(Vec<BTreeMap<String, String>>),
    }
    Ok(match Packages::deserialize(from)? {
        Packages::One(package) => vec![package],
        Packages::Several(packages) => packages,
    })
}

/// Padding of prompts, as in training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PadLeft {
    /// `bos`, `eos` or `pad`.
    pub token: String,
    /// Up to how many tokens.
    pub to: usize,
}

/// How a model is asked to generate; what the manifest leaves out is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Padding of prompts.
    pub pad_left: Option<PadLeft>,
    /// Tokens to generate.
    pub generate: Option<usize>,
    /// Steps of a masked generation.
    pub steps: Option<usize>,
    /// Masks a step.
    pub schedule: Option<runtime::generate::masked::Schedule>,
    /// Texts to start from.
    pub prompts: Vec<String>,
}

impl From<&Entry> for Settings {
    fn from(entry: &Entry) -> Self {
        Self {
            pad_left: entry.pad_left.clone(),
            generate: entry.generate,
            steps: entry.steps,
            schedule: entry.schedule,
            prompts: entry.prompts.clone(),
        }
    }
}

/// A model that is ready to run.
pub struct ResolvedModel {
    /// Its name in ids.
    pub name: String,
    /// The type of its weights, as in ids.
    pub weights: String,
    /// The types of its matrices.
    pub matrix_types: BTreeSet<TensorType>,
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of the file.
    pub sha256: String,
    /// The opened and checked file.
    pub model: Model,
    /// How it is asked to generate.
    pub settings: Settings,
    /// What to give `--model` to get this model again.
    pub given: String,
    /// Made when it is first asked for: a large vocabulary takes a tenth of a second.
    tokenizer: OnceLock<Tokenizer>,
}

impl ResolvedModel {
    /// What must be the same where work on the model goes on: its file, and how it is asked.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{} {:?}", self.sha256, self.settings)
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// When the file has none, or one that is not known here.
    pub fn tokenizer(&self) -> Result<&Tokenizer, ModelError> {
        if let Some(known) = self.tokenizer.get() {
            return Ok(known);
        }
        let made = Tokenizer::from_gguf(&self.model.file)?;
        Ok(self.tokenizer.get_or_init(|| made))
    }
}

/// Finds and opens the model that `given` names; generated ones are written into `work`. `NAME:TYPE` is the
/// model with its matrices converted to another type, as `gen-llama:q4_k_m`.
///
/// # Errors
/// When there is none, its file is not a model that can be run, or it cannot have that type.
pub fn resolve(given: &str, work: &Path) -> Result<ResolvedModel, ModelError> {
    let converted = given.rsplit_once(':').and_then(|(base, ty)| Some((base, ty, WeightMix::from_name(ty)?)));
    let Some((base, ty, mix)) = converted.filter(|_| !Path::new(given).is_file()) else {
        return resolve_as_it_is(given, work);
    };
    let base = resolve_as_it_is(base, work)?;
    let ty = ty.to_lowercase();
    let path = work.join(format!("{}-{ty}.gguf", base.name));
    if !path.exists() {
        model_file::requantize_model(&base.model, mix, &path)?;
    }
    let model = open(given, &path, base.name, base.settings, None)?;
    Ok(ResolvedModel { weights: ty, ..model })
}

fn resolve_as_it_is(given: &str, work: &Path) -> Result<ResolvedModel, ModelError> {
    if let Some(spec) = GenerateSpec::preset(given) {
        let path = work.join(format!("{given}.gguf"));
        if !path.exists() {
            model_file::generate(&spec, &path)?;
        }
        return open(given, &path, safe_name(given), Settings::default(), None);
    }
    let manifest = manifest()?;
    if let Some(entry) = manifest.model.iter().find(|entry| entry.name == given) {
        let path = locate(entry, work)?;
        return open(given, &path, safe_name(given), Settings::from(entry), entry.sha256.as_deref());
    }
    let path = Path::new(given);
    if !path.is_file() {
        return Err(ModelError::Unknown { name: given.to_owned(), known: known() });
    }
    let stem = path.file_stem().map_or_else(|| given.to_owned(), |stem| stem.to_string_lossy().into_owned());
    let model = open(given, path, safe_name(&stem), Settings::default(), None)?;
    // A file whose content the manifest knows gets the manifest's settings, wherever it lies.
    let known = |entry: &&Entry| entry.sha256.as_deref() == Some(&model.sha256);
    let settings = manifest.model.iter().find(known).map(Settings::from);
    Ok(ResolvedModel { settings: settings.unwrap_or_default(), ..model })
}

/// `model` as `--model` takes it with its matrices of another type, where there is a type of that name; a generated
/// model that has the type already is named alone.
#[must_use]
pub fn with_weights(model: &str, weights: &str) -> Option<String> {
    WeightMix::from_name(weights)?;
    let own = GenerateSpec::preset(model).is_some() && weights.eq_ignore_ascii_case("f32");
    Some(if own { model.to_owned() } else { format!("{model}:{}", weights.to_lowercase()) })
}

/// The weight type that a known model has of itself: what generated and listed models are before conversion.
#[must_use]
pub fn own_weights(name: &str) -> Option<String> {
    if GenerateSpec::preset(name).is_some() {
        return Some("f32".to_owned());
    }
    let work = tempfile::tempdir().ok()?;
    let listed = manifest().ok()?.model.into_iter().any(|entry| entry.name == name);
    listed.then(|| resolve_as_it_is(name, work.path()).ok().map(|model| model.weights))?
}

/// What to give [`resolve`] to get the model of a case: a generated or known model of another weight type than its own
/// is converted.
#[must_use]
pub fn name_of(case: &Case) -> String {
    let own = own_weights(&case.model);
    if own.as_deref() == Some(&case.weights) || own.is_none() {
        case.model.clone()
    } else {
        format!("{}:{}", case.model, case.weights)
    }
}

/// The names that [`resolve`] knows beside paths.
pub fn known() -> Vec<String> {
    let presets = model_file::presets().iter().map(|spec| spec.name.clone());
    let listed =
        manifest().map(|m| m.model.into_iter().map(|entry| entry.name).collect()).unwrap_or_default();
    presets.chain::<Vec<String>>(listed).collect()
}

fn manifest() -> Result<Manifest, ModelError> {
    let own = std::env::var_os(MODELS_ENV).filter(|path| !path.is_empty());
    listed(own.as_deref().map(Path::new))
}

/// Our manifest, and what the user's own adds to it.
fn listed(own: Option<&Path>) -> Result<Manifest, ModelError> {
    let mut all = parse(MANIFEST, "corpus/models.toml")?;
    let Some(path) = own else { return Ok(all) };
    let text =
        std::fs::read_to_string(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    let shown = path.display().to_string();
    let bad = |entry: &Entry, why: &str| ModelError::Manifest {
        file: shown.clone(),
        why: format!("model `{}`: {why}", entry.name),
    };
    for entry in parse(&text, &shown)?.model {
        if entry.name != safe_name(&entry.name) {
            return Err(bad(&entry, "name: letters, digits, `.`, `_` and `-` are wanted"));
        }
        if entry.file.is_none() {
            return Err(bad(&entry, "file: it is missing"));
        }
        let taken = all.model.iter().any(|known| known.name == entry.name);
        if taken || GenerateSpec::preset(&entry.name).is_some() {
            return Err(bad(&entry, "name: there is such a model already"));
        }
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        all.model.push(Entry { folder: Some(folder), ..entry });
    }
    Ok(all)
}

fn parse(text: &str, file: &str) -> Result<Manifest, ModelError> {
    const SCHEMA: &str = "ggml-parity.models/1";
    let bad = |why: String| ModelError::Manifest { file: file.to_owned(), why };
    let manifest: Manifest = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
    if manifest.schema != SCHEMA {
        return Err(bad(format!("schema is `{}`, expected `{SCHEMA}`", manifest.schema)));
    }
    Ok(manifest)
}

/// Where the file of a manifest entry lies; one that is kept in the repository is written from the binary.
fn locate(entry: &Entry, work: &Path) -> Result<PathBuf, ModelError> {
    match (&entry.file, &entry.folder) {
        (Some(file), Some(folder)) => Ok(folder.join(file)),
        (Some(file), None) => {
            let path = work.join(file.file_name().unwrap_or(file.as_os_str()));
            if !path.exists() {
                crate::atomic::write_with(&path, |partial| std::fs::write(partial, DREAM_ARITH))
                    .map_err(|source| ModelError::Io { path: path.clone(), source })?;
            }
            Ok(path)
        }
        (None, _) => {
            let root = cache::root().map_err(|error| ModelError::Manifest {
                file: "the cache".to_owned(),
                why: error.to_string(),
            })?;
            let path = root.join("models").join(format!("{}.gguf", entry.name));
            if path.is_file() {
                Ok(path)
            } else {
                Err(ModelError::NotFetched { name: entry.name.clone(), path })
            }
        }
    }
}

fn open(
    given: &str,
    path: &Path,
    name: String,
    settings: Settings,
    expected: Option<&str>,
) -> Result<ResolvedModel, ModelError> {
    let model = Model::open(path)?;
    let is = model.file.sha256()?;
    if let Some(expected) = expected.filter(|expected| *expected != is) {
        return Err(ModelError::Hash { path: path.to_owned(), is, expected: expected.to_owned() });
    }
    Ok(ResolvedModel {
        name,
        weights: weight_type(&model),
        matrix_types: model.tensors().filter(|(_, t)| t.shape.len() > 1).map(|(_, t)| t.ty).collect(),
        path: path.to_owned(),
        sha256: is,
        model,
        settings,
        given: given.to_owned(),
        tokenizer: OnceLock::new(),
    })
}

/// The type of a model's weights in one word: the type that most bytes of its matrices have, embedding and
/// head aside, or the name of a mix of types that the file states.
fn weight_type(model: &Model) -> String {
    // llama.cpp's `general.file_type` of mixes, which no single tensor type names.
    const MIXES: [(u32, &str); 9] = [
        (10, "q2_k_m"),
        (11, "q3_k_s"),
        (12, "q3_k_m"),
        (13, "q3_k_l"),
        (14, "q4_k_s"),
        (15, "q4_k_m"),
        (16, "q5_k_s"),
        (17, "q5_k_m"),
        (18, "q6_k"),
    ];
    let mut bytes: BTreeMap<TensorType, u64> = BTreeMap::new();
    for (_, info) in model.tensors() {
        if info.shape.len() > 1 && !["token_embd.weight", "output.weight"].contains(&info.name.as_str()) {
            *bytes.entry(info.ty).or_default() += info.bytes;
        }
    }
    let mixed = bytes.len() > 1;
    let file_type = model.file.metadata().get("general.file_type").and_then(|v| match v {
        model_file::Value::U32(n) => Some(*n),
        _ => None,
    });
    match MIXES.iter().find(|(n, _)| mixed && Some(*n) == file_type) {
        Some((_, name)) => (*name).to_owned(),
        None => bytes
            .into_iter()
            .max_by_key(|(_, bytes)| *bytes)
            .map_or_else(|| "f32".to_owned(), |(ty, _)| ty.name().to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_manifest_entries_and_paths_resolve() {
        let work = tempfile::tempdir().unwrap();
        let dream = resolve("gen-dream", work.path()).unwrap();
        assert_eq!((dream.name.as_str(), dream.weights.as_str()), ("gen-dream", "f32"));
        let by_path = resolve(dream.path.to_str().unwrap(), work.path()).unwrap();
        assert_eq!((by_path.name, by_path.sha256), (dream.name, dream.sha256));

        let arith = resolve("dream-arith", work.path()).unwrap();
        assert_eq!(arith.weights, "f16");
        assert_eq!(arith.settings.pad_left, Some(PadLeft { token: "bos".to_owned(), to: 8 }));
        let again = resolve(arith.path.to_str().unwrap(), work.path()).unwrap();
        assert_eq!(again.settings, arith.settings, "settings follow the content");
    }

    /// Whoever has a model of his own, or a changed copy of one of ours, says how it is asked.
    #[test]
    fn a_manifest_of_the_users_own_adds_models() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("models.toml");
        let with = |model: &str| {
            let text = format!("schema = \"ggml-parity.models/1\"\n[[model]]\n{model}");
            std::fs::write(&path, text).unwrap();
            listed(Some(&path))
        };
        let padded = "name = \"mine\"\nfile = \"copies/a.gguf\"\npad_left = { token = \"bos\", to = 8 }\n";
        let all = with(padded).unwrap();
        let mine = all.model.last().unwrap();
        assert_eq!(all.model.len(), listed(None).unwrap().model.len() + 1);
        assert_eq!(locate(mine, Path::new("elsewhere")).unwrap(), work.path().join("copies/a.gguf"));
        assert_eq!(Settings::from(mine).pad_left, Some(PadLeft { token: "bos".to_owned(), to: 8 }));
        for (model, wanted) in [
            (
                "name = \"dream-arith\"\nfile = \"a.gguf\"",
                "model `dream-arith`: name: there is such a model already",
            ),
            (
                "name = \"gen-llama\"\nfile = \"a.gguf\"",
                "model `gen-llama`: name: there is such a model already",
            ),
            ("name = \"a:b\"\nfile = \"a.gguf\"", "model `a:b`: name: letters"),
            ("name = \"mine\"", "model `mine`: file: it is missing"),
            ("name = \"mine\"\nfile = \"a.gguf\"\npadding = 1", "unknown field `padding`"),
        ] {
            let error = with(model).unwrap_err().to_string();
            assert!(error.starts_with(path.to_str().unwrap()) && error.contains(wanted), "{error}");
        }
        assert!(matches!(listed(Some(Path::new("nowhere.toml"))), Err(ModelError::Io { .. })));
        for entry in listed(None).unwrap().model {
            let whole = entry.sha256.is_some() && entry._license.is_some() && entry._description.is_some();
            assert!(whole, "{}", entry.name);
        }
    }

    #[test]
    fn a_type_after_the_name_converts_the_model() {
        let work = tempfile::tempdir().unwrap();
        let model = resolve("gen-llama:Q4_K_M", work.path()).unwrap();
        assert_eq!((model.name.as_str(), model.weights.as_str()), ("gen-llama", "q4_k_m"));
        assert_eq!(weight_type(&model.model), "q4_k_m", "the file says so itself");
        assert!(model.matrix_types.contains(&TensorType::Q6_K), "{:?}", model.matrix_types);
        let half = resolve("gen-dream:bf16", work.path()).unwrap();
        assert_eq!(weight_type(&half.model), "bf16");
    }

    #[test]
    fn an_unknown_model_lists_the_known_ones() {
        let error = resolve("gen-dreem", Path::new(".")).err().unwrap().to_string();
        assert!(
            error.contains("`gen-dreem`") && error.contains("gen-dream") && error.contains("dream-arith")
        );
        assert!(error.ends_with("did you mean `gen-dream`?"), "{error}");
    }
}
