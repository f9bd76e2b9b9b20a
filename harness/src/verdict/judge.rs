//! The verdict on one cell: its status and, where it is not good, what is wrong, where and by how much.

use super::finding::{Finding, words};
use super::{Limits, Status, figures, placing};
use crate::capture::Placement;
use crate::compare::{CompareError, Metrics};

/// A status, its reason and what it rests on; a pass has a reason only where the oracle overruled the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What became of the cell.
    pub status: Status,
    /// Why, in words and figures.
    pub reason: String,
    /// What is wrong, one by one, where captures were there to be judged.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// A verdict that rests on no figures.
    pub fn new(status: Status, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), findings: Vec::new() }
    }
}

impl From<CompareError> for Verdict {
    /// Captures that cannot be compared have diverged.
    fn from(error: CompareError) -> Self {
        let findings = vec![Finding::unforgivable(error.to_string())];
        Self { findings, ..Self::new(Status::Diverged, error.to_string()) }
    }
}

/// Judges a cell that ran: its figures first, then where its work was placed.
pub fn judge(metrics: &Metrics, placement: &Placement, limits: &Limits, device_is_cpu: bool) -> Verdict {
    let mut findings = figures::faults(metrics, limits);
    let placed = if device_is_cpu {
        placing::cpu_fault(placement).map(Finding::unforgivable)
    } else {
        placing::device_fault(placement, limits.fallback_nodes)
    };
    let status = match (findings.is_empty(), &placed) {
        (false, _) => Status::Diverged,
        (true, Some(_)) => Status::Fallback,
        (true, None) => Status::Pass,
    };
    findings.extend(placed);
    let reason = words(&findings).collect::<Vec<_>>().join("; ");
    Verdict { status, reason, findings }
}

/// Judges the figures alone, where nothing is known of a placement: a capture of another runtime.
pub fn judge_figures(metrics: &Metrics, limits: &Limits) -> Verdict {
    let findings = figures::faults(metrics, limits);
    let status = if findings.is_empty() { Status::Pass } else { Status::Diverged };
    let reason = words(&findings).collect::<Vec<_>>().join("; ");
    Verdict { status, reason, findings }
}

/// What is wrong with the placement of a reference: every compute node must be on the CPU, and there must be
/// some. A reference with a fault makes every cell that is compared with it red.
pub fn reference_fault(placement: &Placement) -> Option<Verdict> {
    let reason = format!("the reference is no CPU reference: {}", placing::cpu_fault(placement)?);
    let findings = vec![Finding::unforgivable(reason.clone())];
    Some(Verdict { findings, ..Verdict::new(Status::Fallback, reason) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{BackendNodes, Fallback, sample::Sample};
    use crate::compare::compare;

    fn placement(backends: &[(&str, u64)]) -> Placement {
        let backends = backends.iter().map(|&(name, compute_nodes)| BackendNodes {
            name: name.to_owned(),
            compute_nodes,
            view_nodes: 7,
            ops: [("GET_ROWS f32".to_owned(), compute_nodes)].into(),
        });
        Placement { graphs: 1, splits: 1, backends: backends.collect(), ..Placement::default() }
    }

    fn metrics() -> Metrics {
        let sample = Sample::new(4, 16);
        let (mut reference, mut test) = (sample.open(), sample.open());
        compare(&mut reference, &mut test, &Limits::uniform(1e-9)).unwrap()
    }

    fn verdict(backends: &[(&str, u64)], fallback_nodes: Option<u64>, device_is_cpu: bool) -> Verdict {
        let limits = Limits { fallback_nodes, ..Limits::uniform(1e-9) };
        judge(&metrics(), &placement(backends), &limits, device_is_cpu)
    }

    #[test]
    fn work_where_it_belongs_passes() {
        assert_eq!(verdict(&[("CPU", 90)], Some(0), true).status, Status::Pass);
        let verdict = verdict(&[("Vulkan0", 90), ("CPU", 0)], Some(0), false);
        assert_eq!((verdict.status, verdict.reason.as_str()), (Status::Pass, ""));
    }

    #[test]
    fn a_device_without_work_fails_even_without_a_limit() {
        let verdict = verdict(&[("Vulkan0", 0), ("CPU", 90)], None, false);
        assert_eq!(verdict.status, Status::Fallback);
        assert_eq!(verdict.reason, "the selected device got none of 90 compute nodes");
    }

    #[test]
    fn no_node_at_all_fails() {
        assert_eq!(verdict(&[], None, false).status, Status::Fallback);
        assert_eq!(verdict(&[("CPU", 0)], None, true).status, Status::Fallback);
    }

    #[test]
    fn fallbacks_are_counted_and_named() {
        let backends = &[("Vulkan0", 88), ("CPU", 2)];
        assert_eq!(verdict(backends, Some(2), false).status, Status::Pass);
        assert_eq!(verdict(backends, None, false).status, Status::Pass);
        let counted = verdict(backends, Some(0), false);
        assert_eq!(counted.status, Status::Fallback);
        let start = "2 of 90 compute nodes fell back to the CPU (limit 0): ";
        assert_eq!(counted.reason, format!("{start}GET_ROWS f32 x2"));

        let mut listed = placement(backends);
        listed.fallbacks = vec![Fallback { op: "ROPE f32".into(), node: "q-0".into(), count: 2 }];
        let verdict = judge(&metrics(), &listed, &Limits::uniform(1e-9), false);
        assert_eq!(verdict.reason, format!("{start}ROPE f32 x2 (q-0)"));
    }

    #[test]
    fn work_that_was_pinned_to_the_cpu_is_no_fallback() {
        let verdict = |backends: &[(&str, u64)], pinned: u64| {
            let pinned = [("MUL_MAT@1".parse().unwrap(), pinned)].into();
            judge(&metrics(), &Placement { pinned, ..placement(backends) }, &Limits::uniform(1e-9), false)
        };
        assert_eq!(verdict(&[("Vulkan0", 88), ("CPU", 2)], 2).status, Status::Pass);
        assert_eq!(verdict(&[("Vulkan0", 0), ("CPU", 90)], 90).status, Status::Pass);
        let beyond = verdict(&[("Vulkan0", 87), ("CPU", 3)], 2);
        assert_eq!(beyond.status, Status::Fallback);
        assert!(beyond.reason.starts_with("1 of 90 compute nodes fell back"), "{}", beyond.reason);
    }

    #[test]
    fn a_reference_off_the_cpu_fails() {
        assert_eq!(reference_fault(&placement(&[("CPU", 90)])), None);
        let fault = reference_fault(&placement(&[("CPU", 89), ("BLAS", 1)])).unwrap();
        assert_eq!(fault.status, Status::Fallback);
        assert!(fault.reason.ends_with("1 of 90 compute nodes off the CPU: 1 on BLAS"), "{}", fault.reason);
        assert_eq!(verdict(&[("CPU", 89), ("BLAS", 1)], None, true).status, Status::Fallback);
    }

    #[test]
    fn divergence_counts_before_fallback_and_both_are_told() {
        let mut metrics = metrics();
        metrics.logits.overall = 1e-3;
        let verdict = judge(&metrics, &placement(&[("CPU", 3)]), &Limits::uniform(1e-9), false);
        assert_eq!(verdict.status, Status::Diverged);
        assert!(verdict.reason.starts_with("logits NMSE 1.0e-3 > 1e-9, worst row "), "{}", verdict.reason);
        assert!(verdict.reason.ends_with("; the selected device got none of 3 compute nodes"));
    }
}
