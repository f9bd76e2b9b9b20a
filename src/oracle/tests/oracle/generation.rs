//! Generation: greedy, speculative, profiled, masked; free and replayed.

use model_file::{GenerateSpec, Model, TensorType, WeightMix, generate, requantize_model};
use oracle::generate::masked::{Replay, Schedule, Sparse};
use oracle::generate::{autoregressive, masked, profile, speculative};
use oracle::{Error, Network, Rows};

use crate::support::{generated, open, preset, tokens};

fn greedy(network: &Network, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut cache = network.cache(prompt.len() + n);
    let plan = autoregressive::Plan::new(prompt, n);
    let chosen = autoregressive::decode(network, &mut cache, plan, |_, _| {}).unwrap();
    chosen.iter().map(|c| c.token).collect()
}

#[test]
fn greedy_decoding_is_the_argmax_of_full_passes() {
    let network = preset("gen-llama");
    let prompt = tokens(&network, 7);
    let mut cache = network.cache(12);
    let mut rows = Vec::new();
    let chosen =
        autoregressive::decode(&network, &mut cache, autoregressive::Plan::new(&prompt, 5), |step, row| {
            assert_eq!(step, rows.len());
            rows.push(row.to_vec());
        })
        .unwrap();
    assert_eq!((chosen.len(), rows.len(), cache.len()), (5, 6, 12));
    let mut sequence = prompt.clone();
    for (choice, row) in chosen.iter().zip(&rows) {
        assert_eq!(network.full(&sequence, Rows::Last).unwrap().logits.values(), row);
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(row[choice.token as usize], sorted[0]);
        assert_eq!(choice.margin, sorted[0] - sorted[1]);
        sequence.push(choice.token);
    }
    assert_eq!(cache.layers(), network.full(&sequence, Rows::Last).unwrap().kv);
}

#[test]
fn given_tokens_are_followed_and_their_margins_say_how_far_they_are_from_the_best() {
    let network = preset("gen-qwen2");
    let prompt = tokens(&network, 5);
    let free = greedy(&network, &prompt, 4);
    let run = |given: &[u32]| {
        let plan = autoregressive::Plan { given: Some(given), ..autoregressive::Plan::new(&prompt, 4) };
        autoregressive::decode(&network, &mut network.cache(9), plan, |_, _| {})
    };
    let replayed = run(&free).unwrap();
    assert!(replayed.iter().map(|c| c.token).eq(free.iter().copied()));
    assert!(replayed.iter().all(|c| c.margin > 0.0));
    let mut other = free.clone();
    other[2] = (free[2] + 1) % 130;
    let forced = run(&other).unwrap();
    assert!(forced.iter().map(|c| c.token).eq(other.iter().copied()));
    assert!(forced[1].margin > 0.0 && forced[2].margin < 0.0);
    assert!(matches!(run(&free[..3]), Err(Error::Trajectory(_))));
    assert!(matches!(run(&[1, 2, 3, 999]), Err(Error::Token { index: 8, token: 999, .. })));
}

#[test]
fn decoding_refuses_what_does_not_fit() {
    let network = preset("gen-llama");
    let plan = autoregressive::Plan::new(&[1, 2], 3);
    let e = autoregressive::decode(&network, &mut network.cache(4), plan, |_, _| {});
    assert!(matches!(e, Err(Error::CacheFull { capacity: 4, .. })));
    let mut cache = network.cache(9);
    network.extend(&mut cache, &[1], Rows::Last).unwrap();
    assert!(matches!(autoregressive::decode(&network, &mut cache, plan, |_, _| {}), Err(Error::Plan(_))));
    let empty = autoregressive::Plan::new(&[], 3);
    assert!(autoregressive::decode(&network, &mut network.cache(9), empty, |_, _| {}).is_err());
}

