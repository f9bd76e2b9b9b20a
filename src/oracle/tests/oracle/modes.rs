//! The modes against each other: what must be the same is the same, bit for bit.

use model_file::GenerateSpec;
use oracle::{Error, LayerKv, Network, Precision, Request, Rows};

use crate::support::{generated, nmse, preset, tokens};

fn anchors() -> impl Iterator<Item = Network> {
    ["dream", "llada", "qwen2", "llama"].into_iter().map(|name| {
        crate::support::open(&crate::support::repository(&format!("golden/anchors/{name}-anchor.gguf")))
    })
}

fn diffusion() -> impl Iterator<Item = Network> {
    anchors().filter(|n| !n.hparams().causal)
}

fn causal() -> impl Iterator<Item = Network> {
    anchors().filter(|n| n.hparams().causal)
}

fn joined(parts: &[Vec<LayerKv>]) -> Vec<LayerKv> {
    (0..parts[0].len())
        .map(|i| LayerKv {
            k: parts.iter().flat_map(|p| p[i].k.clone()).collect(),
            v: parts.iter().flat_map(|p| p[i].v.clone()).collect(),
        })
        .collect()
}

#[test]
fn any_split_of_a_causal_sequence_equals_the_full_forward() {
    for network in causal() {
        let tokens = tokens(&network, 23);
        let full = network.full(&tokens, Rows::All).unwrap();
        // Prefill, decode, batch; all at once; one by one.
        for split in [vec![7, 1, 1, 9, 1, 4], vec![23], vec![1; 23]] {
            let mut cache = network.cache(23);
            let (mut logits, mut kv, mut at) = (Vec::new(), Vec::new(), 0);
            for n in split {
                let pass = network.extend(&mut cache, &tokens[at..at + n], Rows::All).unwrap();
                logits.extend_from_slice(pass.logits.values());
                kv.push(pass.kv);
                at += n;
            }
            assert!(nmse(&logits, full.logits.values()) <= 1e-25);
            assert_eq!(logits, full.logits.values(), "bitwise");
            assert_eq!(cache.layers(), full.kv);
            assert_eq!(joined(&kv), full.kv);
        }
    }
}

#[test]
fn later_tokens_change_nothing_before_them_in_causal_networks_only() {
    for network in anchors() {
        let mut tokens = tokens(&network, 12);
        let before = network.full(&tokens, Rows::Only(&[10])).unwrap().logits;
        tokens[11] += 1;
        let after = network.full(&tokens, Rows::Only(&[10])).unwrap().logits;
        assert_eq!(before == after, network.hparams().causal);
    }
}

#[test]
fn full_cache_equals_full_and_sparse_with_all_active_equals_both() {
    for network in diffusion() {
        let tokens = tokens(&network, 19);
        let full = network.full(&tokens, Rows::All).unwrap();
        let mut cache = network.cache(20);
        network.full_cache(&mut cache, &tokens[..5], Rows::Last).unwrap();
        let cached = network.full_cache(&mut cache, &tokens, Rows::All).unwrap();
        assert_eq!(cached, full);
        assert_eq!(cache.layers(), full.kv);
        // On a cache that is stale everywhere.
        let other: Vec<u32> = tokens.iter().map(|t| t ^ 1).collect();
        network.full_cache(&mut cache, &other, Rows::Last).unwrap();
        let all: Vec<usize> = (0..19).collect();
        let sparse = network.sparse(&mut cache, &tokens, &all, Rows::All).unwrap();
        assert_eq!(sparse, full);
        assert_eq!(cache.layers(), full.kv);
    }
}

#[test]
fn a_sparse_pass_computes_its_rows_only_and_reads_the_stale_ones() {
    for network in diffusion() {
        let mut tokens = tokens(&network, 19);
        let mut cache = network.cache(19);
        network.full_cache(&mut cache, &tokens, Rows::Last).unwrap();
        let before = cache.clone();
        // Nothing changed: the same numbers come out, whatever is active.
        let same = network.sparse(&mut cache, &tokens, &[3, 8, 9], Rows::Only(&[1])).unwrap();
        assert_eq!(same.logits, network.full(&tokens, Rows::Only(&[8])).unwrap().logits);
        assert_eq!(cache, before);

        tokens[8] ^= 1;
        let sparse = network.sparse(&mut cache, &tokens, &[3, 8, 9], Rows::All).unwrap();
        let full = network.full(&tokens, Rows::Only(&[3, 8, 9])).unwrap();
        let width = cache.row_shape(0).iter().product::<usize>();
        for (layer, (now, then)) in cache.layers().iter().zip(before.layers()).enumerate() {
            for p in 0..19 {
                let row = p * width..(p + 1) * width;
                let unchanged =
                    now.k[row.clone()] == then.k[row.clone()] && now.v[row.clone()] == then.v[row];
                // In the first layer a row depends on its own token alone.
                assert_eq!(
                    unchanged,
                    if layer == 0 { p != 8 } else { ![3, 8, 9].contains(&p) },
                    "{layer} {p}"
                );
            }
        }
        // The second layer reads rows of the first as they should be, and stale ones of its own.
        let error = nmse(sparse.logits.values(), full.logits.values());
        assert!(error > 1e-12 && error < 0.5, "{error:e}");
    }
}

