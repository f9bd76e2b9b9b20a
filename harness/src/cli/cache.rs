//! `ggml-parity cache`: the store of captures, which spares the next run its references and oracles.

use super::Failed;
use crate::builds;
use crate::keep::{CaptureStore, DEFAULT_LIMIT, StoreError};
use crate::verdict::ExitCode;
use bytesize::ByteSize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ggml-parity cache list
      how many captures are stored, and how large they are
  ggml-parity cache prune --limit 500MiB
      removes what was not used for longest until 500 MiB are left";

/// Look at the store of captures and make it smaller
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Command {
    /// Say what is stored
    #[command(after_help = EXAMPLES)]
    List,
    /// Remove what was not used for longest
    #[command(after_help = EXAMPLES)]
    Prune {
        /// What may be left
        #[arg(long, value_name = "SIZE", default_value = "0B")]
        limit: ByteSize,
    },
}

/// Where captures are stored.
pub(super) fn folder() -> Result<PathBuf, Failed> {
    Ok(builds::cache::root()?.join("captures"))
}

/// The variable that says how large the store may become.
const LIMIT_ENV: &str = "GGML_PARITY_CACHE_LIMIT";

/// How many bytes the store may hold: what the command line says, else the environment, else 4 GiB.
pub(super) fn limit(given: Option<ByteSize>) -> Result<u64, Failed> {
    if let Some(limit) = given {
        return Ok(limit.as_u64());
    }
    match std::env::var(LIMIT_ENV) {
        Err(_) => Ok(DEFAULT_LIMIT),
        Ok(text) => text.parse::<ByteSize>().map(|limit| limit.as_u64()).map_err(|why| {
            Failed::new(ExitCode::Usage, format!("{LIMIT_ENV} is `{text}`, expected a size as 500MiB: {why}"))
        }),
    }
}

pub(super) fn main(command: &Command) -> Result<ExitCode, Failed> {
    // Nothing is taken or put here, so no program need be named.
    let store = CaptureStore::new(folder()?, u64::MAX, String::new());
    let failed = |error: StoreError| Failed::new(ExitCode::Environment, error);
    let (stored, what) = match command {
        Command::List => (store.list().map_err(failed)?, "in"),
        Command::Prune { limit } => (store.prune(limit.as_u64()).map_err(failed)?, "removed from"),
    };
    let bytes = ByteSize(stored.iter().map(|stored| stored.bytes).sum());
    println!("{} captures, {bytes}, {what} {}", stored.len(), store.folder().display());
    Ok(ExitCode::Success)
}
