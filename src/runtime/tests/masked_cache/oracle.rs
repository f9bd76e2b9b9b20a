//! Sparse steps against the f64 oracle along one trajectory: the same active sets, the same logits at every step, the
//! same keys and values at the end. Nothing else says that what is stale is stale in the right way.

use crate::bench::{alone, model, nmse64, on_cpu};
use crate::{canvas, ways};
use model_file::GenerateSpec;
use oracle::Network;
use oracle::generate::masked as expected;
use runtime::generate::masked::{CacheUse, Plan, Schedule, Sparse, generate};

/// F32 against f64. Measured on three builds: 1.5e-13 to 2.4e-13.
const LIMIT: f64 = 1e-11;

#[test]
fn sparse_steps_are_those_of_the_oracle() {
    let _alone = alone();
    for (name, options) in
        ["gen-dream", "gen-llada", "gen-llada-moe"].into_iter().flat_map(|n| ways().map(|o| (n, o)))
    {
        let model = model(&GenerateSpec::preset(name).unwrap());
        let network = Network::open(&model).unwrap();
        let mut session = on_cpu(&model, options);
        let prompt = canvas(&session, 0);
        for (keep_active, refresh) in [(0, 0), (1, 0), (2, 3)] {
            let cache = CacheUse::Sparse(Sparse { keep_active, refresh, ..Sparse::default() });
            let plan = Plan { masks: 14, steps: 7, schedule: Schedule::Cosine, cache, ..Plan::default() };
            let mut steps = Vec::new();
            let found = generate(&mut session, &prompt, plan, None, |view| {
                steps.push((view.active.to_vec(), view.logits.values.clone()));
            })
            .unwrap();

            let given: Vec<expected::Replay> = found
                .unmasked
                .iter()
                .map(|u| expected::Replay { step: u.step, position: u.position, token: u.token })
                .collect();
            let plan = expected::Plan {
                masks: 14,
                steps: 7,
                sparse: Some(expected::Sparse { keep_active, refresh }),
                ..expected::Plan::default()
            };
            let mut worst = 0.0f64;
            let mut done = steps.into_iter();
            let what = format!("{name}, keep {keep_active}, refresh {refresh}");
            let reference = expected::generate(&network, &prompt, plan, Some(&given), |step| {
                let (active, logits) = done.next().expect("as many steps");
                assert_eq!(active, step.active, "{what}, step {}", step.step);
                let error = nmse64(step.logits.values(), &logits);
                assert!(error <= LIMIT, "{what}, step {}: {error:e}", step.step);
                worst = worst.max(error);
            })
            .unwrap();
            assert!(done.next().is_none(), "{what}: more steps than the oracle's");
            println!("{what}: worst step {worst:.1e}");
            assert_eq!(reference.tokens, found.tokens, "{what}");
            for (layer, (r, x)) in
                reference.cache.layers().iter().zip(session.read_cache().unwrap()).enumerate()
            {
                let (k, v) = (nmse64(&r.k, &x.k), nmse64(&r.v, &x.v));
                assert!(k <= LIMIT && v <= LIMIT, "{what}, layer {layer}: K {k:e}, V {v:e}");
            }
        }
    }
}
