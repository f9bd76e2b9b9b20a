//! What must hold inside one device, whatever its numbers are: the same sequence gives the same result however
//! it is cut into graphs.
//!
//! A process opens one ggml build with one selection of backends, so each test file beside this folder is one
//! selection and has one test.

use std::path::{Path, PathBuf};

use ggml_sys::{Ggml, Selection};
use model_file::{GenerateSpec, Model};
use runtime::generate::{autoregressive, profile, speculative};
use runtime::{Attention, DeviceRequest, Error, KvType, LayerKv, Logits, Options, Rows, Session};

/// The build under test: `GGML_PARITY_GGML`, or the one that the set-up installed.
pub(crate) fn open(selection: &Selection) -> &'static Ggml {
    let folder = std::env::var_os("GGML_PARITY_GGML").map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        Some(cache.join("ggml-parity/ggml/npm-3.21.1"))
    });
    let folder = folder.filter(|folder| folder.is_dir()).unwrap_or_else(|| {
        panic!("no ggml build to test with: run ci/quickstart, or set GGML_PARITY_GGML to a folder of one")
    });
    Ggml::open(&folder, selection).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// How far apart two ways to the same result may be.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// NMSE where only the shape of graphs differs.
    pub(crate) shape: f64,
    /// NMSE of another way to compute the same: flash against explicit attention, two devices against one.
    pub(crate) other: f64,
}

/// One device and the models that are run on it.
pub(crate) struct Bench {
    pub(crate) ggml: &'static Ggml,
    pub(crate) device: DeviceRequest,
    pub(crate) limits: Limits,
    dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(ggml: &'static Ggml, device: &str, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { ggml, device: DeviceRequest::plain(device), limits, dir }
    }

    /// The generated model of a preset.
    pub(crate) fn model(&self, name: &str) -> Model {
        self.model_of(&GenerateSpec::preset(name).unwrap())
    }

    pub(crate) fn model_of(&self, spec: &GenerateSpec) -> Model {
        let path: &Path = &self.dir.path().join(format!("{}.gguf", spec.name));
        if !path.exists() {
            model_file::generate(spec, path).unwrap();
        }
        Model::open(path).unwrap()
    }

    pub(crate) fn session(&self, model: &Model, options: Options) -> Session {
        Session::open(self.ggml, &self.device, model, options).unwrap()
    }

    /// All logits and the caches of `tokens`, cut as `cuts` say (lengths).
    fn run(&self, model: &Model, options: Options, tokens: &[u32], cuts: &[usize]) -> (Logits, Vec<LayerKv>) {
        let mut session = self.session(model, options);
        session.reset_cache(tokens.len()).unwrap();
        let mut all = Logits { vocab: model.hparams.n_vocab, values: Vec::new() };
        let mut rest = tokens;
        for &cut in cuts {
            let (piece, others) = rest.split_at(cut);
            all.values.extend(session.extend(piece, Rows::All).unwrap().values);
            rest = others;
        }
        assert!(rest.is_empty(), "the cuts cover all tokens");
        assert_eq!(session.cached(), tokens.len());
        (all, session.read_cache().unwrap())
    }
}

/// Tokens that look like nothing, the same every time.
pub(crate) fn tokens(model: &Model, n: usize) -> Vec<u32> {
    let mut state = 12345u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % u32::try_from(model.hparams.n_vocab).unwrap()
        })
        .collect()
}

pub(crate) fn nmse(reference: &[f32], x: &[f32]) -> f64 {
    assert_eq!(reference.len(), x.len());
    let square = |v: f64| v * v;
    let error: f64 = reference.iter().zip(x).map(|(r, x)| square(f64::from(*x) - f64::from(*r))).sum();
    error / reference.iter().map(|r| square(f64::from(*r))).sum::<f64>()
}

#[track_caller]
fn agree(what: &str, reference: &(Logits, Vec<LayerKv>), x: &(Logits, Vec<LayerKv>), limit: f64) {
    let mut worst = nmse(&reference.0.values, &x.0.values);
    for (r, x) in reference.1.iter().zip(&x.1) {
        worst = worst.max(nmse(&r.k, &x.k)).max(nmse(&r.v, &x.v));
    }
    println!("{what}: {worst:.1e}");
    assert!(worst <= limit, "{what}: {worst:e} > {limit:e}");
}

