//! The arms of a sweep: models x modes x devices of builds, and what each is held against.
//!
//! An arm on a device is held against the same model in the same mode on the plain CPU of the same build: *parity*. With
//! `--reference` every arm is also held against the arm that differs from it as told, in its mode, its model or its
//! device: what an *approximation* costs. Arms that are needed as references are added.

use super::result::{Arm, Pairing, PairingKind};
use crate::pipeline::{Build, RunError};
use crate::plan::models::ResolvedModel;
use crate::plan::{Case, CellId, DeviceSelector, IdError, Mode, Options, masked::StepCache, matrix};
use std::fmt;
use std::str::FromStr;

/// A mode with its options, as `generate?cache=sparse&keep=1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSpec {
    /// The mode.
    pub mode: Mode,
    /// The options.
    pub options: Options,
}

impl Default for ModeSpec {
    fn default() -> Self {
        Self { mode: Mode::Generate, options: Options::default() }
    }
}

impl FromStr for ModeSpec {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        // The names of model and weights stand for any.
        let case: Case = format!("m/w/{text}").parse()?;
        Ok(Self { mode: case.mode, options: case.options })
    }
}

impl fmt::Display for ModeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        if self.options == Options::default() { Ok(()) } else { write!(f, "?{}", self.options) }
    }
}

impl ModeSpec {
    /// The case of `model`: generation in every form. For a masked model `full`, `full-cache` and `sparse` are what its
    /// steps take from the cache. `None` where the architecture has no such mode.
    ///
    /// # Errors
    /// A mode in which nothing is generated, or an option that means nothing in it.
    pub fn case(&self, model: &ResolvedModel) -> Result<Option<Case>, RunError> {
        let usage = |error: String| RunError::Usage(format!("mode {self}: {error}"));
        let mut options = self.options;
        let cache = match self.mode {
            Mode::Generate => None,
            Mode::Full => Some(StepCache::None),
            Mode::FullCache => Some(StepCache::Full),
            Mode::Sparse => Some(StepCache::Sparse),
            mode => {
                let known = "generate, and for masked models full, full-cache, sparse";
                return Err(RunError::Usage(format!("mode {mode}: a sweep generates; known: {known}")));
            }
        };
        if options.n.is_some() {
            return Err(usage("option `n`: items say how long they are".to_owned()));
        }
        if !matrix::has_mode(model, self.mode) {
            return Ok(None);
        }
        if let Some(cache) = cache {
            if options.masked.cache != StepCache::None {
                return Err(usage("option `cache`: the mode says it".to_owned()));
            }
            options.masked.cache = cache;
        }
        let case = matrix::case(model, Mode::Generate, options);
        case.check().map_err(|error| usage(error.to_string()))?;
        if !model.model.hparams.architecture.is_diffusion() && !options.masked.is_default() {
            return Ok(None);
        }
        Ok(Some(case))
    }
}

/// How the arm differs that others are held against; what is `None` is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// The model, as `--model` takes it.
    pub model: Option<String>,
    /// The mode.
    pub mode: Option<ModeSpec>,
    /// The device, with its build if another one is meant.
    pub device: Option<DeviceSelector>,
}

impl Baseline {
    /// Reads `mode=…`, `model=…` and `device=…`.
    ///
    /// # Errors
    /// What is none of these, or given twice.
    pub fn parse(given: &[String]) -> Result<Option<Self>, RunError> {
        let mut baseline = Self::default();
        for text in given {
            let wrong = |why: &str| RunError::Usage(format!("--reference `{text}`: {why}"));
            let id = |error: IdError| wrong(&error.to_string());
            let (field, value) = text
                .split_once('=')
                .filter(|(_, value)| !value.is_empty())
                .ok_or_else(|| wrong("mode=MODE, model=NAME or device=NAME is wanted"))?;
            let twice = match field {
                "mode" => baseline.mode.replace(value.parse().map_err(id)?).is_some(),
                "model" => baseline.model.replace(value.to_owned()).is_some(),
                "device" => baseline.device.replace(value.parse().map_err(id)?).is_some(),
                _ => return Err(wrong("mode=MODE, model=NAME or device=NAME is wanted")),
            };
            if twice {
                return Err(wrong("it is given twice"));
            }
        }
        Ok((baseline != Self::default()).then_some(baseline))
    }

