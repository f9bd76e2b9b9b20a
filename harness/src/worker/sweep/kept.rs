//! What a reference keeps of an item for the arms that are held against it: its logits in captures of at most
//! [`PART_BYTES`], and beside them, written last, what it generated.

use super::{Failure, SweepJob, SweepTask};
use crate::capture::{CaptureMeta, CaptureReader, CaptureWriter, SCHEMA};
use crate::worker::child::describe;
use crate::worker::execute::switches;
use crate::worker::protocol::FailureKind;
use runtime::Session;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Logits of one file, so that memory does not grow with the text.
const PART_BYTES: usize = 64 << 20;

/// What a run after a prompt gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Generated {
    /// The new tokens; of a masked generation all of the canvas behind the prompt.
    pub(super) tokens: Vec<u32>,
    /// In which order masks became tokens; empty for an autoregressive model.
    pub(super) order: Vec<Decision>,
    /// For each new token how little it took to make it another one, in logits; see [`super::Parted`].
    #[serde(with = "crate::figure::Figures")]
    pub(super) margins: Vec<f64>,
}

/// A mask that became a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decision {
    pub(super) step: usize,
    pub(super) position: usize,
    pub(super) token: u32,
}

impl Generated {
    /// Whether both took the same way.
    pub(super) fn same_trajectory(&self, other: &Self) -> bool {
        self.tokens == other.tokens && self.order == other.order
    }
}

/// What is kept beside the logits.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    /// The arm and the item.
    id: String,
    /// SHA-256 of the model file.
    model: String,
    /// The prompt, or the text that is scored.
    tokens: Vec<u32>,
    /// Rows of the text that is scored; those of the generation follow them.
    scored: usize,
    /// Rows of each file.
    parts: Vec<usize>,
    /// What was generated, if anything.
    generated: Option<Generated>,
}

fn head_path(base: &Path) -> PathBuf {
    base.with_extension("json")
}

fn part_path(base: &Path, part: usize) -> PathBuf {
    base.with_extension(format!("{part}.safetensors"))
}

/// Whether something is kept under `base`, and whole.
#[must_use]
pub fn is_kept(base: &Path) -> bool {
    head_path(base).is_file()
}

/// Removes what is kept under `base`; what is not there is no error.
///
/// # Errors
/// The file system's.
pub fn remove(base: &Path) -> std::io::Result<()> {
    let gone = |path: PathBuf| match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        done => Ok(done.is_ok()),
    };
    gone(head_path(base))?;
    let mut part = 0;
    while gone(part_path(base, part))? {
        part += 1;
    }
    Ok(())
}

/// Writes a file that appears whole or not at all.
pub(super) fn place(path: &Path, text: &[u8]) -> Result<(), Failure> {
    crate::atomic::write_with(path, |partial| std::fs::write(partial, text)).map_err(|error| Failure {
        kind: if crate::atomic::is_storage_full(&error) { FailureKind::Storage } else { FailureKind::Fault },
        message: format!("{}: {error}", path.display()),
    })
}

/// Keeps rows as they come.
pub(super) struct Keeper {
    base: PathBuf,
    vocab: usize,
    meta: CaptureMeta,
    writer: CaptureWriter,
    head: Head,
}

impl Keeper {
    pub(super) fn new(base: &Path, session: &Session, job: &SweepJob, task: &SweepTask) -> Self {
        let vocab = session.hparams().n_vocab;
        let head = Head {
            id: task.id.to_string(),
            model: job.model.sha256.clone(),
            tokens: Vec::new(),
            scored: 0,
            parts: Vec::new(),
            generated: None,
        };
        let meta = meta(session, job, task);
        Self { base: base.to_owned(), vocab, meta, writer: CaptureWriter::new(vocab), head }
    }

    pub(super) fn row(&mut self, position: i32, step: i32, row: &[f32]) -> Result<(), Failure> {
        self.writer.row(position, step, row);
        if self.writer.rows() * self.vocab * size_of::<f32>() >= PART_BYTES { self.part() } else { Ok(()) }
    }

    /// The rows so far are those of the text.
    pub(super) fn scored(&mut self) {
        self.head.scored = self.head.parts.iter().sum::<usize>() + self.writer.rows();
    }