#[test]
fn rows_are_those_asked_for() {
    let network = preset("gen-qwen2");
    let tokens = tokens(&network, 9);
    let all = network.full(&tokens, Rows::All).unwrap().logits;
    assert_eq!((all.rows(), all.n_vocab()), (9, 130));
    let some = network.full(&tokens, Rows::Only(&[5, 0, 5])).unwrap().logits;
    assert_eq!([some.row(0), some.row(1), some.row(2)], [all.row(5), all.row(0), all.row(5)]);
    assert_eq!(network.full(&tokens, Rows::Last).unwrap().logits.values(), all.row(8));
    assert_eq!(network.full(&tokens, Rows::Only(&[])).unwrap().logits.rows(), 0);
    assert_eq!(network.full(&[], Rows::All).unwrap().logits.rows(), 0);
}

#[test]
fn a_tied_head_is_the_embedding() {
    let untied =
        GenerateSpec { head_is_embedding: true, ..GenerateSpec::preset("gen-qwen2-untied").unwrap() };
    let (tied, untied) = (preset("gen-qwen2"), generated(&untied));
    let tokens = tokens(&tied, 11);
    assert_eq!(tied.full(&tokens, Rows::All).unwrap(), untied.full(&tokens, Rows::All).unwrap());
}

#[test]
fn truncation_and_restoring_give_the_same_as_computing_anew() {
    for network in causal() {
        let tokens = tokens(&network, 14);
        let mut cache = network.cache(14);
        network.extend(&mut cache, &tokens[..10], Rows::Last).unwrap();
        let saved = cache.clone();
        let first = network.extend(&mut cache, &tokens[10..], Rows::All).unwrap();
        // Another branch, then back.
        cache.truncate(6);
        network.extend(&mut cache, &[1, 2, 3], Rows::Last).unwrap();
        cache.truncate(6);
        network.extend(&mut cache, &tokens[6..10], Rows::Last).unwrap();
        assert_eq!(cache, saved);
        assert_eq!(network.extend(&mut cache, &tokens[10..], Rows::All).unwrap(), first);
    }
}

#[test]
fn a_context_shift_moves_k_as_if_computed_at_the_new_positions() {
    // With one layer K and V of a row depend on its token and position alone, so the shift is exact.
    for name in ["gen-llama", "gen-qwen2"] {
        let network = generated(&GenerateSpec { n_layer: 1, ..GenerateSpec::preset(name).unwrap() });
        let tokens = tokens(&network, 12);
        let mut cache = network.cache(12);
        network.extend(&mut cache, &tokens, Rows::Last).unwrap();
        network.shift(&mut cache, 2, 5).unwrap();
        let kept = [&tokens[..2], &tokens[7..]].concat();
        let anew = network.full(&kept, Rows::Last).unwrap().kv;
        assert_eq!(cache.len(), 7);
        assert!(nmse(&cache.layers()[0].k, &anew[0].k) < 1e-28);
        assert_eq!(cache.layers()[0].v, anew[0].v);
        assert!(matches!(network.shift(&mut cache, 3, 5), Err(Error::Positions(_))));
    }
}