    /// The arm that `id` is held against; `None` where that is itself, and for the plain CPU where it would be another
    /// device of the same build, since these are held against it.
    fn of(&self, id: &CellId, models: &[ResolvedModel]) -> Result<Option<CellId>, RunError> {
        let own = |model: &&ResolvedModel| model.name == id.case.model && model.weights == id.case.weights;
        let named = |model: &&ResolvedModel| Some(&model.given) == self.model.as_ref();
        let model = models.iter().find(|model| if self.model.is_some() { named(model) } else { own(model) });
        let model = model.ok_or_else(|| RunError::Usage(format!("arm {id}: its model is not open")))?;
        let case = match &self.mode {
            Some(mode) => mode.case(model)?,
            None => Some(matrix::case(model, id.case.mode, id.case.options)),
        };
        let Some(case) = case else { return Ok(None) };
        let device = self.device.as_ref().unwrap_or(&id.device);
        let reference = CellId::new(case, &id.build, device);
        let same = reference.case == id.case && reference.build == id.build;
        let only_device = same && id.device == DeviceSelector::cpu();
        Ok((reference != *id && !only_device).then_some(reference))
    }
}

/// What arms are made of.
pub struct Declaring<'a> {
    /// The builds.
    pub builds: &'a [Build],
    /// The models, that of the baseline among them.
    pub models: &'a [ResolvedModel],
    /// How many of them `--model` names.
    pub declared_models: usize,
    /// The devices that the command line names; all that builds offer where it names none.
    pub devices: &'a [DeviceSelector],
    /// The modes; `generate` where none is named.
    pub modes: &'a [ModeSpec],
    /// What arms are held against beside the CPU.
    pub baseline: Option<&'a Baseline>,
}

/// The arms, each after those it is held against, and what was left out and why.
#[derive(Debug)]
pub struct Declared {
    /// The arms.
    pub arms: Vec<Arm>,
    /// One line for each combination that no device takes.
    pub left_out: Vec<String>,
}

/// Declares the arms.
///
/// # Errors
/// A device that is not there, a mode that no model has, arms that are held against each other.
pub fn declare(what: &Declaring<'_>) -> Result<Declared, RunError> {
    let default = [ModeSpec::default()];
    let modes = if what.modes.is_empty() { &default[..] } else { what.modes };
    let models = &what.models[..what.declared_models];
    let mut ids: Vec<CellId> = Vec::new();
    let mut left_out = Vec::new();
    for mode in modes {
        let mut fits = false;
        for model in models {
            let Some(case) = mode.case(model)? else { continue };
            fits = true;
            for build in what.builds {
                for device in devices(what, build)? {
                    let id = CellId::new(case.clone(), &build.info.name, &device);
                    if !build.takes(&device, model) {
                        let line = format!("{id}: the buffers of {device} take none of the model's types");
                        left_out.push(line);
                    } else if !ids.contains(&id) {
                        ids.push(id);
                    }
                }
            }
        }
        if !fits {
            let names: Vec<String> = models
                .iter()
                .map(|m| format!("{} ({})", m.name, m.model.hparams.architecture.name()))
                .collect();
            return Err(RunError::Usage(format!("mode {mode}: no model has it: {}", names.join(", "))));
        }
    }
    left_out.dedup();
    let declared = ids.clone();
    let mut pairings: Vec<Vec<Pairing>> = Vec::new();
    for id in &declared {
        let cpu = CellId { device: DeviceSelector::cpu(), ..id.clone() };
        let parity = (cpu != *id).then_some((PairingKind::Parity, cpu));
        let baseline = match what.baseline {
            Some(baseline) => baseline.of(id, what.models)?.map(|id| (PairingKind::Baseline, id)),
            None => None,
        };
        let mine = parity.into_iter().chain(baseline);
        let mine: Vec<Pairing> = mine.map(|(kind, reference)| Pairing { kind, reference }).collect();
        for pairing in &mine {
            check(what.builds, &pairing.reference)?;
            if !ids.contains(&pairing.reference) {
                ids.push(pairing.reference.clone());
            }
        }
        pairings.push(mine);
    }
    pairings.resize(ids.len(), Vec::new());
    let arms = ids.into_iter().zip(pairings).map(|(id, pairings)| arm(what, &declared, id, pairings));
    Ok(Declared { arms: ordered(arms.collect())?, left_out })
}

