//! Workers that run out of memory or are ended: what becomes of their cells, and that the others stand.

#![cfg(target_os = "linux")]

mod common;

use common::{run, told};
use ggml_parity::report::{Cell, json};
use ggml_parity::verdict::Status;
use ggml_parity::worker::Cause;

/// Cells of a run within a memory limit; exit code and what was printed.
fn limited(limit: &str, lengths: &[u32]) -> (i32, String, Vec<Cell>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let build = ggml_parity::builds::resolve(None).unwrap();
    let name = build.file_name().unwrap().to_str().unwrap().to_owned();
    let mut arguments: Vec<String> = ["run", "--no-oracle", "--threads", "1", "--memory", limit, "--out"]
        .iter()
        .map(|word| (*word).to_owned())
        .chain([out.display().to_string(), "--ggml".to_owned(), build.display().to_string()])
        .collect();
    for n in lengths {
        let device = if cfg!(target_arch = "x86_64") { "CPU@x64" } else { "CPU+repack" };
        let id = format!("gen-llama/f32/prefill?n={n}@{name}:{device}");
        arguments.extend(["--cell".to_owned(), id]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, text) = told(&run(&arguments));
    let report = std::fs::read_to_string(out.join("report.json")).unwrap_or_else(|_| panic!("{text}"));
    (code, text, json::parse(&report).unwrap().cells)
}

#[test]
fn memory_that_is_short_ends_one_cell_and_not_the_others() {
    // The products of 6000 queries and 6000 keys of every head do not fit; those of 7 do.
    let (code, text, cells) = limited("256MiB", &[7, 6000, 33]);
    assert_eq!(code, 5, "{text}");
    let statuses: Vec<Status> = cells.iter().map(|cell| cell.status).collect();
    assert_eq!(statuses, [Status::Pass, Status::OutOfMemory, Status::Pass], "{text}");
    assert!(!cells[1].reason.is_empty());
    if let Some(death) = &cells[1].death {
        assert_eq!((death.cause, death.memory_limit), (Cause::OutOfMemory, Some(256 << 20)));
    }
}

#[test]
fn a_limit_that_makes_no_sense_is_a_usage_error() {
    for limit in ["much", "0", "-1GiB", "12"] {
        let (code, text) = told(&run(&["run", &format!("--memory={limit}")]));
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("--memory") && text.contains("512MiB"), "{text}");
    }
}
