//! NMSE of logits step by step: where a divergence begins and how it grows.

use super::nmse::Nmse;
use super::order::worst_index;
use crate::verdict::within;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// NMSE per step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Steps {
    /// The first step over the limit of all logits.
    pub first_bad: Option<StepNmse>,
    /// The worst step.
    pub worst: StepNmse,
    /// Every step, in order.
    pub list: Vec<StepNmse>,
}

/// NMSE of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepNmse {
    /// The step, from 0.
    pub step: i32,
    /// Its rows.
    pub rows: u64,
    /// Its NMSE.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
}

/// Gathers [`Steps`] row by row.
#[derive(Default)]
pub(super) struct StepSums(BTreeMap<i32, (u64, Nmse)>);

impl StepSums {
    pub(super) fn push(&mut self, step: i32, row: Nmse) {
        let (rows, sums) = self.0.entry(step).or_default();
        *rows += 1;
        sums.merge(row);
    }

    /// The metric; `None` where all rows are of one step.
    pub(super) fn finish(self, limit: f64) -> Option<Steps> {
        let steps =
            self.0.into_iter().map(|(step, (rows, sums))| StepNmse { step, rows, nmse: sums.value() });
        let list: Vec<StepNmse> = steps.collect();
        if list.len() < 2 {
            return None;
        }
        let worst = worst_index(list.iter().map(|step| step.nmse))?;
        let first_bad = list.iter().find(|step| !within(step.nmse, limit)).copied();
        Some(Steps { first_bad, worst: list[worst], list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(errors: &[(i32, f64)], limit: f64) -> Option<Steps> {
        let mut sums = StepSums::default();
        for &(step, error) in errors {
            sums.push(step, Nmse::of(&[1.0, 0.0], &[1.0, error]));
        }
        sums.finish(limit)
    }

    #[test]
    fn the_first_step_over_the_limit_and_the_worst_are_named() {
        let found = steps(&[(0, 0.0), (0, 0.0), (1, 0.1), (2, 0.5), (3, 0.2)], 0.02).unwrap();
        let rows: Vec<u64> = found.list.iter().map(|step| step.rows).collect();
        assert_eq!(rows, [2, 1, 1, 1]);
        assert_eq!(found.first_bad.unwrap(), StepNmse { step: 2, rows: 1, nmse: 0.25 });
        assert_eq!(found.worst.step, 2);
        assert_eq!(steps(&[(0, 0.0), (1, 0.1)], 0.02).unwrap().first_bad, None);
    }

    #[test]
    fn a_nan_is_over_every_limit() {
        let found = steps(&[(0, 0.0), (4, f64::NAN), (5, 9.0)], f64::INFINITY).unwrap();
        assert_eq!((found.first_bad.unwrap().step, found.worst.step), (4, 4));
    }

    #[test]
    fn rows_of_one_step_have_no_course() {
        assert_eq!(steps(&[(0, 0.1), (0, 0.2)], 1.0), None);
    }
}
