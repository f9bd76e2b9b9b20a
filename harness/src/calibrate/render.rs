//! What a calibration is written as: `calibrated.toml` for `--tolerances`, a table for people, JSON for machines.

use super::Calibration;
use super::floor::{Floor, Measured};
use super::propose::{LEAST, Proposal};
use super::samples::Metric;
use crate::verdict::Tolerances;
use std::fmt::Write;

/// A table of tolerances: the proposed rows, each with its figures, before those in use, which hold what was not
/// measured.
#[must_use]
pub fn tolerances(found: &Calibration, in_use: &Tolerances) -> String {
    let mut text = format!(
        "# Limits proposed by `{}`, {}, ggml-parity {}.\n# {}.\n#\n# {}\n# To be reviewed by a person: a limit says what is a fault, and a machine's noise is not the only measure.\n\n",
        found.run.command.replace('\n', " "),
        found.run.started,
        found.run.version,
        devices(found),
        rule(found)
    );
    for metric in Metric::ALL {
        for proposal in found.proposals.iter().filter(|proposal| proposal.metric == *metric) {
            text.push_str(&row(proposal, found.factor));
        }
    }
    text.push_str("# What was not measured: the limits in use.\n\n");
    text.push_str(&in_use.to_toml());
    text
}

fn rule(found: &Calibration) -> String {
    format!(
        "Each limit: {} x the largest figure, rounded up to one digit, at least {LEAST:e}. {} draws of tokens, the first one {} times.",
        found.factor, found.seeds, found.repeats
    )
}

fn devices(found: &Calibration) -> String {
    let builds: Vec<&str> = found.environment.builds.iter().map(|build| build.name.as_str()).collect();
    let devices: Vec<String> = found
        .environment
        .devices
        .iter()
        .map(|device| format!("{} ({})", device.selector, device.description))
        .collect();
    format!("{}: {}", builds.join(", "), devices.join(", "))
}

fn row(proposal: &Proposal, factor: f64) -> String {
    let Measured { samples, max, p99, p50, pairs, worst } = &proposal.measured;
    let table = match proposal.metric {
        Metric::Logits => "logits_nmse",
        Metric::Kv => "kv_nmse",
    };
    let pairs: Vec<String> = pairs.iter().map(|(pair, most)| format!("{pair} {:.1e}", most.0)).collect();
    let mut text = format!(
        "# {samples} samples: max {max:.1e}, p99 {p99:.1e}, median {p50:.1e}; {}.\n# The largest: {worst}.\n",
        pairs.join(", ")
    );
    let Some(limit) = proposal.limit else {
        return format!(
            "{text}# NO LIMIT FOLLOWS: a figure was no number. In use is {:e}.\n\n",
            proposal.in_use
        );
    };
    let against = if proposal.is_above() { "ABOVE THE LIMIT IN USE," } else { "the limit in use is" };
    let _ = writeln!(text, "# {against} {:e}.", proposal.in_use);
    let rounded = if limit > LEAST { "rounded up" } else { "at least 1e-12" };
    let _ = write!(
        text,
        "[[{table}]]\nweights = \"{}\"\nkv = \"{}\"\ndevice = \"{}\"\nlimit = {limit:e}\nreason = \"calibrate: {factor} x {max:.1e} of {samples} samples, {rounded}\"\n\n",
        proposal.weights, proposal.kv, proposal.device
    );
    text
}

/// The calibration as Markdown.
#[must_use]
pub fn markdown(found: &Calibration) -> String {
    let mut text = format!(
        "# Noise floors\n\n`{}`, {}, {:.0} s.\n\n{}.\n\n{}\n\n",
        found.run.command,
        found.run.started,
        found.run.seconds,
        devices(found),
        rule(found)
    );
    let steady = &found.steadiness;
    let _ = writeln!(
        text,
        "{} cells were judged under the limits in use: {} alarms. {} figures were measured more than once: {} changed, by a factor of at most {:.3}.\n",
        found.judged,
        found.alarms.len(),
        steady.repeated,
        steady.changing,
        steady.spread
    );
    for alarm in &found.alarms {
        let _ = writeln!(
            text,
            "- **{}** `{}`, draw {}, repeat {}: {}\n\n      {}\n",
            alarm.status, alarm.cell, alarm.seed, alarm.repeat, alarm.reason, alarm.rerun
        );
    }
    text.push_str("## Proposed limits\n\n| table | weights | kv | device | limit | in use | samples | max | p99 | median | the largest |\n");
    text.push_str("| --- | --- | --- | --- | --: | --: | --: | --: | --: | --: | --- |\n");
    for proposal in &found.proposals {
        let limit = proposal.limit.map_or("none".to_owned(), |limit| format!("{limit:e}"));
        let above = if proposal.is_above() { " **above**" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {limit}{above} | {:e} | {} |",
            proposal.metric,
            proposal.weights,
            proposal.kv,
            proposal.device,
            proposal.in_use,
            figures(&proposal.measured)
        );
    }
    text.push_str("\n## Floors\n\n| metric | weights | kv | attention | mode | columns | device | samples | max | p99 | median | the largest |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --: | --: | --: | --: | --- |\n");
    for Floor { place, metric, measured } in &found.floors {
        let _ = writeln!(
            text,
            "| {metric} | {} | {} | {} | {} | {} | {} | {} |",
            place.weights,
            place.kv,
            place.attn,
            place.mode,
            place.shape,
            place.device,
            figures(measured)
        );
    }
    if !found.unsupported.is_empty() {
        let _ = writeln!(text, "\n## Not measured: unsupported\n");
        found.unsupported.iter().for_each(|cell| {
            let _ = writeln!(text, "- {cell}");
        });
    }
    text
}

