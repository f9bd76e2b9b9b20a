//! Masked diffusion through the K/V cache on a real ggml build: the same numbers as without a cache, and only the
//! active rows recomputed.

mod architectures;
mod bench;
mod block;
mod oracle;

use bench::{alone, ggml, model, nmse, on_cpu, session};
use model_file::GenerateSpec;
use runtime::generate::masked::{CacheUse, Generated, Plan, Schedule, Sparse, Unmask, generate};
use runtime::{Error, KvType, LayerKv, Logits, Moved, Options, Rows, Session};

/// What the order of summation alone may change.
const NOISE_FLOOR: f64 = 1e-11;
const MODELS: [&str; 4] = ["gen-dream", "gen-llada", "gen-dream-576", "gen-llada-moe"];

/// Both ways into the cache.
fn ways() -> [Options; 2] {
    [false, true].map(|avoid_set_rows| Options { avoid_set_rows, ..Options::default() })
}

/// Ten tokens of text, then masks.
fn canvas(session: &Session, masks: usize) -> Vec<u32> {
    let mask = session.hparams().mask_token.expect("a masked-diffusion model");
    (0..10).map(|i| 5 + 7 * i).chain(std::iter::repeat_n(mask, masks)).collect()
}

fn assert_close(reference: &[LayerKv], other: &[LayerKv], what: &str) {
    assert_eq!(reference.len(), other.len());
    for (layer, (r, x)) in reference.iter().zip(other).enumerate() {
        let (k, v) = (nmse(&r.k, &x.k), nmse(&r.v, &x.v));
        assert!(k <= NOISE_FLOOR && v <= NOISE_FLOOR, "{what}, layer {layer}: K {k:e}, V {v:e}");
    }
}

/// Position `p` of a layer's K.
fn k_row(session: &Session, layer: &LayerKv, p: usize) -> Vec<f32> {
    let h = session.hparams();
    let width = h.head_dim * h.n_head_kv;
    layer.k[p * width..(p + 1) * width].to_vec()
}

#[test]
fn a_full_forward_through_the_cache_equals_one_without() {
    let _alone = alone();
    for (model, options) in MODELS.into_iter().flat_map(|model| ways().map(|options| (model, options))) {
        let mut session = session(model, options);
        let tokens = canvas(&session, 23);
        let without = session.full(&tokens, Rows::All, true).unwrap();
        session.reset_cache(tokens.len()).unwrap();
        let logits = session.full_cached(&tokens, Rows::All).unwrap();
        let found = nmse(&without.logits.values, &logits.values);
        assert!(found <= NOISE_FLOOR, "{model}: {found:e}");
        assert_close(&without.kv, &session.read_cache().unwrap(), model);
        assert_eq!(session.cached(), tokens.len());
        // A second one, with fewer tokens in the same cache, sees nothing of the first.
        let short = session.full_cached(&tokens[..20], Rows::All).unwrap();
        let alone = session.full(&tokens[..20], Rows::All, false).unwrap().logits;
        assert!(nmse(&alone.values, &short.values) <= NOISE_FLOOR, "{model}");
    }
}

#[test]
fn recomputing_every_position_is_a_full_forward() {
    let _alone = alone();
    for (model, options) in MODELS.into_iter().flat_map(|model| ways().map(|options| (model, options))) {
        let mut session = session(model, options);
        let before = canvas(&session, 23);
        session.reset_cache(before.len()).unwrap();
        session.full_cached(&before, Rows::Only(&[])).unwrap();
        let mut after = before.clone();
        (after[3], after[15], after[32]) = (77, 42, 99);
        let all: Vec<usize> = (0..after.len()).collect();
        let sparse = session.recompute(&after, &all, Rows::All).unwrap();
        let kv = session.read_cache().unwrap();
        let full = session.full(&after, Rows::All, true).unwrap();
        let found = nmse(&full.logits.values, &sparse.values);
        assert!(found <= NOISE_FLOOR, "{model}: {found:e}");
        assert_close(&full.kv, &kv, model);
    }
}

