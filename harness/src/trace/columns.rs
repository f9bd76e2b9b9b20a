//! The error of matrix products by the number of columns: backends switch kernels with it.

use super::model::Trace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One kind of product at every number of columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Types.
    pub types: String,
    /// `k x m`.
    pub shape: String,
    /// A node that computes it.
    pub node: String,
    /// The worst NMSE that one of them introduces, by the number of columns, in the order they were asked for.
    pub errors: Vec<(usize, Figure)>,
}

/// A figure in a list of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figure(#[serde(with = "crate::figure::Figure")] pub f64);

/// The figure of a number of columns is this many times another's where a kernel has changed.
const JUMP: f64 = 5.0;

impl Row {
    /// The numbers of columns at which the error is [`JUMP`] times larger or smaller than at the one before.
    #[must_use]
    pub fn jumps(&self) -> Vec<usize> {
        let apart =
            |a: f64, b: f64| !(a.max(b) <= JUMP * a.min(b)) && a.max(b) > 0.0 || a.is_nan() != b.is_nan();
        let pairs = self.errors.windows(2).filter(|pair| apart(pair[0].1.0, pair[1].1.0));
        pairs.map(|pair| pair[1].0).collect()
    }
}

/// Products of weights in traces of different lengths.
#[must_use]
pub fn table(traces: &[(usize, Trace)]) -> Vec<Row> {
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    for (columns, trace) in traces {
        // The head may be asked for fewer rows than there are tokens; keys and queries are of other sizes each time.
        let products = trace.nodes.iter().filter(|node| {
            node.product.is_some_and(|[_, _, n]| n == *columns) && !node.name.starts_with("kq")
        });
        for node in products {
            let Some([k, m, _]) = node.product else { continue };
            let nmse = node.introduced.as_ref().map_or(f64::NAN, |figures| figures.nmse);
            let key = (node.types.clone(), format!("{k} x {m}"));
            let row = rows.entry(key.clone()).or_insert_with(|| Row {
                types: key.0,
                shape: key.1,
                node: node.name.clone(),
                errors: Vec::new(),
            });
            match row.errors.last_mut().filter(|(n, _)| n == columns) {
                None => row.errors.push((*columns, Figure(nmse))),
                Some((_, worst)) if !worst.0.is_nan() && !(nmse <= worst.0) => worst.0 = nmse,
                Some(_) => {}
            }
        }
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_up_or_down_and_a_nan_is_one() {
        let row = |figures: &[f64]| Row {
            types: String::new(),
            shape: String::new(),
            node: String::new(),
            errors: figures.iter().enumerate().map(|(i, &f)| (i + 1, Figure(f))).collect(),
        };
        assert_eq!(row(&[1e-13, 1e-13, 1e-7, 2e-7, 1e-12]).jumps(), [3, 5]);
        assert_eq!(row(&[0.0, 0.0, 1e-9]).jumps(), [3]);
        assert_eq!(row(&[1e-9, f64::NAN, f64::NAN]).jumps(), [2]);
        assert!(row(&[1e-9, 4e-9]).jumps().is_empty());
    }
}
