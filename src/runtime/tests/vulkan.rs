//! Invariance on a Vulkan device, a software one where there is no other.

mod common;

use common::{Bench, Limits};
use ggml_sys::Selection;

/// ggml hides software devices unless this names them.
const VISIBLE: &str = "GGML_VK_VISIBLE_DEVICES";

#[test]
fn vulkan_agrees_with_itself() {
    if std::env::var_os(VISIBLE).is_none() {
        // The variable must be there before the process starts.
        let test = std::env::current_exe().unwrap();
        let status = std::process::Command::new(test)
            .args(["--exact", "vulkan_agrees_with_itself", "--nocapture"])
            .env(VISIBLE, "0")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let ggml = common::open(&Selection::Everything);
    if ggml.devices().iter().all(|device| device.name() != "Vulkan0") {
        println!("this build and machine have no Vulkan device: nothing was tested");
        return;
    }
    common::check(&Bench::new(ggml, "Vulkan0", Limits { shape: 1e-5, other: 1e-5 }));
}
