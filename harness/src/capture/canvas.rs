//! The canvas of a masked generation, step by step, from its capture.

use super::CaptureReader;

/// The canvas after one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// The step.
    pub step: i32,
    /// The tokens; `None` where a position is still masked.
    pub tokens: Vec<Option<i32>>,
    /// The positions that became tokens at this step.
    pub unmasked: Vec<usize>,
}

/// The canvas after each step that unmasked something; empty where the capture is of no masked generation. `mask` is
/// the model's mask token, which stands where the steps did not suffice.
#[must_use]
pub fn canvases(capture: &CaptureReader, mask: Option<i32>) -> Vec<Canvas> {
    let Some(unmask) = capture.unmask() else { return Vec::new() };
    let place = |position: i32| usize::try_from(position).ok().filter(|&p| p < capture.tokens().len());
    let mut tokens: Vec<Option<i32>> = capture.tokens().iter().map(|&t| Some(t)).collect();
    for token in tokens.iter_mut().filter(|token| **token == mask) {
        *token = None;
    }
    for position in unmask.position.iter().filter_map(|&p| place(p)) {
        tokens[position] = None;
    }
    let mut canvases: Vec<Canvas> = Vec::new();
    for ((&step, &position), &token) in unmask.step.iter().zip(&unmask.position).zip(&unmask.token) {
        let Some(position) = place(position) else { continue };
        tokens[position] = Some(token);
        match canvases.last_mut().filter(|canvas| canvas.step == step) {
            Some(canvas) => {
                canvas.tokens.clone_from(&tokens);
                canvas.unmasked.push(position);
            }
            None => canvases.push(Canvas { step, tokens: tokens.clone(), unmasked: vec![position] }),
        }
    }
    canvases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Unmask, sample::Sample};

    #[test]
    fn the_canvas_fills_along_the_trajectory() {
        let mut sample = Sample::new(2, 8);
        sample.tokens = vec![5, 6, 7, 2, 4];
        assert!(canvases(&sample.open(), Some(2)).is_empty());
        sample.unmask = Some(Unmask { step: vec![0, 0, 3], position: vec![4, 2, 1], token: vec![4, 7, 6] });
        let found = canvases(&sample.open(), Some(2));
        let first =
            Canvas { step: 0, tokens: vec![Some(5), None, Some(7), None, Some(4)], unmasked: vec![4, 2] };
        let second =
            Canvas { step: 3, tokens: vec![Some(5), Some(6), Some(7), None, Some(4)], unmasked: vec![1] };
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn positions_beyond_the_sequence_are_passed_over() {
        let mut sample = Sample::new(2, 8);
        sample.tokens = vec![5, 6];
        sample.unmask = Some(Unmask { step: vec![0, 1], position: vec![9, 1], token: vec![4, 6] });
        assert_eq!(canvases(&sample.open(), None).len(), 1);
    }
}
