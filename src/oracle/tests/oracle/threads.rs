//! Results do not depend on the number of threads.

use oracle::Rows;

use crate::support::{preset, tokens};

#[test]
fn passes_are_bitwise_equal_for_any_number_of_threads() {
    for name in ["gen-dream-576", "gen-llama"] {
        let network = preset(name);
        let tokens = tokens(&network, 33);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| network.full(&tokens, Rows::All).unwrap())
        };
        let one = run(1);
        assert!(one.logits.values().iter().all(|v| v.is_finite()));
        for threads in [2, 3, 7] {
            assert_eq!(run(threads), one, "{name} on {threads} threads");
        }
    }
}