/// The devices of `build` that are under test.
fn devices(what: &Declaring<'_>, build: &Build) -> Result<Vec<DeviceSelector>, RunError> {
    if what.devices.is_empty() {
        let offered: Vec<DeviceSelector> =
            build.probed.devices.iter().map(|device| device.selector.clone()).collect();
        let in_use = build.probed.cpu_variant.as_deref();
        return Ok(matrix::default_devices(&offered, &build.probed.cpu_variants, in_use));
    }
    let mine = |device: &&DeviceSelector| device.build.as_ref().is_none_or(|name| *name == build.info.name);
    let named: Vec<DeviceSelector> =
        what.devices.iter().filter(mine).map(DeviceSelector::without_build).collect();
    named.iter().try_for_each(|device| build.check(device))?;
    Ok(named)
}

fn check(builds: &[Build], id: &CellId) -> Result<(), RunError> {
    match builds.iter().find(|build| build.info.name == id.build) {
        Some(build) => build.check(&id.device),
        None => {
            let names: Vec<&str> = builds.iter().map(|build| build.info.name.as_str()).collect();
            let names = names.join(", ");
            Err(RunError::Environment(format!("arm {id}: no build `{}`; opened: {names}", id.build)))
        }
    }
}

fn arm(what: &Declaring<'_>, declared: &[CellId], id: CellId, pairings: Vec<Pairing>) -> Arm {
    let build = what.builds.iter().find(|build| build.info.name == id.build);
    Arm {
        model: id.case.model.clone(),
        weights: id.case.weights.clone(),
        mode: id.case.mode,
        options: id.case.options,
        build: id.build.clone(),
        device: id.device.clone(),
        device_info: build.and_then(|build| build.device(&id.device)).cloned(),
        declared: declared.contains(&id),
        pairings,
        id,
    }
}

/// Each arm after its references, arms of one model on one device together where that allows it, so that the model is
/// loaded once.
fn ordered(mut left: Vec<Arm>) -> Result<Vec<Arm>, RunError> {
    let mut done: Vec<Arm> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let ready = |arm: &Arm| {
            arm.pairings.iter().all(|pairing| done.iter().any(|other| other.id == pairing.reference))
        };
        let beside = |arm: &Arm| done.last().is_some_and(|last| one_worker(last, arm));
        let next = left.iter().position(|arm| ready(arm) && beside(arm));
        let Some(next) = next.or_else(|| left.iter().position(ready)) else {
            let id = &left[0].id;
            return Err(RunError::Usage(format!(
                "--reference: arm {id} and others are held against each other"
            )));
        };
        done.push(left.remove(next));
    }
    Ok(done)
}

