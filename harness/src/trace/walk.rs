//! The worker's side of a walk: reads every node as it is computed, and puts the reference's value in its place
//! where that is wanted.

use super::graph::{GraphInfo, Kind};
use super::spool::{SpoolError, Walked, Writer};
use ggml_sys::Tensor;
use runtime::{Error, GraphRequest, Walker};
use std::collections::{BTreeSet, HashMap};

/// Where a walk stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stops {
    /// After every node that computes: nothing is computed together.
    Everywhere,
    /// After these nodes, counted among those that compute, in the order in which the device computes; the last one
    /// always.
    At(BTreeSet<usize>),
}

/// Spools a graph while it is computed.
pub struct Spooler<'a> {
    writer: Writer,
    /// Whose values replace the device's own; the device goes on from them.
    force: Option<&'a mut Walked>,
    stops: Stops,
    graph: Option<GraphInfo>,
    by_id: HashMap<usize, usize>,
    /// The tensors of `graph`.
    tensors: Vec<Tensor>,
    readers: Vec<Option<Vec<usize>>>,
    /// How many nodes compute.
    all: usize,
    /// Nodes that compute and that the scheduler has asked about, by index.
    asked: Vec<usize>,
    /// How many of those were handled.
    done: usize,
}

fn failed(error: SpoolError) -> Error {
    Error::Input(format!("the spool of a walk: {error}"))
}

impl<'a> Spooler<'a> {
    /// A walk into `writer`.
    #[must_use]
    pub fn new(writer: Writer, force: Option<&'a mut Walked>, stops: Stops) -> Self {
        Self {
            writer,
            force,
            stops,
            graph: None,
            by_id: HashMap::new(),
            tensors: Vec::new(),
            readers: Vec::new(),
            all: 0,
            asked: Vec::new(),
            done: 0,
        }
    }

    /// Makes the spool whole.
    ///
    /// # Errors
    /// When nodes were not computed, or the file system refuses.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.done != self.all {
            return Err(Error::Input(format!("a walk ended after {} of {} nodes", self.done, self.all)));
        }
        let mut graph =
            self.graph.take().ok_or_else(|| Error::Input("a walk that never began".to_owned()))?;
        graph.order = self.asked;
        self.writer.finish(&graph).map_err(failed)
    }

    /// The tensor whose bytes are the value of tensor `i`, and how many they are: for caches and what is written
    /// into them, the rows that the graph reads.
    fn bytes_of(graph: &GraphInfo, i: usize, tensor: &Tensor) -> (Tensor, usize) {
        let root = graph.tensors[i].root;
        if graph.tensors[root].kind == Kind::Cache {
            let root = tensor.root();
            let len = root.nb()[1] * graph.request.cache_rows();
            return (root, len);
        }
        (tensor.clone(), tensor.bytes())
    }

    /// Spools tensor `i` and, where that is wanted, overwrites it.
    fn take(&mut self, i: usize, tensor: &Tensor) -> Result<(), Error> {
        let graph = self.graph.as_mut().expect("the walk has begun");
        let (held, len) = Self::bytes_of(graph, i, tensor);
        let mut bytes = vec![0; len];
        held.read_bytes(0, &mut bytes)?;
        graph.tensors[i].value = Some(self.writer.push(&bytes).map_err(failed)?);
        let info = &graph.tensors[i];
        if info.kind == Kind::Input {
            return Ok(());
        }
        if let Some(reference) = &mut self.force {
            let theirs = reference.document.find(&info.key).map(|at| &reference.document.tensors[at]);
            let place = theirs.filter(|t| t.ty == info.ty && t.ne == info.ne).and_then(|t| t.value);
            // A node that the reference has not, or in another shape, is reported where the two are compared.
            if let Some(place) = place.filter(|place| place.len == len as u64) {
                held.write_bytes(0, &reference.read(place).map_err(failed)?)?;
            }
        }
        Ok(())
    }
}

impl Walker for Spooler<'_> {
    fn describe(&mut self, request: &GraphRequest, nodes: &[Tensor]) {
        let (graph, tensors) = GraphInfo::describe(request, nodes);
        self.readers = graph.readers();
        self.all = graph.computed().count();
        self.by_id = tensors.iter().enumerate().map(|(i, tensor)| (tensor.id(), i)).collect();
        self.tensors = tensors;
        self.graph = Some(graph);
    }

    fn begin(&mut self, backend: &dyn Fn(&Tensor) -> Option<String>) -> Result<(), Error> {
        let graph = self.graph.as_mut().ok_or_else(|| Error::Input("a walk without a graph".to_owned()))?;
        let mut leaves = Vec::new();
        for (i, (info, tensor)) in graph.tensors.iter_mut().zip(&self.tensors).enumerate() {
            match info.kind {
                Kind::Compute => info.backend = backend(tensor),
                Kind::Input | Kind::Cache => leaves.push((i, tensor.clone())),
                Kind::Weight | Kind::View => {}
            }
        }
        leaves.iter().try_for_each(|(i, tensor)| self.take(*i, tensor))
    }

    fn stops_at(&mut self, node: &Tensor) -> bool {
        let known = self.by_id.get(&node.id()).copied();
        let computes = |i: &usize| self.graph.as_ref().is_some_and(|g| g.tensors[*i].kind == Kind::Compute);
        let Some(i) = known.filter(computes) else { return false };
        let number = self.asked.len();
        self.asked.push(i);
        match &self.stops {
            Stops::Everywhere => true,
            Stops::At(ends) => ends.contains(&number) || number + 1 == self.all,
        }
    }

    fn computed(&mut self, node: &Tensor) -> Result<(), Error> {
        let end = self.by_id.get(&node.id()).copied();
        // Asked about last: the scheduler asks for the nodes up to the next stop, and computes them.
        if end.is_none() || self.asked.last().copied() != end {
            return Err(Error::Input(format!("a walk stopped at {node:?}, where it was not to")));
        }
        let finished: BTreeSet<usize> = self.asked.iter().copied().collect();
        for number in self.done..self.asked.len() {
            let i = self.asked[number];
            // The memory of what nobody reads any more may hold something else by now.
            let wanted = |readers: &Vec<usize>| readers.iter().any(|reader| !finished.contains(reader));
            if Some(i) == end || self.readers[i].as_ref().is_none_or(wanted) {
                let tensor = self.tensors[i].clone();
                self.take(i, &tensor)?;
            }
        }
        self.done = self.asked.len();
        Ok(())
    }
}