/// Everything, on one device.
pub(crate) fn check(bench: &Bench) {
    let started = std::time::Instant::now();
    for name in ["gen-qwen2", "gen-llama"] {
        println!("{name} after {:.1?}", started.elapsed());
        let model = bench.model(name);
        cuts_do_not_matter(bench, &model);
        flash_is_explicit(bench, &model);
        runs_repeat(bench, &model);
        lifecycle(bench, &model);
        windows(bench, &model);
        speculative_is_greedy(bench, &model);
    }
    println!("the rest after {:.1?}", started.elapsed());
    let model = bench.model("gen-llama");
    a_full_cache_is_an_error(bench, &model);
    stored_types(bench, &model);
    offload(bench, &model);
    layers_are_left_out(bench);
    twins(bench);
    odd_heads(bench);
    half_a_block_is_unsupported(bench);
}

fn cuts_do_not_matter(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 40);
    let whole = bench.run(model, Options::default(), &tokens, &[40]);
    for size in [1, 7, 32] {
        let split =
            bench.run(model, Options { micro_batch: Some(size), ..Options::default() }, &tokens, &[40]);
        agree(&format!("micro-batches of {size}"), &whole, &split, bench.limits.shape);
    }
    let mut decoded = vec![30];
    decoded.extend([1; 10]);
    agree(
        "prefill and decode",
        &whole,
        &bench.run(model, Options::default(), &tokens, &decoded),
        bench.limits.shape,
    );
    agree(
        "prefill and batch",
        &whole,
        &bench.run(model, Options::default(), &tokens, &[27, 13]),
        bench.limits.shape,
    );
}

fn flash_is_explicit(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 40);
    let explicit = bench.run(model, Options::default(), &tokens, &[40]);
    let flash = Options { attention: Attention::Flash, ..Options::default() };
    for cuts in [&[40][..], &[27, 12, 1]] {
        let x = bench.run(model, flash.clone(), &tokens, cuts);
        agree(&format!("flash against explicit, {cuts:?}"), &explicit, &x, bench.limits.other);
    }
}

fn runs_repeat(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 33);
    let mut session = bench.session(model, Options::default());
    let mut first: Option<Logits> = None;
    for run in 0..20 {
        session.reset_cache(40).unwrap();
        let mut logits = session.extend(&tokens[..30], Rows::All).unwrap();
        logits.values.extend(session.extend(&tokens[30..], Rows::All).unwrap().values);
        match &first {
            None => first = Some(logits),
            Some(first) => assert!(*first == logits, "run {run} differs from the first"),
        }
    }
}

fn a_full_cache_is_an_error(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 9);
    let mut session = bench.session(model, Options { micro_batch: Some(4), ..Options::default() });
    session.reset_cache(8).unwrap();
    let error = session.extend(&tokens, Rows::Last).unwrap_err();
    assert!(matches!(error, Error::CacheFull { used: 0, capacity: 8, wanted: 9 }), "{error}");
    assert_eq!(session.cached(), 0);
    session.extend(&tokens[..8], Rows::Last).unwrap();
    assert!(matches!(session.extend(&tokens[8..], Rows::Last), Err(Error::CacheFull { used: 8, .. })));
}

