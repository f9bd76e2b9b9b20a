//! What a gate file may hold, and what is said of one that is wrong.

use super::{expect, read, refused, text};
use crate::gate::Gate;
use crate::plan::matrix::Row;
use crate::plan::{Attention, KvType, Mode, Options};
use model_file::GenerateSpec;
use proptest::prelude::*;

/// Rows of preset `quick`.
const QUICK: usize = 16;

#[test]
fn the_embedded_gate_is_right_and_its_presets_have_every_mode() {
    let gate = Gate::embedded();
    assert_eq!(gate.preset_names().collect::<Vec<_>>(), ["full", "gpu", "nightly", "quick"]);
    assert_eq!(gate.settings.preset, "quick");
    assert_eq!(gate.preset(None).unwrap().rows.len(), QUICK);
    let full = &gate.preset(Some("full")).unwrap().rows;
    assert_eq!(full[..QUICK], gate.preset(Some("quick")).unwrap().rows);
    for mode in crate::plan::Mode::ALL {
        assert!(full.iter().any(|row| row.modes.contains(mode)), "{mode}");
    }
    let lengths = |model: &str| full.iter().any(|row| row.model == model && row.options.len() == 11);
    for model in
        ["gen-llama", "gen-llama:q4_k_m", "gen-llama-576:iq4_nl", "gen-llama:mxfp4", "gen-llama-576:f16"]
    {
        assert!(lengths(model), "{model}");
    }
    assert!(!lengths("gen-llama-576:q4_k"), "576 columns hold no whole blocks of 256");
    let nightly = &gate.preset(Some("nightly")).unwrap().rows;
    assert!(nightly.iter().any(|row| row.if_fetched));
    let error = gate.preset(Some("nigthly")).unwrap_err().to_string();
    assert!(error.ends_with("did you mean `nightly`?; known: full, gpu, nightly, quick"), "{error}");
}

/// What `full` holds and what it is for: kernels change where heads, groups and caches do.
#[test]
fn the_full_preset_holds_every_head_size_and_group_in_masked_and_causal_modes() {
    let gate = Gate::embedded();
    let plain = |row: &&Row| row.options.iter().all(|options| options.attn == Attention::Explicit);
    let rows = gate.preset(Some("full")).unwrap().rows.iter().filter(plain);
    let specs: Vec<(GenerateSpec, &[Mode])> =
        rows.filter_map(|row| Some((GenerateSpec::preset(&row.model)?, row.modes.as_slice()))).collect();
    for masked in [false, true] {
        let modes = if masked { [Mode::FullCache, Mode::Sparse] } else { [Mode::Prefill, Mode::Decode] };
        let of = |what: &dyn Fn(&GenerateSpec) -> bool| {
            specs.iter().any(|(spec, of)| modes.iter().all(|mode| of.contains(mode)) && what(spec))
        };
        for group in [1, 3, 4, 7, 12] {
            assert!(of(&|spec| spec.n_head / spec.n_head_kv == group), "{group} heads, masked {masked}");
        }
        for size in [64, 80, 96, 128, 256] {
            assert!(of(&|spec| spec.head_dim == size), "heads of {size}, masked {masked}");
        }
    }
}

#[test]
fn the_full_preset_holds_flash_attention_with_every_cache_type_and_the_quick_one_none() {
    let gate = Gate::embedded();
    let rows = |preset: &str, what: &dyn Fn(&Options) -> bool| {
        gate.preset(Some(preset)).unwrap().rows.iter().filter(|row| row.options.iter().any(what)).count()
    };
    for &kv in KvType::ALL {
        let flash = |o: &Options| o.attn == Attention::Flash && o.kv == kv;
        assert!(rows("full", &flash) >= 3 && rows("quick", &flash) == 0, "{kv}");
    }
    assert_eq!(rows("full", &|options| options.causal.hidden == Some(5)), 1);
    let adversarial = |preset| {
        gate.preset(Some(preset)).unwrap().rows.iter().filter(|row| row.model.starts_with("adv-")).count()
    };
    assert_eq!((adversarial("quick"), adversarial("full")), (0, 15));
}

