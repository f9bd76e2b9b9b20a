//! The smallest fault of a kind that the gate catches.

use super::SelftestError;
use super::bench::{Bench, caught};
use super::kinds::{Kind, Scale};
use super::report::Smallest;

/// Sizes are looked for from this part of the largest on.
const LEAST_PART: f64 = 1e-12;
/// The size found is at most this much larger than one that is not caught.
const CLOSE: f64 = 1.02;

/// The smallest size of `kind` that is caught: of bits the lowest, of sizes the end of a bisection, which takes it for
/// granted that a larger fault of a kind is no harder to see.
pub(super) fn smallest(bench: &Bench<'_>, kind: Kind) -> Result<Smallest, SelftestError> {
    let try_size = |size: f64| -> Result<bool, SelftestError> { Ok(caught(&bench.planted(kind, size)?.1)) };
    let size = match kind.scale() {
        Scale::Whole => try_size(1.0)?.then_some(1.0),
        Scale::Bit { first, last, .. } => {
            let mut found = None;
            for bit in (first..=last).map(f64::from) {
                if found.is_none() && try_size(bit)? {
                    found = Some(bit);
                }
            }
            found
        }
        Scale::Size { most, .. } => bisect(most, try_size)?,
    };
    let named = match size {
        None => false,
        Some(size) => {
            let (place, cell) = bench.planted(kind, size)?;
            place.named_in(&cell.reason)
        }
    };
    Ok(Smallest { kind, size, words: size.map(|size| kind.words(size)), named })
}

/// The smallest size up to `most` that `caught` holds of, to [`CLOSE`]; `None` where it does not hold of `most`.
fn bisect<E>(most: f64, mut caught: impl FnMut(f64) -> Result<bool, E>) -> Result<Option<f64>, E> {
    if !caught(most)? {
        return Ok(None);
    }
    let (mut below, mut above) = (most * LEAST_PART, most);
    if caught(below)? {
        return Ok(Some(below));
    }
    while above / below > CLOSE {
        let middle = (above * below).sqrt();
        if caught(middle)? { above = middle } else { below = middle }
    }
    Ok(Some(above))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(threshold: f64, most: f64) -> Option<f64> {
        bisect::<()>(most, |size| Ok(size >= threshold)).unwrap()
    }

    #[test]
    fn the_threshold_is_found_from_above() {
        for threshold in [1e-9, 0.003, 0.7, 1.0] {
            let found = from(threshold, 1.0).unwrap();
            assert!(found >= threshold && found <= CLOSE * threshold, "{threshold} {found}");
        }
        assert_eq!(from(1001.0, 1000.0), None);
        assert_eq!(from(0.0, 1.0), Some(LEAST_PART));
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(bisect(1.0, |size| if size < 0.5 { Err("gone") } else { Ok(true) }), Err("gone"));
    }
}
