//! `ggml-parity answers` and `power --measured` on a real sweep.

mod common;

use common::{default_build, run, told};

#[test]
fn the_answers_of_a_sweep_are_shown_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("sweep");
    let out = out.to_str().unwrap();
    let device =
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };
    let build = default_build();
    let arguments = ["sweep", "--corpus", "arithmetic", "--model", "dream-arith", "--limit", "1"];
    let where_ =
        ["--ggml", &build, "--device", device, "--threads", "1", "--steps", "4", "--out", out, "--quiet"];
    let (code, text) = told(&run(&[&arguments[..], &where_].concat()));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("index.html"), "the page is the file to open: {text}");

    let (code, text) = told(&run(&["answers", out, "--item", "15x23"]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("prompt: 15*23?") && text.contains("right: 15*20+15*3=300+45=345"), "{text}");
    // Both arms gave it: one answer, two names.
    assert_eq!(text.matches("right: ").count(), 1, "{text}");
    assert!(text.contains(" @ CPU\n") && text.contains(&format!(" @ {device}\n")), "{text}");
    let (code, text) = told(&run(&["answers", out, "--differing"]));
    assert!(code == 0 && text.contains("0 of 1 items shown, 0 found"), "{text}");
    let (code, text) = told(&run(&["answers", out, "--item", "15x32"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("`15x32`: none of the 1 items"), "{text}");

    // One item that both arms answer rightly: up to 97.5 % may have been discordant.
    let (code, text) = told(&run(&["power", "--corpus", "arithmetic", "--measured", out]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("97.5 %") && text.contains("at most, "), "{text}");
}