#[test]
fn storage_types_round_what_the_cache_holds_and_nothing_else() {
    let network = preset("gen-llama");
    let tokens = tokens(&network, 33);
    let exact = network.full(&tokens, Rows::All).unwrap();
    let mut last = 0.0;
    for (precision, low, high) in [
        (Precision::F64, 0.0, 0.0),
        (Precision::F32, 1e-17, 1e-14),
        (Precision::F16, 1e-9, 1e-6),
        (Precision::Q8_0, 1e-6, 1e-3),
        (Precision::Q4_0, 1e-4, 1e-1),
    ] {
        let mut cache = network.cache_stored_as(33, precision);
        let pass = network.extend(&mut cache, &tokens, Rows::All).unwrap();
        // The first layer's K before storing is the exact one.
        assert_eq!(pass.kv[0], exact.kv[0]);
        let (kv, logits) =
            (nmse(&cache.layers()[0].k, &exact.kv[0].k), nmse(pass.logits.values(), exact.logits.values()));
        println!("{precision:?}: NMSE of K {kv:.2e}, of the logits {logits:.2e}");
        assert!(logits >= low && logits <= high, "{precision:?}: {logits:e}");
        assert!(kv >= last, "{precision:?}: coarser than the one before");
        last = kv;
        // Still independent of the split: rows are rounded one by one.
        let mut split = network.cache_stored_as(33, precision);
        network.extend(&mut split, &tokens[..20], Rows::Last).unwrap();
        let rest = network.extend(&mut split, &tokens[20..], Rows::All).unwrap();
        assert_eq!(rest.logits.values(), &pass.logits.values()[20 * 130..]);
        assert_eq!(split, cache);
    }
}

#[test]
fn a_window_of_the_whole_sequence_changes_nothing_and_a_smaller_one_does() {
    let network = preset("gen-llama");
    let tokens = tokens(&network, 16);
    let run = |window| {
        let request = Request { rows: Rows::All, window, ..Request::new(&tokens) };
        network.forward(&mut network.cache(16), request).unwrap().logits
    };
    let full = run(None);
    assert_eq!(run(Some(16)), full);
    let windowed = run(Some(5));
    assert_eq!(windowed.row(4), full.row(4));
    assert_ne!(windowed.row(5), full.row(5));
    // One layer deep, the last row sees the last five tokens only.
    let one = generated(&GenerateSpec { n_layer: 1, ..GenerateSpec::preset("gen-llama").unwrap() });
    let mut cache = one.cache(16);
    one.extend(&mut cache, &tokens[..15], Rows::Last).unwrap();
    one.shift(&mut cache, 0, 11).unwrap();
    let expected = one.extend(&mut cache, &tokens[15..], Rows::Last).unwrap().logits;
    let request = Request { window: Some(5), ..Request::new(&tokens) };
    let windowed = one.forward(&mut one.cache(16), request).unwrap().logits;
    assert!(nmse(windowed.values(), expected.values()) < 1e-26);
}

#[test]
fn skipped_layers_pass_the_stream_and_leave_no_rows() {
    let eight = GenerateSpec {
        n_layer: 8,
        n_embd: 64,
        n_ff: 64,
        n_head: 2,
        n_head_kv: 1,
        head_dim: 32,
        ..GenerateSpec::preset("gen-llama").unwrap()
    };
    let network = generated(&eight);
    let tokens = tokens(&network, 10);
    let skip = [2, 5];
    let mut cache = network.cache(10);
    let prompt = network.extend(&mut cache, &tokens[..6], Rows::Last).unwrap();
    assert!(prompt.change.iter().all(|&c| c > 0.0));
    let request = Request { skip: &skip, ..Request::new(&tokens[6..]) };
    let pass = network.forward(&mut cache, request).unwrap();
    assert_eq!((pass.change[2], pass.kv[5].k.len()), (0.0, 0));
    assert!(pass.change[3] > 0.0);
    let rows = |i: usize| cache.layers()[i].k.len() / 32;
    assert_eq!([rows(1), rows(2), rows(5)], [10, 6, 6]);
    // The layer's rows are missing now.
    let e = network.extend(&mut cache, &[1], Rows::Last);
    assert!(matches!(e, Err(Error::CacheFull { position: 10, capacity: 10 })));
    cache.truncate(9);
    let e = network.extend(&mut cache, &[1], Rows::Last);
    assert!(matches!(e, Err(Error::SkippedRows { layer: 2, has: 6, needs: 9 })));
    // Back to where they were all there.
    cache.truncate(6);
    network.extend(&mut cache, &tokens[6..], Rows::Last).unwrap();
}

