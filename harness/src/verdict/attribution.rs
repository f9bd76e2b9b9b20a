//! Attribution: which arm is off, seen from the oracle. Where the oracle is present, it decides.

use super::finding::{Finding, FindingKind, words};
use super::{Limits, Status, Verdict, figures};
use crate::compare::Metrics;
use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named_enum! {
    /// Which arm is off, seen from the oracle.
    pub enum Arm as "attribution" {
        /// Only the device under test.
        Device = "device off",
        /// Only the reference.
        Reference = "reference off",
        /// Both.
        Both = "both off",
        /// Neither.
        Agree = "agree",
    }
}

/// Each arm against the oracle.
///
/// An arm is off when any figure exceeds the limit that the cell has for it: NMSE of all logits, of the worst row, of
/// K or V of a layer, a real top-token mismatch, a value that is not finite. The oracle's cache
/// rounds as the case's K/V type does, so what storing costs is no fault of an arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attribution {
    /// Which arm exceeds the cell's limits.
    pub verdict: Arm,
    /// Logits NMSE of the reference against the oracle; 0 where the oracle itself is the reference.
    #[serde(with = "crate::figure::Figure")]
    pub reference_nmse: f64,
    /// Logits NMSE of the device against the oracle.
    #[serde(with = "crate::figure::Figure")]
    pub device_nmse: f64,
    /// K/V NMSE of the reference against the oracle, the worst layer.
    #[serde(default, with = "crate::figure::MaybeFigure")]
    pub reference_kv_nmse: Option<f64>,
    /// K/V NMSE of the device against the oracle, the worst layer.
    #[serde(default, with = "crate::figure::MaybeFigure")]
    pub device_kv_nmse: Option<f64>,
}

/// Attributes a cell. `reference` and `device` are each arm's figures against the oracle (no reference where the
/// oracle is it), `judged` is the verdict on the device against the reference, `on_oracle` that against the oracle.
///
/// The cell has diverged where the device is off. Where only the reference is, the device is held to the oracle
/// alone, and the reason says so. Where neither is, the verdict stays, but for distances between the arms: two that are
/// each within a limit of the truth, on either side of it, may be further from each other than that.
#[must_use]
pub fn attribute(
    reference: Option<&Metrics>,
    device: &Metrics,
    limits: &Limits,
    judged: Verdict,
    on_oracle: Verdict,
) -> (Attribution, Verdict) {
    let reference_faults = reference.map(|metrics| figures::faults(metrics, limits)).unwrap_or_default();
    let device_faults = figures::faults(device, limits);
    let arm = match (reference_faults.is_empty(), device_faults.is_empty()) {
        (true, true) => Arm::Agree,
        (true, false) => Arm::Device,
        (false, true) => Arm::Reference,
        (false, false) => Arm::Both,
    };
    let kv = |metrics: &Metrics| metrics.kv.as_ref().map(|kv| kv.worst.nmse);
    let attribution = Attribution {
        verdict: arm,
        reference_nmse: reference.map_or(0.0, |metrics| metrics.logits.overall),
        device_nmse: device.logits.overall,
        reference_kv_nmse: reference.and_then(kv),
        device_kv_nmse: kv(device),
    };
    let told = |who: &str, faults: &[Finding]| {
        format!("{who} against the oracle: {}", words(faults).collect::<Vec<_>>().join(", "))
    };
    let off = match arm {
        Arm::Agree => return (attribution, without_distances(judged)),
        Arm::Device => format!("device off: {}", told("the device", &device_faults)),
        Arm::Reference => format!("reference off: {}", told("the reference", &reference_faults)),
        Arm::Both => format!(
            "both off: {}, {}",
            told("the reference", &reference_faults),
            told("the device", &device_faults)
        ),
    };
    // What the reference does is not the device's: of its faults only the words are kept.
    let (status, before, findings) = match arm {
        Arm::Reference => (on_oracle.status, on_oracle.reason, on_oracle.findings),
        _ => (Status::Diverged, judged.reason, device_faults.into_iter().chain(judged.findings).collect()),
    };
    let reason = if before.is_empty() { off } else { format!("{off}; {before}") };
    (attribution, Verdict { status, reason, findings })
}

