//! Block diffusion: the phases against each other, and generation against itself.

use model_file::{EntropyBound, GenerateSpec, Model, generate};
use oracle::generate::block::{Plan, generate as denoise};
use oracle::generate::entropy::temperature;
use oracle::{BlockNetwork, Conditioning, LayerKv};

use crate::support::nmse;

fn preset(name: &str) -> BlockNetwork {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("generated.gguf");
    generate(&GenerateSpec::preset(name).unwrap(), &path).unwrap();
    BlockNetwork::open(&Model::open(&path).unwrap()).unwrap()
}

fn tokens(network: &BlockNetwork, n: usize, first: u32) -> Vec<u32> {
    let n_vocab = network.hparams().n_vocab as u32;
    (first..first + n as u32).map(|i| i.wrapping_mul(2_654_435_761) % n_vocab).collect()
}

fn joined(a: &[LayerKv], b: &[LayerKv]) -> Vec<f64> {
    a.iter().zip(b).flat_map(|(a, b)| [&a.k[..], &b.k, &a.v, &b.v].concat()).collect()
}

fn whole(kv: &[LayerKv]) -> Vec<f64> {
    kv.iter().flat_map(|kv| [&kv.k[..], &kv.v].concat()).collect()
}

/// Shorter than the window, as long, and longer; on the first step and on one that is conditioned.
#[test]
fn a_unified_pass_equals_encoding_and_denoising() {
    for name in ["gen-diffusion-gemma", "gen-diffusion-gemma-c32", "gen-diffusion-gemma-e300"] {
        let network = preset(name);
        for prompt in [0, 5, 16, 24] {
            let (prompt, canvas) =
                (tokens(&network, prompt, 1), tokens(&network, network.block().canvas, 99));
            let first = network.unified(&prompt, &canvas, None, None).unwrap().logits;
            for previous in [None, Some(Conditioning { logits: &first, temperature: 0.7 })] {
                let unified = network.unified(&prompt, &canvas, previous, None).unwrap();
                let mut store = network.store();
                // In two parts, as the outer loop does.
                for part in prompt.chunks(13) {
                    network.encode(&mut store, part, None).unwrap();
                }
                let apart = network.denoise(&store, &canvas, previous, None).unwrap();
                let figure = nmse(apart.logits.values(), unified.logits.values());
                assert!(figure <= 1e-24, "{name} {}: {figure:e}", prompt.len());
                let kv = nmse(&joined(store.layers(), &apart.kv), &whole(&unified.kv));
                assert!(kv <= 1e-24, "{name} {}: {kv:e}", prompt.len());
                for (one, both) in apart.experts.iter().zip(&unified.experts) {
                    let used = one.chosen.len() / canvas.len();
                    assert_eq!(one.chosen[..], both.chosen[prompt.len() * used..]);
                }
            }
        }
    }
}

/// What the pass reads changes what it gives, and what it must not read does not.
#[test]
fn each_part_of_the_input_is_read_where_it_should_be() {
    let network = preset("gen-diffusion-gemma");
    let (prompt, canvas) = (tokens(&network, 24, 1), tokens(&network, 8, 99));
    let base = network.unified(&prompt, &canvas, None, None).unwrap();
    let mut other = canvas.clone();
    other[7] = (other[7] + 1) % 130;
    let later = network.unified(&prompt, &other, None, None).unwrap();
    let width = network.hparams().n_vocab;
    assert!(nmse(later.logits.row(0), base.logits.row(0)) > 1e-9, "a canvas sees what stands after it");
    assert_eq!(later.kv[3].k[..24 * 128], base.kv[3].k[..24 * 128], "a prompt does not see the canvas");
    let mut early = prompt.clone();
    early[2] = (early[2] + 1) % 130;
    let early = network.unified(&early, &canvas, None, None).unwrap();
    assert!(
        nmse(&early.logits.values()[..width], base.logits.row(0)) > 1e-9,
        "layers without a window see it"
    );
    let conditioned = Conditioning { logits: &base.logits, temperature: 0.8 };
    let next = network.unified(&prompt, &canvas, Some(conditioned), None).unwrap();
    assert!(nmse(next.logits.values(), base.logits.values()) > 1e-6);
    let cooler = Conditioning { temperature: 0.4, ..conditioned };
    let cooler = network.unified(&prompt, &canvas, Some(cooler), None).unwrap();
    assert!(nmse(cooler.logits.values(), next.logits.values()) > 1e-9);
}

#[test]
fn generation_denoises_and_can_be_replayed() {
    let network = preset("gen-diffusion-gemma");
    let prompt = tokens(&network, 20, 1);
    let sampler = EntropyBound { max_steps: 12, ..network.block().sampler };
    let plan = Plan { prompt: &prompt, canvases: 2, canvas: 8, sampler, seed: 3, ..Plan::default() };
    let (mut steps, mut most) = (Vec::new(), Vec::new());
    let free = denoise(&network, plan, None, |s| {
        assert_eq!(s.temperature, temperature(&sampler, s.step, 12));
        assert!(s.accepted.iter().any(|&a| a));
        println!(
            "canvas {} step {} accepted {} mean entropy {:.4}",
            s.canvas,
            s.step,
            s.accepted.iter().filter(|a| **a).count(),
            s.samples.iter().map(|s| s.entropy).sum::<f64>() / 8.0
        );
        steps.push(s.pass.logits.clone());
        most.push(s.accepted.iter().filter(|a| **a).count());
    })
    .unwrap();
    assert_eq!((free.tokens.len(), free.store.len(), free.canvases.len()), (36, 28, 2));
    assert!(most.iter().any(|&n| n > 1), "some step accepts more than one position: {most:?}");
    let mut replayed = Vec::new();
    let again = denoise(&network, Plan { seed: 99, ..plan }, Some(&free.canvases), |s| {
        replayed.push(s.pass.logits.clone())
    })
    .unwrap();
    assert_eq!((again, replayed), (free.clone(), steps), "the noise of a replayed run does not matter");
    let other = denoise(&network, Plan { seed: 4, ..plan }, None, |_| {}).unwrap();
    assert_ne!(other.canvases[0].steps[0], free.canvases[0].steps[0]);
    let one = Plan { end: Some(free.tokens[20]), ..plan };
    assert_eq!(denoise(&network, one, None, |_| {}).unwrap().canvases.len(), 1);
    let mut short = free.canvases.clone();
    short[1].result.pop();
    assert!(
        denoise(&network, plan, Some(&short), |_| {}).unwrap_err().to_string().contains("canvas 1 has 7")
    );
}