/// Whether one worker can do both: the model on the device.
#[must_use]
pub fn one_worker(a: &Arm, b: &Arm) -> bool {
    let key = |arm: &Arm| (arm.build.clone(), arm.device.clone(), arm.model.clone(), arm.weights.clone());
    key(a) == key(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::models::resolve;

    fn arm(id: &str, references: &[&str]) -> Arm {
        let id: CellId = id.parse().unwrap();
        let pairing = |text: &&str| Pairing { kind: PairingKind::Parity, reference: text.parse().unwrap() };
        Arm {
            model: id.case.model.clone(),
            weights: id.case.weights.clone(),
            mode: id.case.mode,
            options: id.case.options,
            build: id.build.clone(),
            device: id.device.clone(),
            device_info: None,
            declared: true,
            pairings: references.iter().map(pairing).collect(),
            id,
        }
    }

    #[test]
    fn references_come_first_and_arms_of_one_worker_together() {
        let (a, b) = ("m/f32/generate@b:CPU", "m/f32/generate?cache=sparse@b:CPU");
        let (c, d) = ("m/f32/generate@b:Vulkan0", "m/f32/generate?cache=sparse@b:Vulkan0");
        let arms = vec![arm(d, &[b, c]), arm(c, &[a]), arm(b, &[a]), arm(a, &[])];
        let order: Vec<String> = ordered(arms).unwrap().iter().map(|arm| arm.id.to_string()).collect();
        assert_eq!(order, [a, b, c, d]);
        let circle = ordered(vec![arm(a, &[b]), arm(b, &[a])]).unwrap_err().to_string();
        assert!(circle.contains(a) && circle.contains("each other"), "{circle}");
    }

    #[test]
    fn modes_of_masked_models_are_what_steps_take_from_the_cache() {
        let work = tempfile::tempdir().unwrap();
        let (dream, llama) =
            (resolve("gen-dream", work.path()).unwrap(), resolve("gen-llama", work.path()).unwrap());
        let case = |text: &str, model| {
            let mode: ModeSpec = text.parse().unwrap();
            mode.case(model).map(|case| case.map(|case| case.to_string()))
        };
        for (text, id) in [
            ("generate", "gen-dream/f32/generate"),
            ("full", "gen-dream/f32/generate"),
            ("full-cache?kv=f16", "gen-dream/f32/generate?kv=f16&cache=full"),
            ("sparse?keep=1", "gen-dream/f32/generate?cache=sparse&keep=1"),
        ] {
            assert_eq!(case(text, &dream).unwrap().as_deref(), Some(id));
        }
        assert_eq!(case("sparse", &llama).unwrap(), None);
        assert_eq!(case("generate?cache=sparse", &llama).unwrap(), None);
        assert_eq!(
            case("generate?temp=0.5", &llama).unwrap().as_deref(),
            Some("gen-llama/f32/generate?temp=0.5")
        );
        for (text, why) in [
            ("prefill", "mode prefill: a sweep generates; known: generate, and"),
            ("generate?n=7", "mode generate?n=7: option `n`: items say"),
            ("sparse?cache=full", "option"),
            ("generate?keep=1", "means nothing in mode generate"),
        ] {
            let error = case(text, &dream).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!("spares".parse::<ModeSpec>().unwrap_err().to_string().contains("known: full"));
    }

    #[test]
    fn a_baseline_differs_as_told() {
        let work = tempfile::tempdir().unwrap();
        let models =
            [resolve("gen-dream", work.path()).unwrap(), resolve("gen-dream:q8_0", work.path()).unwrap()];
        let of = |given: &[&str], id: &str| {
            let given: Vec<String> = given.iter().map(|&text| text.to_owned()).collect();
            let baseline = Baseline::parse(&given).unwrap().unwrap();
            baseline.of(&id.parse().unwrap(), &models).unwrap().map(|id| id.to_string())
        };
        let sparse = "gen-dream/f32/generate?cache=sparse@b:Vulkan0";
        assert_eq!(of(&["mode=full"], sparse).unwrap(), "gen-dream/f32/generate@b:Vulkan0");
        assert_eq!(of(&["mode=sparse"], sparse), None);
        let q8 = of(&["model=gen-dream:q8_0", "mode=full", "device=CPU@x64"], sparse);
        assert_eq!(q8.unwrap(), "gen-dream/q8_0/generate@b:CPU@x64");
        assert_eq!(of(&["device=CPU@x64"], "gen-dream/f32/generate@b:CPU"), None);
        let other_build = of(&["device=old:CPU"], "gen-dream/f32/generate@b:CPU");
        assert_eq!(other_build.unwrap(), "gen-dream/f32/generate@old:CPU");
        for bad in ["mode", "mode=", "colour=red", "mode=spares", "device=a:b:c+d+e@"] {
            assert!(Baseline::parse(&[bad.to_owned()]).is_err(), "{bad}");
        }
        let twice = Baseline::parse(&["mode=full".to_owned(), "mode=sparse".to_owned()]);
        assert!(twice.unwrap_err().to_string().contains("given twice"));
        assert_eq!(Baseline::parse(&[]).unwrap(), None);
    }
}
