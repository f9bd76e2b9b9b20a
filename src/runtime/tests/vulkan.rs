//! Invariance on a Vulkan device, a software one where there is no other.

mod common;

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use common::{Bench, Limits};
use ggml_sys::Selection;

/// ggml hides software devices unless this names them.
const VISIBLE: &str = "GGML_VK_VISIBLE_DEVICES";

/// What one process may take: several times what cold shader caches on two cores need.
const LIMIT: Duration = Duration::from_secs(400);

#[test]
fn vulkan_agrees_with_itself() {
    if std::env::var_os(VISIBLE).is_none() {
        // The variable must be there before the process starts. Mesa's software device has been seen to corrupt the
        // heap of one process in some, which then dies of a signal or waits for ever on a broken lock. Such a process
        // has compared nothing, so it is tried again, and says so. One whose figures are wrong ends with an exit code
        // and is not.
        for attempt in 1..=3 {
            let test = std::env::current_exe().unwrap();
            let child = std::process::Command::new(test)
                .args(["--exact", "vulkan_agrees_with_itself", "--nocapture"])
                .env(VISIBLE, "0")
                .spawn()
                .unwrap();
            match end_of(child) {
                Some(status) if status.success() => return,
                Some(status) => {
                    eprintln!("attempt {attempt}: {status}");
                    assert!(status.code().is_none() && attempt < 3, "{status}");
                }
                None => {
                    eprintln!("attempt {attempt}: no end within {LIMIT:?}");
                    assert!(attempt < 3, "three processes did not end within {LIMIT:?} each");
                }
            }
        }
        return;
    }
    let ggml = common::open(&Selection::Everything);
    let Some(device) = ggml.devices().into_iter().find(|device| device.name() == "Vulkan0") else {
        println!("this build and machine have no Vulkan device: nothing was tested");
        return;
    };
    // On Mesa's software device a process that ran flash attention among much else ended in a corrupted heap, and most of
    // those that shifted a context did, or waited for ever. The harness's mode `lifecycle` shifts there too.
    let sound = !device.description().contains("llvmpipe");
    let limits = Limits { shape: 1e-5, other: 1e-5, flash: sound, shift: sound };
    common::check(&Bench::new(ggml, "Vulkan0", limits));
}

/// How a process ended; none if it had to be ended for its time.
fn end_of(mut child: Child) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
