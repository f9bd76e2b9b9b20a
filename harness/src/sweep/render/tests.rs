use super::*;
use crate::sweep::fixtures::sweep;
use crate::sweep::result::RowStatus;

/// Twenty items of which the device loses eight, one that crashed, and one that took two tries.
fn red() -> Sweep {
    let mut sweep = sweep(20, 8);
    let row = &mut sweep.rows[39];
    row.status = RowStatus::Crashed;
    row.reason = "the worker ended with signal 6 (SIGABRT) | after 1.5 s".to_owned();
    (row.answer, row.loss) = (None, None);
    row.against.clear();
    sweep.rows[37].retried = Some("the worker ended with signal 11 (SIGSEGV) after 0.2 s".to_owned());
    sweep.left_out.push("m/f16/generate@b:CPU+repack: the buffers take none of its types".to_owned());
    crate::sweep::summary::summarise(&mut sweep);
    crate::sweep::summary::set_limit(&mut sweep, 0.0);
    sweep
}

#[test]
fn the_console_tells_arms_figures_and_what_is_wrong() {
    insta::assert_snapshot!(console::render(&red()));
}

#[test]
fn markdown_has_the_figures_of_every_tag() {
    insta::assert_snapshot!(markdown::render(&red()));
}

#[test]
fn a_line_of_each_table() {
    let sweep = red();
    let first = |text: String, lines: usize| text.lines().take(lines).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(first(csv::items(&sweep), 3));
    // Only the headings: of intervals the last digits are the platform's.
    insta::assert_snapshot!(first(csv::arms(&sweep), 1));
    assert_eq!(csv::arms(&sweep).lines().count(), 1 + 2 * 3);
}

#[test]
fn what_was_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = red();
    write(folder.path(), &sweep).unwrap();
    assert_eq!(read(folder.path()).unwrap(), sweep);
    std::fs::write(folder.path().join("other.json"), "{\"schema\": \"ggml-parity.report/1\"}").unwrap();
    let error = read(&folder.path().join("other.json")).unwrap_err().to_string();
    assert!(error.contains("other.json") && error.contains("`schema` is ggml-parity.report/1"), "{error}");
}
