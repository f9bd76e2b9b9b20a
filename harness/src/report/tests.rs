//! Snapshots of every renderer on one report whose volatile values are fixed.

use super::fixtures::{diverged, ended, id, passed, report_of, sample};
use super::*;
use crate::gate::{Declaration, Declared, Found, GateUse};
use crate::verdict::Status;

#[test]
fn console_table() {
    insta::assert_snapshot!(console::render(&sample(), false));
}

#[test]
fn colour_is_only_what_is_added() {
    let coloured = console::render(&sample(), true);
    assert!(coloured.contains("\x1b[32mpass") && coloured.contains("\x1b[31mdiverged"));
    let codes = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[0m"];
    let plain = codes.iter().fold(coloured, |text, code| text.replace(code, ""));
    assert_eq!(plain, console::render(&sample(), false));
}

#[test]
fn json_report() {
    insta::assert_snapshot!(json::render(&sample()));
}

#[test]
fn csv_cells() {
    insta::assert_snapshot!(csv::render(&sample()));
}

#[test]
fn markdown_summary() {
    insta::assert_snapshot!(markdown::render(&sample()));
}

#[test]
fn every_renderer_tells_of_a_sampler() {
    let mut cell = passed();
    cell.metrics.as_mut().unwrap().sampler = Some(super::sampler::fixtures::figures());
    let report = report_of(vec![cell]);
    for (name, text) in [
        ("console", console::render(&report, false)),
        ("markdown", markdown::render(&report)),
        ("junit", junit::render(&report)),
        ("html", html::render(&report)),
    ] {
        assert!(text.contains("argmax differs in 0 of 3840 rows"), "{name}: {text}");
        assert!(text.contains("250 times as fast"), "{name}: {text}");
    }
    let csv = csv::render(&report);
    let column = |name: &str| {
        let mut reader = ::csv::Reader::from_reader(csv.as_bytes());
        let at = reader.headers().unwrap().iter().position(|heading| heading == name).unwrap();
        reader.records().next().unwrap().unwrap()[at].to_owned()
    };
    assert_eq!(
        ["sampler_near_ties", "sampler_own_real", "sampler_device_bytes_step"].map(column),
        ["2", "3", "4096"]
    );
    let again: Report = serde_json::from_str(&json::render(&report)).unwrap();
    assert_eq!(again.cells[0].metrics, report.cells[0].metrics);
}

#[test]
fn csv_tensors() {
    insta::assert_snapshot!(tensors::render(&sample()));
}

#[test]
fn junit_suites() {
    insta::assert_snapshot!(junit::render(&sample()));
}

/// The page without its style and script, a line for each element that begins one.
#[test]
fn html_page() {
    let page = html::render(&report_of(vec![diverged(), passed()]));
    let (head, rest) = page.split_once("<style>").unwrap();
    let (_, rest) = rest.split_once("</style>").unwrap();
    let (body, _) = rest.split_once("<script>").unwrap();
    let (before, policy) = head.split_once("sha256-").unwrap();
    let (_, after) = policy.split_once("img-src").unwrap();
    let text = format!("{before}[hashes] img-src{after}{body}");
    let blocks = [
        "section", "table", "tr", "figure", "h1", "h2", "h3", "h4", "p", "li", "details", "svg", "path",
        "text",
    ];
    let text = blocks.iter().fold(text, |text, name| {
        let text = text.replace(&format!("<{name}>"), &format!("\n<{name}>"));
        text.replace(&format!("<{name} "), &format!("\n<{name} "))
            .replace(&format!("<{name}."), &format!("\n<{name}."))
    });
    insta::assert_snapshot!(text);
}

#[test]
fn nothing_in_a_report_becomes_part_of_the_page() {
    let evil = "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'";
    let mut cell = diverged();
    cell.id.case.model = evil.to_owned();
    for text in [&mut cell.model, &mut cell.weights, &mut cell.build, &mut cell.reason, &mut cell.rerun] {
        evil.clone_into(text);
    }
    for text in [&mut cell.text, &mut cell.reference_text, &mut cell.retried, &mut cell.reference] {
        *text = Some(evil.to_owned());
    }
    let evil_declaration = || Declaration {
        expected: evil.to_owned(),
        reason: evil.to_owned(),
        link: Some(format!("https://example.org/{evil}")),
        expires: Some(evil.to_owned()),
        place: evil.to_owned(),
    };
    cell.declared = Some(Declared { holds: false, declarations: vec![evil_declaration()] });
    cell.device.base = evil.to_owned();
    cell.pieces = [(42, evil.to_owned()), (7, evil.to_owned())].into();
    cell.timings = [(evil.to_owned(), 1.0)].into();
    let clean = html::render(&report_of(vec![diverged()]));
    let mut report = report_of(vec![cell]);
    report.run.name = evil.to_owned();
    report.run.command = evil.to_owned();
    let declarations = vec![evil_declaration()];
    report.gate = Some(GateUse {
        file: evil.to_owned(),
        whole: true,
        unused: declarations.clone(),
        expired: declarations,
    });
    report.environment = sample().environment;
    report.environment.switches = [(evil.to_owned(), evil.to_owned())].into();
    report.environment.devices[0].description = evil.to_owned();
    let page = html::render(&report);
    assert!(!page.contains("<script>alert") && !page.contains("<img"), "{page}");
    for tag in ["<script", "</script", "<style", "</style"] {
        assert_eq!(page.matches(tag).count(), clean.matches(tag).count(), "{tag}");
    }
    let xml = junit::render(&report);
    assert!(!xml.contains("<script"), "{xml}");
}

/// A cell that did as the gate declares is shown as one that went well, with what was found and why that is known; one that
/// no longer does is a failure.
#[test]
fn declared_divergences_are_told_apart_from_failures() {
    let known = |link: &str| Declaration {
        expected: "diverged with logits_nmse <= 0.01".to_owned(),
        reason: "rounds to 8 bits".to_owned(),
        link: Some(link.to_owned()),
        expires: None,
        place: "ci/gate.toml:40".to_owned(),
    };
    let cell = |id: &str, status, reason: &str, holds, link: &str| {
        let mut cell = ended(id, status, reason);
        cell.declared = Some(Declared { holds, declarations: vec![known(link)] });
        cell.found = Some(Found { status: Status::Diverged, reason: "logits NMSE 5e-3 > 1e-5".to_owned() });
        cell
    };
    let web = "https://example.org/1";
    let expected = cell("m/f32/full@b:V0", Status::Expected, "as declared: 5e-3", true, web);
    let gone = cell("m/f32/full@b:V1", Status::UnexpectedPass, "no longer as declared", false, "#12");
    let report = report_of(vec![expected, gone]);
    assert!(!report.cells[0].is_red() && report.cells[1].is_red());
    assert_eq!(report.expected().count(), 1);

    let xml = junit::render(&report);
    assert_eq!((xml.matches("<failure").count(), xml.matches("<error").count()), (1, 0), "{xml}");
    assert!(xml.contains("type=\"unexpected-pass\""), "{xml}");
    for words in [
        "declared in ci/gate.toml:40: diverged with logits_nmse &lt;= 0.01: rounds to 8 bits",
        "expected: as declared: 5e-3",
    ] {
        assert!(xml.contains(words), "{words}: {xml}");
    }

    let page = html::render(&report);
    for words in [
        "data-status=\"expected\" data-red=\"false\"",
        "data-status=\"unexpected-pass\" data-red=\"true\"",
        "diverged with logits_nmse &lt;= 0.01: rounds to 8 bits (<a href=\"https://example.org/1\"",
        "(#12)",
        "Without the declaration: ",
        "ci/gate.toml:40",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let summary = markdown::render(&report);
    assert!(summary.contains("- `m/f32/full@b:V0`: as declared: 5e-3"), "{summary}");
    assert!(summary.contains("**unexpected-pass** `m/f32/full@b:V1`"), "{summary}");
}

#[test]
fn a_page_loads_nothing_and_stays_small() {
    let cells = (0..500).map(|i| {
        let case = format!("m{}/f32/decode?n={}@b{}:Vulkan0", i % 10, i + 1, i % 3);
        Cell { id: id(&case), ..diverged() }
    });
    let page = html::render(&report_of(cells.collect()));
    assert!(page.len() < 8 << 20, "{} bytes", page.len());
    for loads in ["src=", "@import", "url(", "http://", "https://"] {
        assert!(!page.contains(loads), "{loads}");
    }
}

#[test]
fn a_summary_of_many_long_reasons_fits_a_step() {
    let cells = (0..2000)
        .map(|i| ended(&format!("m{i}/f32/full@b:CPU"), Status::Crashed, &"a long reason | ".repeat(500)));
    let text = markdown::render(&report_of(cells.collect()));
    assert!(text.len() <= markdown::MOST_BYTES, "{} bytes", text.len());
    assert!(text.contains("1800 more are in `cells.csv`"));
}

#[test]
fn every_tensor_has_its_row() {
    let text = tensors::render(&sample());
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let rows: Vec<::csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    // Three cells were compared, each with two layers.
    assert_eq!(rows.len(), 3 * (1 + 2 * 2));
    let bad = rows.iter().find(|row| &row[1] == "diverged" && &row[2] == "logits").unwrap();
    assert_eq!((&bad[3], &bad[12]), ("NaN", "false"));
}

#[test]
fn json_reads_back_to_the_same_report() {
    let text = json::render(&sample());
    assert_eq!(json::render(&json::parse(&text).unwrap()), text);
}

#[test]
fn other_schemas_and_other_texts_are_refused() {
    let other = json::render(&sample()).replace("ggml-parity.report/1", "ggml-parity.report/2");
    assert!(matches!(json::parse(&other), Err(ReportError::Schema(found)) if found.ends_with("/2")));
    assert!(matches!(json::parse("{}"), Err(ReportError::Malformed(_))));
}

#[test]
fn every_csv_row_has_every_column() {
    let text = csv::render(&sample());
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let columns = reader.headers().unwrap().len();
    assert_eq!(reader.records().filter(|row| row.as_ref().unwrap().len() == columns).count(), 6);
}

#[test]
fn a_declared_cell_that_did_not_run_is_missing_and_cells_keep_the_declared_order() {
    let report = sample();
    let statuses: Vec<Status> = report.cells.iter().map(|cell| cell.status).collect();
    use Status::{Crashed, Diverged, Missing, Pass, Unsupported};
    assert_eq!(statuses, [Pass, Diverged, Crashed, Missing, Unsupported, Pass]);
    assert_eq!(report.failed().count(), 3);
    assert_eq!(report.exit_code().code(), 5);
}

#[test]
fn a_report_of_nothing_is_red() {
    let report = Report::new(Run::default(), Environment::default(), &[], Vec::new());
    assert_eq!(report.exit_code().code(), 3);
    assert!(console::render(&report, false).contains("0 cells: nothing compared; exit 3"));
}

#[test]
fn all_files_are_written_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("runs/one");
    write(&out, &sample()).unwrap();
    write(&out, &sample()).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["cells.csv", "index.html", "junit.xml", "report.json", "summary.md", "tensors.csv"]);
    let text = std::fs::read_to_string(out.join("report.json")).unwrap();
    assert_eq!(json::render(&json::parse(&text).unwrap()), json::render(&sample()));
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = write(&file.join("run"), &sample()).unwrap_err();
    assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
}
