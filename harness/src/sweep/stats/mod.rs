//! The statistics of a sweep, one file each. Pure functions in f64, sums in a fixed order.
//!
//! | file | statistic | used for |
//! |---|---|---|
//! | [`clopper_pearson`] | exact interval of a proportion | accuracy, same-top-token rate |
//! | [`mcnemar`] | exact test of paired answers | "does this arm answer worse than the reference?" |
//! | [`newcombe`] | interval of a paired difference | by how much |
//! | [`holm`] | correction of a family of p values | many arms and tags at once |
//! | [`bootstrap`] | interval of a ratio of sums, by resampling items | the next two |
//! | [`kl`] | mean with an interval, p99 and maximum of KL | distributions |
//! | [`perplexity`] | perplexities and their ratio with an interval | text likelihood |
//! | [`quantile`] | nearest-rank quantile | p99 of KL |
//! | [`first_divergence`] | survival curve of agreement | where arms part |
//! | [`power`] | power of the paired test | before the sweep |
//! | [`mann_kendall`] | exact trend test | drift over builds (`history`) |
//!
//! Random draws come from ChaCha8 with a given seed and are turned into indices by integer arithmetic, so every
//! platform resamples the same items. `exp` and `ln` are the platform's, which may differ in the last bit.

mod binomial;
pub mod bootstrap;
pub mod clopper_pearson;
pub mod first_divergence;
pub mod holm;
mod interval;
pub mod kl;
pub mod mann_kendall;
pub mod mcnemar;
pub mod newcombe;
pub mod paired;
pub mod perplexity;
pub mod power;
pub mod quantile;

pub use interval::{Interval, Level, NotALevel};
pub use paired::Paired;
