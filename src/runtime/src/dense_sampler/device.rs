//! The sampler on one device: its graph, placed and computed as ggml's scheduler does it.

use ggml_sys::{Backend, Context, DType, DiffusionSampler, Ggml, Graph, Scheduler, Tensor};

use super::graph::{Builder, NODES, Outputs, running_sum};
use super::tables::{BLOCK, MOST, Tables, blocks};
use super::{Sampled, Scan, Shape};
use crate::cache::as_i64;
use crate::device::{DeviceRequest, Selected};
use crate::error::Error;
use crate::fault::Fault;
use crate::placement::{BufferUse, Placement, Purpose, is_view};
use crate::traffic::Traffic;

/// How a canvas is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Logits are multiplied by it; above 0.
    pub inv_temp: f32,
    /// CPU threads; 0 stands for 1.
    pub threads: usize,
    /// How the running sum is made; by `cumsum` where build and device have it, where none is given.
    pub scan: Option<Scan>,
    /// A mistake to make: only tests of the harness plant one.
    #[doc(hidden)]
    pub planted: Option<Fault>,
}

/// A canvas of logits on a device, and the graph that samples it.
pub struct DenseSampler {
    shape: Shape,
    settings: Settings,
    scan: Scan,
    scheduler: Scheduler,
    graph: Graph,
    logits: Tensor,
    u: Tensor,
    outputs: Outputs,
    own: Option<DiffusionSampler>,
    buffers: Vec<BufferUse>,
    placement: Placement,
    traffic: Traffic,
}

impl DenseSampler {
    /// Makes room for a canvas on the requested device and builds its graph.
    ///
    /// # Errors
    /// When there is no such device, memory is short, the build lacks an op ([`ggml_sys::Error::Unsupported`]) or the
    /// device does not compute one ([`Error::UnsupportedNode`]).
    pub fn open(
        ggml: &'static Ggml,
        request: &DeviceRequest,
        shape: Shape,
        settings: Settings,
    ) -> Result<Self, Error> {
        let Shape { vocab, rows } = shape;
        if vocab == 0 || rows == 0 || vocab > MOST {
            return Err(Error::Input(format!(
                "a canvas of {rows} rows of {vocab} logits: 1 to {MOST} are sampled on a device"
            )));
        }
        if !(settings.inv_temp > 0.0 && settings.inv_temp.is_finite()) {
            return Err(Error::Input(format!("an inverse temperature of {}", settings.inv_temp)));
        }
        let selected = request.select(ggml)?;
        let kind = selected.device.buffer_type();
        let scan = match settings.scan {
            Some(scan) => scan,
            None => scan_of(ggml, &selected, shape)?,
        };
        let last = settings.planted == Some(Fault::ArgmaxLast);
        let tables = Tables::new(ggml, &kind, shape, scan == Scan::Triangle, last)?;
        let canvas = Context::new(ggml, 2, 0)?;
        let logits = canvas.tensor(DType::F32, &[as_i64(vocab), as_i64(rows)]);
        logits.set_name("logits");
        let u = canvas.tensor(DType::F32, &[1, as_i64(rows)]);
        u.set_name("u");
        let held = canvas.allocate(&kind, false)? + tables.bytes;

        let ctx = Context::new(ggml, NODES, 2 * NODES)?;
        let graph = ctx.graph(2 * NODES)?;
        let Settings { inv_temp, planted, .. } = settings;
        let outputs = Builder { ctx: &ctx, graph: &graph, shape, tables: &tables, scan, inv_temp, planted }
            .build(&logits, &u)?;
        let nodes: Vec<Tensor> = graph.nodes().into_iter().filter(|node| !is_view(&node.op())).collect();
        if let Some(node) = nodes.iter().find(|node| !selected.device.supports(node)) {
            return Err(Error::UnsupportedNode { device: selected.device.name(), node: described(node) });
        }
        let scheduler = scheduler(&selected, settings.threads)?;
        // The sources are on the device, and so is all that is made of them.
        let pins: Vec<(Tensor, usize)> = nodes.into_iter().map(|node| (node, 0)).collect();
        scheduler.allocate(&graph, &pins)?;
        let mut buffers =
            vec![BufferUse { buffer: kind.name(), purpose: Purpose::Cache, bytes: held as u64 }];
        buffers.extend(scheduler.backends().iter().enumerate().map(|(i, backend)| BufferUse {
            buffer: backend.device().buffer_type().name(),
            purpose: Purpose::Compute,
            bytes: scheduler.compute_bytes(i) as u64,
        }));
        Ok(Self {
            shape,
            settings,
            scan,
            scheduler,
            graph,
            logits,
            u,
            outputs,
            own: selected.device.diffusion_sampler(),
            buffers,
            placement: Placement::default(),
            traffic: Traffic::default(),
        })
    }

    /// Puts `logits [rows, vocab]`, row-major, where a model on this device would have left them. It counts as no
    /// traffic of the sampler.
    ///
    /// # Errors
    /// When the number of values is another one, or the device cannot be written.
    pub fn place(&self, logits: &[f32]) -> Result<(), Error> {
        Ok(self.logits.write_f32(logits)?)
    }