fn lifecycle(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 40);
    let (prompt, rest) = tokens.split_at(24);
    let mut session = bench.session(model, Options::default());
    session.reset_cache(40).unwrap();
    session.extend(prompt, Rows::Last).unwrap();
    let saved = session.save_cache().unwrap();
    let on = session.extend(rest, Rows::All).unwrap();

    let mut other = bench.session(model, Options::default());
    other.reset_cache(50).unwrap();
    other.extend(&tokens[5..9], Rows::Last).unwrap();
    other.restore_cache(&saved).unwrap();
    assert_eq!(other.cached(), 24);
    assert_eq!(other.save_cache().unwrap(), saved);
    assert!(other.extend(rest, Rows::All).unwrap() == on, "restored and gone on");
    for (bytes, why) in [
        (&saved[..10], "begin"),
        (&saved[..30], "header"),
        (&saved[..saved.len() - 1], "bytes of rows"),
        (&[&saved[..19], &[9], &saved[20..]].concat()[..], "layers"),
    ] {
        let error = other.restore_cache(bytes).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut small = bench.session(model, Options::default());
    small.reset_cache(23).unwrap();
    assert!(matches!(small.restore_cache(&saved), Err(Error::CacheFull { capacity: 23, wanted: 24, .. })));

    // Diverge after the prompt, return, go on as before.
    session.truncate(24).unwrap();
    session.extend(&tokens[3..12], Rows::Last).unwrap();
    session.truncate(24).unwrap();
    assert!(session.extend(rest, Rows::All).unwrap() == on, "diverged and returned");
    assert!(session.truncate(41).is_err());

    shift(bench, model, &tokens);
}

/// After a shift the first layer's keys and values, which depend on nothing but token and position, are those
/// of the shorter sequence.
fn shift(bench: &Bench, model: &Model, tokens: &[u32]) {
    let short = [&tokens[..4], &tokens[14..]].concat();
    let recomputed = bench.run(model, Options::default(), &short, &[30]);
    for (kv, limit) in [(KvType::F32, bench.limits.shape), (KvType::F16, 1e-6), (KvType::Q8_0, 1e-3)] {
        let mut session = bench.session(model, Options { kv, ..Options::default() });
        session.reset_cache(40).unwrap();
        session.extend(tokens, Rows::Last).unwrap();
        match session.shift(4, 10) {
            Err(Error::UnsupportedNode { node, .. }) => {
                println!("shift of {kv:?}: unsupported: {node}");
                continue;
            }
            done => done.unwrap(),
        }
        assert_eq!(session.cached(), 30);
        let shifted = session.read_cache().unwrap();
        let first = nmse(&recomputed.1[0].k, &shifted[0].k);
        let last = nmse(&recomputed.1[1].k, &shifted[1].k);
        println!("shift of {kv:?}: first layer {first:.1e}, second {last:.1e}");
        assert!(first <= limit, "{kv:?}: {first:e}");
        assert!(nmse(&recomputed.1[0].v, &shifted[0].v) <= limit);
        assert!(last > 1e-6, "the second layer still knows of the dropped positions");
        assert!(session.shift(20, 11).is_err());
    }
}

fn windows(bench: &Bench, model: &Model) {
    let a = tokens(model, 20);
    let mut b = a.clone();
    b[3] = (b[3] + 1) % 100;
    let window = |n| Options { window: Some(n), ..Options::default() };
    let whole = bench.run(model, Options::default(), &a, &[20]);
    agree("a window as long as all", &whole, &bench.run(model, window(20), &a, &[20]), 0.0);
    // Two layers of four look back six positions.
    let (x, y) = (bench.run(model, window(4), &a, &[20]).0, bench.run(model, window(4), &b, &[20]).0);
    assert!(x.row(9) != y.row(9) && x.row(2) == y.row(2));
    assert!(x.row(10) == y.row(10) && x.row(19) == y.row(19), "seen beyond the window");
    let flash = Options { attention: Attention::Flash, ..window(4) };
    let (x, y) = (bench.run(model, window(4), &a, &[20]), bench.run(model, flash, &a, &[13, 7]));
    agree("a window in flash attention", &x, &y, bench.limits.other);
}

