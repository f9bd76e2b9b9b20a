//! `junit.xml`: a suite for each device of each build, a case for each cell, for CI systems that show tests.

use super::format::shortened;
use super::{Cell, Report};
use crate::verdict::Status;
use quick_junit::{NonSuccessKind, Property, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// The most characters of a message; CI systems show it on one line.
const MESSAGE: usize = 500;

/// The report as JUnit XML. What fails is a `failure`, what did not come to an end an `error`, and only what is
/// declared as unsupported is `skipped`. A cell that did as the gate declares has succeeded; one that no longer does
/// is a failure.
pub fn render(report: &Report) -> String {
    let mut junit = quick_junit::Report::new(format!("ggml-parity {}", report.run.name));
    junit.timestamp = report.run.started.parse().ok();
    junit.time = seconds(report.run.seconds);
    let mut places: Vec<(&str, String)> = Vec::new();
    for cell in &report.cells {
        let place = (cell.build.as_str(), cell.device.to_string());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    for (build, device) in places {
        let mut suite = TestSuite::new(format!("{build}:{device}"));
        suite.timestamp = junit.timestamp;
        suite.add_properties(environment(report, build, &device));
        let cells =
            report.cells.iter().filter(|cell| cell.build == build && cell.device.to_string() == device);
        let cases: Vec<TestCase> = cells.map(case).collect();
        suite.time =
            cases.iter().map(|case| case.time).try_fold(Duration::ZERO, |sum, time| Some(sum + time?));
        suite.add_test_cases(cases);
        junit.add_test_suite(suite);
    }
    junit.to_string().expect("XML of strings goes into memory")
}

/// What is known of where a suite ran.
fn environment(report: &Report, build: &str, device: &str) -> Vec<Property> {
    let environment = &report.environment;
    let mut known = vec![
        ("ggml-parity.version", report.run.version.clone()),
        ("os", environment.os.clone()),
        ("arch", environment.arch.clone()),
        ("build", build.to_owned()),
        ("device", device.to_owned()),
    ];
    known.extend(environment.cpu.iter().map(|cpu| ("cpu", cpu.clone())));
    if let Some(info) = environment.builds.iter().find(|info| info.name == build) {
        known.extend(info.version.iter().map(|version| ("build.version", version.clone())));
        known.extend(info.commit.iter().map(|commit| ("build.commit", commit.clone())));
    }
    if let Some(info) = environment.devices.iter().find(|info| info.selector == device) {
        known.push(("device.description", info.description.clone()));
        known.push(("device.kind", info.kind.to_string()));
        known.extend(info.driver.iter().map(|driver| ("device.driver", driver.clone())));
    }
    let switches = environment.switches.iter();
    let switches = switches.map(|(name, value)| Property::new(format!("switch.{name}"), value.as_str()));
    known.into_iter().map(|(name, value)| Property::new(name, value)).chain(switches).collect()
}

fn case(cell: &Cell) -> TestCase {
    let mut case = TestCase::new(cell.id.case.to_string(), status(cell));
    case.set_classname(format!("{}:{}", cell.build, cell.device));
    case.time = seconds(cell.timings.values().sum());
    let declared = cell.declared.iter().flat_map(|declared| &declared.declarations);
    let declared = declared.map(|declaration| format!("declared in {}: {declaration}\n", declaration.place));
    // A case that succeeds has no message of its own.
    let expected = (cell.status == Status::Expected).then(|| format!("{}: {}\n", cell.status, cell.reason));
    let retried = cell.retried.iter().map(|how| format!("computed on the second try: {how}\n"));
    let sampled = super::sampler::of(cell).into_iter().flat_map(super::sampler::parts);
    let sampled = sampled.map(|part| format!("sampler: {part}\n"));
    let told: String = declared.chain(expected).chain(retried).chain(sampled).collect();
    case.set_system_out(format!("{told}run again: {}\n", cell.rerun));
    case
}

fn status(cell: &Cell) -> TestCaseStatus {
    let kind = match cell.status {
        Status::Pass | Status::Expected => return TestCaseStatus::success(),
        Status::Unsupported if cell.is_as_declared() => {
            let mut skipped = TestCaseStatus::skipped();
            skipped.set_message(shortened(&cell.reason, MESSAGE));
            return skipped;
        }
        Status::Crashed | Status::Timeout | Status::OutOfMemory => NonSuccessKind::Error,
        Status::Diverged
        | Status::UnexpectedPass
        | Status::Unsupported
        | Status::Fallback
        | Status::Missing => NonSuccessKind::Failure,
    };
    let mut failed = TestCaseStatus::non_success(kind);
    failed
        .set_type(cell.status.name())
        .set_message(shortened(&cell.reason, MESSAGE))
        .set_description(format!("{}: {}\n{}\n", cell.status, cell.id, cell.reason));
    failed
}

/// Seconds as a time, where they are one.
fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}