#[test]
fn what_cannot_be_is_an_error_and_leaves_the_cache_alone() {
    let (llama, llada) = (preset("gen-llama"), preset("gen-llada"));
    let mut cache = llama.cache(5);
    llama.extend(&mut cache, &[1, 2, 3], Rows::Last).unwrap();
    let before = cache.clone();
    let mut at = |positions: &[usize], tokens: &[u32]| {
        llama.forward(&mut cache, Request { positions: Some(positions), ..Request::new(tokens) }).unwrap_err()
    };
    assert!(matches!(at(&[3, 4], &[1]), Error::Positions(_)), "two positions for one token");
    assert!(matches!(at(&[4], &[1]), Error::Positions(_)), "a gap");
    assert!(matches!(at(&[3, 3], &[1, 1]), Error::Positions(_)), "twice");
    assert!(matches!(at(&[2], &[1]), Error::Positions(_)), "a causal network would leave stale rows");
    assert!(matches!(at(&[3], &[130]), Error::Token { index: 0, token: 130, n_vocab: 130 }));
    let e = llama.extend(&mut cache, &[1, 2, 3], Rows::Last).unwrap_err();
    assert!(matches!(e, Error::CacheFull { position: 5, capacity: 5 }), "{e}");
    let e = llama.extend(&mut cache, &[1], Rows::Only(&[1])).unwrap_err();
    assert!(matches!(e, Error::Row { row: 1, rows: 1 }), "{e}");
    let e = llama.forward(&mut cache, Request { skip: &[2], ..Request::new(&[1]) }).unwrap_err();
    assert!(matches!(e, Error::NoSuchLayer { layer: 2, layers: 2 }), "{e}");
    let e = llama.forward(&mut cache, Request { window: Some(0), ..Request::new(&[1]) }).unwrap_err();
    assert!(matches!(e, Error::Plan(_)), "{e}");
    let e = llada.extend(&mut cache, &[1], Rows::Last).unwrap_err();
    assert!(matches!(e, Error::ForeignCache(_)), "{e}");
    assert!(matches!(llama.sparse(&mut cache, &[1, 2, 3], &[1], Rows::Last), Err(Error::Unsupported(_))));
    assert_eq!(cache, before);

    let mut cache = llada.cache(5);
    llada.full_cache(&mut cache, &[1, 5, 3], Rows::Last).unwrap();
    assert!(matches!(llada.sparse(&mut cache, &[1, 5], &[1], Rows::Last), Err(Error::Positions(_))));
    assert!(matches!(llada.sparse(&mut cache, &[1, 5, 3], &[3], Rows::Last), Err(Error::Positions(_))));
    let e = llada.forward(&mut cache, Request { window: Some(2), ..Request::new(&[1]) }).unwrap_err();
    assert!(matches!(e, Error::Unsupported(_)), "{e}");
}

#[test]
fn given_experts_work_and_routers_choose_all_the_same() {
    let network = preset("gen-llada-moe");
    let tokens = tokens(&network, 12);
    let pass = |given: Option<&[Vec<usize>]>| {
        let layers: Option<Vec<&[usize]>> = given.map(|given| given.iter().map(Vec::as_slice).collect());
        let request = Request { rows: Rows::All, experts: layers.as_deref(), ..Request::new(&tokens) };
        network.forward(&mut network.cache(tokens.len()), request)
    };
    let free = pass(None).unwrap();
    let own: Vec<Vec<usize>> = free.routing.iter().map(|routing| routing.chosen.clone()).collect();
    assert_eq!(pass(Some(&own)).unwrap(), free);

    // Row 3 of the first layer goes to other experts, and what follows from it is seen from the second layer on.
    let sizes = network.hparams().experts.unwrap();
    let mut other = own.clone();
    for expert in &mut other[0][3 * sizes.used..][..sizes.used] {
        *expert = (*expert + 1) % sizes.count;
    }
    let moved = pass(Some(&other)).unwrap();
    assert_eq!((&moved.routing[0], &moved.kv[0]), (&free.routing[0], &free.kv[0]));
    let width = free.kv[1].k.len() / tokens.len();
    let rows =
        |pass: &oracle::Pass| pass.kv[1].k.chunks_exact(width).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let changed = rows(&moved).iter().zip(rows(&free)).map(|(a, b)| *a != b).collect::<Vec<_>>();
    assert_eq!(changed, (0..12).map(|row| row == 3).collect::<Vec<_>>());
    assert!(nmse(free.logits.values(), moved.logits.values()) > 1e-6);

    other[0].pop();
    assert!(matches!(pass(Some(&other)).unwrap_err(), Error::Plan(_)));
    let dense = preset("gen-llada");
    let request = Request { experts: Some(&[&[0]]), ..Request::new(&tokens[..1]) };
    assert!(dense.forward(&mut dense.cache(1), request).unwrap_err().to_string().contains("has none"));
}
