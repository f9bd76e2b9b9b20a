//! Block diffusion on a real ggml build against the f64 oracle: both phases, conditioning, the store, the experts, and a
//! generation along one trajectory.

use crate::bench::{alone, model, nmse64, on_cpu};
use model_file::{EntropyBound, GenerateSpec};
use oracle::generate::{block as expected, entropy};
use oracle::{BlockNetwork, Conditioning, LayerKv};
use runtime::generate::block::{Along, Plan, Seen, generate, random_canvas, temperature};
use runtime::{Attention, Error, FullPass, GivenExperts, Options, Rows, Session};

/// F32 against f64, with a GELU that ggml's CPU reads from a table in 16 bits; 2.6e-6 was the largest figure on two
/// machines.
const LIMIT: f64 = 1e-5;

/// A router whose scores part by no more may choose otherwise.
const TIE: f64 = 5e-3;

const MODELS: [&str; 3] = ["gen-diffusion-gemma", "gen-diffusion-gemma-c32", "gen-diffusion-gemma-e300"];

/// The experts of the oracle's passes over rows from `first` on.
fn experts(passes: &[(usize, &[oracle::Routing])], used: usize) -> GivenExperts {
    let mut given = GivenExperts::default();
    for (first, layers) in passes {
        let rows = layers[0].chosen.len() / used;
        given.positions.extend(*first..*first + rows);
        given.layers.resize(layers.len(), Vec::new());
        for (all, layer) in given.layers.iter_mut().zip(*layers) {
            all.extend(layer.chosen.iter().map(|&e| i32::try_from(e).unwrap()));
        }
    }
    given
}

fn tokens(session: &Session, n: usize) -> Vec<u32> {
    random_canvas(5, 9, 9, n, session.hparams().n_vocab)
}

fn encode(session: &mut Session, prompt: &[u32]) {
    session.reset_cache(prompt.len().max(1)).unwrap();
    // In two parts, as a prompt and the canvases after it are.
    for part in prompt.chunks(13) {
        session.encode(part, false).unwrap();
    }
}

/// The worst of logits, keys and values; the experts that the device's routers choose must be the oracle's.
fn against(what: &str, pass: &FullPass, reference: &oracle::CanvasPass, rows: usize) -> f64 {
    let mut figures = vec![("logits".to_owned(), nmse64(reference.logits.values(), &pass.logits.values))];
    for (i, (r, x)) in reference.kv.iter().zip(&pass.kv).enumerate() {
        figures.push((format!("k.{i}"), nmse64(&r.k, &x.k)));
        figures.push((format!("v.{i}"), nmse64(&r.v, &x.v)));
    }
    for (i, (r, x)) in reference.experts.iter().zip(&pass.routing).enumerate() {
        let (count, used) = (r.logits.len() / rows, r.chosen.len() / rows);
        figures.push((format!("router.{i}"), nmse64(&r.logits, &x.logits)));
        for row in 0..rows {
            let sorted = |list: Vec<usize>| {
                let mut list = list;
                list.sort_unstable();
                list
            };
            let mine = sorted(x.chosen[row * used..][..used].iter().map(|&e| e as usize).collect());
            let theirs = sorted(r.chosen[row * used..][..used].to_vec());
            if mine != theirs {
                // Only where the router itself cannot tell: the last chosen and the first left.
                let mut scores = r.logits[row * count..][..count].to_vec();
                scores.sort_by(|a, b| b.total_cmp(a));
                let gap = scores[used - 1] - scores[used];
                assert!(gap <= TIE, "{what}: layer {i}, row {row}: {mine:?}, not {theirs:?}, gap {gap:e}");
            }
        }
    }
    for (name, figure) in &figures {
        assert!(*figure <= LIMIT, "{what} {name}: {figure:e}");
    }
    figures.iter().map(|(_, figure)| *figure).fold(0.0, f64::max)
}