fn speculative_is_greedy(bench: &Bench, model: &Model) {
    let prompt = tokens(model, 12);
    let n = 24;
    let mut target = bench.session(model, Options::default());
    target.reset_cache(prompt.len() + n).unwrap();
    let mut rows: Vec<Logits> = Vec::new();
    let greedy =
        autoregressive::decode(&mut target, &prompt, n, None, |_, row| rows.push(row.clone())).unwrap();
    for skipped in [&[][..], &[1]] {
        let mut draft = bench.session(model, Options::default());
        draft.skip_layers(skipped).unwrap();
        target.reset_cache(prompt.len() + n).unwrap();
        draft.reset_cache(prompt.len() + n).unwrap();
        let mut noise = 0f64;
        let mut batches = Vec::new();
        let done = speculative::decode(&mut target, &mut draft, &prompt, n, 5, |checked| {
            batches.push((checked.position, checked.tokens.to_vec()));
            let first = checked.logits.row(0);
            let same = rows[checked.position + 1 - prompt.len()].row(0);
            noise = first.iter().zip(same).map(|(a, b)| f64::from((a - b).abs())).fold(noise, f64::max);
        })
        .unwrap();
        println!("speculative without layers {skipped:?}: {:?}, noise {noise:.1e}", done.acceptance);
        assert_eq!(done.tokens.len(), n);
        assert_eq!(target.cached(), prompt.len() + n - 1, "the last token stays out");
        if let Some(at) = (0..n).find(|&i| done.tokens[i] != greedy[i]) {
            let margin = done.margins[at];
            assert!(margin <= 2.0 * noise, "token {at}: margin {margin:e}, noise {noise:e}");
        }
        if skipped.is_empty() {
            assert!(done.acceptance.rate().unwrap() > 0.9, "a model agrees with itself");
        }
        let mut again = Vec::new();
        target.reset_cache(prompt.len() + n).unwrap();
        speculative::replay(&mut target, &prompt, &batches, |_, checked| {
            again.push((checked.position, checked.tokens.to_vec()));
        })
        .unwrap();
        assert_eq!(again, batches);
    }
}

