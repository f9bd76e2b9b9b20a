use super::page;
use super::sample::{HOSTILE, sample};
use crate::sweep::summary::summarise;

#[test]
fn what_differs_is_told_with_its_interval_and_p_values() {
    let page = page(&sample());
    // 8 lost, none gained, of 11 that are done on both: p = 2 / 256.
    assert!(page.contains("72.7 points worse") && page.contains("8 lost and 0 gained; p 0.0078"), "{page}");
    assert!(page.contains("Holm"), "the correction is said");
    for id in ["accuracy", "difference-parity", "kl-parity", "parting-parity", "t0-accuracy"] {
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
    }
    assert!(!page.contains("id=\"perplexity-parity\""), "nothing was scored");
}

#[test]
fn no_text_becomes_a_part_of_the_page() {
    let page = page(&sample());
    assert_eq!(page.matches("<script>").count(), 1, "the page's own");
    assert!(!page.contains("alert(1)</script>") && !page.contains("<b>six"));
    assert!(!page.contains("://"), "nothing is loaded from anywhere");
}

#[test]
fn each_answer_is_in_the_data_once_with_what_is_to_be_marked() {
    let page = page(&sample());
    let begin = "<script id=\"data\" type=\"application/json\">";
    let start = page.find(begin).expect("data") + begin.len();
    let json = &page[start..start + page[start..].find("</script>").expect("an end")];
    let data: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(data["arms"][1]["parity"], 0);
    let [first, tenth, last] = [0, 9, 11].map(|i| &data["items"][i]);
    assert_eq!(first["prompt"], HOSTILE);
    assert_eq!(
        (&first["of"], &first["is"]),
        (&serde_json::json!([0, 1]), &serde_json::json!([true, false, true, false]))
    );
    assert_eq!(first["marks"], serde_json::json!({ "1-0": [[1, 1]] }));
    assert_eq!(tenth["answers"].as_array().unwrap().len(), 1);
    assert_eq!((&tenth["of"], &tenth["is"][0]), (&serde_json::json!([0, 0]), &false.into()));
    assert_eq!((&last["of"][1], &last["is"]), (&(-1).into(), &serde_json::json!([true, false, false, true])));
    assert!(last["lost"]["1"].as_str().unwrap().starts_with("crashed "));
}

#[test]
fn a_sweep_without_rows_has_a_page() {
    let mut sweep = sample();
    sweep.rows.clear();
    sweep.items.clear();
    summarise(&mut sweep);
    let page = page(&sweep);
    assert!(
        page.contains("nothing was compared") && page.contains("No item was judged on two arms"),
        "{page}"
    );
}
