//! Faults of the file: what it lacks or has too much of, and what it says of its origin.

use super::Arms;
use crate::capture::{Cache, KvSet};
use crate::selftest::SelftestError;
use crate::selftest::image::Image;
use crate::selftest::place::Place;

/// A field that the reason must name.
fn field(name: impl ToString) -> Place {
    Place::all(name.to_string(), [name.to_string()])
}

/// Takes K and V of the last layer out, in both of their states.
pub(super) fn missing_layer(image: &mut Image) -> Result<Place, SelftestError> {
    let layer = image.layers().checked_sub(1).ok_or_else(|| image.lacks("K and V"))?;
    for set in KvSet::ALL {
        for &cache in Cache::ALL {
            image.remove(&set.tensor(cache, layer));
        }
    }
    Ok(field(Cache::K.tensor(layer)))
}

/// Takes the logits out.
pub(super) fn missing_logits(image: &mut Image) -> Place {
    image.remove("logits");
    Place::all("logits", ["`logits` is missing".to_owned()])
}

/// Leaves the last row out.
pub(super) fn fewer_rows(image: &mut Image) -> Result<Place, SelftestError> {
    resize(image, |rows| rows - 1)
}

/// Repeats the last row, one position and one step later.
pub(super) fn more_rows(image: &mut Image) -> Result<Place, SelftestError> {
    resize(image, |rows| rows + 1)
}

/// Makes the number of rows `to(rows)`, of at least two.
fn resize(image: &mut Image, to: impl FnOnce(usize) -> usize) -> Result<Place, SelftestError> {
    let mut logits = image.floats("logits")?;
    let (rows, columns) = (logits.shape[0], logits.row_len());
    if rows < 2 {
        return Err(image.lacks("two rows of logits"));
    }
    let wanted = to(rows);
    let last = logits.row(rows - 1).to_vec();
    let values = logits.values.into_iter().chain(last).take(wanted * columns).collect();
    (logits.values, logits.shape[0]) = (values, wanted);
    image.set_floats("logits", logits)?;
    for name in ["positions", "step"] {
        let mut list = image.integers(name)?;
        let next = list.last().map_or(0, |last| last + 1);
        list.resize(wanted, next);
        image.set_integers(name, &list);
    }
    let parts = ["rows of logits".to_owned(), format!("{wanted} in the test")];
    Ok(Place::all(format!("{wanted} rows of logits, not {rows}"), parts))
}

/// Makes the token in the middle the one after it in the vocabulary.
pub(super) fn other_tokens(image: &mut Image) -> Result<Place, SelftestError> {
    let vocab = i32::try_from(image.floats("logits")?.row_len()).unwrap_or(i32::MAX);
    let mut tokens = image.integers("tokens")?;
    let index = tokens.len() / 2;
    let Some(token) = tokens.get_mut(index) else { return Err(image.lacks("tokens")) };
    *token = (*token + 1) % vocab;
    image.set_integers("tokens", &tokens);
    Ok(field(format!("tokens at index {index}")))
}

/// A hash that differs in its first digit.
fn other_hash(hash: &str) -> String {
    let first = if hash.starts_with('0') { '1' } else { '0' };
    hash.chars().enumerate().map(|(i, digit)| if i == 0 { first } else { digit }).collect()
}

/// Says that the model file was another.
pub(super) fn wrong_model_hash(image: &mut Image) -> Place {
    image.meta.model.sha256 = other_hash(&image.meta.model.sha256);
    field("model.sha256")
}

/// Says that one library of the build was another one of the same name.
pub(super) fn wrong_build(image: &mut Image) -> Result<Place, SelftestError> {
    if image.meta.build.files.is_empty() {
        return Err(image.lacks("the libraries of its build"));
    }
    let file = image.meta.build.files.last_mut().expect("there is one");
    file.sha256 = other_hash(&file.sha256);
    Ok(field(format!("build.files.{}", file.name)))
}

/// Puts the reference's file in the place of the device's.
pub(super) fn copy_of_reference(arms: &mut Arms) -> Place {
    arms.device = arms.reference.clone();
    field("device.selector")
}
