//! What is told of a dense sampler, in words: the same in every renderer.

use super::Cell;
use super::format::scientific;
use crate::capture::SamplerCost;
use crate::compare::{SamplerAgreement, SamplerFigures};

/// The figures of a cell's sampler, where it is of one.
pub(super) fn of(cell: &Cell) -> Option<&SamplerFigures> {
    cell.metrics.as_ref()?.sampler.as_ref()
}

/// How one sampler agrees with the reference's.
pub(super) fn agreement(found: &SamplerAgreement, rows: u64) -> String {
    let draws = match (found.near_ties, found.real) {
        (0, 0) => "no draw differs".to_owned(),
        (near, 0) => format!("{near} draws differ, all near ties"),
        (near, real) => format!("{} draws differ, {real} by more than a near tie", near + real),
    };
    format!(
        "argmax differs in {} of {rows} rows, entropy by at most {} nats (mean {}), {draws}",
        found.argmax + found.yields,
        scientific(found.entropy_max),
        scientific(found.entropy_mean)
    )
}

/// What a step costs on the device and on the host, and the ratios.
pub(super) fn cost(cost: &SamplerCost) -> String {
    format!(
        "a step takes {} and moves {} bytes on the device; {} and {} bytes on {} threads of the host: \
         {} of the bytes, {} times as fast",
        seconds(cost.device_seconds),
        cost.device_bytes,
        seconds(cost.host_seconds),
        cost.host_bytes,
        cost.host_threads,
        scientific(1.0 / cost.saved()),
        significant(cost.speed_up())
    )
}

/// Everything of a cell's sampler, part by part.
pub(super) fn parts(found: &SamplerFigures) -> Vec<String> {
    let silent = match found.silent {
        0 => String::new(),
        n => format!(", {n} rows without an answer"),
    };
    let against = if found.oracle { "the f64 oracle" } else { "the reference" };
    let mean = format!("against {against}, mean entropy {:.2} nats{silent}", found.mean_entropy);
    let name = |cost: &SamplerCost| cost.own.clone();
    let own = found.own.as_ref().map(|own| {
        let name = found.cost.as_ref().and_then(name).unwrap_or_else(|| "the backend's own".to_owned());
        let took = found.cost.as_ref().and_then(|cost| cost.own_seconds);
        let took = took.map_or_else(String::new, |took| format!(", {} a step", seconds(took)));
        format!("{name}: {}{took}", agreement(own, found.rows))
    });
    let first = [mean, agreement(&found.graph, found.rows)];
    first.into_iter().chain(found.cost.as_ref().map(cost)).chain(own).collect()
}

/// `1.23 ms`.
pub(super) fn seconds(seconds: f64) -> String {
    if !(seconds < 1.0) {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.2} ms", 1e3 * seconds)
    } else {
        format!("{:.0} us", 1e6 * seconds)
    }
}

/// A ratio to two digits, without an exponent: `0.45`, `3.2`, `210`.
fn significant(ratio: f64) -> String {
    if !(ratio.abs() >= 0.01) {
        return scientific(ratio);
    }
    let digits = if ratio < 1.0 { 2 } else { usize::from(ratio < 10.0) };
    format!("{ratio:.digits$}")
}

#[cfg(test)]
pub(super) mod fixtures {
    use super::*;

    /// Figures of a graph with two near ties and of a backend's own sampler with a mistake.
    pub(in crate::report) fn figures() -> SamplerFigures {
        let graph = SamplerAgreement {
            yields: 0,
            argmax: 0,
            near_ties: 2,
            real: 0,
            entropy_max: 1.5e-6,
            entropy_mean: 2.5e-7,
            entropy_row: None,
            list: Vec::new(),
        };
        SamplerFigures {
            oracle: true,
            rows: 3840,
            silent: 0,
            mean_entropy: 1.75,
            own: Some(SamplerAgreement { argmax: 1, near_ties: 0, real: 3, ..graph.clone() }),
            graph,
            cost: Some(SamplerCost {
                device_seconds: 0.002,
                host_seconds: 0.5,
                fetch_seconds: 0.125,
                host_threads: 15,
                device_bytes: 4096,
                host_bytes: 1 << 28,
                scan: "cumsum".to_owned(),
                own: Some("ggml_backend_test_diffusion_sample".to_owned()),
                own_seconds: Some(0.000_5),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_told_with_its_ratio() {
        insta::assert_snapshot!(parts(&fixtures::figures()).join("\n"), @r"
        against the f64 oracle, mean entropy 1.75 nats
        argmax differs in 0 of 3840 rows, entropy by at most 1.5e-6 nats (mean 2.5e-7), 2 draws differ, all near ties
        a step takes 2.00 ms and moves 4096 bytes on the device; 500.00 ms and 268435456 bytes on 15 threads of the host: 1.5e-5 of the bytes, 250 times as fast
        ggml_backend_test_diffusion_sample: argmax differs in 1 of 3840 rows, entropy by at most 1.5e-6 nats (mean 2.5e-7), 3 draws differ, 3 by more than a near tie, 500 us a step
        ");
    }

    #[test]
    fn ratios_and_times_are_readable_at_every_size() {
        assert_eq!(
            [0.45, 3.24, 42.4, 210.0, f64::INFINITY].map(significant),
            ["0.45", "3.2", "42", "210", "inf"]
        );
        assert_eq!([significant(1e-4), significant(f64::NAN)], ["1.0e-4", "nan"]);
        assert_eq!([1.5, 0.002, 0.000_02].map(seconds), ["1.50 s", "2.00 ms", "20 us"]);
    }
}
