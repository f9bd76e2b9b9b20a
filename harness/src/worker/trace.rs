//! Looking into the graphs of one cell: noting them down, walking through one, and computing a single node.

use super::execute::{Loaded, execute, ready};
use super::protocol::{Failure, FailureKind, JobCell, ReplayJob, TraceJob, TraceStage};
use crate::trace::spool::{Case, Recorded, SpoolError, Walked, Writer};
use crate::trace::walk::{Spooler, Stops};
use crate::trace::{repro, windows};
use ggml_sys::Ggml;
use runtime::{Given, GraphOutcome, GraphRequest, Session};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

fn spooled(error: SpoolError) -> Failure {
    Failure { kind: FailureKind::Fault, message: error.to_string() }
}

fn failed(error: runtime::Error) -> Failure {
    Failure::from(&error)
}

/// Does one stage of a trace.
pub(super) fn trace(ggml: &'static Ggml, job: &TraceJob) -> Result<(), Failure> {
    let Some(cell) = job.run.cells.first() else { return Ok(()) };
    match &job.stage {
        TraceStage::Record { into } => record(ggml, job, cell, into),
        TraceStage::Walk { recorded, graph, into, force } => {
            let mut place = Place::open(ggml, job, cell, recorded, *graph)?;
            place.fill()?;
            place.walk(into, None, Stops::Everywhere)?;
            if let Some((reference, into)) = force {
                let mut reference = Walked::open(reference).map_err(spooled)?;
                place.walk(into, Some(&mut reference), Stops::Everywhere)?;
            }
            Ok(())
        }
        TraceStage::Windows { recorded, graph, reference, limits, into } => {
            let mut place = Place::open(ggml, job, cell, recorded, *graph)?;
            let mut reference = Walked::open(reference).map_err(spooled)?;
            let (names, limits) = order(&mut place, &mut reference, limits, into)?;
            let mut count = 0;
            let probe = |ends: &std::collections::BTreeSet<usize>| {
                let folder = into.join(format!("windows-{count}"));
                count += 1;
                place.walk(&folder, Some(&mut reference), Stops::At(ends.clone()))?;
                let mut walked = Walked::open(&folder).map_err(spooled)?;
                let errors = windows::errors(&mut reference, &mut walked).map_err(spooled)?;
                // Only the figures are wanted of what may be many walks.
                let _ = std::fs::remove_dir_all(&folder);
                Ok::<_, Failure>(errors)
            };
            let found = windows::narrow(&limits, probe)?.map(|window| window.named(&names));
            let text = serde_json::to_vec(&found).expect("findings are plain data");
            let path = into.join(windows::DOCUMENT);
            crate::atomic::write_with(&path, |partial| std::fs::write(partial, text))
                .map_err(|source| spooled(SpoolError::Io { path, source }))
        }
    }
}

/// The nodes in the order in which the device computes them, by name, and what each may be off; `limits` are in the
/// reference's order.
fn order(
    place: &mut Place,
    reference: &mut Walked,
    limits: &[f64],
    into: &Path,
) -> Result<(Vec<String>, Vec<f64>), Failure> {
    let folder = into.join("order");
    place.walk(&folder, Some(reference), Stops::Everywhere)?;
    let walked = Walked::open(&folder).map_err(spooled)?.document;
    let theirs: Vec<usize> = reference.document.computed().collect();
    let limit = |key: &str| {
        let number = theirs.iter().position(|&i| reference.document.tensors[i].key == key);
        number.and_then(|number| limits.get(number)).copied().unwrap_or(0.0)
    };
    Ok(walked.order.iter().map(|&i| &walked.tensors[i].key).map(|key| (key.clone(), limit(key))).unzip())
}

/// Computes the node of a file on the job's device.
pub(super) fn replay(ggml: &'static Ggml, job: &ReplayJob) -> Result<(), Failure> {
    repro::compute(ggml, &job.run.device, job.run.threads, &job.file, &job.into)
}

