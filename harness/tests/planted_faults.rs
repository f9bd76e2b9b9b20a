//! The harness finds faults that are planted in the runtime, and blames no model that they do not touch.

use ggml_parity::pipeline::{self, Build, Folders, OracleUse, Plan, PlantedFiles};
use ggml_parity::plan::inputs::Wishes;
use ggml_parity::plan::models::resolve;
use ggml_parity::plan::{CellId, DeviceSelector, Mode, Options, matrix};
use ggml_parity::report::{Cell, Run};
use ggml_parity::verdict::{Status, Tolerances};
use ggml_parity::worker::{Fault, Workplace};
use std::path::Path;
use std::time::Duration;

/// `mode` of both masked-diffusion models on a CPU device of the default build, with a fault planted or none.
fn cells(mode: Mode, fault: Option<Fault>) -> Vec<Cell> {
    let work = tempfile::tempdir().unwrap();
    let workplace = Workplace {
        binary: Path::new(env!("CARGO_BIN_EXE_ggml-parity")).to_owned(),
        folder: work.path().to_owned(),
        time_limit: Duration::from_secs(240),
        memory: None,
    };
    let given = std::env::var("GGML_PARITY_GGML").ok();
    let build = Build::open(given.as_deref(), &workplace).expect("a ggml build; ci/quickstart gets one");
    let offered: Vec<DeviceSelector> = build.probed.devices.iter().map(|d| d.selector.clone()).collect();
    let probed = &build.probed;
    let devices = matrix::default_devices(&offered, &probed.cpu_variants, probed.cpu_variant.as_deref());
    let device = devices.into_iter().find(DeviceSelector::is_cpu).expect("a second flavour of the CPU");
    let models: Vec<_> =
        ["gen-dream", "gen-llada"].iter().map(|name| resolve(name, work.path()).unwrap()).collect();
    let case = |model| matrix::case(model, mode, Options::default());
    let cells = models.iter().map(|model| CellId::new(case(model), &build.info.name, &device)).collect();
    let plan = Plan {
        builds: vec![build],
        models,
        cells,
        wishes: Wishes::default(),
        threads: 1,
        tolerances: Tolerances::embedded(),
        fault,
        oracle: OracleUse::Never,
        planted: PlantedFiles::default(),
    };
    let folders = Folders { captures: work.path().to_owned() };
    pipeline::run(&plan, &workplace, &folders, Run::default(), |_| {}).expect("the run begins").cells
}

fn status(cells: &[Cell], model: &str) -> Status {
    cells.iter().find(|cell| cell.model == model).expect("a cell of the model").status
}

#[test]
fn a_predecessor_row_left_out_fails_where_logits_are_shifted_and_only_there() {
    let right = cells(Mode::Sparse, None);
    assert_eq!(status(&right, "gen-dream"), Status::Pass, "{}", right[0].reason);
    assert_eq!(status(&right, "gen-llada"), Status::Pass, "{}", right[1].reason);

    let planted = cells(Mode::Sparse, Some(Fault::PredecessorsLeftOut));
    assert_eq!(status(&planted, "gen-llada"), Status::Pass, "{}", planted[1].reason);
    let dream = &planted[0];
    assert_eq!((dream.model.as_str(), dream.status), ("gen-dream", Status::Diverged));
    // The first step is a full one, and every row is of its own step there.
    let steps = dream.metrics.as_ref().unwrap().steps.as_ref().unwrap();
    assert!(steps.first_bad.unwrap().step >= 1, "{:?}", steps.first_bad);
    assert!(dream.reason.contains("over the limit from step "), "{}", dream.reason);
}

#[test]
fn a_full_forward_has_no_active_set_to_be_wrong() {
    for cell in cells(Mode::FullCache, Some(Fault::PredecessorsLeftOut)) {
        assert_eq!(cell.status, Status::Pass, "{}: {}", cell.id, cell.reason);
    }
}

#[test]
fn a_sparse_cell_tells_what_its_steps_moved() {
    for cell in cells(Mode::Sparse, None) {
        let traffic = cell.traffic.expect("the worker counts");
        // One layer's keys and values of one position are 1,024 bytes or more; a step sends 16 a position.
        assert!(traffic.to_device.largest < 33 * 32, "{traffic:?}");
        // The largest step reads the logits of all 17 masked positions, padded to 32 rows, and nothing else.
        assert_eq!(traffic.from_device.largest, 32 * 130 * 4, "{traffic:?}");
        assert!(cell.metrics.unwrap().steps.unwrap().list.len() > 2);
    }
}
