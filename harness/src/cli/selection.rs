//! Which cells a command is about: what its arguments select, or else a preset of the gate file.

use super::cells::open_builds;
use crate::builds;
use crate::gate::Gate;
use crate::pipeline::{Build, OracleUse, RunError};
use crate::plan::declare::{DeclaredCells, Declaring, declare};
use crate::plan::matrix::Row;
use crate::plan::models::{self, ModelError, ResolvedModel};
use crate::plan::{CellId, DeviceSelector, Mode, Options};
use crate::worker::Workplace;
use std::path::{Path, PathBuf};

/// The variable that names the gate file where no flag does.
pub(super) const GATE_ENV: &str = "GGML_PARITY_GATE";

/// Which cells: models x modes x options x devices of builds, or cells by their ids.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// A ggml build: a folder, or the name of a fetched build; repeat for several
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Vec<String>,
    /// A model: a GGUF file, a generated model, one of corpus/models.toml or of GGML_PARITY_MODELS; repeat for several
    #[arg(long, value_name = "FILE|NAME")]
    model: Vec<String>,
    /// A gate file: what is declared and which divergences are known [default: ci/gate.toml as built in]
    #[arg(long, value_name = "FILE", env = GATE_ENV)]
    gate: Option<PathBuf>,
    /// A preset of the gate file; the built-in one has quick (its default), full, nightly and gpu
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "cell"])]
    preset: Option<String>,
    /// A device under test, by exact name: Vulkan0, CPU@x64, CPU+repack, BUILD:CUDA0; repeat for several
    #[arg(long, value_name = "NAME")]
    device: Vec<DeviceSelector>,
    /// A mode (full, full-cache, sparse, generate; prefill, decode, batch, profile, speculative, lifecycle; sampler);
    /// repeat for several
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
    /// Options of the cases as ids write them: `kv=f16&n=64`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<Options>,
    /// A cell by its id, instead of models x modes x devices; repeat for several
    #[arg(long, value_name = "ID", conflicts_with_all = ["device", "mode", "options"])]
    cell: Vec<CellId>,
}

impl Selection {
    /// The gate file that counts.
    pub(super) fn open_gate(&self) -> Result<Gate, RunError> {
        Ok(self.gate.as_deref().map(Gate::read).transpose()?.unwrap_or_else(Gate::embedded))
    }

    /// Whether a preset is meant as it stands: nothing chooses among its cells.
    pub(super) fn is_whole(&self) -> bool {
        let chosen = [self.model.len(), self.device.len(), self.mode.len(), self.cell.len()];
        chosen == [0; 4] && !self.has_options()
    }

    /// Whether options are named.
    pub(super) fn has_options(&self) -> bool {
        self.options.is_some()
    }
}

/// What a selection comes to.
pub(super) struct Declared {
    pub(super) builds: Vec<Build>,
    pub(super) models: Vec<ResolvedModel>,
    pub(super) cells: Vec<CellId>,
    /// The cells that are declared on required devices that are not there.
    pub(super) absent: Vec<CellId>,
}

/// The builds, models and cells of a selection, at least one of each; `expand` may change what is asked for once the
/// models are known.
pub(super) fn declared(
    which: &Selection,
    gate: &Gate,
    oracle: OracleUse,
    workplace: &Workplace,
    work: &Path,
    expand: impl FnOnce(Vec<Row>, &[ResolvedModel]) -> Vec<Row>,
) -> Result<Declared, RunError> {
    let rows = rows(which, gate)?;
    let named = which.cell.iter().map(|id| id.build.as_str());
    let mut named = named.chain(which.device.iter().filter_map(|device| device.build.as_deref())).peekable();
    let nothing_said = which.ggml.is_empty() && named.peek().is_none();
    let by_gate = nothing_said && std::env::var_os(builds::GGML_ENV).is_none();
    let builds = open_builds(if by_gate { &gate.settings.ggml } else { &which.ggml }, named, workplace)?;
    let mut models: Vec<ResolvedModel> = Vec::new();
    for row in &rows {
        if !models.iter().any(|model| model.given == row.model) {
            match models::resolve(&row.model, work) {
                Ok(model) => models.push(model),
                Err(error @ ModelError::NotFetched { .. }) if row.if_fetched => {
                    eprintln!("left out: {error}")
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let DeclaredCells { cells, absent } = if which.cell.is_empty() {
        declare(&Declaring {
            rows: &expand(rows, &models),
            builds: &builds,
            models: &models,
            devices: &which.device,
            models_named: !which.model.is_empty(),
            changed: !which.mode.is_empty() || which.options.is_some(),
            oracle: oracle != OracleUse::Never,
        })?
    } else {
        DeclaredCells { cells: which.cell.clone(), absent: Vec::new() }
    };
    for id in &cells {
        let build = builds.iter().find(|build| build.info.name == id.build).ok_or_else(|| {
            let names: Vec<&str> = builds.iter().map(|build| build.info.name.as_str()).collect();
            RunError::Environment(format!("cell {id}: no build `{}`; opened: {}", id.build, names.join(", ")))
        })?;
        build.check(&id.device)?;
        id.case.check().map_err(|error| RunError::Usage(format!("cell {id}: {error}")))?;
    }
    if cells.is_empty() && absent.is_empty() {
        let offered: Vec<String> =
            builds.iter().flat_map(|build| build.selectors()).map(|device| device.to_string()).collect();
        return Err(RunError::Environment(format!(
            "nothing to test: beside the reference, the plain CPU, there is no device (there are: {})",
            offered.join(", ")
        )));
    }
    Ok(Declared { builds, models, cells, absent })
}

/// What is asked for: the models named by `--model`, those of cells, or a preset of the gate.
fn rows(which: &Selection, gate: &Gate) -> Result<Vec<Row>, RunError> {
    let options = which.options.unwrap_or_default();
    let row = |model: String| Row {
        model,
        modes: which.mode.clone(),
        options: vec![options],
        devices: Vec::new(),
        required: Vec::new(),
        if_fetched: false,
        place: None,
    };
    if !which.model.is_empty() {
        return Ok(which.model.iter().cloned().map(row).collect());
    }
    if !which.cell.is_empty() {
        return Ok(which.cell.iter().map(|id| models::name_of(&id.case)).map(row).collect());
    }
    let mut rows = gate.preset(which.preset.as_deref())?.rows.clone();
    for row in &mut rows {
        if !which.mode.is_empty() {
            row.modes.clone_from(&which.mode);
        }
        if which.options.is_some() {
            row.options = vec![options];
        }
    }
    Ok(rows)
}