#[test]
fn only_active_positions_are_overwritten_each_at_its_own_place() {
    let _alone = alone();
    for (model, options) in MODELS.into_iter().flat_map(|model| ways().map(|options| (model, options))) {
        let mut session = session(model, options);
        let mut tokens = canvas(&session, 23);
        session.reset_cache(tokens.len()).unwrap();
        session.full_cached(&tokens, Rows::Only(&[])).unwrap();
        let before = session.read_cache().unwrap();
        let active = [0, 9, 12, 13, 31];
        (tokens[12], tokens[31]) = (50, 60);
        let some: Vec<u32> = active.iter().map(|&p| tokens[p]).collect();
        session.recompute(&some, &active, Rows::All).unwrap();
        let after = session.read_cache().unwrap();
        for (layer, (old, new)) in before.iter().zip(&after).enumerate() {
            for p in (0..tokens.len()).filter(|p| !active.contains(p)) {
                assert_eq!(k_row(&session, old, p), k_row(&session, new, p), "{model}: {layer}, {p}");
            }
        }
        // Keys of the first layer depend on token and position alone, so they tell whether RoPE saw the original
        // positions and rows went where they belong.
        let full = session.full(&tokens, Rows::Only(&[]), true).unwrap();
        let found = nmse(&full.kv[0].k, &after[0].k);
        assert!(found <= NOISE_FLOOR, "{model}: {found:e}");
        assert!(nmse(&before[0].k, &after[0].k) > 1e-4, "{model}: two tokens have changed");
    }
}

/// A generation of 24 masks along a fixed trajectory: the logits of every step, and what was generated.
fn run(session: &mut Session, cache: CacheUse, replay: Option<&[Unmask]>) -> (Vec<Logits>, Generated) {
    let prompt = canvas(session, 0);
    let plan = Plan { masks: 24, steps: 9, schedule: Schedule::Cosine, cache, ..Plan::default() };
    let mut steps = Vec::new();
    let generated = generate(session, &prompt, plan, replay, |view| steps.push(view.logits.clone())).unwrap();
    (steps, generated)
}

fn worst(reference: &[Logits], other: &[Logits]) -> f64 {
    assert_eq!(reference.len(), other.len());
    reference.iter().zip(other).map(|(r, x)| nmse(&r.values, &x.values)).fold(0.0, f64::max)
}

#[test]
fn generation_through_the_cache_agrees_step_by_step() {
    let _alone = alone();
    for (model, options) in MODELS.into_iter().flat_map(|model| ways().map(|options| (model, options))) {
        let mut session = session(model, options);
        let (reference, free) = run(&mut session, CacheUse::None, None);
        let (full, same) = run(&mut session, CacheUse::Full, Some(&free.unmasked));
        assert!(worst(&reference, &full) <= NOISE_FLOOR, "{model}: {:e}", worst(&reference, &full));
        assert_eq!(free.tokens, same.tokens);
        // A refresh at every step leaves nothing stale.
        let every = CacheUse::Sparse(Sparse { refresh: 1, ..Sparse::default() });
        let (refreshed, _) = run(&mut session, every, Some(&free.unmasked));
        assert!(worst(&reference, &refreshed) <= NOISE_FLOOR, "{model}");
        // Sparse steps are an approximation by design: how good is told, not judged.
        for (keep_active, refresh) in [(0, 0), (1, 0), (2, 0), (0, 4)] {
            let sparse = Sparse { keep_active, refresh, ..Sparse::default() };
            let (approximate, _) = run(&mut session, CacheUse::Sparse(sparse), Some(&free.unmasked));
            let error = worst(&reference, &approximate);
            println!("{model}: sparse, keep {keep_active}, refresh {refresh}: worst step NMSE {error:.2e}");
            assert!(error.is_finite() && error > NOISE_FLOOR, "{model}: nothing was left stale");
        }
    }
}

/// Keys and values of a single layer depend on nothing but token and position: a sparse step is exact there if all
/// rows that have changed and all rows that are read are in the active set, and only then.
#[test]
fn with_a_single_layer_nothing_is_stale() {
    let _alone = alone();
    for name in MODELS {
        let spec = GenerateSpec { n_layer: 1, ..GenerateSpec::preset(name).unwrap() };
        let mut session = on_cpu(&model(&spec), Options::default());
        let (reference, free) = run(&mut session, CacheUse::None, None);
        let (sparse, _) = run(&mut session, CacheUse::Sparse(Sparse::default()), Some(&free.unmasked));
        assert!(worst(&reference, &sparse) <= NOISE_FLOOR, "{name}: {:e}", worst(&reference, &sparse));
    }
}

