//! The verdict on what a worker found out about its own device.

use super::{Finding, FindingKind, Limits, Status, Verdict};
use crate::capture::{Check, CheckBound};

/// Every check beyond its bound: what, by how much.
fn faults(checks: &[Check], limits: &Limits) -> Vec<Finding> {
    let excess = |check: &Check| {
        let excess = match check.bound {
            CheckBound::Reported => None,
            // A NaN is not 0 either.
            CheckBound::Exact => (check.value != 0.0).then(|| format!("{:.1e}, not 0", check.value)),
            CheckBound::Logits => limits.logits_nmse.excess(check.value),
            CheckBound::Kv => match &limits.kv_nmse {
                Some(bound) => bound.excess(check.value),
                None => Some(format!("{:.1e}, without a limit", check.value)),
            },
        }?;
        let detail = if check.detail.is_empty() { String::new() } else { format!(" ({})", check.detail) };
        Some(Finding::new(FindingKind::Check, check.value, format!("{}: {excess}{detail}", check.name)))
    };
    checks.iter().filter_map(excess).collect()
}

/// `verdict`, made worse by the checks of `who` that are beyond their bounds.
#[must_use]
pub fn with_checks(verdict: Verdict, who: &str, checks: &[Check], limits: &Limits) -> Verdict {
    let faults = faults(checks, limits);
    if faults.is_empty() {
        return verdict;
    }
    let faults = faults.into_iter().map(|fault| Finding { text: format!("{who}{}", fault.text), ..fault });
    let faults: Vec<Finding> = faults.collect();
    let before = (!verdict.reason.is_empty()).then_some(verdict.reason);
    let reasons = before.into_iter().chain(faults.iter().map(|fault| fault.text.clone()));
    let reason = reasons.collect::<Vec<_>>().join("; ");
    let findings = verdict.findings.into_iter().chain(faults).collect();
    Verdict { status: Status::Diverged, reason, findings }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: f64, bound: CheckBound) -> Check {
        Check { name: "restored".to_owned(), value, bound, detail: "step 2".to_owned() }
    }

    fn pass() -> Verdict {
        Verdict::new(Status::Pass, "")
    }

    #[test]
    fn figures_within_their_bounds_change_nothing() {
        let limits = Limits::uniform(1e-9);
        let checks = [
            check(0.0, CheckBound::Exact),
            check(1e-9, CheckBound::Logits),
            check(1e-10, CheckBound::Kv),
            check(0.5, CheckBound::Reported),
            check(f64::NAN, CheckBound::Reported),
        ];
        assert_eq!(with_checks(pass(), "", &checks, &limits), pass());
    }

    #[test]
    fn a_figure_beyond_its_bound_is_a_divergence() {
        let limits = Limits::uniform(1e-9);
        for (value, bound) in [
            (1.0, CheckBound::Exact),
            (f64::NAN, CheckBound::Exact),
            (2e-9, CheckBound::Logits),
            (f64::NAN, CheckBound::Kv),
        ] {
            let verdict = with_checks(pass(), "the reference: ", &[check(value, bound)], &limits);
            assert_eq!(verdict.status, Status::Diverged, "{value} {bound}");
            assert!(verdict.reason.starts_with("the reference: restored: "), "{}", verdict.reason);
            assert!(verdict.reason.ends_with("(step 2)"), "{}", verdict.reason);
        }
    }

    #[test]
    fn what_was_wrong_before_is_still_told() {
        let before = Verdict::new(Status::Fallback, "no work");
        let after = with_checks(before, "", &[check(1.0, CheckBound::Exact)], &Limits::uniform(1e-9));
        assert!(after.reason.starts_with("no work; restored: 1.0e0, not 0"), "{}", after.reason);
    }
}