#[test]
fn no_cell_of_an_embedded_preset_is_declared_twice() {
    let gate = Gate::embedded();
    for name in gate.preset_names() {
        let mut seen = std::collections::BTreeSet::new();
        for row in &gate.preset(Some(name)).unwrap().rows {
            for mode in &row.modes {
                for options in &row.options {
                    assert!(
                        seen.insert((&row.model, mode, options)),
                        "{name}: {} {mode} {options}",
                        row.model
                    );
                }
            }
        }
    }
}

#[test]
fn every_row_of_the_embedded_presets_can_run() {
    let gate = Gate::embedded();
    let work = tempfile::tempdir().unwrap();
    for row in gate.preset(Some("nightly")).unwrap().rows.iter().filter(|row| !row.if_fetched) {
        let model = crate::plan::models::resolve(&row.model, work.path()).unwrap_or_else(|e| panic!("{e}"));
        for &mode in &row.modes {
            assert!(crate::plan::matrix::has_mode(&model, mode), "{} {mode}", row.model);
            for &options in &row.options {
                let case = crate::plan::matrix::case(&model, mode, options);
                assert!(case.check().is_ok(), "{case}");
            }
        }
    }
}

#[test]
fn rows_multiply() {
    let gate =
        read(&text("weights = [\"f32\", \"Q8_0\"]\noptions = { attn = \"flash\", n = [7, 33] }\n")).unwrap();
    let rows = &gate.preset(None).unwrap().rows;
    let models: Vec<&str> = rows.iter().map(|row| row.model.as_str()).collect();
    assert_eq!(models, ["gen-qwen2", "gen-qwen2:q8_0"]);
    let options: Vec<String> = rows[0].options.iter().map(ToString::to_string).collect();
    assert_eq!(options, ["attn=flash&n=7", "attn=flash&n=33"]);
    assert_eq!(rows[1].place.as_deref(), Some("ci/gate.toml:6"));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, wanted) in [
        (
            text("modle = \"x\"\n"),
            "ci/gate.toml:9:1: unknown field `modle`, expected one of `model`, `weights`",
        ),
        (
            text("").replace("\"decode\"", "\"decod\""),
            "ci/gate.toml:8:8: mode `decod` is unknown; known: full,",
        ),
        (
            text("").replace("gen-qwen2", "gen-qwem2"),
            "ci/gate.toml:7:9: model `gen-qwem2`: no known model and no",
        ),
        (
            text("weights = \"q9\"\n"),
            "ci/gate.toml:6:1: weights `q9` is no type that models can be converted to",
        ),
        (text("options = { n = [7, 0] }\n"), "ci/gate.toml:9:17: n `0`: `none` or a whole number from 1 on"),
        (text("options = { lenght = 7 }\n"), "ci/gate.toml:9:22: option `lenght`: known: attn, kv,"),
        (text("options = { n = [7, 7] }\n"), "ci/gate.toml:9:17: options `n=7` come twice"),
        (text("device = \"CPU@\"\n"), "ci/gate.toml:9:10: device variant ``: a name of letters"),
        (text("device = [\"all\", \"CPU\"]\n"), "ci/gate.toml:6:1: device is `all` and more"),
        (
            text("device = \"CPU\"\nrequired = \"CUDA0\"\n"),
            "ci/gate.toml:6:1: required device `CUDA0` is not among the devices",
        ),
        (text("mode = 3\n").replace("mode = \"decode\"\n", ""), "ci/gate.toml:8:8: "),
        (text("").replace("gate/1", "gate/2"), "ci/gate.toml:1:10: schema is `ggml-parity.gate/2`, expected"),
        (
            text("").replace("preset = \"p\"", "preset = \"q\""),
            "ci/gate.toml:2:1: no preset `q` in this file",
        ),
        (text("[preset.q]\ndescription = \"\"\n"), "ci/gate.toml:9:1: preset `q` has no row"),
        (
            text("[preset.q]\ndescription = \"\"\nextends = [\"p\", \"q\"]\n"),
            "ci/gate.toml:11:11: preset `q` extends itself",
        ),
        (
            text("[tolerances.fallback]\nlimt = 3\nreason = \"\"\n"),
            "ci/gate.toml:10:1: unknown field `limt`, expected `limit` or `reason`",
        ),
        (text("").replace("[run]", "tolerances = \"t.toml\"\n[run]"), "ci/gate.toml:2:14: /nowhere/t.toml: "),
        (text("").replace("preset = \"p\"", "preset = \"p\"\ntimeout = 0"), "ci/gate.toml:4:11: "),
        (
            text("").replace("preset = \"p\"", "preset = \"p\"\nmemory = \"much\""),
            "ci/gate.toml:4:10: `much`: a size",
        ),
        (
            text("").replace("preset = \"p\"", "preset = \"p\"\noracle = \"no\""),
            "ci/gate.toml:4:10: `no` is none of",
        ),
        ("schema = ".to_owned(), "ci/gate.toml:1:10: "),
    ] {
        let message = refused(&text);
        assert!(message.starts_with(wanted), "{message}\nwanted {wanted}\n{text}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn declarations_of_what_cannot_be_are_refused() {
    let good = "logits_nmse = 1e-2";
    for (cells, outcome, more, wanted) in [
        ("", good, "", "12:1: a declaration about every cell"),
        (
            "divice = \"CPU\"",
            good,
            "",
            "13:1: unknown field `divice`, expected one of `device`, `kind`, `driver`",
        ),
        ("kind = \"TPU\"", good, "", "13:8: device kind `TPU` is unknown"),
        ("device = \"a:CUDA0\"", good, "", "13:10: device `a:CUDA0` names a build"),
        ("ggml = \"new\"", good, "", "13:8: ggml `new`: "),
        ("driver = \"\"", good, "", "13:10: an empty text"),
        (
            "model = \"gen-qwem2\"",
            good,
            "",
            "13:9: model `gen-qwem2`: no known model, and none of this file's rows; did",
        ),
        ("weights = [\"f32\", \"f8\"]", good, "", "13:11: weights `f8`: neither f32"),
        ("mode = \"prefil\"", good, "", "13:8: mode `prefil` is unknown"),
        ("options = { n = \"many\" }", good, "", "13:17: n `many`: "),
        ("mode = \"prefill\"\noptions = { remask = \"random\" }", good, "", "14:22: "),
        ("device = \"CPU\"", "", "", "14:1: a divergence needs a bound: logits_nmse"),
        (
            "device = \"CPU\"",
            "logits_nmse = nan",
            "",
            "15:15: logits_nmse is NaN, expected a positive number",
        ),
        (
            "device = \"CPU\"",
            "logits_nmse = -1.0",
            "",
            "15:15: logits_nmse is -1, expected a positive number",
        ),
        ("device = \"CPU\"", "status = \"pass\"", "", "15:10: status `pass` cannot be declared"),
        ("device = \"CPU\"", "status = \"fallback\"", "", "14:1: a fallback needs `nodes`"),
        ("device = \"CPU\"", "status = \"crashed\"\nsignal = \"SIGHOP\"", "", "16:10: signal `SIGHOP`"),
        ("device = \"CPU\"", "signal = \"SIGABRT\"", "", "14:1: signal: for status crashed, not diverged"),
        (
            "device = \"CPU\"",
            "status = \"crashed\"\nmismatches = 1",
            "",
            "14:1: logits_nmse, mismatches and the like: for",
        ),
        ("device = \"CPU\"", good, "expires = 2027-01-01T00:00:00Z", "11:11: a date as 2027-06-30 is wanted"),
        ("device = \"CPU\"", good, "expires = \"soon\"", "11:11: "),
    ] {
        let message = refused(&text(&expect(cells, outcome, more)));
        assert!(message.starts_with(&format!("ci/gate.toml:{wanted}")), "{message}\nwanted {wanted}");
    }
    let silent = expect("device = \"CPU\"", good, "").replace("\"r\"", "\" \"");
    assert!(refused(&text(&silent)).ends_with(":10:10: a declaration needs a reason"));
    let none = expect("device = \"CPU\"", good, "").replace("reason = \"r\"", "");
    assert!(refused(&text(&none)).contains("missing field `reason`"));
}

proptest! {
    #[test]
    fn no_text_panics(broken in "(\\[\\[?[a-z.]{1,12}\\]\\]?\n|[a-z]{1,8} = [\"a-z0-9\\[\\]{}=-]{0,12}\n){0,8}") {
        let _ = read(&broken);
        let _ = read(&text(&broken));
    }
}