#[test]
fn both_phases_are_those_of_the_oracle() {
    let _alone = alone();
    for name in MODELS {
        let model = model(&GenerateSpec::preset(name).unwrap());
        let network = BlockNetwork::open(&model).unwrap();
        for attention in [Attention::Explicit, Attention::Flash] {
            let mut session = on_cpu(&model, Options { attention, ..Options::default() });
            let (length, used) = (network.block().canvas, model.hparams.experts.unwrap().used);
            for prompt in [0, 5, 16, 27] {
                let prompt = tokens(&session, prompt);
                let canvas = random_canvas(1, 0, 0, length, model.hparams.n_vocab);
                let mut store = network.store();
                let mut encoded = Vec::new();
                for part in prompt.chunks(13) {
                    encoded.push((store.len(), network.encode(&mut store, part, None).unwrap().experts));
                }
                let of_prompt: Vec<_> = encoded.iter().map(|(first, layers)| (*first, &layers[..])).collect();
                session.follow_experts(Some(experts(&of_prompt, used)));
                encode(&mut session, &prompt);
                let t = temperature(&network.block().sampler, 0);
                let (mut worst, mut before): (f64, Option<oracle::Logits>) = (0.0, None);
                for step in 0..2 {
                    let previous =
                        before.as_ref().map(|logits| Conditioning { logits, temperature: f64::from(t) });
                    let reference = network.denoise(&store, &canvas, previous, None).unwrap();
                    session.follow_experts(Some(experts(&[(prompt.len(), &reference.experts)], used)));
                    let pass = session.denoise(&canvas, (step > 0).then_some(t), true).unwrap();
                    let what = format!("{name} {attention:?} {} tokens, step {step}", prompt.len());
                    worst = worst.max(against(&what, &pass, &reference, length));
                    before = Some(reference.logits);
                }
                let held = session.read_cache().unwrap();
                for (r, x) in store.layers().iter().zip(&held).filter(|_| !prompt.is_empty()) {
                    worst = worst.max(nmse64(&r.k, &x.k)).max(nmse64(&r.v, &x.v));
                }
                // The same in one graph, whose conditioning is the device's own.
                let again = network.unified(&prompt, &canvas, None, None).unwrap();
                let previous = Some(Conditioning { logits: &again.logits, temperature: f64::from(t) });
                let reference = network.unified(&prompt, &canvas, previous, None).unwrap();
                session.follow_experts(Some(experts(&[(0, &again.experts), (0, &reference.experts)], used)));
                let first = session.unified(&prompt, &canvas, None, false).unwrap();
                let unified = session.unified(&prompt, &canvas, Some(t), true).unwrap();
                assert_eq!((first.logits.rows(), first.kv.len()), (length, 0));
                let what = format!("{name} {attention:?} {} tokens, unified", prompt.len());
                worst = worst.max(against(&what, &unified, &reference, prompt.len() + length));
                println!("{name} {attention:?} after {} tokens: {worst:.1e}", prompt.len());
                assert!(worst <= LIMIT, "{worst:e}");
            }
        }
    }
}

