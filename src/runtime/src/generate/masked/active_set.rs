//! Which positions a sparse step computes anew.

/// How a sparse cache is kept up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sparse {
    /// A changed position stays active for so many steps after the first that reads its new token.
    pub keep_active: usize,
    /// Every so many steps all positions are computed; 0 stands for never after the first step.
    pub refresh: usize,
    /// Whether the row that predicts a masked position is active too, where that is the row before it. Left out, a
    /// step reads such a row as an earlier step computed it: a fault that tests plant.
    pub predecessors: bool,
}

impl Default for Sparse {
    fn default() -> Self {
        Self { keep_active: 0, refresh: 0, predecessors: true }
    }
}

impl Sparse {
    /// Whether `step` computes all positions.
    #[must_use]
    pub fn is_full(self, step: usize) -> bool {
        step == 0 || (self.refresh > 0 && step.is_multiple_of(self.refresh))
    }

    /// The active positions of `step`, rising: those still masked, those changed lately, and with `shift` the one
    /// before each masked position. `changed_at[p]` is the first step that reads the new token of position p; full
    /// steps count as others do.
    #[must_use]
    pub fn active(
        self,
        step: usize,
        masked: &[usize],
        changed_at: &[Option<usize>],
        shift: bool,
    ) -> Vec<usize> {
        let lately = |at: usize| step.saturating_sub(at) <= self.keep_active;
        let changed = (0..changed_at.len()).filter(|&p| changed_at[p].is_some_and(lately));
        let predecessors = masked.iter().filter(|_| shift && self.predecessors).map(|&p| row_of(p, shift));
        let mut active: Vec<usize> = masked.iter().copied().chain(changed).chain(predecessors).collect();
        active.sort_unstable();
        active.dedup();
        active
    }
}

/// The row of logits that predicts position `p`.
pub(super) fn row_of(p: usize, shift: bool) -> usize {
    if shift { p.saturating_sub(1) } else { p }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight positions of which 3 and 6 are masked; 5 was first read at step 4 and 4 at step 3.
    fn active(keep_active: usize, step: usize, shift: bool, predecessors: bool) -> Vec<usize> {
        let mut changed_at = [None; 8];
        (changed_at[5], changed_at[4]) = (Some(4), Some(3));
        Sparse { keep_active, refresh: 0, predecessors }.active(step, &[3, 6], &changed_at, shift)
    }

    #[test]
    fn masked_and_changed_positions_are_active() {
        assert_eq!(active(0, 4, false, true), [3, 5, 6]);
        assert_eq!(active(1, 4, false, true), [3, 4, 5, 6]);
        assert_eq!(active(0, 5, false, true), [3, 6]);
        assert_eq!(active(2, 6, false, true), [3, 5, 6]);
    }

    #[test]
    fn shifted_logits_need_the_position_before_each_masked_one() {
        assert_eq!(active(0, 5, true, true), [2, 3, 5, 6]);
        assert_eq!(active(0, 5, true, false), [3, 6]);
        assert_eq!(Sparse::default().active(1, &[0, 1], &[None; 2], true), [0, 1]);
    }

    #[test]
    fn the_first_step_and_every_nth_is_full() {
        let full = |refresh| -> Vec<usize> {
            let sparse = Sparse { refresh, ..Sparse::default() };
            (0..9).filter(|&step| sparse.is_full(step)).collect()
        };
        assert_eq!(full(0), [0]);
        assert_eq!(full(4), [0, 4, 8]);
        assert_eq!(full(1).len(), 9);
    }
}
