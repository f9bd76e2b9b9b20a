//! What a sparse cell tells beside its verdict.

use crate::gate::{Wanted, Where, run};
use ggml_parity::planted::Plant;
use ggml_parity::report::Arm;
use ggml_parity::verdict::Status;
use ggml_parity::worker::Fault;

#[test]
fn a_fault_of_the_active_set_begins_after_the_full_step() {
    let work = tempfile::tempdir().unwrap();
    let plant = Plant { fault: Some(Fault::PredecessorsLeftOut), model: None };
    let wanted = Wanted::new("the active set", "gen-dream/f32/sparse", &plant, Where::Device, Arm::Device);
    let cell = run(&[wanted], work.path()).remove(0);
    assert_eq!(cell.status, Status::Diverged);
    // The first step is a full one, and every row is of its own step there.
    let steps = cell.metrics.as_ref().unwrap().steps.as_ref().unwrap();
    assert!(steps.first_bad.unwrap().step >= 1, "{:?}", steps.first_bad);
    assert!(cell.reason.contains("over the limit from step "), "{}", cell.reason);
}

#[test]
fn a_sparse_cell_tells_what_its_steps_moved() {
    let work = tempfile::tempdir().unwrap();
    let wanted = ["gen-dream/f32/sparse", "gen-llada/f32/sparse"]
        .map(|case| Wanted::new("nothing", case, &Plant::default(), Where::Nowhere, Arm::Agree));
    for cell in run(&wanted, work.path()) {
        let traffic = cell.traffic.expect("the worker counts");
        // One layer's keys and values of one position are 1,024 bytes or more; a step sends 16 a position.
        assert!(traffic.to_device.largest < 17 * 32, "{traffic:?}");
        // The largest step reads the logits of all 9 masked positions, padded to 16 rows, and nothing else.
        assert_eq!(traffic.from_device.largest, 16 * 130 * 4, "{traffic:?}");
        assert!(cell.metrics.unwrap().steps.unwrap().list.len() > 2);
    }
}
