//! Logits of an arm against those of a reference, row by row.

use crate::compare::order::worse;
use crate::compare::{Nmse, Top, divergence};
use crate::sweep::result::LogitFigures;

/// What is gathered.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    sums: Nmse,
    kl: Vec<f64>,
    entropy_sum: f64,
    entropy_max: f64,
    same_top: u64,
}

impl Figures {
    /// Adds one row.
    pub(super) fn push(&mut self, reference: &[f64], test: &[f64]) {
        self.sums.merge(Nmse::of(reference, test));
        let (kl, entropy) = divergence(reference, test);
        self.kl.push(kl);
        self.entropy_sum += entropy;
        self.entropy_max = worse(self.entropy_max, entropy.abs());
        let same = matches!((Top::of(reference), Top::of(test)), (Some(r), Some(x)) if r.token == x.token);
        self.same_top += u64::from(same);
    }

    /// Adds the rows of `later`.
    pub(super) fn extend(&mut self, later: &Self) {
        self.sums.merge(later.sums);
        self.kl.extend(&later.kl);
        self.entropy_sum += later.entropy_sum;
        self.entropy_max = worse(self.entropy_max, later.entropy_max);
        self.same_top += later.same_top;
    }

    /// The figures; `None` without a row.
    pub(super) fn finish(&self) -> Option<LogitFigures> {
        let rows = self.kl.len();
        (rows > 0).then(|| LogitFigures {
            rows: rows as u64,
            nmse: self.sums.value(),
            kl_mean: self.kl.iter().sum::<f64>() / rows as f64,
            kl_max: self.kl.iter().copied().fold(0.0, worse),
            kl_rows: self.kl.iter().copied().map(three_digits).collect(),
            entropy_mean: self.entropy_sum / rows as f64,
            entropy_max: self.entropy_max,
            same_top: self.same_top,
        })
    }
}

/// A figure to three digits: a sweep holds one for each row.
fn three_digits(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_are_no_distance_apart() {
        let mut figures = Figures::default();
        figures.push(&[1.0, 2.0, 0.5], &[1.0, 2.0, 0.5]);
        let found = figures.finish().unwrap();
        assert_eq!((found.rows, found.nmse, found.kl_max, found.same_top), (1, 0.0, 0.0, 1));
        assert_eq!(Figures::default().finish(), None);
    }

    #[test]
    fn a_row_by_hand() {
        // p = (1/2, 1/2), q = (1/4, 3/4): KL = ln 2 - ln(3)/2, H falls from ln 2.
        let mut figures = Figures::default();
        figures.push(&[0.0, 0.0], &[0.0, 3f64.ln()]);
        figures.push(&[1.0, 1.0], &[1.0, 1.0]);
        let found = figures.finish().unwrap();
        let kl = 2f64.ln() - 3f64.ln() / 2.0;
        assert!((found.kl_max - kl).abs() < 1e-12 && (found.kl_mean - kl / 2.0).abs() < 1e-12);
        assert_eq!(found.kl_rows, [0.144, 0.0]);
        let entropy = 0.25 * 4f64.ln() + 0.75 * (4.0f64 / 3.0).ln() - 2f64.ln();
        assert!(
            (found.entropy_max + entropy).abs() < 1e-12 && (found.entropy_mean - entropy / 2.0).abs() < 1e-12
        );
        // The first of equals is the reference's top.
        assert_eq!(found.same_top, 1);
        let mut both = Figures::default();
        both.extend(&figures);
        assert_eq!(both.finish(), Some(found));
    }

    #[test]
    fn a_nan_is_in_every_figure() {
        let mut figures = Figures::default();
        figures.push(&[0.0, 1.0], &[0.0, 1.0]);
        figures.push(&[0.0, 1.0], &[f64::NAN, 1.0]);
        let found = figures.finish().unwrap();
        assert!(found.nmse.is_nan() && found.kl_mean.is_nan() && found.kl_max.is_nan());
        assert!(found.entropy_max.is_nan() && found.kl_rows[1].is_nan());
        assert_eq!((found.kl_rows[0], found.same_top), (0.0, 1));
    }
}