#[test]
fn speculation_gives_the_targets_own_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (f32_path, q4_path) = (dir.path().join("f32.gguf"), dir.path().join("q4.gguf"));
    generate(&GenerateSpec::preset("gen-llama").unwrap(), &f32_path).unwrap();
    let model = Model::open(&f32_path).unwrap();
    requantize_model(&model, WeightMix::Uniform(TensorType::Q4_0), &q4_path).unwrap();
    let (target, copy) = (Network::open(&model).unwrap(), open(&q4_path));
    let stranger = generated(&GenerateSpec { seed: 99, ..GenerateSpec::preset("gen-llama").unwrap() });
    let prompt = tokens(&target, 6);
    let plain = greedy(&target, &prompt, 20);
    for (name, draft) in [("itself", &target), ("quantised", &copy), ("stranger", &stranger)] {
        for k in [1, 3, 5] {
            let (mut ours, mut theirs) = (target.cache(26), draft.cache(26));
            let (chosen, s) = speculative::decode(
                speculative::Arm { network: &target, cache: &mut ours },
                speculative::Arm { network: draft, cache: &mut theirs },
                &prompt,
                20,
                k,
            )
            .unwrap();
            println!("{name}, {k} at a time: {s:?}");
            assert!(chosen.iter().map(|c| c.token).eq(plain.iter().copied()), "{name} {k}");
            assert_eq!(ours.len(), 25);
            let sequence = [&prompt[..], &plain[..19]].concat();
            assert_eq!(ours.layers(), target.full(&sequence, Rows::Last).unwrap().kv);
            assert_eq!(s.accepted + s.rounds, 20, "a round gives its accepted tokens and one of its own");
            if name == "itself" {
                assert_eq!(s.accepted, s.proposed);
            }
        }
    }
}

#[test]
fn profiling_finds_the_layer_that_does_nothing() {
    let spec = GenerateSpec {
        n_layer: 8,
        n_embd: 64,
        n_ff: 64,
        n_head: 2,
        n_head_kv: 1,
        head_dim: 32,
        ..GenerateSpec::preset("gen-llama").unwrap()
    };
    let network = generated(&spec);
    let prompt = tokens(&network, 9);
    let impact = profile::impact(&network, &prompt).unwrap();
    assert_eq!(impact.len(), 8);
    assert!(impact.iter().all(|&i| i > 0.0));
    let skip = profile::least(&impact, 2).unwrap();
    let least = skip.iter().map(|&l| impact[l]).fold(0.0, f64::max);
    assert!((2..6).filter(|l| !skip.contains(l)).all(|l| impact[l] >= least));
    // The prompt goes through all layers, so the first choice is that of a run without skipping.
    let plan = autoregressive::Plan { skip: &skip, ..autoregressive::Plan::new(&prompt, 6) };
    let mut cache = network.cache(15);
    let chosen = autoregressive::decode(&network, &mut cache, plan, |_, _| {}).unwrap();
    assert_eq!(chosen[0].token, greedy(&network, &prompt, 1)[0]);
    assert_eq!(cache.layers()[skip[0]].k.len(), 9 * 32);
    assert_eq!(cache.layers()[0].k.len(), 15 * 32);
}

fn plan(masks: usize, steps: usize) -> masked::Plan<'static> {
    masked::Plan { masks, steps, ..masked::Plan::default() }
}

#[test]
fn masked_generation_unmasks_every_position_once() {
    for name in ["gen-dream", "gen-llada"] {
        let network = preset(name);
        let prompt = tokens(&network, 6);
        let mask = network.hparams().mask_token.unwrap();
        for schedule in [Schedule::Linear, Schedule::Cosine] {
            let mut left = Vec::new();
            let made =
                masked::generate(&network, &prompt, masked::Plan { schedule, ..plan(11, 4) }, None, |s| {
                    assert_eq!(s.logits.rows(), s.masked.len());
                    assert!(s.masked.iter().all(|&p| s.tokens[p] == mask));
                    assert_eq!(s.active.len(), 17);
                    left.push(s.masked.len());
                })
                .unwrap();
            assert_eq!(made.steps, 4);
            assert_eq!(left, if schedule == Schedule::Linear { [11, 8, 5, 2] } else { [11, 10, 8, 4] });
            assert_eq!(&made.tokens[..6], prompt);
            assert!(!made.tokens[6..].contains(&mask));
            let mut positions: Vec<usize> = made.unmasked.iter().map(|u| u.position).collect();
            positions.sort_unstable();
            assert!(positions.into_iter().eq(6..17));
            assert!(made.unmasked.iter().all(|u| u.token_margin >= 0.0 && u.order_margin >= 0.0));
            assert!(made.unmasked.is_sorted_by_key(|u| (u.step, u.position)));
        }
    }
}

