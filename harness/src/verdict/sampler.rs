//! What is wrong with a sampler, in words.

use super::{Finding, FindingKind, Limits};
use crate::compare::{Metrics, SamplerAgreement, SamplerPart};

/// Every figure of the samplers beyond its limit: of the graph of ggml, and of what the backend brings.
pub(super) fn faults(metrics: &Metrics, limits: &Limits) -> Vec<Finding> {
    let Some(found) = &metrics.sampler else {
        return match limits.sampler {
            Some(_) => {
                vec![Finding::unforgivable("the sampler was to be compared, but the captures hold none")]
            }
            None => Vec::new(),
        };
    };
    let own = found.cost.as_ref().and_then(|cost| cost.own.as_deref()).unwrap_or("the backend's own sampler");
    let graph = of(&found.graph, found.rows, "", limits);
    let own = found.own.iter().flat_map(|agreement| of(agreement, found.rows, &format!("{own}: "), limits));
    graph.into_iter().chain(own).collect()
}

fn of(found: &SamplerAgreement, rows: u64, who: &str, limits: &Limits) -> Vec<Finding> {
    let Some(limits) = &limits.sampler else {
        return vec![Finding::unforgivable("the sampler was compared without a limit")];
    };
    let mut findings = Vec::new();
    let first = |part: SamplerPart| {
        let first = found.list.iter().find(|difference| difference.part == part);
        first.map_or_else(String::new, |d| {
            format!(", first in row {} (step {}): {} for {}", d.place.row, d.place.step, d.test, d.reference)
        })
    };
    let differ = found.yields + found.argmax;
    if differ > limits.argmax {
        let yields = match found.yields {
            0 => String::new(),
            n => format!(" ({n} of which one arm says nothing of{})", first(SamplerPart::Yields)),
        };
        let first = first(SamplerPart::Argmax);
        let limit = limits.argmax;
        let text = format!("{who}another argmax in {differ} of {rows} rows > {limit}{yields}{first}");
        findings.push(Finding::new(FindingKind::SamplerArgmax, differ as f64, text));
    }
    if let Some(excess) = limits.entropy.excess(found.entropy_max) {
        let at =
            found.entropy_row.map_or_else(String::new, |at| format!(" in row {} (step {})", at.row, at.step));
        let text = format!("{who}entropy off by {excess}{at}, {:.1e} in the mean", found.entropy_mean);
        findings.push(Finding::new(FindingKind::SamplerEntropy, found.entropy_max, text));
    }
    if found.real > limits.real {
        let (real, limit) = (found.real, limits.real);
        let text = format!(
            "{who}{real} draws of {rows} differ by more than a near tie > {limit}{}",
            first(SamplerPart::Sampled)
        );
        findings.push(Finding::new(FindingKind::SamplerDraws, real as f64, text));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{RowPlace, SamplerDifference};
    use crate::verdict::{Bound, SamplerLimits};

    fn limits() -> Limits {
        let entropy = Bound::new(2e-4, "");
        let sampler = SamplerLimits { argmax: 0, entropy, real: 0 };
        Limits { sampler: Some(sampler), ..Limits::uniform(1e-9) }
    }

    fn agreement() -> SamplerAgreement {
        SamplerAgreement {
            yields: 0,
            argmax: 0,
            near_ties: 3,
            real: 0,
            entropy_max: 1e-4,
            entropy_mean: 1e-5,
            entropy_row: None,
            list: Vec::new(),
        }
    }

    fn said(found: &SamplerAgreement, limits: &Limits) -> Vec<(FindingKind, String)> {
        of(found, 8, "", limits).into_iter().map(|f| (f.figure, f.text)).collect()
    }

    #[test]
    fn near_ties_are_no_fault_and_everything_else_is_named() {
        assert!(said(&agreement(), &limits()).is_empty());
        let place = RowPlace { row: 5, position: 5, step: 2 };
        let difference = |part| SamplerDifference { place, part, reference: 3, test: 4 };
        let wrong = SamplerAgreement {
            yields: 1,
            argmax: 1,
            real: 2,
            entropy_max: f64::NAN,
            entropy_row: Some(place),
            list: vec![difference(SamplerPart::Argmax), difference(SamplerPart::Sampled)],
            ..agreement()
        };
        let said = said(&wrong, &limits());
        let kinds: Vec<FindingKind> = said.iter().map(|(kind, _)| *kind).collect();
        use FindingKind::*;
        assert_eq!(kinds, [SamplerArgmax, SamplerEntropy, SamplerDraws]);
        assert!(said[0].1.starts_with("another argmax in 2 of 8 rows > 0 (1 of which"), "{}", said[0].1);
        assert!(said[1].1.starts_with("entropy off by NaN > 2e-4 in row 5 (step 2)"), "{}", said[1].1);
        assert!(said[2].1.ends_with("first in row 5 (step 2): 4 for 3"), "{}", said[2].1);
    }

    #[test]
    fn a_sampler_without_a_limit_is_red() {
        let without = Limits { sampler: None, ..limits() };
        assert_eq!(said(&agreement(), &without)[0].0, FindingKind::Unforgivable);
    }
}
