//! The self-test, end to end: real captures, real files, the verdict of the pipeline.

mod common;

use common::{run, told};
use ggml_parity::selftest::{Kind, SelfTest};

#[test]
fn the_gate_catches_every_planted_fault_and_names_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let output =
        run(&["selftest", "--ggml", &common::default_build(), "--json", "--out", out.to_str().unwrap()]);
    let (code, text) = told(&output);
    assert_eq!(code, 0, "{text}");
    let found: SelfTest = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(std::fs::read(out.join("selftest.json")).unwrap(), output.stdout);
    assert!(std::fs::read_to_string(out.join("selftest.md")).unwrap().contains(&found.summary()));
    assert_eq!(found.caught(), (29, 29));
    assert!(found.named() >= 26, "{text}");
    // What was computed is not what was declared: the lowest bit is below every limit, and shows as a pass.
    let lowest = found.faults.iter().find(|found| found.kind == Kind::LowestMantissaBit).unwrap();
    assert!(!lowest.caught && !lowest.named && lowest.reason.is_empty(), "{}", lowest.reason);

    let size = |kind: Kind| found.smallest.iter().find(|found| found.kind == kind).unwrap().size;
    // Q4_K_M forgives a row that is off by a hundredth, and not one that is off by a half.
    let row = size(Kind::RowScaled).unwrap();
    assert!(row > 0.01 && row < 0.5, "{row}");
    // What has no size is caught whatever the weights are.
    for kind in [Kind::Nan, Kind::NanAtTop, Kind::MinusInfinity, Kind::MissingLayer, Kind::WrongBuild] {
        assert_eq!(size(kind), Some(1.0), "{kind}");
    }
}

#[test]
fn the_reference_itself_and_unknown_devices_are_refused() {
    let build = common::default_build();
    let (code, text) = told(&run(&["selftest", "--ggml", &build, "--device", "CPU"]));
    assert!(code == 2 && text.contains("it is the reference"), "{code} {text}");
    let (code, text) = told(&run(&["selftest", "--ggml", &build, "--device", "Vulcan0"]));
    assert!(code == 4 && text.contains("no device `Vulcan0`"), "{code} {text}");
}
