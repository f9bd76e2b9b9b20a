//! The captures of one cell, faults planted into copies of them, and the verdict of the pipeline on those.

use super::image::Image;
use super::kinds::{Kind, Scale};
use super::plant::{Arms, Rope, plant};
use super::report::{Control, Found};
use super::{SelftestError, place::Place};
use crate::pipeline::{self, Folders, Plan, RunError, capture_path};
use crate::plan::CellId;
use crate::report::Cell;
use std::path::Path;

/// A cell into whose captures faults are planted.
pub(super) struct Bench<'a> {
    plan: &'a Plan,
    id: &'a CellId,
    reference: CellId,
    oracle: Option<CellId>,
    arms: Arms,
    rope: Rope,
    scratch: Folders,
}

impl<'a> Bench<'a> {
    /// Reads the captures of `id` in `folders`; changed ones go to `scratch`.
    pub(super) fn new(
        plan: &'a Plan,
        folders: &Folders,
        scratch: &Path,
        id: &'a CellId,
    ) -> Result<Self, SelftestError> {
        let (reference, oracle) = (plan.reference_of(id), plan.oracle_of(id).ok());
        let load = |id: &CellId| Image::load(&capture_path(folders, id));
        let arms = Arms {
            reference: load(&reference)?,
            device: load(id)?,
            oracle: oracle.as_ref().map(load).transpose()?,
        };
        let model = plan.models.iter().find(|model| {
            (model.name.as_str(), model.weights.as_str())
                == (id.case.model.as_str(), id.case.weights.as_str())
        });
        let rope = model.and_then(|model| Rope::of(&model.model)).ok_or_else(|| {
            RunError::Usage(format!(
                "cell {id}: no model of the plan, or one whose RoPE factors cannot be read"
            ))
        })?;
        let scratch = Folders { captures: scratch.to_owned() };
        Ok(Self { plan, id, reference, oracle, arms, rope, scratch })
    }

    /// The verdict on the captures as they are.
    pub(super) fn control(&self) -> Result<Control, SelftestError> {
        let cell = self.judge(&self.arms)?;
        Ok(Control { cell: self.id.clone(), status: cell.status, reason: cell.reason })
    }

    /// Plants `kind` in its own size.
    pub(super) fn find(&self, kind: Kind) -> Result<Found, SelftestError> {
        let size = kind.scale().full();
        let (place, cell) = self.planted(kind, size)?;
        let without = match kind.scale() {
            Scale::Size { .. } => Some(self.planted(kind, 0.0)?.1),
            Scale::Whole | Scale::Bit { .. } => None,
        };
        let without = without.filter(caught).map(|cell| cell.reason);
        Ok(Found {
            kind,
            size: kind.words(size),
            must_be_caught: kind.must_be_caught(),
            caught: caught(&cell),
            named: caught(&cell) && place.named_in(&cell.reason),
            place: place.words,
            status: cell.status,
            reason: cell.reason,
            without,
        })
    }

    /// Plants `kind` in `size`: where, and what becomes of the cell.
    pub(super) fn planted(&self, kind: Kind, size: f64) -> Result<(Place, Cell), SelftestError> {
        let mut arms = self.arms.clone();
        let place = plant(kind, size, &mut arms, &self.rope)?;
        Ok((place, self.judge(&arms)?))
    }

    fn judge(&self, arms: &Arms) -> Result<Cell, SelftestError> {
        let save = |image: &Image, id: &CellId| image.save(&capture_path(&self.scratch, id));
        save(&arms.reference, &self.reference)?;
        save(&arms.device, self.id)?;
        if let (Some(image), Some(id)) = (&arms.oracle, &self.oracle) {
            save(image, id)?;
        }
        Ok(pipeline::judge_captured(self.plan, &self.scratch, self.id)?)
    }
}

/// Whether the gate caught what was planted: the cell would not pass.
pub(super) fn caught(cell: &Cell) -> bool {
    !cell.status.is_good()
}
