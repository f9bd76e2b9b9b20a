//! The dense sampler: what it says of each row, against what the reference says.
//!
//! Argmax must be the same. A draw that differs is a *near tie* where it lies between the reference's `lowest` and
//! `highest`: then the reference's running sum at the boundary that was missed is within 1e-5 of the whole of `u` times
//! it, which is what reduction in another order explains. Otherwise it is *real*.

use super::{CompareError, RowPlace};
use crate::capture::{CaptureReader, NearTies, SampledRows, SamplerCost};
use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Differences of one arm that are listed; all are counted.
const LISTED: usize = 20;

named_enum! {
    /// In what a row differs.
    pub enum SamplerPart as "part" {
        /// One arm says something of the row, the other nothing.
        Yields = "yields",
        /// The largest logit.
        Argmax = "argmax",
        /// The draw, beyond what is a near tie.
        Sampled = "sampled",
        /// The draw, a near tie.
        NearTie = "near tie",
    }
}

/// A row that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplerDifference {
    /// Which row it is, and where it stood.
    #[serde(flatten)]
    pub place: RowPlace,
    /// In what.
    pub part: SamplerPart,
    /// What the reference says; -1 is nothing.
    pub reference: i32,
    /// What the test says.
    pub test: i32,
}

/// One sampler against the reference's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplerAgreement {
    /// Rows of which one arm says something and the other nothing.
    pub yields: u64,
    /// Rows with another argmax.
    pub argmax: u64,
    /// Draws that differ and are near ties.
    pub near_ties: u64,
    /// Draws that differ otherwise.
    pub real: u64,
    /// The largest difference of entropies in nats.
    #[serde(with = "crate::figure::Figure")]
    pub entropy_max: f64,
    /// The mean difference of entropies in nats.
    #[serde(with = "crate::figure::Figure")]
    pub entropy_mean: f64,
    /// The row of the largest difference.
    pub entropy_row: Option<RowPlace>,
    /// Some of the rows that differ, the gravest first.
    pub list: Vec<SamplerDifference>,
}

/// The figures of a cell of mode `sampler`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplerFigures {
    /// Whether the reference of these figures is the oracle, which keeps the contract in f64.
    pub oracle: bool,
    /// Rows of all steps.
    pub rows: u64,
    /// Of which the reference says nothing: they have a NaN, or no finite largest logit.
    pub silent: u64,
    /// The mean entropy that the reference finds, in nats.
    #[serde(with = "crate::figure::Figure")]
    pub mean_entropy: f64,
    /// The graph of ggml.
    pub graph: SamplerAgreement,
    /// The sampler that the backend brings itself; `None` where it brings none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<SamplerAgreement>,
    /// What a step costs the arm that is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<SamplerCost>,
}

/// Compares what both captures say of the sampler; `None` where neither is of one.
///
/// # Errors
/// Where one of them is of none, or the rows of logits are not the same, to the bit.
pub(super) fn compare(
    reference: &mut CaptureReader,
    test: &mut CaptureReader,
    places: &[RowPlace],
) -> Result<Option<SamplerFigures>, CompareError> {
    let has = |reader: &CaptureReader| if reader.sampled().is_some() { "present" } else { "absent" };
    CompareError::unless_equal("the rows of the sampler", has(reference), has(test))?;
    let (Some(said), Some(tested)) = (reference.sampled().cloned(), test.sampled().cloned()) else {
        return Ok(None);
    };
    let (mut r, mut x) = (Vec::new(), Vec::new());
    reference.logits(0, reference.rows(), &mut r)?;
    test.logits(0, test.rows(), &mut x)?;
    for (row, (r, x)) in r.iter().zip(&x).enumerate() {
        CompareError::unless_equal(format!("the logits that row {row} was sampled from (checksum)"), r, x)?;
    }
    let ties = reference.near_ties().cloned();
    let sound: Vec<f64> = said.entropy.iter().copied().filter(|entropy| !entropy.is_nan()).collect();
    Ok(Some(SamplerFigures {
        oracle: reference.meta().is_oracle(),
        rows: places.len() as u64,
        silent: (said.entropy.len() - sound.len()) as u64,
        mean_entropy: if sound.is_empty() { 0.0 } else { sound.iter().sum::<f64>() / sound.len() as f64 },
        graph: agreement(&said, &tested, ties.as_ref(), places, true),
        // What it says of rows without an answer is not published.
        own: test.sampled_own().map(|own| agreement(&said, own, ties.as_ref(), places, false)),
        cost: test.meta().sampler.clone(),
    }))
}

