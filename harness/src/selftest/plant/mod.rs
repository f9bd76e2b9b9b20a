//! Planting one fault of a kind into the captures of a cell.

mod caches;
mod file;
mod logits;

use super::SelftestError;
use super::image::Image;
use super::kinds::Kind;
use super::place::Place;
pub(crate) use caches::Rope;

/// The captures of one cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arms {
    /// Of the reference.
    pub(crate) reference: Image,
    /// Of the device under test.
    pub(crate) device: Image,
    /// Of the oracle, where it ran.
    pub(crate) oracle: Option<Image>,
}

impl Arms {
    /// Every capture, the device's last.
    fn each(&mut self) -> impl Iterator<Item = &mut Image> {
        [&mut self.reference].into_iter().chain(&mut self.oracle).chain([&mut self.device])
    }
}

/// Plants a fault of `size` into the device's capture and says where. What several arms must hold for the fault to
/// be one (an infinity that matches, values that are denormal) is put into all of them, whatever the size; of size 0
/// the device's capture is as right as before.
///
/// # Errors
/// Captures that lack what the fault needs.
pub(crate) fn plant(kind: Kind, size: f64, arms: &mut Arms, rope: &Rope) -> Result<Place, SelftestError> {
    use Kind as K;
    match kind {
        K::Nan | K::PlusInfinity | K::MinusInfinity | K::NanAtTop => logits::value(kind, &mut arms.device),
        K::MatchedInfinity => logits::matched_infinity(size, arms),
        K::RowScaled => logits::scale_row(1.0 + size, &mut arms.device),
        K::RowZeroed => logits::scale_row(1.0 - size, &mut arms.device),
        K::RowsSwapped => logits::swap_rows(size, &mut arms.device),
        K::ColumnShifted => logits::shift_column(size, &mut arms.device),
        K::LastRowStale => logits::last_row_stale(size, &mut arms.device),
        K::OffByOneStep => logits::off_by_one_step(size, &mut arms.device),
        K::DenormalFlush => logits::denormal_flush(size, arms),
        K::ExponentBit | K::TopMantissaBit | K::LowestMantissaBit => {
            logits::flip_bit(size as u32, &mut arms.device)
        }
        K::KHeadScaled => caches::scale_k_head(1.0 + size, &mut arms.device),
        K::VHeadPermuted => caches::permute_v_head(size, &mut arms.device),
        K::KStale => caches::k_stale(size, &mut arms.device),
        K::KWithoutRope => caches::k_without_rope(size, &mut arms.device, rope),
        K::VPositionZeroed => caches::scale_v_position(1.0 - size, &mut arms.device),
        K::ConstantTensor => caches::constant_v(size, &mut arms.device),
        K::AllZeros => caches::scale_all(1.0 - size, &mut arms.device),
        K::MissingLayer => file::missing_layer(&mut arms.device),
        K::MissingLogits => Ok(file::missing_logits(&mut arms.device)),
        K::FewerRows => file::fewer_rows(&mut arms.device),
        K::MoreRows => file::more_rows(&mut arms.device),
        K::OtherTokens => file::other_tokens(&mut arms.device),
        K::WrongModelHash => Ok(file::wrong_model_hash(&mut arms.device)),
        K::WrongBuild => file::wrong_build(&mut arms.device),
        K::CopyOfReference => Ok(file::copy_of_reference(arms)),
    }
}

/// Moves `values` by `share` of the way to `others`.
fn mix(values: &mut [f64], others: &[f64], share: f64) {
    for (value, other) in values.iter_mut().zip(others) {
        *value += share * (other - *value);
    }
}

#[cfg(test)]
mod tests;