#[test]
fn the_first_step_reads_shifted_rows_in_dream_and_own_rows_in_llada() {
    for (name, shift) in [("gen-dream", 1), ("gen-llada", 0)] {
        let network = preset(name);
        let prompt = tokens(&network, 4);
        let mask = network.hparams().mask_token.unwrap();
        let sequence = [&prompt[..], &[mask; 3]].concat();
        let all = network.full(&sequence, Rows::All).unwrap().logits;
        masked::generate(&network, &prompt, plan(3, 1), None, |s| {
            for (i, p) in s.masked.iter().enumerate() {
                assert_eq!(s.logits.row(i), all.row(p - shift));
            }
        })
        .unwrap();
    }
    // Without a prompt, position 0 reads row 0 too.
    let network = preset("gen-dream");
    masked::generate(&network, &[], plan(3, 1), None, |s| assert_eq!(s.logits.row(0), s.logits.row(1)))
        .unwrap();
}

#[test]
fn a_replay_follows_the_trajectory_and_gives_the_same_numbers() {
    let network = preset("gen-dream");
    let prompt = tokens(&network, 5);
    let mut rows = Vec::new();
    let free =
        masked::generate(&network, &prompt, plan(9, 4), None, |s| rows.push(s.logits.values().to_vec()))
            .unwrap();
    let trajectory: Vec<Replay> = free.unmasked.iter().map(Replay::from).collect();
    let mut replayed_rows = Vec::new();
    let replayed = masked::generate(&network, &prompt, plan(9, 4), Some(&trajectory), |s| {
        replayed_rows.push(s.logits.values().to_vec());
    })
    .unwrap();
    assert_eq!(replayed, free);
    assert_eq!(replayed_rows, rows);

    // Another order and other tokens are followed too; steps that unmask none are passes all the same.
    let forced: Vec<Replay> =
        (5..14).rev().map(|p| Replay { step: (13 - p) * 2, position: p, token: 4 + p as u32 }).collect();
    let made = masked::generate(&network, &prompt, plan(9, 4), Some(&forced), |_| {}).unwrap();
    assert_eq!(made.steps, 17);
    assert!(made.tokens[5..].iter().copied().eq(9..18));
    assert!(made.unmasked.iter().any(|u| u.margin() < 0.0));
    // What a trajectory leaves masked stays so.
    let left = masked::generate(&network, &prompt, plan(9, 4), Some(&forced[1..]), |_| {}).unwrap();
    assert_eq!(Some(left.tokens[13]), network.hparams().mask_token);
    assert!(left.tokens[5..13].iter().copied().eq(9..17));
}

#[test]
fn sparse_generation_computes_the_active_set_and_refreshes() {
    for (name, shift) in [("gen-dream", true), ("gen-llada", false)] {
        let network = preset(name);
        let prompt = tokens(&network, 8);
        let run = |sparse: Option<Sparse>| {
            let mut active = Vec::new();
            let made =
                masked::generate(&network, &prompt, masked::Plan { sparse, ..plan(8, 8) }, None, |s| {
                    active.push((s.active.to_vec(), s.masked.to_vec()));
                })
                .unwrap();
            (made, active)
        };
        let (sparse, active) = run(Some(Sparse { keep_active: 0, refresh: 3 }));
        for (step, (active, masked)) in active.iter().enumerate() {
            if step % 3 == 0 {
                assert_eq!(active.len(), 16, "step {step} is full");
                continue;
            }
            let fresh = sparse.unmasked.iter().filter(|u| u.step + 1 == step).map(|u| u.position);
            let mut expected: Vec<usize> = masked.iter().copied().chain(fresh).collect();
            if shift {
                expected.extend(masked.iter().map(|p| p - 1));
            }
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(active, &expected, "step {step}");
        }
        // Everything refreshed at each step, or kept active for ever, is the full generation but for stale
        // rows of the prompt.
        let (full, _) = run(None);
        let (refreshed, _) = run(Some(Sparse { keep_active: 0, refresh: 1 }));
        assert_eq!(refreshed, full);
        assert_ne!(sparse.cache, full.cache);
    }
}

#[test]
fn masked_generation_refuses_what_it_cannot_do() {
    let (llama, llada) = (preset("gen-llama"), preset("gen-llada"));
    assert!(matches!(masked::generate(&llama, &[1], plan(3, 1), None, |_| {}), Err(Error::Unsupported(_))));
    assert!(matches!(masked::generate(&llada, &[1], plan(0, 1), None, |_| {}), Err(Error::Plan(_))));
    assert!(matches!(masked::generate(&llada, &[1], plan(3, 0), None, |_| {}), Err(Error::Plan(_))));
}
