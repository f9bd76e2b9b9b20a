//! `ggml-parity devices`: what a build offers on this machine.

use super::Failed;
use crate::pipeline::{Build, RunError};
use crate::verdict::ExitCode;
use serde_json::json;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ggml-parity devices
  ggml-parity devices --ggml llama.cpp/build/bin --json";

/// Arguments of `devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A ggml build: a folder, or the name of a fetched build
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(120))?;
    let build = Build::open(args.ggml.as_deref(), &workplace)?;
    if args.json {
        println!("{:#}", document(&build));
    } else {
        print!("{}", table(&build));
    }
    Ok(ExitCode::Success)
}

fn document(build: &Build) -> serde_json::Value {
    let devices: Vec<_> = build
        .probed
        .devices
        .iter()
        .map(|device| {
            json!({
                "selector": device.selector,
                "name": device.info.name,
                "kind": device.info.kind,
                "description": device.info.description,
                "driver": device.info.driver,
                "memory_total": device.info.memory_total,
                "memory_free": device.memory_free,
                "features": device.features.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            })
        })
        .collect();
    json!({
        "schema": "ggml-parity.devices/1",
        "build": build.info,
        "folder": build.folder,
        "environment": build.environment,
        "cpu_variant": build.probed.cpu_variant,
        "cpu_variants": build.probed.cpu_variants,
        "lacks": build.probed.lacks,
        "skipped": build.probed.files.iter().filter(|f| f.skipped.is_some()).collect::<Vec<_>>(),
        "devices": devices,
    })
}

fn table(build: &Build) -> String {
    let info = &build.info;
    let mut out = format!(
        "build {}: ggml {}, commit {}, {}\n",
        info.name,
        info.version.as_deref().unwrap_or("of unknown version"),
        info.commit.as_deref().unwrap_or("unknown"),
        build.folder.display()
    );
    for (name, value) in &build.environment {
        out += &format!("with {name}={value}\n");
    }
    out += &format!("{:<14} {:<12} {:>12} {:>12}  description\n", "device", "kind", "free MiB", "total MiB");
    let mib = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |b| (b >> 20).to_string());
    for device in &build.probed.devices {
        let (free, total) = (mib(device.memory_free), mib(device.info.memory_total));
        let driver = device.info.driver.as_ref().map(|d| format!(" ({d})")).unwrap_or_default();
        out += &format!(
            "{:<14} {:<12} {free:>12} {total:>12}  {}{driver}\n",
            device.selector.to_string(),
            device.info.kind.name(),
            device.info.description
        );
    }
    if let Some(variant) = &build.probed.cpu_variant {
        let all: Vec<String> = build.probed.cpu_variants.iter().map(|v| format!("CPU@{v}")).collect();
        out += &format!("CPU is variant {variant}; alone: {}\n", all.join(", "));
    }
    if !build.probed.lacks.is_empty() {
        out += &format!("this build lacks: {}\n", build.probed.lacks.join(", "));
    }
    for file in &build.probed.files {
        if let Some(why) = &file.skipped {
            out += &format!("not loaded: {}: {why}\n", file.path.display());
        }
    }
    out
}
