use super::*;

fn arithmetic() -> Question {
    Question::of(&Corpus::open("arithmetic").unwrap())
}

#[test]
fn the_arithmetic_corpus_in_words() {
    let question = Question { accuracy: Some(0.986), ..arithmetic() };
    insta::assert_snapshot!("power_arithmetic", question.answer().unwrap().text());
}

#[test]
fn many_comparisons_of_a_given_discordance_as_json() {
    let question = Question {
        comparisons: 26,
        assumptions: vec![(Assumption::Given, 0.1), (Assumption::Measured("q8_0 Vulkan0".to_owned()), 0.02)],
        differences: vec![0.05],
        ..Question::items(224)
    };
    insta::assert_snapshot!("power_json", question.answer().unwrap().json());
}

/// Six losses are significant, and where nothing else flips the power is the probability of at least six of 501.
#[test]
fn where_nothing_else_flips_six_losses_are_enough() {
    let found = arithmetic().answer().unwrap().rows[0].detectable.unwrap();
    let fewer: f64 = (0..6)
        .map(|k| {
            let choose = (0..k).fold(1.0, |c, i| c * f64::from(501 - i) / f64::from(i + 1));
            choose * found.powi(k) * (1.0 - found).powi(501 - k)
        })
        .sum();
    assert!((1.0 - fewer - 0.8).abs() < 1e-4, "{found} {fewer}");
}

#[test]
fn a_gain_beyond_all_items_cannot_be() {
    let row = |accuracy| {
        let assumptions = vec![(Assumption::Given, 0.1)];
        Question { accuracy: Some(accuracy), assumptions, ..Question::items(224) }
            .answer()
            .unwrap()
            .rows
            .remove(0)
    };
    // 6.1 % are found: 8 % flip one way and 2 % the other.
    let high = row(0.97);
    assert!((high.after_loss.unwrap() - (0.97 - high.detectable.unwrap())).abs() < 1e-12);
    assert_eq!(high.after_gain, None);
    let middle = row(0.5);
    assert!(middle.after_loss.is_some() && middle.after_gain.is_some());
    assert_eq!(row(0.01).after_loss, None);
}

#[test]
fn a_stricter_level_finds_less() {
    let alone = arithmetic().answer().unwrap();
    let many = Question { comparisons: 26, ..arithmetic() }.answer().unwrap();
    for (alone, many) in alone.rows.iter().zip(&many.rows) {
        assert!(many.detectable.unwrap() > alone.detectable.unwrap());
        assert!(many.needed[3].needed.zip(alone.needed[3].needed).is_none_or(|(m, a)| m.items > a.items));
    }
}

/// Eight of eleven items were lost and none gained: 8 / 11, and the upper end of its interval.
#[test]
fn an_earlier_sweep_tells_discordance_and_accuracy() {
    let sweep = crate::sweep::html::sample::sample();
    let found = Measured::of(&sweep).unwrap();
    assert_eq!((found.items, found.accuracy), (11, None), "a reference that errs nowhere says nothing");
    let [(Assumption::Measured(arm), share), (Assumption::AtMost(_), most)] = &found.assumptions[..] else {
        panic!("{found:?}");
    };
    assert_eq!((arm.as_str(), *share), ("f32/generate @ Vulkan0 (parity)", 8.0 / 11.0));
    assert!(*most > 0.9 && *most < 1.0, "{most}");
    let mut nothing = sweep;
    nothing.summaries.clear();
    assert_eq!(Measured::of(&nothing), Err(BadQuestion::Unmeasured));
}

#[test]
fn questions_without_an_answer_name_what_is_wrong() {
    let refused = |question: Question| question.answer().unwrap_err().to_string();
    let passages = Question::of(&Corpus::open("passages").unwrap());
    assert!(refused(passages).starts_with("corpus passages: no item expects an answer"));
    assert!(refused(Question { accuracy: Some(1.0), ..arithmetic() }).starts_with("accuracy is 1:"));
    assert!(refused(Question { accuracy: Some(f64::NAN), ..arithmetic() }).starts_with("accuracy is NaN"));
    assert!(refused(Question { alpha: 5.0, ..arithmetic() }).starts_with("alpha is 5"));
    assert!(refused(Question { differences: vec![0.0], ..arithmetic() }).contains("difference of 0"));
    assert!(refused(Question { comparisons: 0, ..arithmetic() }).starts_with("comparisons is 0"));
    let assumptions = vec![(Assumption::Given, 1.5)];
    assert!(refused(Question { assumptions, ..arithmetic() }).starts_with("discordance is 1.5"));
}
