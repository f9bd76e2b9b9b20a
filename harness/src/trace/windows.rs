//! A fault that is not there when every node is computed alone: backends fuse nodes that they are given together, and
//! schedule them. Ever longer windows of nodes are computed together, each from the reference's values, until one is
//! off; then it is made shorter from both ends.

use super::decode;
use super::spool::{SpoolError, Walked};
use crate::compare::Nmse;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The file that a worker writes its findings into.
pub const DOCUMENT: &str = "windows.json";

/// The fewest nodes that are off when they are computed together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The first. Nodes are counted in the order in which they were probed.
    pub first: usize,
    /// The last.
    pub last: usize,
    /// The node in it that is off.
    pub node: usize,
    /// Its NMSE against the reference.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
    /// What the nodes of the window may be off together.
    #[serde(with = "crate::figure::Figure")]
    pub limit: f64,
}

/// What was found, in names: devices compute nodes in orders of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// The nodes that are off when they are computed together, in the order in which the device computes them.
    pub nodes: Vec<String>,
    /// The one that is off.
    pub node: String,
    /// Its NMSE against the reference.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
    /// What the nodes may be off together.
    #[serde(with = "crate::figure::Figure")]
    pub limit: f64,
}

impl Window {
    /// The window in the names of nodes, which are given in the order of its counting.
    #[must_use]
    pub fn named(&self, names: &[String]) -> Together {
        let name = |i: usize| names.get(i).cloned().unwrap_or_default();
        Together {
            nodes: (self.first..=self.last).map(name).collect(),
            node: name(self.node),
            nmse: self.nmse,
            limit: self.limit,
        }
    }
}

/// The NMSE of each computed node that `walked` has a value of, in the order in which the device computed them.
///
/// # Errors
/// When a spool cannot be read.
pub fn errors(reference: &mut Walked, walked: &mut Walked) -> Result<Vec<Option<f64>>, SpoolError> {
    let nodes = walked.document.order.clone();
    let mut all = Vec::with_capacity(nodes.len());
    for i in nodes {
        let mine = walked.document.tensors[i].value;
        let theirs = reference.document.find(&walked.document.tensors[i].key);
        let theirs = theirs.and_then(|at| Some((at, reference.document.tensors[at].value?)));
        let nmse = match (mine, theirs) {
            (Some(mine), Some((at, theirs))) => {
                let (mine, theirs) = (walked.read(mine)?, reference.read(theirs)?);
                let x = decode::written(&walked.document, i, &mine);
                let r = decode::written(&reference.document, at, &theirs);
                match (x, r) {
                    (Some(x), Some(r)) if x.len() == r.len() => Some(Nmse::of(&r, &x).value()),
                    _ => Some(f64::NAN),
                }
            }
            _ => None,
        };
        all.push(nmse);
    }
    Ok(all)
}

/// Finds the shortest window that is off. `limits` says what each node may be off, and `probe` computes with stops
/// after the given nodes and says how far off each node that it could read is.
///
/// # Errors
/// Those of `probe`.
pub fn narrow<E>(
    limits: &[f64],
    mut probe: impl FnMut(&BTreeSet<usize>) -> Result<Vec<Option<f64>>, E>,
) -> Result<Option<Window>, E> {
    let n = limits.len();
    let mut width = 2;
    while width / 2 < n {
        for offset in [0, width / 2] {
            let mut ends: BTreeSet<usize> = (0..n).filter(|i| (i + 1) % width == offset).collect();
            ends.insert(n - 1);
            if let Some(found) = guilty(limits, &ends, &probe(&ends)?) {
                return shrink(limits, found, probe).map(Some);
            }
        }
        width *= 2;
    }
    Ok(None)
}

/// The first window that is off: its nodes' errors add up to more than theirs may.
fn guilty(limits: &[f64], ends: &BTreeSet<usize>, errors: &[Option<f64>]) -> Option<Window> {
    let mut first = 0;
    for &last in ends {
        let limit: f64 = limits[first..=last].iter().sum();
        for node in first..=last {
            if let Some(nmse) = errors.get(node).copied().flatten().filter(|nmse| !(*nmse <= limit)) {
                return Some(Window { first, last, node, nmse, limit });
            }
        }
        first = last + 1;
    }
    None
}

/// Leaves nodes out at the beginning, then at the end, as long as the rest is off.
fn shrink<E>(
    limits: &[f64],
    mut found: Window,
    mut probe: impl FnMut(&BTreeSet<usize>) -> Result<Vec<Option<f64>>, E>,
) -> Result<Window, E> {
    // Everything outside is computed node by node.
    let mut off = |first: usize, last: usize| {
        let ends: BTreeSet<usize> = (0..limits.len()).filter(|&i| i < first || i >= last).collect();
        let errors = probe(&ends)?;
        Ok(guilty(limits, &ends, &errors).filter(|window| (window.first, window.last) == (first, last)))
    };
    while found.first + 1 < found.last {
        match off(found.first + 1, found.last)? {
            Some(shorter) => found = shorter,
            None => break,
        }
    }
    while found.first + 1 < found.last {
        match off(found.first, found.last - 1)? {
            Some(shorter) => found = shorter,
            None => break,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A device that is off at node `last` when nodes `first` to `last` are computed together; also how often it was
    /// asked.
    fn search(n: usize, first: usize, last: usize, error: f64) -> (Option<Window>, usize) {
        let mut asked = 0;
        let found = narrow(&vec![1e-9; n], |ends| {
            asked += 1;
            let together = !ends.iter().any(|end| (first..last).contains(end));
            let read = |i: usize| ends.contains(&i) || i.is_multiple_of(3);
            // What follows the faulty node before the next stop inherits from it; a stop imposes what is right.
            let inherits = |i: usize| i >= last && !ends.iter().any(|end| (last..i).contains(end));
            let of = |i: usize| if together && inherits(i) { error } else { 1e-12 };
            Ok::<_, ()>((0..n).map(|i| read(i).then(|| of(i))).collect())
        });
        (found.unwrap(), asked)
    }

    proptest! {
        #[test]
        fn the_nodes_that_are_fused_are_found(n in 2usize..200, a in 0usize..200, b in 0usize..200) {
            let (first, last) = ((a % n).min(b % n), (a % n).max(b % n));
            prop_assume!(first < last);
            let (found, asked) = search(n, first, last, 1.0);
            let found = found.unwrap();
            prop_assert_eq!((found.first, found.last, found.node), (first, last, last));
            prop_assert!(asked <= 20 + 2 * (last - first + 1) * 2, "{} walks", asked);
        }
    }

    #[test]
    fn a_nan_is_off_and_a_clean_device_is_not() {
        assert_eq!(search(40, 10, 12, f64::NAN).0.map(|w| (w.first, w.last)), Some((10, 12)));
        assert_eq!(search(40, 10, 12, 1e-10).0, None);
    }
}
