//! One sweep, from its plan to its result.
//!
//! Items go in batches, and a batch goes through all arms, references first, so that no more than the logits of one batch
//! lie on the disk. A worker does the batch for one model on one device, in all modes; every row is in the journal as soon
//! as it is there.

use super::items::{self, Selected};
use super::journal::SweepJournal;
use super::result::{Arm, CorpusUse, ModelUse, Row, RowStatus, Settings, Sweep, SweepRun};
use super::{arms, rows, summary};
use crate::builds::catalogue::hex;
use crate::keep::Identity;
use crate::pipeline::{Build, RunError, environment_of, model_info};
use crate::plan::models::ResolvedModel;
use crate::plan::{Case, CellId};
use crate::worker::sweep::{
    SweepJob, SweepTask, TaskId, TaskInput, answer, is_kept, read_result, remove_kept,
};
use crate::worker::{self, Ended, Progress, Workplace};
use model_file::Tokenizer;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Logits of references that lie on the disk at a time, unless one item has more.
const BATCH_BYTES: u64 = 1 << 30;
/// Items of a batch at most.
const BATCH_ITEMS: usize = 64;

/// Everything a sweep needs to know before it begins.
pub struct SweepPlan {
    /// The builds.
    pub builds: Vec<Build>,
    /// The models.
    pub models: Vec<ResolvedModel>,
    /// The arms, each after its references.
    pub arms: Vec<Arm>,
    /// What was asked for and cannot be.
    pub left_out: Vec<String>,
    /// The corpora.
    pub corpora: Vec<CorpusUse>,
    /// The items.
    pub items: Vec<Selected>,
    /// What each item is to each model, model by model, or why it is nothing to it.
    pub inputs: Vec<Vec<Result<TaskInput, String>>>,
    /// What decides prompts, lengths and statistics.
    pub settings: Settings,
}

