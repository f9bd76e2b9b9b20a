//! Which layers matter least: the change that each makes to the residual stream while the prompt is read, and
//! the choice of those that decoding leaves out.

use crate::error::Error;
use crate::session::{Logits, Rows, Session};

/// So many layers at either end are never left out.
pub const PROTECTED: usize = 2;

/// Computes `prompt` after the cached positions, all rows of logits, and each layer's impact: the squared norm,
/// over all prompt positions, of the change it makes to the residual stream.
///
/// # Errors
/// When the cache is full, a token is outside the vocabulary, or ggml fails.
pub fn prefill(session: &mut Session, prompt: &[u32]) -> Result<(Logits, Vec<f64>), Error> {
    let mut impact = vec![0.0; session.hparams().n_layer];
    let logits =
        session.extend_observed(prompt, Rows::All, true, |pass| add_impacts(&mut impact, &pass.residuals))?;
    Ok((logits, impact))
}

fn add_impacts(impact: &mut [f64], residuals: &[Vec<f32>]) {
    for (sum, states) in impact.iter_mut().zip(residuals.windows(2)) {
        let change = |(after, before): (&f32, &f32)| (f64::from(*after) - f64::from(*before)).powi(2);
        *sum += states[1].iter().zip(&states[0]).map(change).sum::<f64>();
    }
}

/// The `n` layers with the least impact, in order, the lower one first among equals.
///
/// # Errors
/// When there are not so many that are not protected, or none is asked for: a run that skips nothing would
/// pass for one that does.
pub fn least(impact: &[f64], n: usize) -> Result<Vec<usize>, Error> {
    let free = PROTECTED..impact.len().saturating_sub(PROTECTED);
    if n == 0 || n > free.len() {
        return Err(Error::Input(format!(
            "{n} of {} layers to skip, of which the first and last {PROTECTED} are protected",
            impact.len()
        )));
    }
    let mut order: Vec<usize> = free.collect();
    // NaN counts as the largest.
    let key = |l: usize| if impact[l].is_nan() { f64::INFINITY } else { impact[l] };
    order.sort_by(|&a, &b| key(a).total_cmp(&key(b)).then(a.cmp(&b)));
    order.truncate(n);
    order.sort_unstable();
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impact_is_the_squared_norm_of_the_change() {
        let mut impact = vec![0.0; 2];
        let states = [vec![1.0, 2.0], vec![1.0, 5.0], vec![0.0, 3.0]];
        add_impacts(&mut impact, &states);
        add_impacts(&mut impact, &states);
        assert_eq!(impact, [18.0, 10.0]);
    }

    #[test]
    fn the_least_layers_between_the_protected_ones_are_taken() {
        let impact = [0.0, 0.1, 5.0, 3.0, 4.0, 3.0, 0.0, 0.0];
        assert_eq!(least(&impact, 1).unwrap(), [3]);
        assert_eq!(least(&impact, 3).unwrap(), [3, 4, 5]);
        assert!(least(&impact, 5).is_err(), "only four are free");
        assert!(least(&impact[..5], 1).is_ok());
        assert!(least(&impact[..4], 1).is_err());
        assert!(least(&[], 1).is_err());
    }

    #[test]
    fn skipping_none_is_an_error() {
        assert!(least(&[0.0; 8], 0).unwrap_err().to_string().contains("0 of 8 layers"));
    }
}
