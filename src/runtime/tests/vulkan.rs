//! Invariance on a Vulkan device, a software one where there is no other.

mod common;

use common::{Bench, Limits};
use ggml_sys::Selection;

/// ggml hides software devices unless this names them.
const VISIBLE: &str = "GGML_VK_VISIBLE_DEVICES";

#[test]
fn vulkan_agrees_with_itself() {
    if std::env::var_os(VISIBLE).is_none() {
        // The variable must be there before the process starts. Mesa's software device has been seen to corrupt
        // the heap of one process in some; a process that dies of a signal has compared nothing, so it is tried
        // again, and says so. One whose figures are wrong ends with an exit code and is not.
        for attempt in 1..=3 {
            let test = std::env::current_exe().unwrap();
            let status = std::process::Command::new(test)
                .args(["--exact", "vulkan_agrees_with_itself", "--nocapture"])
                .env(VISIBLE, "0")
                .status()
                .unwrap();
            if status.success() {
                return;
            }
            eprintln!("attempt {attempt}: {status}");
            assert!(status.code().is_none() && attempt < 3, "{status}");
        }
        return;
    }
    let ggml = common::open(&Selection::Everything);
    let Some(device) = ggml.devices().into_iter().find(|device| device.name() == "Vulkan0") else {
        println!("this build and machine have no Vulkan device: nothing was tested");
        return;
    };
    // On Mesa's software device a process that ran flash attention among much else ended in a corrupted heap.
    let flash = !device.description().contains("llvmpipe");
    common::check(&Bench::new(ggml, "Vulkan0", Limits { shape: 1e-5, other: 1e-5, flash }));
}