/// `test` against `reference`; rows of which the reference says nothing count only where `silent` ones are to be told.
fn agreement(
    reference: &SampledRows,
    test: &SampledRows,
    ties: Option<&NearTies>,
    places: &[RowPlace],
    silent: bool,
) -> SamplerAgreement {
    let mut found = SamplerAgreement {
        yields: 0,
        argmax: 0,
        near_ties: 0,
        real: 0,
        entropy_max: 0.0,
        entropy_mean: 0.0,
        entropy_row: None,
        list: Vec::new(),
    };
    let (mut sum, mut count) = (0.0, 0u64);
    for (row, &place) in places.iter().enumerate() {
        let (argmax, sampled) =
            ((reference.argmax[row], test.argmax[row]), (reference.sampled[row], test.sampled[row]));
        let mut differs = |part, (reference, test): (i32, i32)| {
            found.list.push(SamplerDifference { place, part, reference, test });
        };
        if argmax.0 < 0 {
            if silent && argmax.1 >= 0 {
                found.yields += 1;
                differs(SamplerPart::Yields, argmax);
            }
            continue;
        }
        if argmax.1 < 0 {
            found.yields += 1;
            differs(SamplerPart::Yields, argmax);
            continue;
        }
        if argmax.0 != argmax.1 {
            found.argmax += 1;
            differs(SamplerPart::Argmax, argmax);
        }
        if sampled.0 != sampled.1 {
            let near = ties.is_some_and(|ties| (ties.lowest[row]..=ties.highest[row]).contains(&sampled.1));
            let (part, counter) = match near {
                true => (SamplerPart::NearTie, &mut found.near_ties),
                false => (SamplerPart::Sampled, &mut found.real),
            };
            *counter += 1;
            differs(part, sampled);
        }
        let difference = (test.entropy[row] - reference.entropy[row]).abs();
        sum += difference;
        count += 1;
        // A NaN is the largest, and stays it.
        if found.entropy_row.is_none() || !(difference <= found.entropy_max) && !found.entropy_max.is_nan() {
            (found.entropy_max, found.entropy_row) = (difference, Some(place));
        }
    }
    found.entropy_mean = if count == 0 { 0.0 } else { sum / count as f64 };
    found.list.sort_by_key(|difference| difference.part);
    found.list.truncate(LISTED);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(rows: usize) -> Vec<RowPlace> {
        (0..rows).map(|row| RowPlace { row: row as u64, position: 0, step: 0 }).collect()
    }

    fn rows(argmax: &[i32], sampled: &[i32], entropy: &[f64]) -> SampledRows {
        SampledRows { argmax: argmax.to_vec(), sampled: sampled.to_vec(), entropy: entropy.to_vec() }
    }

    fn ties(lowest: &[i32], highest: &[i32]) -> NearTies {
        NearTies { lowest: lowest.to_vec(), highest: highest.to_vec() }
    }

    #[test]
    fn every_difference_is_counted_as_what_it_is() {
        let reference = rows(&[4, 4, 4, -1, 4], &[7, 7, 7, -1, 7], &[1.0, 2.0, 3.0, f64::NAN, 5.0]);
        let test = rows(&[4, 5, 4, 3, -1], &[8, 7, 9, 3, -1], &[1.5, 2.0, 2.75, 1.0, f64::NAN]);
        let ties = ties(&[7, 7, 6, -1, 7], &[8, 7, 8, -1, 7]);
        let found = agreement(&reference, &test, Some(&ties), &places(5), true);
        assert_eq!((found.yields, found.argmax, found.near_ties, found.real), (2, 1, 1, 1));
        assert_eq!((found.entropy_max, found.entropy_mean), (0.5, 0.25));
        assert_eq!(found.entropy_row.unwrap().row, 0);
        let parts: Vec<SamplerPart> = found.list.iter().map(|difference| difference.part).collect();
        use SamplerPart::*;
        assert_eq!(parts, [Yields, Yields, Argmax, Sampled, NearTie]);
        // Without the reference's word nothing is a near tie, and a row that it is silent of may be left out.
        let found = agreement(&reference, &test, None, &places(5), false);
        assert_eq!((found.yields, found.near_ties, found.real), (1, 0, 2));
    }

    #[test]
    fn a_nan_of_an_entropy_is_the_largest_difference() {
        let reference = rows(&[1; 3], &[1; 3], &[1.0; 3]);
        let test = rows(&[1; 3], &[1; 3], &[1.0, f64::NAN, 9.0]);
        let found = agreement(&reference, &test, None, &places(3), true);
        assert!(found.entropy_max.is_nan() && found.entropy_mean.is_nan());
        assert_eq!(found.entropy_row.unwrap().row, 1);
    }

    #[test]
    fn rows_that_agree_have_no_difference() {
        let same = rows(&[1, -1], &[2, -1], &[0.5, f64::NAN]);
        let found = agreement(&same, &same, None, &places(2), true);
        assert!(found.list.is_empty() && found.entropy_max == 0.0 && found.yields == 0);
    }
}
