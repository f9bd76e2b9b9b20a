//! Faults in logits. Where one row is enough it is the one in the middle, which no summary singles out.

use super::{Arms, mix};
use crate::selftest::SelftestError;
use crate::selftest::image::{Floats, Image};
use crate::selftest::kinds::Kind;
use crate::selftest::place::Place;

const LOGITS: &str = "logits";

/// Changes the logits of a capture of at least three rows and three columns.
fn change<T>(image: &mut Image, with: impl FnOnce(&mut Floats) -> T) -> Result<T, SelftestError> {
    let mut logits = image.floats(LOGITS)?;
    if logits.shape.len() != 2 || logits.shape.iter().any(|&n| n < 3) {
        return Err(image.lacks(format!("three rows and columns of logits: they are {:?}", logits.shape)));
    }
    let done = with(&mut logits);
    image.set_floats(LOGITS, logits)?;
    Ok(done)
}

fn middle(logits: &Floats) -> usize {
    logits.shape[0] / 2
}

/// The column of the largest value.
fn top(row: &[f64]) -> usize {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap_or(0)
}

/// A column that does not hold the largest value.
fn column(row: &[f64]) -> usize {
    let column = row.len() / 3;
    if column == top(row) { column + 1 } else { column }
}

fn in_row(logits: &Floats, row: usize) -> Place {
    Place::all(format!("logits row {row}"), [format!("row {row} of {}", logits.shape[0])])
}

fn at(row: usize, column: usize) -> Place {
    let words = format!("logits row {row} column {column}");
    Place::all(words.clone(), [words])
}

fn root_mean_square(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

/// One value that is not finite.
pub(super) fn value(kind: Kind, image: &mut Image) -> Result<Place, SelftestError> {
    change(image, |logits| {
        let row = middle(logits);
        let values = logits.row_mut(row);
        let (column, value) = match kind {
            Kind::NanAtTop => (top(values), f64::NAN),
            Kind::PlusInfinity => (column(values), f64::INFINITY),
            Kind::MinusInfinity => (column(values), f64::NEG_INFINITY),
            _ => (column(values), f64::NAN),
        };
        values[column] = value;
        at(row, column)
    })
}

/// The same infinity in every arm, and the rest of the device's row times `1 - size`.
pub(super) fn matched_infinity(size: f64, arms: &mut Arms) -> Result<Place, SelftestError> {
    let mut place = None;
    for image in arms.each() {
        change(image, |logits| {
            let row = middle(logits);
            let values = logits.row_mut(row);
            let column = values.len() / 3;
            values[column] = f64::INFINITY;
            place = Some((row, column));
        })?;
    }
    let Some((row, column)) = place else { unreachable!("there is a device among the arms") };
    change(&mut arms.device, |logits| {
        let others = logits.row_mut(row).iter_mut().enumerate().filter(|(i, _)| *i != column);
        others.for_each(|(_, value)| *value *= 1.0 - size);
        in_row(logits, row)
    })
}

/// One row times `factor`.
pub(super) fn scale_row(factor: f64, image: &mut Image) -> Result<Place, SelftestError> {
    change(image, |logits| {
        let row = middle(logits);
        logits.row_mut(row).iter_mut().for_each(|value| *value *= factor);
        in_row(logits, row)
    })
}

/// Two rows that follow each other, each moved by `share` of the way to the other.
pub(super) fn swap_rows(share: f64, image: &mut Image) -> Result<Place, SelftestError> {
    change(image, |logits| {
        let row = middle(logits);
        let (this, next) = (logits.row(row).to_vec(), logits.row(row + 1).to_vec());
        mix(logits.row_mut(row), &next, share);
        mix(logits.row_mut(row + 1), &this, share);
        let rows = logits.shape[0];
        let spellings = [row, row + 1].map(|row| format!("row {row} of {rows}"));
        Place::any(format!("logits rows {row} and {}", row + 1), spellings)
    })
}

/// `size` times the root mean square of all logits added to one column.
pub(super) fn shift_column(size: f64, image: &mut Image) -> Result<Place, SelftestError> {
    change(image, |logits| {
        let offset = size * root_mean_square(&logits.values);
        let column = logits.row_len() / 3;
        for row in 0..logits.shape[0] {
            logits.row_mut(row)[column] += offset;
        }
        Place::all(format!("logits column {column}"), [format!("column {column}")])
    })
}

/// The last row moved by `share` of the way to the one before.
pub(super) fn last_row_stale(share: f64, image: &mut Image) -> Result<Place, SelftestError> {
    change(image, |logits| {
        let last = logits.shape[0] - 1;
        let before = logits.row(last - 1).to_vec();
        mix(logits.row_mut(last), &before, share);
        in_row(logits, last)
    })
}

/// Every row but the first moved by `share` of the way to that of the step before.
pub(super) fn off_by_one_step(share: f64, image: &mut Image) -> Result<Place, SelftestError> {
    let steps = image.integers("step")?;
    let Some((&first, &second)) = steps.first().zip(steps.get(1)).filter(|(a, b)| a < b) else {
        return Err(image.lacks("a step for each row"));
    };
    change(image, |logits| {
        for row in (1..logits.shape[0]).rev() {
            let before = logits.row(row - 1).to_vec();
            mix(logits.row_mut(row), &before, share);
        }
        Place::all(format!("steps after {first}"), [format!("from step {second} on")])
    })
}

/// One row made so small in every arm that F32 holds it in denormal numbers only, of which the device has zeros in
/// `share` of the columns.
///
/// Beside numbers of ordinary size, denormal ones are less than rounding, and no gate sees them go. Where a row, and
/// so a figure, is made of nothing else they are all there is, and a kernel that flushes them loses it.
pub(super) fn denormal_flush(share: f64, arms: &mut Arms) -> Result<Place, SelftestError> {
    let mut least = None;
    for image in arms.each() {
        change(image, |logits| {
            let row = middle(logits);
            let values = logits.row_mut(row);
            // One power of two for all arms: the first arm's largest value comes to lie below 2^-127.
            let factor = *least.get_or_insert_with(|| {
                let largest = values.iter().fold(f64::MIN_POSITIVE, |most, value| most.max(value.abs()));
                (-128.0 - largest.log2().ceil()).exp2()
            });
            values.iter_mut().for_each(|value| *value *= factor);
        })?;
    }
    change(&mut arms.device, |logits| {
        let row = middle(logits);
        let flushed = (share * logits.row_len() as f64).ceil() as usize;
        logits.row_mut(row)[..flushed].fill(0.0);
        in_row(logits, row)
    })
}

/// One bit of the logit whose size is nearest to the row's root mean square.
pub(super) fn flip_bit(bit: u32, image: &mut Image) -> Result<Place, SelftestError> {
    change(image, |logits| {
        let row = middle(logits);
        let values = logits.row_mut(row);
        let typical = root_mean_square(values);
        let distance = |value: f64| (value.abs() - typical).abs();
        let nearer =
            |best: usize, i: usize| if distance(values[i]) < distance(values[best]) { i } else { best };
        let column = (0..values.len()).reduce(nearer).unwrap_or(0);
        let flipped = (values[column] as f32).to_bits() ^ (1 << bit);
        values[column] = f64::from(f32::from_bits(flipped));
        let words = format!("logits row {row} column {column}");
        Place::all(words, [format!("row {row}"), format!("column {column}")])
    })
}