fn record(ggml: &'static Ggml, job: &TraceJob, cell: &JobCell, into: &Path) -> Result<(), Failure> {
    let writer = Writer::create(into).map_err(spooled)?;
    let noted: Rc<RefCell<(Writer, Vec<Recorded>)>> = Rc::new(RefCell::new((writer, Vec::new())));
    let sink = Rc::clone(&noted);
    let recorder = move |request: &GraphRequest, outcome: &GraphOutcome<'_>| {
        let (writer, graphs) = &mut *sink.borrow_mut();
        let mut push = |values: &[f32]| {
            writer.push_f32(values).map_err(|error| runtime::Error::Input(error.to_string()))
        };
        let logits = push(&outcome.pass.logits.values)?;
        let kv = outcome.kv.iter().map(|layer| Ok([push(&layer.k)?, push(&layer.v)?]));
        let kv = kv.collect::<Result<_, runtime::Error>>()?;
        let condition = outcome.given.condition.as_deref().map(push).transpose()?;
        let experts = outcome.given.experts.clone();
        graphs.push(Recorded { request: request.clone(), logits, kv, condition, experts });
        Ok(())
    };
    let mut loaded: Option<Loaded> = None;
    execute(ggml, &job.run, cell, &mut loaded, Some(Box::new(recorder)))?;
    let (writer, graphs) = &mut *noted.borrow_mut();
    writer.finish(graphs).map_err(spooled)
}

/// A session that stands before a graph.
struct Place {
    loaded: Option<Loaded>,
    recorded: Case,
    graph: usize,
}

impl Place {
    fn open(
        ggml: &'static Ggml,
        job: &TraceJob,
        cell: &JobCell,
        recorded: &Path,
        graph: usize,
    ) -> Result<Self, Failure> {
        let recorded = Case::open(recorded).map_err(spooled)?;
        if graph >= recorded.document.len() {
            let message = format!("graph {graph} of a case of {}", recorded.document.len());
            return Err(Failure { kind: FailureKind::Input, message });
        }
        let room = recorded.document.iter().map(|r| r.request.capacity).max().unwrap_or(0);
        let mut loaded = None;
        let session = &mut ready(ggml, &job.run, cell, &mut loaded)?.session;
        session.reset_cache(room).map_err(failed)?;
        Ok(Self { loaded, recorded, graph })
    }

    fn session(&mut self) -> &mut Session {
        &mut self.loaded.as_mut().expect("it was opened").session
    }

    /// A graph, and what it went by.
    fn noted(&mut self, graph: usize) -> Result<(GraphRequest, Given), Failure> {
        let Recorded { request, condition, experts, .. } = self.recorded.document[graph].clone();
        let read = |place| self.recorded.read_f32(place).map_err(spooled);
        let condition = condition.map(read).transpose()?;
        let condition = condition.map(|logits| logits.iter().map(|&z| z as f32).collect());
        Ok((request, Given { condition, experts }))
    }

    /// Computes the graphs before, so that the cache holds what it held.
    fn fill(&mut self) -> Result<(), Failure> {
        self.session().renew().map_err(failed)?;
        (0..self.graph).try_for_each(|before| {
            let (request, given) = self.noted(before)?;
            self.session().repeat(&request, &given).map(drop).map_err(failed)
        })
    }

    /// Walks through the graph into the spool `into`; `force` imposes values, those of the cache first.
    fn walk(&mut self, into: &Path, force: Option<&mut Walked>, stops: Stops) -> Result<(), Failure> {
        let (request, given) = self.noted(self.graph)?;
        let session = self.session();
        session.renew().map_err(failed)?;
        let mut spooler = Spooler::new(Writer::create(into).map_err(spooled)?, force, stops);
        session.walk(&request, &given, &mut spooler).map_err(failed)?;
        spooler.finish().map_err(failed)
    }
}
