//! One run of many cells, each a case of its own with something planted in some arms.

use crate::common;
use ggml_parity::pipeline::{self, Build, Folders, OracleUse, Plan};
use ggml_parity::plan::inputs::Wishes;
use ggml_parity::plan::models::{ResolvedModel, resolve};
use ggml_parity::plan::{Case, CellId, DeviceSelector};
use ggml_parity::planted::{Plant, Planted, Plantings};
use ggml_parity::report::{Arm, Cell, Run};
use ggml_parity::verdict::{Status, Tolerances};
use ggml_parity::worker::Workplace;
use std::path::Path;
use std::time::Duration;

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

/// Which arms have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Nowhere,
    Device,
    Reference,
    /// Both of ggml's, which agree with each other.
    Both,
    /// The oracle too, as what the arms share would have it.
    All,
}

/// A cell to run.
pub(crate) struct Wanted {
    /// What failed assertions call it.
    pub(crate) what: String,
    /// `model/weights/mode?options`, without a length.
    pub(crate) case: String,
    pub(crate) plant: Plant,
    pub(crate) place: Where,
    /// What must come out; none where the arms' captures have other shapes.
    pub(crate) arm: Option<Arm>,
}

impl Wanted {
    /// A fault that shows, in every arm in turn.
    pub(crate) fn blamed(what: &str, case: &str, plant: &Plant) -> Vec<Self> {
        let places =
            [(Where::Device, Arm::Device), (Where::Reference, Arm::Reference), (Where::Both, Arm::Both)];
        let wanted = |(place, arm)| Self::new(what, case, plant, place, arm);
        places.map(wanted).into()
    }

    pub(crate) fn new(what: &str, case: &str, plant: &Plant, place: Where, arm: Arm) -> Self {
        Self { what: what.to_owned(), case: case.to_owned(), plant: plant.clone(), place, arm: Some(arm) }
    }

    /// A plant that gives one arm keys of another shape.
    pub(crate) fn misshapen(what: &str, case: &str, plant: &Plant) -> Self {
        Self { arm: None, ..Self::new(what, case, plant, Where::Device, Arm::Device) }
    }

    fn planted(&self) -> Planted {
        let (plant, right) = (self.plant.clone(), Plant::default());
        match self.place {
            Where::Nowhere => Planted::default(),
            Where::Device => Planted { device: plant, ..Planted::default() },
            Where::Reference => Planted { reference: plant, ..Planted::default() },
            Where::Both => Planted { device: plant.clone(), reference: plant, oracle: None },
            Where::All => {
                assert_eq!(plant.fault, right.fault, "the oracle makes no mistakes of its own");
                Planted { device: plant.clone(), oracle: plant.model.clone(), reference: plant }
            }
        }
    }
}

/// Runs all cells in one run on two flavours of the CPU. The lengths, 17 and up, tell the cases of one model and mode
/// apart.
pub(crate) fn run(wanted: &[Wanted], work: &Path) -> Vec<Cell> {
    let time_limit = Duration::from_secs(240);
    let workplace = Workplace { binary: common::binary(), folder: work.to_owned(), time_limit, memory: None };
    let build = Build::open(Some(&common::default_build()), &workplace).unwrap();
    let device: DeviceSelector = DEVICE.parse().unwrap();
    let mut cells: Vec<CellId> = Vec::new();
    let mut planted = Plantings::new();
    let mut models: Vec<ResolvedModel> = Vec::new();
    for wanted in wanted {
        let mut case: Case = wanted.case.parse().unwrap_or_else(|e| panic!("{}: {e}", wanted.case));
        let same = |id: &&CellId| id.case.model == case.model && id.case.mode == case.mode;
        case.options.n = Some(17 + u32::try_from(cells.iter().filter(same).count()).unwrap());
        if !models.iter().any(|m| m.name == case.model && m.weights == case.weights) {
            let given = match case.weights.as_str() {
                "f32" => case.model.clone(),
                weights => format!("{}:{weights}", case.model),
            };
            models.push(resolve(&given, work).unwrap());
        }
        planted.insert(case.clone(), wanted.planted());
        cells.push(CellId::new(case, &build.info.name, &device));
    }
    let plan = Plan {
        builds: vec![build],
        models,
        cells,
        wishes: Wishes::default(),
        threads: 1,
        tolerances: Tolerances::embedded(),
        oracle: OracleUse::Affordable,
        planted,
    };
    let folders = Folders { captures: work.to_owned() };
    pipeline::run(&plan, &workplace, &folders, Run::default(), |_| {}).expect("the run begins").cells
}

/// Runs the cells and holds each to what must come out, all of them before the first complaint.
pub(crate) fn hold(wanted: &[Wanted], work: &Path) -> Vec<Cell> {
    let cells = run(wanted, work);
    let complaints: Vec<String> =
        wanted.iter().zip(&cells).filter_map(|(wanted, cell)| complaint(wanted, cell)).collect();
    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), cells.len(), complaints.join("\n"));
    cells
}

fn complaint(wanted: &Wanted, cell: &Cell) -> Option<String> {
    let Wanted { what, place, arm, .. } = wanted;
    let told = |why: &str| Some(format!("{what} in {place:?}, {}: {why}: {}", cell.id, cell.reason));
    let Some(arm) = arm else {
        let named = cell.reason.contains("differ in the shape of k.0");
        let right = cell.status == Status::Diverged && named && cell.attribution.is_none();
        return if right { None } else { told("other shapes were expected") };
    };
    let Some(found) = &cell.attribution else { return told("no attribution") };
    let (status, begins) = match arm {
        Arm::Agree => (Status::Pass, ""),
        Arm::Reference => (Status::Pass, "reference off: "),
        Arm::Device => (Status::Diverged, "device off: "),
        Arm::Both => (Status::Diverged, "both off: "),
    };
    if found.verdict != *arm || cell.status != status || !cell.reason.starts_with(begins) {
        let nmse = format!("{:.1e}/{:.1e}", found.reference_nmse, found.device_nmse);
        return told(&format!("{}, {} ({nmse}) where {arm} was expected", cell.status, found.verdict));
    }
    // Two arms that agree on a wrong result pass each other; with the oracle the cell is red.
    let apart = cell.metrics.as_ref().map_or(f64::NAN, |metrics| metrics.logits.overall);
    let limit = cell.limits.as_ref().map_or(f64::NAN, |limits| limits.logits_nmse.limit);
    if *arm == Arm::Both && !(apart <= limit) {
        return told(&format!("the arms are {apart:.1e} apart"));
    }
    None
}
