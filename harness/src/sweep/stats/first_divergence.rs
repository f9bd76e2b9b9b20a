//! Where arms part: the distribution of the first divergent token over items.
//!
//! A run that agreed up to its end did not part "late": how long it would have agreed is unknown. Such runs are
//! censored, and leaving them out, or counting their length as a divergence, would make agreement look shorter than it
//! is. The estimate is Kaplan and Meier's (1958): the probability of agreeing through a position is the product, over
//! the positions where runs parted, of the share of those still running there that did not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one item's free run on two arms did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The tokens at this position, from 0 on, are the first to differ. One arm ending where the other goes on
    /// differs at the position of the end.
    Parted {
        /// The position.
        at: u64,
    },
    /// All tokens were equal.
    Agreed {
        /// How many there were.
        tokens: u64,
    },
}

impl Run {
    /// Whether tokens at `position` were compared in this run before it parted or ended.
    const fn reached(self, position: u64) -> bool {
        match self {
            Self::Parted { at } => at >= position,
            Self::Agreed { tokens } => tokens > position,
        }
    }
}

/// One position at which runs parted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// The position.
    pub at: u64,
    /// Runs that reached it.
    pub running: u64,
    /// Those of them that parted there.
    pub parted: u64,
    /// Estimated probability that a run agrees through this position.
    pub agreeing: f64,
}

/// The survival curve of agreement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    /// Runs in all.
    pub runs: u64,
    /// Runs that parted.
    pub parted: u64,
    /// The positions where runs parted, in order.
    pub steps: Vec<Step>,
}

impl Curve {
    /// The curve of a set of runs.
    #[must_use]
    pub fn of(runs: &[Run]) -> Self {
        let mut places: Vec<u64> = runs
            .iter()
            .filter_map(|run| match run {
                Run::Parted { at } => Some(*at),
                Run::Agreed { .. } => None,
            })
            .collect();
        places.sort_unstable();
        let parted = places.len() as u64;
        let mut agreeing = 1.0;
        let steps = places
            .chunk_by(|a, b| a == b)
            .map(|here| {
                let (at, count) = (here[0], here.len() as u64);
                let running = runs.iter().filter(|run| run.reached(at)).count() as u64;
                agreeing *= (running - count) as f64 / running as f64;
                Step { at, running, parted: count, agreeing }
            })
            .collect();
        Self { runs: runs.len() as u64, parted, steps }
    }

    /// The estimated probability that a run agrees through `position`.
    #[must_use]
    pub fn agreeing_through(&self, position: u64) -> f64 {
        let passed = self.steps.partition_point(|step| step.at <= position);
        passed.checked_sub(1).map_or(1.0, |last| self.steps[last].agreeing)
    }

    /// The first position by which a share `q` (above 0, to 1) of runs is estimated to have parted; 0.5 is the median.
    /// `None` where the runs do not show it: fewer parted before the others ended.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        self.steps.iter().find(|step| 1.0 - step.agreeing >= q - 1e-12).map(|step| step.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Weeks in remission under 6-mercaptopurine, Freireich and others 1963, whose curve is in most textbooks (Collett,
    /// Modelling Survival Data in Medical Research). A patient lost in week 9 was still at risk in that week.
    #[test]
    fn the_textbook_example() {
        let mut runs: Vec<Run> =
            [6, 6, 6, 7, 10, 13, 16, 22, 23].into_iter().map(|at| Run::Parted { at }).collect();
        let lost = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35];
        runs.extend(lost.map(|week| Run::Agreed { tokens: week + 1 }));
        let curve = Curve::of(&runs);
        assert_eq!((curve.runs, curve.parted), (21, 9));
        let expected = [
            (6, 21, 3, 0.857),
            (7, 17, 1, 0.807),
            (10, 15, 1, 0.753),
            (13, 12, 1, 0.690),
            (16, 11, 1, 0.627),
            (22, 7, 1, 0.538),
            (23, 6, 1, 0.448),
        ];
        assert_eq!(curve.steps.len(), expected.len());
        for (step, (at, running, parted, agreeing)) in curve.steps.iter().zip(expected) {
            assert_eq!((step.at, step.running, step.parted), (at, running, parted));
            assert!((step.agreeing - agreeing).abs() < 6e-4, "{step:?}");
        }
        assert_eq!(
            (curve.quantile(0.25), curve.quantile(0.5), curve.quantile(0.75)),
            (Some(13), Some(23), None)
        );
        assert_eq!(curve.agreeing_through(5), 1.0);
        assert_eq!(curve.agreeing_through(9), curve.steps[1].agreeing);
    }

    #[test]
    fn runs_that_ended_before_a_position_were_not_at_risk_there() {
        // Eight tokens are the positions 0 to 7.
        let curve = Curve::of(&[Run::Agreed { tokens: 8 }, Run::Parted { at: 8 }]);
        assert_eq!((curve.steps[0].running, curve.steps[0].agreeing), (1, 0.0));
    }

    #[test]
    fn nothing_parted_and_nothing_at_all() {
        assert_eq!(Curve::of(&[Run::Agreed { tokens: 5 }; 3]).quantile(0.01), None);
        assert_eq!(Curve::of(&[]), Curve::default());
        assert_eq!(Curve::default().agreeing_through(9), 1.0);
    }

    proptest! {
        #[test]
        fn without_censoring_it_is_the_share_of_runs(places in proptest::collection::vec(0u64..40, 1..60)) {
            let runs: Vec<Run> = places.iter().map(|&at| Run::Parted { at }).collect();
            let curve = Curve::of(&runs);
            for position in 0..40 {
                let share = places.iter().filter(|&&at| at > position).count() as f64 / places.len() as f64;
                prop_assert!((curve.agreeing_through(position) - share).abs() < 1e-12);
            }
            prop_assert_eq!(curve.quantile(1.0), places.iter().max().copied());
        }

        #[test]
        fn it_falls_from_1_to_0_at_least(runs in proptest::collection::vec((0u64..40, any::<bool>()), 0..60)) {
            let runs: Vec<Run> = runs
                .into_iter()
                .map(|(at, parted)| if parted { Run::Parted { at } } else { Run::Agreed { tokens: at } })
                .collect();
            let curve = Curve::of(&runs);
            let values: Vec<f64> = (0..40).map(|position| curve.agreeing_through(position)).collect();
            prop_assert!(values.iter().all(|v| (0.0..=1.0).contains(v)));
            prop_assert!(values.windows(2).all(|pair| pair[1] <= pair[0]));
        }
    }
}
