//! Keys and values step by step, as captures hold them: what each forward pass of a run computed, so that a comparison
//! can say in which step and layer two arms part.

use super::exchange::{int, shape};
use super::protocol::{Failure, FailureKind};
use crate::capture::{CaptureReader, CaptureWriter, STEP_KV_MOST, StepRows};
use model_file::HyperParams;
use runtime::LayerKv;

/// Collects the rows of every step. All arms collect those of the reference, so that an arm that computes others is
/// seen to hold other values, and not to be another run.
pub(super) struct StepKvs {
    /// The reference's rows by step; none where this is the reference.
    given: Option<StepRows>,
    rows: StepRows,
    layers: Vec<LayerKv>,
    /// Values of one position in each layer.
    widths: Vec<usize>,
    /// The bytes that all rows may take, and whether a step would have exceeded them.
    most: usize,
    full: bool,
    failed: Option<runtime::Error>,
}

impl StepKvs {
    /// Nothing yet, of a model with these sizes.
    pub(super) fn new(h: &HyperParams, reference: Option<&CaptureReader>) -> Self {
        Self {
            given: reference.map(|reference| reference.step_rows().cloned().unwrap_or_default()),
            rows: StepRows::default(),
            layers: Vec::new(),
            widths: (0..h.n_layer).map(|layer| h.layer(layer).kv_width()).collect(),
            most: STEP_KV_MOST,
            full: false,
            failed: None,
        }
    }

    /// Adds the rows of `step`, which computed `positions` and whose keys and values `read` gives.
    pub(super) fn push(
        &mut self,
        step: usize,
        positions: &[usize],
        read: impl FnOnce(&[usize]) -> Result<Vec<LayerKv>, runtime::Error>,
    ) {
        let positions = match &self.given {
            Some(given) => {
                let of_step = given.step.iter().zip(&given.position).filter(|(s, _)| **s == int(step));
                of_step.filter_map(|(_, &position)| usize::try_from(position).ok()).collect()
            }
            None => positions.to_vec(),
        };
        let rows = self.rows.step.len() + positions.len();
        self.full |= rows * self.widths.iter().sum::<usize>() * 2 * size_of::<f32>() > self.most;
        if self.full || positions.is_empty() || self.failed.is_some() {
            return;
        }
        match read(&positions) {
            Err(error) => self.failed = Some(error),
            Ok(layers) => {
                self.layers.resize(layers.len(), LayerKv { k: Vec::new(), v: Vec::new() });
                for (all, new) in self.layers.iter_mut().zip(layers) {
                    all.k.extend(new.k);
                    all.v.extend(new.v);
                }
                self.rows.step.extend(positions.iter().map(|_| int(step)));
                self.rows.position.extend(positions.iter().map(|&position| int(position)));
            }
        }
    }

    /// Writes them; what is to be noted where steps were left out.
    pub(super) fn write(
        self,
        writer: &mut CaptureWriter,
        h: &HyperParams,
    ) -> Result<Option<String>, Failure> {
        if let Some(error) = &self.failed {
            return Err(Failure::from(error));
        }
        let count = self.rows.step.len();
        if self.layers.iter().zip(&self.widths).any(|(layer, width)| layer.k.len() != count * width) {
            let message = "a step's keys and values are not those of its positions".to_owned();
            return Err(Failure { kind: FailureKind::Fault, message });
        }
        if !self.layers.is_empty() {
            writer.step_rows(&self.rows);
            for (i, layer) in self.layers.iter().enumerate() {
                writer.layer_by_step(i, &layer.k, &layer.v, shape(h, i, layer.k.len()));
            }
        }
        let next = self.rows.step.last().map_or(0, |last| last + 1);
        Ok(self.full.then(|| {
            format!(
                "keys and values of step {next} and later ones were left out: more than {} bytes",
                self.most
            )
        }))
    }
}

/// The rows of a run in which every position is computed once: those before `starts[0]` and on up to `starts[1]`
/// belong to step 0, those up to `starts[2]` to step 1, and so on; the last step has those up to `end`.
pub(super) fn once(starts: impl IntoIterator<Item = usize>, end: usize) -> StepRows {
    let starts: Vec<usize> = starts.into_iter().collect();
    let step = |position: usize| starts.iter().skip(1).filter(|&&start| start <= position).count();
    StepRows { step: (0..end).map(|p| int(step(p))).collect(), position: (0..end).map(int).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::sample::Sample;
    use crate::capture::{Cache, KvSet};

    fn sizes() -> HyperParams {
        let h = model_file::GenerateSpec::preset("gen-llama").unwrap().hparams();
        HyperParams { n_layer: 1, n_head_kv: 1, head_dim: 2, ..h }
    }

    /// Rows whose values are ten times their positions.
    fn read(positions: &[usize]) -> Result<Vec<LayerKv>, runtime::Error> {
        let values: Vec<f32> = positions.iter().flat_map(|&p| [p as f32 * 10.0; 2]).collect();
        Ok(vec![LayerKv { k: values.clone(), v: values }])
    }

    fn written(steps: StepKvs) -> (CaptureReader, Option<String>) {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("c");
        let mut writer = CaptureWriter::new(1);
        writer.row(0, 0, &[1f32]);
        writer.tokens(&[1]);
        let note = steps.write(&mut writer, &sizes()).unwrap();
        writer.write(&path, &Sample::new(1, 1).meta).unwrap();
        (CaptureReader::open(&path).unwrap(), note)
    }

    #[test]
    fn every_arm_holds_the_rows_that_the_reference_computed() {
        let mut steps = StepKvs::new(&sizes(), None);
        steps.push(0, &[0, 1, 2], read);
        steps.push(1, &[1], read);
        let (reference, note) = written(steps);
        assert_eq!(note, None);
        let mut steps = StepKvs::new(&sizes(), Some(&reference));
        steps.push(0, &[0, 1, 2], read);
        steps.push(1, &[0, 2], read);
        let (mut found, _) = written(steps);
        assert_eq!(
            found.step_rows().unwrap(),
            &StepRows { step: vec![0, 0, 0, 1], position: vec![0, 1, 2, 1] }
        );
        let mut values = Vec::new();
        found.kv_of(KvSet::Steps, Cache::K, 0, 3, 1, &mut values).unwrap();
        assert_eq!(values, [10.0, 10.0]);
    }

    #[test]
    fn steps_beyond_the_cap_are_left_out_and_the_note_says_so() {
        let mut steps = StepKvs { most: 3 * 16, ..StepKvs::new(&sizes(), None) };
        steps.push(0, &[0, 1], read);
        steps.push(1, &[0, 1], read);
        steps.push(2, &[0], read);
        let (found, note) = written(steps);
        assert_eq!(found.step_rows().unwrap().step, [0, 0]);
        let note = note.unwrap();
        assert!(note.starts_with("keys and values of step 1 and later ones were left out"), "{note}");
    }

    #[test]
    fn a_step_that_cannot_be_read_is_a_failure() {
        let mut steps = StepKvs::new(&sizes(), None);
        steps.push(0, &[0], |_| Err(runtime::Error::Input("gone".to_owned())));
        assert!(steps.write(&mut CaptureWriter::new(1), &sizes()).is_err());
    }

    #[test]
    fn positions_that_are_computed_once_belong_to_the_step_that_reached_them() {
        let rows = once([0, 3, 4], 6);
        assert_eq!((rows.step, rows.position), (vec![0, 0, 0, 1, 2, 2], vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(once([0], 2).step, [0, 0]);
    }
}