/// The verdict of arms that are both right: how far they are apart is told and not held against the device.
fn without_distances(judged: Verdict) -> Verdict {
    let distance = |finding: &Finding| {
        use FindingKind::{BeforeStoring, Kv, Logits, Row};
        matches!(finding.figure, Logits | Row | Kv | BeforeStoring)
    };
    if judged.status != Status::Diverged
        || judged.findings.is_empty()
        || !judged.findings.iter().all(distance)
    {
        return judged;
    }
    let reason =
        format!("both arms are within the limits of the oracle, though not of each other: {}", judged.reason);
    Verdict::new(Status::Pass, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::sample::Sample;
    use crate::compare::compare;

    /// The figures of a copy with noise of `size` against the sample.
    fn metrics(size: f32) -> Metrics {
        let sample = Sample::new(4, 16);
        compare(&mut sample.open(), &mut sample.with_noise(size).open(), &Limits::uniform(1e-9)).unwrap()
    }

    fn verdict(status: Status, reason: &str) -> Verdict {
        Verdict::new(status, reason)
    }

    /// What becomes of a cell that has `judged` when its arms have noise of these sizes.
    fn cell(reference: f32, device: f32, judged: Verdict) -> (Arm, Verdict) {
        let (reference, device) = (metrics(reference), metrics(device));
        let pass = verdict(Status::Pass, "");
        let (found, verdict) = attribute(Some(&reference), &device, &Limits::uniform(1e-9), judged, pass);
        // As bits: a NaN is equal to nothing.
        assert_eq!(found.reference_nmse.to_bits(), reference.logits.overall.to_bits());
        let worst = device.kv.map(|kv| kv.worst.nmse.to_bits());
        assert_eq!(found.device_kv_nmse.map(f64::to_bits), worst);
        (found.verdict, verdict)
    }

    #[test]
    fn arms_that_agree_leave_the_verdict_as_it_is() {
        let diverged = verdict(Status::Diverged, "greedy");
        assert_eq!(cell(0.0, 1e-6, diverged.clone()), (Arm::Agree, diverged));
    }

    #[test]
    fn arms_on_either_side_of_the_oracle_pass_unless_more_than_their_distance_is_wrong() {
        let apart = |kinds: &[FindingKind]| {
            let findings = kinds.iter().map(|&kind| Finding::new(kind, 4e-3, kind.to_string())).collect();
            Verdict { status: Status::Diverged, reason: "logits NMSE 4e-3 > 3e-3".to_owned(), findings }
        };
        let (arm, found) = cell(1e-6, 1e-6, apart(&[FindingKind::Logits, FindingKind::Row, FindingKind::Kv]));
        assert_eq!((arm, found.status, found.findings.len()), (Arm::Agree, Status::Pass, 0));
        assert!(
            found.reason.ends_with("though not of each other: logits NMSE 4e-3 > 3e-3"),
            "{}",
            found.reason
        );
        for kind in
            [FindingKind::Greedy, FindingKind::Mismatches, FindingKind::NonFinite, FindingKind::Unforgivable]
        {
            let judged = apart(&[FindingKind::Logits, kind]);
            assert_eq!(cell(1e-6, 1e-6, judged.clone()), (Arm::Agree, judged));
        }
        // A device that is off is so beside a reference that is not.
        let (arm, found) = cell(1e-6, 0.1, apart(&[FindingKind::Logits]));
        assert_eq!((arm, found.status), (Arm::Device, Status::Diverged));
    }

    #[test]
    fn a_device_that_is_off_has_diverged_even_where_the_reference_agrees_with_it() {
        let (arm, found) = cell(0.1, 0.1, verdict(Status::Pass, ""));
        assert_eq!((arm, found.status), (Arm::Both, Status::Diverged));
        assert!(found.reason.starts_with("both off: the reference against the oracle: logits NMSE "));
        let (arm, found) = cell(1e-6, 0.1, verdict(Status::Diverged, "logits"));
        assert_eq!((arm, found.status), (Arm::Device, Status::Diverged));
        assert!(found.reason.starts_with("device off: ") && found.reason.ends_with("; logits"));
    }

    #[test]
    fn a_device_is_not_blamed_for_its_reference() {
        let (arm, found) = cell(0.1, 1e-6, verdict(Status::Diverged, "logits"));
        assert_eq!((arm, found.status), (Arm::Reference, Status::Pass));
        assert!(found.reason.starts_with("reference off: "), "{}", found.reason);
        let (arm, found) = cell(f32::NAN, 1e-6, verdict(Status::Diverged, "logits"));
        assert_eq!((arm, found.status), (Arm::Reference, Status::Pass));
    }

    #[test]
    fn work_that_fell_back_stays_a_fault_beside_a_reference_that_is_off() {
        let (reference, device) = (metrics(0.1), metrics(1e-6));
        let fallback = verdict(Status::Fallback, "2 of 90");
        let judged = verdict(Status::Diverged, "logits; 2 of 90");
        let limits = Limits::uniform(1e-9);
        let (_, found) = attribute(Some(&reference), &device, &limits, judged, fallback);
        assert_eq!(found.status, Status::Fallback);
        assert!(found.reason.ends_with("; 2 of 90"), "{}", found.reason);
    }

    #[test]
    fn a_nan_is_off() {
        let (arm, found) = cell(1e-6, f32::NAN, verdict(Status::Pass, ""));
        assert_eq!((arm, found.status), (Arm::Device, Status::Diverged));
    }
}