#[test]
fn a_missing_predecessor_row_shows_where_logits_are_shifted_and_only_there() {
    let _alone = alone();
    for (model, shows) in [("gen-dream", true), ("gen-llada", false)] {
        let mut session = session(model, Options::default());
        let (_, free) = run(&mut session, CacheUse::None, None);
        let logits = |session: &mut Session, predecessors| {
            let sparse = CacheUse::Sparse(Sparse { predecessors, ..Sparse::default() });
            run(session, sparse, Some(&free.unmasked)).0
        };
        let right = logits(&mut session, true);
        let found = worst(&right, &logits(&mut session, false));
        assert_eq!(found > 1e-6, shows, "{model}: {found:e}");
        assert!(shows || found == 0.0, "{model}: {found:e}");
    }
}

#[test]
fn a_step_moves_logits_and_indices_but_no_keys_and_values() {
    let _alone = alone();
    let mut session = session("gen-dream", Options::default());
    let (vocab, mask_count) = (session.hparams().n_vocab, 24);
    session.take_traffic();
    let (steps, _) = run(&mut session, CacheUse::Sparse(Sparse::default()), None);
    let traffic = session.traffic();
    let bytes = |rows: usize| (rows * vocab * 4) as u64;
    // Wanted rows come in multiples of 16.
    let rows: Vec<usize> = steps.iter().map(|step| step.rows().next_multiple_of(16)).collect();
    let mask_count = usize::next_multiple_of(mask_count, 16);
    assert_eq!(traffic.graphs, rows.len() as u64);
    assert_eq!(traffic.from_device, Moved { total: bytes(rows.iter().sum()), largest: bytes(mask_count) });
    // Token, position and cache row of each of 34 positions, and the rows wanted.
    assert!(traffic.to_device.largest <= (34 * (4 + 4 + 8) + mask_count * 4) as u64);
    assert_eq!(traffic.cache_read, 0);
    session.read_cache().unwrap();
    let h = session.hparams();
    let cache = h.n_layer * 2 * 34 * h.head_dim * h.n_head_kv * 4;
    assert_eq!(session.traffic().cache_read, cache as u64);
}

#[test]
fn a_16_bit_cache_scatters_with_set_rows_and_says_what_is_missing_without() {
    let _alone = alone();
    let options = Options { kv: KvType::F16, ..Options::default() };
    let mut without = session("gen-dream", Options { avoid_set_rows: true, ..options.clone() });
    let tokens = canvas(&without, 23);
    without.reset_cache(tokens.len()).unwrap();
    // Rows that follow each other are one copy everywhere.
    without.full_cached(&tokens, Rows::All).unwrap();
    let error = without.recompute(&[1, 2], &[3, 9], Rows::All).unwrap_err();
    assert!(matches!(error, Error::Ggml(ggml_sys::Error::Unsupported { .. })), "{error}");
    assert!(error.to_string().contains("`ggml_set_rows`"), "{error}");

    let lacks = |(name, there): &(&str, bool)| *name == "ggml_set_rows" && !there;
    if ggml().optional_functions().iter().any(lacks) {
        return;
    }
    let mut session = session("gen-dream", options);
    let (reference, free) = run(&mut session, CacheUse::None, None);
    let (half, _) = run(&mut session, CacheUse::Full, Some(&free.unmasked));
    // Without a cache attention reads them in 16 bits too.
    assert!(worst(&reference, &half) <= NOISE_FLOOR, "{:e}", worst(&reference, &half));
    let mut exact = self::session("gen-dream", Options::default());
    let found = worst(&run(&mut exact, CacheUse::Full, Some(&free.unmasked)).0, &half);
    assert!(found > NOISE_FLOOR && found < 1e-5, "{found:e}");
    run(&mut session, CacheUse::Sparse(Sparse::default()), Some(&free.unmasked));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let _alone = alone();
    let mut dream = session("gen-dream", Options::default());
    let refused = |result: Result<Logits, Error>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(dream.full_cached(&[1, 2, 3], Rows::All), "the K/V cache is full: 0 of 0");
    dream.reset_cache(4).unwrap();
    refused(dream.recompute(&[1], &[0], Rows::All), "position 0 of 0 cached ones");
    dream.full_cached(&[1, 2, 3], Rows::All).unwrap();
    refused(dream.recompute(&[1], &[3], Rows::All), "position 3 of 3 cached ones");
    refused(dream.recompute(&[1, 2], &[1, 1], Rows::All), "position 1 is followed by 1");
    refused(dream.recompute(&[1], &[0, 1], Rows::All), "1 tokens at 2 positions");
    refused(dream.recompute(&[], &[], Rows::All), "no tokens");
    let mut llama = session("gen-llama", Options::default());
    llama.reset_cache(4).unwrap();
    refused(llama.full_cached(&[1, 2], Rows::All), "architecture llama is autoregressive");
}
