//! The calibration matrix: the cases of a gate, and beside each the variations that move the noise floor.

use super::matrix::{self, Row};
use super::models::ResolvedModel;
use super::{Case, Mode, Options};

/// Variations of every case, as ids write them. A case takes those that mean something to it.
const VARIATIONS: &[&str] = &[
    "",
    "n=7",
    "n=129",
    "threads=2",
    "ub=7",
    "attn=flash",
    "kv=f16",
    "kv=q8_0",
    "kv=q4_0",
    "attn=flash&kv=f16",
    "attn=flash&kv=q8_0",
    "attn=flash&kv=q4_0",
];

/// `rows` with the variations of each case, one row for each model and mode. A row with options of its own keeps them
/// as they are, and so does everything where `plain` is set.
///
/// # Panics
/// Never: a test reads the variations.
#[must_use]
pub fn vary(rows: Vec<Row>, models: &[ResolvedModel], plain: bool) -> Vec<Row> {
    let mut varied: Vec<Row> = Vec::new();
    for row in rows {
        let Some(model) = models.iter().find(|model| model.given == row.model) else { continue };
        let modes = if row.modes.is_empty() { matrix::default_modes(model) } else { row.modes.clone() };
        // Of a sampler no noise is measured: it computes on logits that every arm has alike.
        let noisy = |mode: &Mode| *mode != Mode::Sampler && matrix::has_mode(model, *mode);
        for mode in modes.into_iter().filter(noisy) {
            let own = plain || row.options != [Options::default()];
            let options = if own { row.options.clone() } else { variations(model, mode) };
            // What is made of a row stands in no file.
            varied.push(Row { modes: vec![mode], options, place: None, ..row.clone() });
        }
    }
    varied
}

/// The variations that mean something to a model in a mode.
fn variations(model: &ResolvedModel, mode: Mode) -> Vec<Options> {
    let all = VARIATIONS.iter().map(|text| text.parse::<Options>().expect("the variations are valid"));
    let default = Options::default();
    let in_steps = matches!(mode, Mode::Sparse | Mode::Decode | Mode::Generate | Mode::Speculative);
    let masked = model.model.hparams.architecture.is_diffusion() || model.model.hparams.block.is_some();
    let means = |options: &Options| {
        // Models that start from a text have no other length; without a cache nothing is stored.
        (options.n.is_none() || model.settings.prompts.is_empty())
            && (options.kv == default.kv || !(mode == Mode::Full || masked && mode == Mode::Generate))
            && (options.ub.is_none() || !masked)
            // The order of sums by threads is that of one pass; steps add time alone.
            && (options.threads.is_none() || !in_steps)
            && Case { model: String::new(), weights: String::new(), mode, options: *options }.check().is_ok()
    };
    all.filter(means).collect()
}

/// The size class of the widest matrix product of a case, in columns: each has kernels of its own on some backend.
#[must_use]
pub fn shape_class(mode: Mode, masked: bool, options: &Options, length: usize) -> &'static str {
    let columns = match mode {
        Mode::Decode => 1,
        Mode::Generate if !masked => 1,
        Mode::Batch => length - length * 2 / 3,
        _ => options.ub.map_or(length, |n| length.min(n as usize)),
    };
    match columns {
        0 | 1 => "1",
        2..=8 => "2-8",
        9..=32 => "9-32",
        33..=128 => "33-128",
        _ => "129-",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Gate;
    use crate::plan::models::resolve;

    #[test]
    fn variations_mean_something_to_every_case_of_the_default_gate() {
        let work = tempfile::tempdir().unwrap();
        let quick = Gate::embedded().preset(Some("quick")).unwrap().rows.clone();
        let models: Vec<ResolvedModel> =
            quick.iter().map(|row| resolve(&row.model, work.path()).unwrap()).collect();
        let rows = vary(quick.clone(), &models, false);
        let of = |model: &str, mode| rows.iter().find(|r| r.model == model && r.modes == [mode]).unwrap();
        assert_eq!(of("gen-llama", Mode::Prefill).options.len(), VARIATIONS.len());
        assert_eq!(of("gen-llama", Mode::Decode).options.len(), VARIATIONS.len() - 1);
        let text = |row: &Row| row.options.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(of("gen-dream", Mode::Full)), ["", "n=7", "n=129", "threads=2", "attn=flash"]);
        assert_eq!(text(of("dream-arith", Mode::Generate)), ["", "attn=flash"]);
        for row in &rows {
            let model = models.iter().find(|model| model.given == row.model).unwrap();
            row.options.iter().for_each(|&o| matrix::case(model, row.modes[0], o).check().unwrap());
        }
        let plain = vary(quick, &models, true);
        assert_eq!(plain.iter().map(|row| row.options.len()).sum::<usize>(), 18);
    }

    #[test]
    fn size_classes_are_those_of_the_widest_product() {
        let class = |mode, options: &str, length| shape_class(mode, false, &options.parse().unwrap(), length);
        assert_eq!(class(Mode::Decode, "", 33), "1");
        assert_eq!(class(Mode::Prefill, "", 33), "33-128");
        assert_eq!(class(Mode::Prefill, "ub=7", 33), "2-8");
        assert_eq!(class(Mode::Batch, "", 33), "9-32");
        assert_eq!(class(Mode::Prefill, "n=129", 129), "129-");
        assert_eq!(shape_class(Mode::Generate, true, &Options::default(), 40), "33-128");
    }
}