/// What is told while a sweep runs.
pub enum Told<'a> {
    /// A row is there.
    Row(&'a Row),
    /// Something that changes no result.
    Warning(&'a str),
}

impl SweepPlan {
    /// The inputs of all items on all models.
    ///
    /// # Errors
    /// Items that need a chat template, on a model without one, and models without a tokenizer.
    pub fn inputs(
        models: &[ResolvedModel],
        items: &[Selected],
        settings: &Settings,
    ) -> Result<Vec<Vec<Result<TaskInput, String>>>, RunError> {
        let of = |model: &ResolvedModel| {
            let tokenizer = model.tokenizer()?;
            items.iter().map(|item| items::input(model, tokenizer, item, settings)).collect()
        };
        models.iter().map(of).collect()
    }

    /// The tokenizer of a model, by its number.
    fn tokenizer(&self, model: usize) -> &Tokenizer {
        self.models[model].tokenizer().expect("the items were encoded with it")
    }

    /// Rows that the sweep has when it is done.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.items.len() * self.arms.len()
    }

    /// What makes this sweep the one that was interrupted; `program` is the digest of this program.
    #[must_use]
    pub fn identity(&self, program: &str) -> Identity {
        let libraries = self.builds.iter().flat_map(|build| {
            let name = &build.info.name;
            build.info.files.iter().map(move |file| (format!("{name}/{}", file.name), file.sha256.clone()))
        });
        let ids: Vec<&str> = self.items.iter().map(|selected| selected.item.id.as_str()).collect();
        let pairings: Vec<_> = self.arms.iter().map(|arm| &arm.pairings).collect();
        let mut settings = BTreeMap::from([
            ("settings".to_owned(), json(&self.settings)),
            ("items".to_owned(), hex(&Sha256::digest(json(&ids)))),
            ("references".to_owned(), hex(&Sha256::digest(json(&pairings)))),
            ("environment".to_owned(), format!("{:?}", worker::switches())),
        ]);
        settings.extend(self.corpora.iter().map(|c| (format!("corpus {}", c.name), c.sha256.clone())));
        Identity {
            version: format!("{} {}", env!("CARGO_PKG_VERSION"), &program[..program.len().min(16)]),
            cells: self.arms.iter().map(|arm| arm.id.clone()).collect(),
            models: self.models.iter().map(|m| (format!("{}/{}", m.name, m.weights), m.identity())).collect(),
            libraries: libraries.collect(),
            settings,
        }
    }

    fn model(&self, case: &Case) -> usize {
        let same = |model: &ResolvedModel| model.name == case.model && model.weights == case.weights;
        self.models.iter().position(same).expect("arms are made of the models")
    }

    /// Whether arms are held against this one.
    fn is_reference(&self, id: &CellId) -> bool {
        self.arms.iter().any(|arm| arm.pairings.iter().any(|pairing| pairing.reference == *id))
    }

    /// Items that go through all arms together.
    fn batches(&self) -> Vec<Range<usize>> {
        let references: Vec<usize> = self
            .arms
            .iter()
            .filter(|arm| self.is_reference(&arm.id))
            .map(|arm| self.model(&arm.id.case))
            .collect();
        let bytes = |item: usize| -> u64 {
            let of = |&model: &usize| {
                let input = self.inputs[model][item].as_ref().ok();
                input.map_or(0, |input| items::kept_bytes(input, &self.models[model]))
            };
            references.iter().map(of).sum()
        };
        cut((0..self.items.len()).map(bytes), BATCH_BYTES, BATCH_ITEMS)
    }

    /// Arms that one worker does.
    fn groups(&self) -> Vec<&[Arm]> {
        self.arms.chunk_by(arms::one_worker).collect()
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

/// Cuts items of so many bytes into batches of `most` bytes, or one item, and `count` items at most.
fn cut(bytes: impl Iterator<Item = u64>, most: u64, count: usize) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut held = 0;
    for (item, bytes) in bytes.enumerate() {
        held += bytes;
        match batches.last_mut() {
            Some(batch) if held <= most && batch.len() < count => batch.end = item + 1,
            _ => {
                batches.push(item..item + 1);
                held = bytes;
            }
        }
    }
    batches
}

/// Computes every row that the journal does not hold; `kept` is a folder for what references keep meanwhile.
///
/// # Errors
/// When a worker cannot begin, or the disk is full. What happens to a row is in the row.
pub fn run(
    plan: &SweepPlan,
    workplace: &Workplace,
    kept: &Path,
    journal: &mut SweepJournal,
    mut tell: impl FnMut(Told<'_>),
) -> Result<(), RunError> {
    for batch in plan.batches() {
        for group in plan.groups() {
            Turn { plan, workplace, kept, journal, tell: &mut tell }.go(group, batch.clone())?;
        }
        for id in batch.flat_map(|item| plan.arms.iter().map(move |arm| (item, arm))) {
            let base = base(kept, &task_id(plan, id.0, id.1));
            remove_kept(&base).map_err(|source| RunError::Io { path: base, source })?;
        }
    }
    Ok(())
}

/// A batch on a group of arms.
struct Turn<'a, T: FnMut(Told<'_>)> {
    plan: &'a SweepPlan,
    workplace: &'a Workplace,
    kept: &'a Path,
    journal: &'a mut SweepJournal,
    tell: &'a mut T,
}

impl<T: FnMut(Told<'_>)> Turn<'_, T> {
    fn go(&mut self, group: &[Arm], batch: Range<usize>) -> Result<(), RunError> {
        let Some(first) = group.first() else { return Ok(()) };
        let model = self.plan.model(&first.id.case);
        let mut tasks = Vec::new();
        for arm in group {
            for item in batch.clone() {
                match &self.plan.inputs[model][item] {
                    Ok(input) => tasks.extend(self.task(arm, item, input)),
                    Err(why) => self.inapplicable(arm, item, why)?,
                }
            }
        }
        if tasks.is_empty() {
            return Ok(());
        }
        let build = self.plan.builds.iter().find(|build| build.info.name == first.build);
        let build = build.expect("arms are made of the builds");
        let resolved = &self.plan.models[model];
        let job = SweepJob {
            folder: build.folder.clone(),
            build: build.info.clone(),
            device: first.device.clone(),
            threads: self.plan.settings.threads as usize,
            path: resolved.path.clone(),
            model: model_info(resolved),
            end: self.plan.tokenizer(model).eog_ids().to_vec(),
            tasks,
        };
        let mut broken = None;
        answer(self.workplace, &job, &build.environment, |told| match told {
            Progress::Started(_) => {}
            Progress::Warning(text) => (self.tell)(Told::Warning(text)),
            Progress::Ended(id, how) => {
                if broken.is_none() {
                    broken = self.ended(model, id, how).err();
                }
            }
        })?;
        broken.map_or(Ok(()), Err)
    }

    /// What a worker has to do for an item on an arm, if anything: a row that is there is not computed again, unless others
    /// still need what its arm has kept and it is gone.
    fn task(&self, arm: &Arm, item: usize, input: &TaskInput) -> Option<SweepTask> {
        let id = task_id(self.plan, item, arm);
        let reference = self.plan.is_reference(&arm.id);
        let base = base(self.kept, &id);
        if let Some(row) = self.journal.row(&id.item, &arm.id) {
            let waits = |other: &Arm| {
                let held = other.pairings.iter().any(|pairing| pairing.reference == arm.id);
                held && self.journal.row(&id.item, &other.id).is_none()
            };
            let wanted = has_result(row) && !is_kept(&base) && self.plan.arms.iter().any(waits);
            if !wanted {
                return None;
            }
        }
        let kept = |reference: &CellId| {
            let row = self.journal.row(&id.item, reference);
            // One that comes earlier in the same job has no row yet.
            let base = base_of(self.kept, &id.item, reference);
            row.is_none_or(has_result).then_some(base)
        };
        let case = &arm.id.case;
        let schedule = case.options.masked.schedule(input.schedule);
        Some(SweepTask {
            input: TaskInput { schedule, ..input.clone() },
            references: arm.pairings.iter().map(|pairing| kept(&pairing.reference)).collect(),
            keep: reference.then(|| base.clone()),
            result: base.with_extension("result"),
            lost: None,
            id,
        })
    }

    fn inapplicable(&mut self, arm: &Arm, item: usize, why: &str) -> Result<(), RunError> {
        let id = &self.plan.items[item].item.id;
        if self.journal.row(id, &arm.id).is_some() {
            return Ok(());
        }
        self.note(rows::without_result(id, arm, RowStatus::Inapplicable, why.to_owned()))
    }

    /// Makes a row of what a worker gave.
    fn ended(&mut self, model: usize, id: &TaskId, how: &Ended) -> Result<(), RunError> {
        let path = base(self.kept, id).with_extension("result");
        let row = match how {
            Ended::Captured => {
                let at = |source| RunError::Io { path: path.clone(), source };
                let result = read_result(&path).map_err(at)?;
                std::fs::remove_file(&path).map_err(at)?;
                self.row(model, id, result)
            }
            failed => self.arm(id).map(|arm| rows::ended(&id.item, arm, failed)),
        };
        match row {
            // Computed again for the sake of others.
            Some(row) if self.journal.row(&row.item, &row.arm).is_none() => self.note(row),
            _ => Ok(()),
        }
    }

    fn arm(&self, id: &TaskId) -> Option<&Arm> {
        self.plan.arms.iter().find(|arm| arm.id == id.arm)
    }

    fn row(&self, model: usize, id: &TaskId, result: worker::sweep::TaskResult) -> Option<Row> {
        let arm = self.arm(id)?;
        let place = self.plan.items.iter().position(|selected| selected.item.id == id.item)?;
        let there = |reference: &CellId| self.journal.row(&id.item, reference).is_some_and(has_result);
        let references: Vec<bool> = arm.pairings.iter().map(|pairing| there(&pairing.reference)).collect();
        let tokens = self.plan.inputs[model][place].as_ref().map_or(0, |input| input.tokens.len());
        let making = rows::Making {
            item: &id.item,
            expected: self.plan.items[place].source.expected.as_ref(),
            arm,
            tokenizer: self.plan.tokenizer(model),
            mask: self.plan.models[model].model.hparams.mask_token,
            prompt_tokens: tokens,
            references: &references,
        };
        Some(rows::row(&making, result))
    }

    fn note(&mut self, row: Row) -> Result<(), RunError> {
        (self.tell)(Told::Row(&row));
        Ok(self.journal.note(row)?)
    }
}

/// Whether a row says what its arm computed.
fn has_result(row: &Row) -> bool {
    matches!(row.status, RowStatus::Done | RowStatus::Fallback)
}

fn task_id(plan: &SweepPlan, item: usize, arm: &Arm) -> TaskId {
    TaskId { arm: arm.id.clone(), item: plan.items[item].item.id.clone() }
}

/// Where an arm keeps its logits of an item; other files of the task have the same name.
fn base(kept: &Path, id: &TaskId) -> PathBuf {
    base_of(kept, &id.item, &id.arm)
}

fn base_of(kept: &Path, item: &str, arm: &CellId) -> PathBuf {
    let digest = hex(&Sha256::digest(format!("{item} on {arm}")));
    kept.join(&digest[..32])
}

/// The result, once every row is in the journal.
#[must_use]
pub fn finish(plan: &SweepPlan, journal: &SweepJournal, run: SweepRun) -> Sweep {
    let items: Vec<_> = plan.items.iter().map(|selected| selected.item.clone()).collect();
    let missing =
        |item: &str, arm| rows::without_result(item, arm, RowStatus::Missing, "it was not run".to_owned());
    let mut all = Vec::with_capacity(plan.rows());
    for item in &items {
        for arm in &plan.arms {
            let row = journal.row(&item.id, &arm.id).cloned();
            all.push(row.unwrap_or_else(|| missing(&item.id, arm)));
        }
    }
    let models = plan.models.iter().map(|model| ModelUse {
        name: model.name.clone(),
        weights: model.weights.clone(),
        given: model.given.clone(),
        sha256: model.sha256.clone(),
        architecture: model.model.hparams.architecture.name().to_owned(),
    });
    let mut sweep = Sweep {
        schema: super::result::SCHEMA.to_owned(),
        run,
        corpora: plan.corpora.clone(),
        models: models.collect(),
        settings: plan.settings.clone(),
        environment: environment_of(&plan.builds, plan.arms.iter().map(|arm| &arm.id)),
        arms: plan.arms.clone(),
        left_out: plan.left_out.clone(),
        items,
        pieces: pieces(plan, &all),
        rows: all,
        summaries: Vec::new(),
        correction: super::result::Correction::default(),
        limit: None,
        parts: Vec::new(),
    };
    summary::summarise(&mut sweep);
    sweep
}

/// The text of each token that answers hold.
fn pieces(plan: &SweepPlan, rows: &[Row]) -> BTreeMap<String, BTreeMap<u32, String>> {
    let mut tokens: BTreeMap<&str, (usize, BTreeSet<u32>)> = BTreeMap::new();
    for row in rows {
        let Some(answer) = &row.answer else { continue };
        let case = &row.arm.case;
        let (_, held) = tokens.entry(&case.model).or_insert_with(|| (plan.model(case), BTreeSet::new()));
        held.extend(&answer.tokens);
    }
    let named = |model: usize, held: BTreeSet<u32>| {
        held.into_iter().map(|token| (token, rows::piece(plan.tokenizer(model), token))).collect()
    };
    tokens.into_iter().map(|(name, (model, held))| (name.to_owned(), named(model, held))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn batches_are_bounded_by_bytes_and_items() {
        assert_eq!(cut([3, 3, 3, 9, 1].into_iter(), 6, 10), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(cut([1; 5].into_iter(), 100, 2), [0..2, 2..4, 4..5]);
        assert!(cut([].into_iter(), 1, 1).is_empty());
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_batch(
            bytes in proptest::collection::vec(0u64..20, 0..60), most in 1u64..40, count in 1usize..9,
        ) {
            let batches = cut(bytes.iter().copied(), most, count);
            let items: Vec<usize> = batches.iter().cloned().flatten().collect();
            prop_assert_eq!(items, (0..bytes.len()).collect::<Vec<_>>());
            for batch in batches {
                let held: u64 = bytes[batch.clone()].iter().sum();
                prop_assert!(batch.len() <= count && (held <= most || batch.len() == 1));
            }
        }
    }
}