    fn part(&mut self) -> Result<(), Failure> {
        let rows = self.writer.rows();
        if rows == 0 {
            return Ok(());
        }
        let writer = std::mem::replace(&mut self.writer, CaptureWriter::new(self.vocab));
        writer.write(&part_path(&self.base, self.head.parts.len()), &self.meta)?;
        self.head.parts.push(rows);
        Ok(())
    }

    /// Writes what is left, and then what says that all is there.
    pub(super) fn finish(mut self, tokens: &[u32], generated: Option<&Generated>) -> Result<(), Failure> {
        self.part()?;
        self.head.tokens = tokens.to_vec();
        self.head.generated = generated.cloned();
        let text = serde_json::to_vec(&self.head).expect("a head is plain data");
        place(&head_path(&self.base), &text)
    }
}

/// What a reference kept, row by row.
pub(super) struct Kept {
    base: PathBuf,
    head: Head,
    /// The file that is open, its number and its first row.
    open: Option<(usize, usize, CaptureReader)>,
}

impl Kept {
    /// Opens what lies under `base`, which must be of the same tokens as `task` and of a model with `vocab` tokens.
    pub(super) fn open(base: &Path, task: &SweepTask) -> Result<Self, Failure> {
        let input = |message: String| Failure { kind: FailureKind::Input, message };
        let path = head_path(base);
        let text = std::fs::read(&path).map_err(|error| input(format!("{}: {error}", path.display())))?;
        let head: Head = serde_json::from_slice(&text)
            .map_err(|error| input(format!("{}: no kept reference: {error}", path.display())))?;
        if head.tokens != task.input.tokens {
            return Err(input(format!(
                "the reference {} has other tokens: {} of them, and there are {} here",
                head.id,
                head.tokens.len(),
                task.input.tokens.len()
            )));
        }
        Ok(Self { base: base.to_owned(), head, open: None })
    }

    pub(super) fn id(&self) -> &str {
        &self.head.id
    }

    pub(super) fn rows(&self) -> usize {
        self.head.parts.iter().sum()
    }

    /// Rows of the text that is scored.
    pub(super) fn scored(&self) -> usize {
        self.head.scored
    }

    pub(super) fn generated(&self) -> Option<&Generated> {
        self.head.generated.as_ref()
    }

    /// Reads row `index` into `out`: its position and step.
    pub(super) fn row(&mut self, index: usize, out: &mut Vec<f64>) -> Result<(i32, i32), Failure> {
        let mut first = 0;
        let mut part = 0;
        for rows in &self.head.parts {
            if index < first + rows {
                break;
            }
            first += rows;
            part += 1;
        }
        if !matches!(&self.open, Some((open, ..)) if *open == part) {
            let reader = CaptureReader::open(&part_path(&self.base, part))?;
            if reader.meta().model.sha256 != self.head.model || reader.rows() != self.head.parts[part] {
                let message = format!("{}: not what {} has kept", reader.path().display(), self.head.id);
                return Err(Failure { kind: FailureKind::Input, message });
            }
            self.open = Some((part, first, reader));
        }
        let (_, first, reader) = self.open.as_mut().expect("just opened");
        let row = index - *first;
        reader.logits(row, 1, out)?;
        Ok((reader.positions()[row], reader.step()[row]))
    }
}

fn meta(session: &Session, job: &SweepJob, task: &SweepTask) -> CaptureMeta {
    let device = session.device();
    CaptureMeta {
        schema: SCHEMA.to_owned(),
        case: task.id.arm.case.to_string(),
        model: job.model.clone(),
        build: job.build.clone(),
        device: describe(&device, &job.device),
        features: device.features().into_iter().collect(),
        environment: switches(),
        placement: session.placement().clone(),
        traffic: None,
        bytes: session.buffers(),
        peak_rss_bytes: None,
        threads: u32::try_from(job.threads).unwrap_or(u32::MAX),
        timings: BTreeMap::new(),
        text: None,
        retried: task.lost.clone(),
        sampler: None,
        notes: vec![format!("item {}", task.id.item)],
        checks: Vec::new(),
    }
}