    /// Fetches all logits into `out`, as a fall-back to the host does.
    ///
    /// # Errors
    /// When the number of values is another one, or the device cannot be read.
    pub fn fetch(&self, out: &mut [f32]) -> Result<(), Error> {
        Ok(self.logits.read_f32_into(out)?)
    }

    /// Samples the canvas with one `u` a row, from 0 up to 1.
    ///
    /// # Errors
    /// When the number of `u` is another one, or ggml fails.
    pub fn sample(&mut self, u: &[f32]) -> Result<Vec<Option<Sampled>>, Error> {
        self.u.write_f32(u)?;
        self.placement.record(&self.scheduler, &self.graph, |_| false, |_| None);
        self.scheduler.compute(&self.graph)?;
        let Outputs { argmax, entropy, token } = &self.outputs;
        let received = [argmax, entropy, token].map(Tensor::bytes).iter().sum();
        self.traffic.graph(self.u.bytes(), received);
        let rows = argmax.read_i32()?.into_iter().zip(entropy.read_f32()?).zip(token.read_f32()?);
        Ok(rows.map(|((argmax, entropy), token)| row(argmax, entropy, token)).collect())
    }

    /// Samples the canvas by what the backend itself brings for it; none where it brings nothing, or says that it cannot.
    ///
    /// # Errors
    /// When the number of `u` is another one.
    pub fn own(&self, u: &[f32]) -> Result<Option<Vec<Option<Sampled>>>, Error> {
        let Some(own) = &self.own else { return Ok(None) };
        let Some(drawn) = own.sample(&self.logits, u, self.settings.inv_temp)? else { return Ok(None) };
        let rows = drawn.argmax.into_iter().zip(drawn.entropy).zip(drawn.sampled);
        Ok(Some(rows.map(|((argmax, entropy), token)| whole(argmax, entropy, token)).collect()))
    }

    /// The name of the sampler that the backend brings.
    #[must_use]
    pub fn own_name(&self) -> Option<&str> {
        self.own.as_ref().map(DiffusionSampler::name)
    }

    /// The size of the canvas.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How the running sum is made.
    #[must_use]
    pub fn scan(&self) -> Scan {
        self.scan
    }

    /// Where the nodes ran.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Bytes that went to the device and came from it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Forgets what was placed and moved until now.
    pub fn reset_counts(&mut self) {
        (self.placement, self.traffic) = (Placement::default(), Traffic::default());
    }

    /// What it holds in memory.
    #[must_use]
    pub fn buffers(&self) -> &[BufferUse] {
        &self.buffers
    }
}

/// The three numbers of a row as the device gives them; an entropy that is not finite marks a row that gives none.
fn row(argmax: i32, entropy: f32, token: f32) -> Option<Sampled> {
    // An index in F32 is a whole number; anything else must not become one.
    let token = if token.fract() == 0.0 { token as i32 } else { -1 };
    whole(argmax, entropy, token)
}

/// The same with indices as integers. One that is none becomes an index that no vocabulary has.
fn whole(argmax: i32, entropy: f32, token: i32) -> Option<Sampled> {
    let index = |i: i32| u32::try_from(i).unwrap_or(u32::MAX);
    entropy.is_finite().then(|| Sampled { argmax: index(argmax), entropy, token: index(token) })
}

/// By `cumsum`, where the build has it and the device computes it at both sizes.
fn scan_of(ggml: &'static Ggml, selected: &Selected, shape: Shape) -> Result<Scan, Error> {
    let ctx = Context::new(ggml, 8, 0)?;
    for n in [blocks(shape.vocab), BLOCK] {
        let x = ctx.tensor(DType::F32, &[as_i64(n), as_i64(shape.rows)]);
        match running_sum(&ctx, &x, Scan::Cumsum, None) {
            Ok(node) if selected.device.supports(&node) => {}
            _ => return Ok(Scan::Triangle),
        }
    }
    Ok(Scan::Cumsum)
}

/// A node as the proof that it is not supported names it: op, type and shapes.
fn described(node: &Tensor) -> String {
    let sources: Vec<String> = (0..3)
        .filter_map(|i| node.src(i))
        .map(|source| format!("{} {:?}", source.dtype_name(), source.ne()))
        .collect();
    format!("{} of {} to {} {:?}", node.op(), sources.join(", "), node.dtype_name(), node.ne())
}

fn scheduler(selected: &Selected, threads: usize) -> Result<Scheduler, Error> {
    let mut backends = vec![Backend::new(selected.device)?];
    if selected.device.name() != selected.cpu.name() {
        backends.push(Backend::new(selected.cpu)?);
    }
    for backend in &backends {
        // A GPU has no threads of ours to set.
        let _ = backend.set_threads(threads.max(1));
    }
    Ok(Scheduler::new(backends, 2 * NODES)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_index_become_one_that_is_nowhere() {
        assert_eq!(row(3, 0.5, 7.0), Some(Sampled { argmax: 3, entropy: 0.5, token: 7 }));
        assert_eq!(row(-1, 0.5, 7.5), Some(Sampled { argmax: u32::MAX, entropy: 0.5, token: u32::MAX }));
        assert_eq!(row(3, 0.5, f32::NAN).map(|s| s.token), Some(u32::MAX));
        assert_eq!(row(3, f32::NAN, 7.0), None);
    }
}
