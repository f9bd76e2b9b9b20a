//! Regression bisection: since which build, and by which change?
//!
//! A *place* is a build in an order: one of a folder, a version of a package, a commit. A *trial* is one run of the case
//! on the build of a place, judged as `run` judges it; a question ([`Until`]) makes good, bad or skip of it. [`search`]
//! halves as `git bisect` does, and where places cannot be tried its answer is a range. A *scan* tries every place
//! instead, and shows what a search takes for granted: that what is bad once stays bad.
//!
//! Every trial is a line in `trials.jsonl` before the next one begins, so that a search that was ended goes on. Trials
//! hold figures and no answers: another question can be asked of the same trials.
//!
//! [`switches`] searches in another direction: not over builds, but over what can be switched off in one of them.

mod bench;
mod plot;
mod range;
mod record;
mod render;
mod run;
mod search;
pub mod switches;
mod trial;
mod until;

pub use bench::{Bench, NotASubject, Subject};
pub use plot::{Plot, Point};
pub use range::{CheckoutSpec, Range, RangeError, sources_in};
pub use record::{Bisection, Finding, Judged, Moved, SCHEMA};
pub(crate) use render::{line, page};
pub use run::{BisectError, Scope, run};
pub use search::{Answer, Outcome, Stretch, most_trials, search, stretches};
pub use trial::{Change, Trial};
pub use until::{NotAQuestion, Until};
