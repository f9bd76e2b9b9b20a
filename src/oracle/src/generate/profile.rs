//! Which layers matter: the impact of each on the residual stream, and the ones to skip.

use crate::{Error, Network, Rows};

/// Layers at each end that are never skipped.
const PROTECTED: usize = 2;

/// Each layer's impact on a prompt: the squared norm, over all positions, of the change it makes to the
/// residual stream during prefill. `[n_layer]`
///
/// # Errors
/// As [`Network::forward`].
pub fn impact(network: &Network, prompt: &[u32]) -> Result<Vec<f64>, Error> {
    Ok(network.full(prompt, Rows::Only(&[]))?.change)
}

/// The `n` layers with the least impact, ascending; of equals the lower. The first two and the last two are
/// protected.
///
/// # Errors
/// Fewer than `n` layers that may be skipped, or an impact that is NaN. So `n` above 0 never gives none.
pub fn least(impact: &[f64], n: usize) -> Result<Vec<usize>, Error> {
    let last = impact.len().saturating_sub(PROTECTED);
    let mut free: Vec<usize> = (PROTECTED.min(last)..last).collect();
    if n > free.len() {
        return Err(Error::Plan(format!(
            "{n} layers are to be skipped; of {} only {} may be, the first and last {PROTECTED} are protected",
            impact.len(),
            free.len()
        )));
    }
    if let Some(layer) = impact.iter().position(|i| i.is_nan()) {
        return Err(Error::Plan(format!("the impact of layer {layer} is NaN")));
    }
    free.sort_by(|&a, &b| impact[a].total_cmp(&impact[b]));
    free.truncate(n);
    free.sort_unstable();
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_inner_layers_are_skipped() {
        let impact = [0.0, 0.1, 5.0, 3.0, 3.0, 4.0, 0.0, 0.0];
        assert!(least(&impact, 0).unwrap().is_empty());
        assert_eq!(least(&impact, 1).unwrap(), [3]);
        assert_eq!(least(&impact, 3).unwrap(), [3, 4, 5]);
        assert!(least(&impact, 5).is_err());
        assert!(least(&impact[..4], 1).is_err(), "all four are protected");
        assert!(least(&impact[..1], 1).is_err());
        assert!(least(&[0.0, 0.0, f64::NAN, 0.0, 0.0], 1).is_err());
    }
}