fn figures(measured: &Measured) -> String {
    let Measured { samples, max, p99, p50, worst, .. } = measured;
    format!("{samples} | {max:.1e} | {p99:.1e} | {p50:.1e} | `{worst}`")
}

/// The calibration as JSON, indented, with a final newline.
///
/// # Panics
/// Never: it has string keys and no foreign types.
#[must_use]
pub fn json(found: &Calibration) -> String {
    let mut text = serde_json::to_string_pretty(found).expect("plain data");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::floor::{floors, steadiness};
    use crate::calibrate::propose::{FACTOR, proposals};
    use crate::calibrate::samples::{Pair, Place, Sample};
    use crate::calibrate::{SCHEMA, Steadiness};
    use crate::capture::DeviceKind;
    use crate::plan::{Case, CellId};
    use crate::report::{Environment, Run};
    use crate::verdict::{DeviceClass, Key, WeightClass};

    fn sample(case: &str, class: DeviceClass, value: f64, repeat: u32) -> Sample {
        let cell: CellId = format!("{case}@b:Vulkan0").parse().unwrap();
        let case = &cell.case;
        Sample {
            place: Place {
                weights: WeightClass::of(&case.weights).unwrap(),
                kv: case.options.kv,
                attn: case.options.attn,
                mode: case.mode,
                shape: "33-128",
                class,
                device: "b:Vulkan0".to_owned(),
            },
            metric: Metric::Logits,
            pair: Pair::DeviceReference,
            value,
            cell: cell.clone(),
            seed: 0,
            repeat,
            in_use: 3e-5,
        }
    }

    fn calibration() -> Calibration {
        let samples = [
            sample("m/f32/full", DeviceClass::Gpu, 3.2e-6, 0),
            sample("m/f32/full", DeviceClass::Gpu, 3.3e-6, 1),
            sample("m/f32/prefill?kv=f16", DeviceClass::Gpu, 9e-6, 0),
            sample("m/q8_0/prefill", DeviceClass::Cpu, f64::NAN, 0),
        ];
        Calibration {
            schema: SCHEMA,
            run: Run {
                command: "ggml-parity calibrate".to_owned(),
                started: "2026-11-29T00:00:00Z".to_owned(),
                version: "0.1.0".to_owned(),
                ..Run::default()
            },
            environment: Environment::default(),
            seeds: 1,
            repeats: 2,
            factor: FACTOR,
            judged: 4,
            alarms: Vec::new(),
            unsupported: vec!["m/f32/decode@b:Vulkan0: no such op".to_owned()],
            steadiness: steadiness(&samples),
            floors: floors(&samples),
            proposals: proposals(&samples, FACTOR),
        }
    }

    #[test]
    fn the_proposed_table_is_one_that_is_read_and_what_was_not_measured_stays() {
        let text = tolerances(&calibration(), &Tolerances::embedded());
        let read: Tolerances = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let limit = |table: &Tolerances, case: &str, kind| {
            let case: Case = case.parse().unwrap();
            table.limits(&Key::new(&case, kind).unwrap()).unwrap().logits_nmse.limit
        };
        let shipped = Tolerances::embedded();
        assert_eq!(limit(&read, "m/f32/decode", DeviceKind::Gpu), 2e-5);
        assert_eq!(limit(&read, "m/f32/decode?kv=f16", DeviceKind::Gpu), 5e-5);
        for (case, kind) in [
            ("m/f32/decode", DeviceKind::Cpu),
            ("m/q8_0/prefill", DeviceKind::Cpu),
            ("m/f16/full", DeviceKind::Gpu),
        ] {
            assert_eq!(limit(&read, case, kind), limit(&shipped, case, kind), "{case}");
        }
    }

    #[test]
    fn renderings_are_as_they_were() {
        let found = calibration();
        let whole = tolerances(&found, &Tolerances::embedded());
        let proposed = whole.split("# What was not measured").next().unwrap();
        insta::assert_snapshot!("calibrated_toml", proposed);
        insta::assert_snapshot!("calibrate_md", markdown(&found));
        let document: serde_json::Value = serde_json::from_str(&json(&found)).unwrap();
        assert_eq!(document["proposals"][2]["max"], "nan");
        assert_eq!(document["floors"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn repeats_that_differ_are_counted() {
        let found = calibration().steadiness;
        assert_eq!((found.repeated, found.changing), (1, 1));
        assert!((found.spread - 3.3 / 3.2).abs() < 1e-12);
        let same =
            [sample("m/f32/full", DeviceClass::Gpu, 1.0, 0), sample("m/f32/full", DeviceClass::Gpu, 1.0, 1)];
        assert_eq!(steadiness(&same), Steadiness { repeated: 1, changing: 0, spread: 1.0 });
    }
}