/// Against `transformers` in f64 (`golden/anchors-transformers/make_diffusion_gemma.py`).
mod anchor {
    use oracle::generate::entropy::accepted;
    use oracle::{Logits, Routing, Store};

    use super::*;
    use crate::support::{Tensors, repository};

    /// Two f64 implementations that sum in different orders; the decimals of the configuration are F32 in the file.
    const LIMIT: f64 = 1e-20;

    fn network() -> BlockNetwork {
        let path = repository("golden/anchors/diffusion-gemma-anchor.gguf");
        BlockNetwork::open(&Model::open(&path).unwrap()).unwrap()
    }

    fn compare(anchor: &Tensors, phase: &str, kv: &[LayerKv], experts: &[Routing], logits: Option<&Logits>) {
        let mut figures = Vec::new();
        for (i, layer) in kv.iter().enumerate() {
            for (part, values) in [("k", &layer.k), ("v", &layer.v)] {
                let name = format!("{phase}.{part}.{i}");
                figures.push((name.clone(), nmse(values, &anchor.f64(&name))));
            }
        }
        if let Some(logits) = logits {
            let name = format!("{phase}.logits");
            figures.push((name.clone(), nmse(logits.values(), &anchor.f64(&name))));
        }
        for (tensor, figure) in figures {
            println!("{tensor}: NMSE {figure:.2e}");
            assert!(figure <= LIMIT, "{tensor}: NMSE {figure:e}");
        }
        for (i, routing) in experts.iter().enumerate() {
            let chosen: Vec<u32> = routing.chosen.iter().map(|&e| e as u32).collect();
            assert_eq!(chosen, anchor.tokens(&format!("{phase}.experts.{i}")), "{phase} layer {i}");
        }
        assert_eq!((kv.len(), experts.len()), (4, 4));
    }

    fn encode(network: &BlockNetwork, anchor: &Tensors, phase: &str, store: &mut Store) {
        let encoded = network.encode(store, &anchor.tokens(&format!("{phase}.tokens")), None).unwrap();
        compare(anchor, phase, &encoded.kv, &encoded.experts, None);
    }

    fn denoise(
        network: &BlockNetwork,
        anchor: &Tensors,
        phase: &str,
        store: &Store,
        previous: Option<(&Logits, usize)>,
    ) -> Logits {
        let sampler = EntropyBound { t_min: 0.4, t_max: 0.8, ..EntropyBound::default() };
        let previous = previous
            .map(|(logits, step)| Conditioning { logits, temperature: temperature(&sampler, step, 48) });
        let canvas = anchor.tokens(&format!("{phase}.tokens"));
        let pass = network.denoise(store, &canvas, previous, None).unwrap();
        compare(anchor, phase, &pass.kv, &pass.experts, Some(&pass.logits));
        pass.logits
    }

    /// The prompt is longer than the window, a canvas stands after it, is conditioned twice, encoded, and followed by
    /// another: every path of the network.
    #[test]
    fn both_phases_equal_transformers() {
        let (network, anchor) = (network(), Tensors::anchor("diffusion-gemma-anchor.f64"));
        let mut store = network.store();
        encode(&network, &anchor, "prompt", &mut store);
        let first = denoise(&network, &anchor, "step0", &store, None);
        let second = denoise(&network, &anchor, "step1", &store, Some((&first, 0)));
        denoise(&network, &anchor, "step2", &store, Some((&second, 1)));
        encode(&network, &anchor, "next", &mut store);
        denoise(&network, &anchor, "next0", &store, None);
    }

    #[test]
    fn the_samplers_rules_equal_transformers() {
        let anchor = Tensors::anchor("diffusion-gemma-anchor.f64");
        let sampler = EntropyBound::default();
        for (step, expected) in anchor.f64("temperatures").into_iter().enumerate() {
            assert!((temperature(&sampler, step, 48) - expected).abs() < 1e-14, "{step}");
        }
        let rows = anchor.f64("rows");
        let entropies: Vec<f64> = rows
            .chunks_exact(64)
            .map(|row| oracle::generate::entropy::sample(row, 1.0, 0.0).unwrap().entropy)
            .collect();
        assert!(nmse(&entropies, &anchor.f64("entropies")) <= 1e-24);
        for (i, bound) in [0.1, 1.0, 5.0].into_iter().enumerate() {
            let mask: Vec<u8> = accepted(&entropies, bound).0.into_iter().map(u8::from).collect();
            assert_eq!(mask, anchor.bytes_of(&format!("accepted.{i}")), "{bound}");
            assert!(mask.contains(&1) && mask.contains(&0));
        }
    }
}