/// What was recorded before storing, put into the type on the host, is what the cache holds.
fn stored_types(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 35);
    let plain = bench.run(model, Options::default(), &tokens, &[35]);
    for attention in [Attention::Explicit, Attention::Flash] {
        for (kv, ty, rounding, distance) in [
            (KvType::F16, model_file::TensorType::F16, 0.0, 1e-4),
            (KvType::Q8_0, model_file::TensorType::Q8_0, 1e-6, 1e-2),
            (KvType::Q4_0, model_file::TensorType::Q4_0, 1e-4, 0.5),
        ] {
            let mut session = match Session::open(
                bench.ggml,
                &bench.device,
                model,
                Options { kv, attention, ..Options::default() },
            ) {
                Ok(session) => session,
                Err(Error::Ggml(error)) => {
                    println!("{attention:?} {kv:?}: {error}");
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
            session.reset_cache(40).unwrap();
            session.record_before_storing();
            let mut logits = match session.extend(&tokens[..20], Rows::All) {
                Err(Error::UnsupportedNode { node, .. }) => {
                    println!("{attention:?} {kv:?}: unsupported: {node}");
                    continue;
                }
                done => done.unwrap(),
            };
            logits.values.extend(session.extend(&tokens[20..], Rows::All).unwrap().values);
            session.truncate(34).unwrap();
            let last = session.extend(&tokens[34..], Rows::All).unwrap();
            let apart = nmse(&plain.0.values, &logits.values);
            let placed = session.take_placement();
            println!(
                "{attention:?} {kv:?}: {apart:.1e} from a cache of 32 bits, {} of {} nodes on the CPU",
                placed.on_cpu(),
                placed.total()
            );
            assert!(apart <= distance, "{attention:?} {kv:?}: {apart:e}");
            assert!(nmse(plain.0.row(34), last.row(0)) <= 10.0 * distance);
            let (stored, raw) = (session.read_cache().unwrap(), session.take_recorded());
            for (stored, raw) in stored.iter().zip(&raw) {
                for (stored, raw) in [(&stored.k, &raw.k), (&stored.v, &raw.v)] {
                    let mut bytes = Vec::new();
                    model_file::quantize(ty, raw, &mut bytes).unwrap();
                    let mut rounded = vec![0.0; raw.len()];
                    model_file::dequantize(ty, &bytes, &mut rounded).unwrap();
                    let apart = nmse(&rounded, stored);
                    assert!(apart <= rounding, "{attention:?} {kv:?}: {apart:e}");
                }
            }
        }
    }
}

fn offload(bench: &Bench, model: &Model) {
    let tokens = tokens(model, 33);
    let whole = bench.run(model, Options::default(), &tokens, &[33]);
    for layers in [0, 1] {
        let split = Options { layers: Some(layers), ..Options::default() };
        agree(
            &format!("{layers} layers on the device"),
            &whole,
            &bench.run(model, split, &tokens, &[20, 13]),
            bench.limits.other,
        );
    }
    let threads = bench.run(model, Options { threads: 2, ..Options::default() }, &tokens, &[33]);
    agree("two threads", &whole, &threads, bench.limits.shape);
}

fn layers_are_left_out(bench: &Bench) {
    for name in ["gen-llama-8l", "gen-qwen2-8l"] {
        let model = bench.model(name);
        let prompt = tokens(&model, 20);
        let mut session = bench.session(&model, Options::default());
        session.reset_cache(30).unwrap();
        let (logits, impact) = profile::prefill(&mut session, &prompt).unwrap();
        let plain = bench.run(&model, Options::default(), &prompt, &[20]);
        agree("profiling changes nothing", &plain, &(logits, plain.1.clone()), bench.limits.shape);
        let mut pieces = bench.session(&model, Options { micro_batch: Some(7), ..Options::default() });
        pieces.reset_cache(30).unwrap();
        let (_, same) = profile::prefill(&mut pieces, &prompt).unwrap();
        for (a, b) in impact.iter().zip(&same) {
            assert!((a - b).abs() <= 1e-3 * a, "{impact:?} {same:?}");
        }
        let skipped = profile::least(&impact, 2).unwrap();
        println!("{name}: impacts {impact:.1?}, skipped {skipped:?}");
        session.skip_layers(&skipped).unwrap();
        session.take_placement();
        let less = session.extend(&prompt[..1], Rows::Last).unwrap();
        let nodes = session.take_placement().total();
        session.truncate(20).unwrap();
        session.skip_layers(&[]).unwrap();
        let all = session.extend(&prompt[..1], Rows::Last).unwrap();
        assert!(nodes < session.placement().total(), "fewer nodes");
        assert!(nmse(&all.values, &less.values) > 1e-6, "two layers matter");
        assert!(session.skip_layers(&[8]).is_err());
    }
}

/// A tied model and its twin with the same head written out.
fn twins(bench: &Bench) {
    for (tied, untied) in [("gen-qwen2", "gen-qwen2-untied"), ("gen-llama-tied", "gen-llama")] {
        let twin = GenerateSpec {
            head_is_embedding: true,
            name: format!("{untied}-copy"),
            ..GenerateSpec::preset(untied).unwrap()
        };
        let (tied, twin) = (bench.model(tied), bench.model_of(&twin));
        let tokens = tokens(&tied, 33);
        let options = Options::default;
        let (a, b) =
            (bench.run(&tied, options(), &tokens, &[33]), bench.run(&twin, options(), &tokens, &[33]));
        assert!(a == b, "twins differ");
    }
}

fn odd_heads(bench: &Bench) {
    for name in ["adv-head-64", "adv-head-80", "adv-head-96", "adv-head-128", "adv-head-256", "adv-gqa-12"] {
        let model = bench.model(name);
        let tokens = tokens(&model, 40);
        let whole = bench.run(&model, Options::default(), &tokens, &[40]);
        let cut = bench.run(&model, Options::default(), &tokens, &[31, 8, 1]);
        agree(name, &whole, &cut, bench.limits.shape);
    }
}

fn half_a_block_is_unsupported(bench: &Bench) {
    let model = bench.model("adv-head-80");
    for kv in [KvType::Q8_0, KvType::Q4_0] {
        let options = Options { kv, ..Options::default() };
        let error = Session::open(bench.ggml, &bench.device, &model, options).err().unwrap();
        assert!(matches!(&error, Error::UnsupportedNode { .. }), "{error}");
        assert!(error.to_string().contains("80"), "{error}");
    }
}