#[test]
fn a_generation_is_the_oracles_along_its_trajectory() {
    let _alone = alone();
    let model = model(&GenerateSpec::preset("gen-diffusion-gemma").unwrap());
    let network = BlockNetwork::open(&model).unwrap();
    let mut session = on_cpu(&model, Options::default());
    let prompt = tokens(&session, 20);
    let sampler = EntropyBound { max_steps: 6, ..network.block().sampler };
    let plan = Plan { prompt: &prompt, canvases: 2, canvas: 8, sampler, seed: 3, end: None, keep: false };
    session.record_routing();
    let mut steps = Vec::new();
    let mut conditions = Vec::new();
    let free = generate(&mut session, plan, None, |seen| {
        if let Seen::Step(step) = seen {
            let values = step.pass.logits.values.iter().map(|&z| f64::from(z)).collect();
            conditions.push(oracle::Logits::from_rows(step.pass.logits.vocab, values));
            steps.push((step.pass.logits.values.clone(), step.sampled.to_vec(), step.accepted.to_vec()));
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((free.tokens.len(), free.canvases.len(), session.cached()), (36, 2, 28));

    let given: Vec<expected::Given> = free
        .canvases
        .iter()
        .map(|c| expected::Given { steps: c.steps.clone(), result: c.result.clone() })
        .collect();
    let worked = GivenExperts::of(&session.take_routing());
    let layers: Vec<Vec<usize>> =
        worked.layers.iter().map(|layer| layer.iter().map(|&e| e as usize).collect()).collect();
    let used = model.hparams.experts.unwrap().used;
    let given_experts = Some(oracle::GivenExperts::new(&layers, used));
    let plan64 = expected::Plan {
        prompt: &prompt,
        canvases: 2,
        canvas: 8,
        sampler,
        seed: 3,
        experts: given_experts,
        conditions: Some(&conditions),
        ..expected::Plan::default()
    };
    let mut done = steps.iter();
    let (mut same, mut checked) = (0, 0);
    let reference = expected::generate(&network, plan64, Some(&given), |step| {
        let (logits, sampled, accepted) = done.next().expect("as many steps");
        checked += 1;
        let error = nmse64(step.pass.logits.values(), logits);
        println!("canvas {}, step {}: {error:.1e}", step.canvas, step.step);
        assert!(error <= LIMIT, "step {}: {error:e}", step.step);
        for (r, x) in step.samples.iter().zip(sampled) {
            assert!((r.entropy - x.entropy).abs() <= 10.0 * error.sqrt(), "{r:?} {x:?}");
            same += usize::from(r.sampled == x.token && r.argmax == x.argmax);
        }
        same += usize::from(step.accepted == accepted);
    })
    .unwrap();
    // Both arms draw by the same noise: what differs is a near tie.
    assert!(checked > 0 && same + 2 >= checked * 9, "{same} of {}", checked * 9);
    let layers =
        |kv: &[LayerKv]| kv.iter().flat_map(|l| [l.k.clone(), l.v.clone()].concat()).collect::<Vec<_>>();
    let held = session.read_cache().unwrap();
    let held: Vec<f32> = held.iter().flat_map(|l| [l.k.clone(), l.v.clone()].concat()).collect();
    assert!(nmse64(&layers(reference.store.layers()), &held) <= LIMIT);

    // Replayed with other noise it is the same run, and free with the oracle's noise both are one.
    let along = Some(Along { canvases: &free.canvases, logits: None });
    let mut replayed = Vec::new();
    let again = generate(&mut session, Plan { seed: 8, ..plan }, along, |seen| {
        if let Seen::Step(step) = seen {
            replayed.push(step.pass.logits.values.clone());
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((again.tokens, replayed.len()), (free.tokens.clone(), steps.len()));
    assert!(replayed.iter().zip(&steps).all(|(a, (b, ..))| a == b), "bit for bit");
    let noise = entropy::Noise { seed: 3 };
    let first: Vec<u32> = (0..8).map(|p| noise.token(0, 0, p, model.hparams.n_vocab)).collect();
    assert_eq!(free.canvases[0].steps[0], first, "both generators are the same");
}

#[test]
fn what_cannot_be_computed_is_said() {
    let _alone = alone();
    let model = model(&GenerateSpec::preset("gen-diffusion-gemma").unwrap());
    let mut session = on_cpu(&model, Options::default());
    let canvas = tokens(&session, 8);
    let refused = |what: &str, result: Result<FullPass, Error>| {
        let error = result.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused("no pass over a canvas of 8", session.denoise(&canvas, Some(0.5), false));
    refused("a canvas of no tokens", session.denoise(&[], None, false));
    refused("token 999", session.denoise(&[999], None, false));
    refused("the K/V cache is full", session.encode(&canvas, false));
    refused("a prompt or a canvas", session.full(&canvas, Rows::All, false));
    session.denoise(&canvas, None, false).unwrap();
    refused("a temperature of 0", session.denoise(&canvas, Some(0.0), false));
    refused("no pass over a canvas of 7", session.denoise(&canvas[..7], Some(0.5), false));
    let other = crate::bench::model(&GenerateSpec::preset("gen-llama").unwrap());
    let mut other = on_cpu(&other, Options::default());
    refused("has no canvas", other.denoise(&canvas, None, false));
}
