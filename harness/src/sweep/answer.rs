//! What counts as a right answer.
//!
//! | kind | a text is right when |
//! |---|---|
//! | exact | it is the answer, both without white space at their ends |
//! | last number | the last number in it equals the last number of the answer, as numbers: `1,500`, `1500.0` |
//! | regular expression | the expression matches somewhere in it |
//! | choices | the first of the choices that it names, in any case and as a whole word, is the answer |
//!
//! Judging is a pure function of the item and the text. Nothing is cut from the text before: where a model answers at
//! length, the item says by its kind what is looked for.

use regex::Regex;

/// What an item expects of a text.
#[derive(Clone, Debug)]
pub enum Expected {
    /// This text.
    Exact(String),
    /// A text whose last number is that of this answer.
    LastNumber(LastNumber),
    /// A match.
    Pattern(Regex),
    /// One of several, named first.
    Choice(Choice),
}

/// What was found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Whether the answer is right.
    pub right: bool,
    /// What was looked at: the trimmed text, the number, the match, the choice as the item spells it; `None` where the
    /// text has none.
    pub read: Option<String>,
}

/// Why an expectation cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExpectation {
    /// An answer to be judged by its last number has none.
    #[error("it is judged by its last number and has none")]
    NoNumber,
    /// The regular expression does not compile, or is too large.
    #[error("{0}")]
    Pattern(String),
    /// An expression that the empty text fulfils cannot fail.
    #[error("it matches the empty text, so every answer would be right")]
    AlwaysRight,
    /// Fewer than two choices, an empty one, or two that differ only in case.
    #[error("at least two choices are wanted, none empty, and no two the same but for case")]
    Choices,
    /// The answer is none of the choices.
    #[error("it is none of the choices")]
    NotAChoice,
}

/// An answer that is judged by its last number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastNumber {
    answer: String,
    number: String,
}

/// An answer among choices.
#[derive(Clone, Debug)]
pub struct Choice {
    answer: String,
    choices: Vec<String>,
    names: Regex,
}

impl Expected {
    /// An answer that is judged by its last number.
    ///
    /// # Errors
    /// An answer without a number.
    pub fn last_number(answer: &str) -> Result<Self, BadExpectation> {
        let number = last_number(answer).ok_or(BadExpectation::NoNumber)?;
        Ok(Self::LastNumber(LastNumber { answer: answer.to_owned(), number }))
    }

    /// A regular expression in the syntax of the crate `regex`; `(?i)` ignores case.
    ///
    /// # Errors
    /// An expression that does not compile, or that matches the empty text.
    pub fn pattern(expression: &str) -> Result<Self, BadExpectation> {
        let pattern = Regex::new(expression).map_err(|error| {
            let text = error.to_string();
            // The crate draws the expression over several lines; the last one says what is wrong.
            BadExpectation::Pattern(text.lines().last().unwrap_or_default().trim().to_owned())
        })?;
        if pattern.is_match("") { Err(BadExpectation::AlwaysRight) } else { Ok(Self::Pattern(pattern)) }
    }

    /// An answer among choices.
    ///
    /// # Errors
    /// Fewer than two choices, an empty one, two that differ only in case, an answer that is none of them.
    pub fn choice(answer: &str, choices: &[String]) -> Result<Self, BadExpectation> {
        let folded: Vec<String> = choices.iter().map(|choice| choice.to_lowercase()).collect();
        let repeated = folded.iter().enumerate().any(|(i, choice)| folded[..i].contains(choice));
        if choices.len() < 2 || repeated || choices.iter().any(|choice| choice.trim().is_empty()) {
            return Err(BadExpectation::Choices);
        }
        if !choices.iter().any(|choice| choice == answer) {
            return Err(BadExpectation::NotAChoice);
        }
        // The longest first, so that "dark blue" is not read as "dark".
        let mut longest: Vec<&String> = choices.iter().collect();
        longest.sort_by_key(|choice| std::cmp::Reverse(choice.len()));
        let names: Vec<String> = longest.into_iter().map(|choice| whole_word(choice)).collect();
        let names = Regex::new(&format!("(?i){}", names.join("|")))
            .map_err(|error| BadExpectation::Pattern(error.to_string()))?;
        Ok(Self::Choice(Choice { answer: answer.to_owned(), choices: choices.to_vec(), names }))
    }

    /// Judges a text.
    #[must_use]
    pub fn judge(&self, text: &str) -> Judged {
        match self {
            Self::Exact(answer) => {
                let text = text.trim();
                Judged { right: text == answer.trim(), read: Some(text.to_owned()) }
            }
            Self::LastNumber(expected) => {
                let read = last_number(text);
                Judged { right: read.as_ref() == Some(&expected.number), read }
            }
            Self::Pattern(pattern) => {
                let read = pattern.find(text).map(|found| found.as_str().to_owned());
                Judged { right: read.is_some(), read }
            }
            Self::Choice(choice) => {
                let read = choice.names.find(text).and_then(|found| {
                    let found = found.as_str().to_lowercase();
                    choice.choices.iter().find(|choice| choice.to_lowercase() == found).cloned()
                });
                Judged { right: read.as_ref() == Some(&choice.answer), read }
            }
        }
    }

    /// Whether the text is the answer letter for letter, its ends trimmed, however it is judged: an arithmetic answer
    /// with all its steps. `None` for a regular expression, which has no answer.
    #[must_use]
    pub fn exactly(&self, text: &str) -> Option<bool> {
        self.answer().map(|answer| text.trim() == answer.trim())
    }

    /// The answer as the item gives it; `None` for a regular expression.
    #[must_use]
    pub fn answer(&self) -> Option<&str> {
        match self {
            Self::Exact(answer) => Some(answer),
            Self::LastNumber(expected) => Some(&expected.answer),
            Self::Choice(choice) => Some(&choice.answer),
            Self::Pattern(_) => None,
        }
    }
}

impl std::fmt::Display for Expected {
    /// The answer, or the regular expression between slashes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pattern(pattern) => write!(f, "/{pattern}/"),
            other => f.write_str(other.answer().unwrap_or_default()),
        }
    }
}

/// An expression for a choice that no letter or digit continues.
fn whole_word(choice: &str) -> String {
    let edge = |c: Option<char>| if c.is_some_and(|c| c.is_alphanumeric() || c == '_') { r"\b" } else { "" };
    format!("{}{}{}", edge(choice.chars().next()), regex::escape(choice), edge(choice.chars().next_back()))
}

/// The last number of a text in its plainest spelling: without separators of thousands, leading zeros, zeros at the
/// end of a fraction, or a minus before zero.
///
/// A comma separates thousands only where it stands before every group of three digits. A `-` (or U+2212) is a sign
/// where it does not follow a digit, a letter, `)` or `]`: `7-5` ends in 5, `7=-5` in -5. A point belongs to the number
/// only before a digit, so a full stop ends the sentence.
#[must_use]
pub fn last_number(text: &str) -> Option<String> {
    // Thousands with separators, or plain digits; then a fraction.
    const NUMBER: &str = r"(?:[0-9]{1,3}(?:,[0-9]{3})+\b|[0-9]+)(?:\.[0-9]+)?";
    static NUMBERS: std::sync::LazyLock<Regex> =
        std::sync::LazyLock::new(|| Regex::new(NUMBER).expect("a valid expression"));
    let found = NUMBERS.find_iter(text).last()?;
    let mut before = text[..found.start()].chars().rev();
    let minus = matches!(before.next(), Some('-' | '\u{2212}'))
        && !before.next().is_some_and(|c| c.is_alphanumeric() || c == ')' || c == ']');
    let digits = found.as_str().replace(',', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let zero = whole.is_empty() && fraction.is_empty();
    let sign = if minus && !zero { "-" } else { "" };
    let whole = if whole.is_empty() { "0" } else { whole };
    let point = if fraction.is_empty() { "" } else { "." };
    Some(format!("{sign}{whole}{point}{fraction}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn choices(of: &[&str]) -> Vec<String> {
        of.iter().map(|&choice| choice.to_owned()).collect()
    }

    #[test]
    fn exact_trims_the_ends_and_nothing_else() {
        let expected = Expected::Exact("15*20+15*3=300+45=345".to_owned());
        assert!(expected.judge(" 15*20+15*3=300+45=345\n").right);
        for wrong in ["345", "15*20+15*3=300+45=346", "15*20 +15*3=300+45=345", ""] {
            assert!(!expected.judge(wrong).right, "{wrong}");
        }
    }

    #[test]
    fn numbers_are_read_as_numbers() {
        for (text, number) in [
            ("15*20+15*3=300+45=345", "345"),
            ("The answer is 42.", "42"),
            ("It is 1,500 km, not 1,5 or 12,345,678.50", "12345678.5"),
            ("1,500", "1500"),
            ("in 1999, 2000", "2000"),
            ("12,34", "34"),
            ("1,2345", "2345"),
            ("7-5", "5"),
            ("7 - 5", "5"),
            ("7=-5", "-5"),
            ("(-0.50)", "-0.5"),
            ("x-3", "3"),
            ("\u{2212}12 degrees", "-12"),
            ("007", "7"),
            ("-0.0", "0"),
            ("3.14.15", "15"),
            ("v2", "2"),
            ("90%", "90"),
        ] {
            assert_eq!(last_number(text).as_deref(), Some(number), "{text}");
        }
        assert_eq!(last_number("none at all."), None);
        assert_eq!(last_number(""), None);
    }

    #[test]
    fn the_last_number_decides_and_the_steps_are_seen_apart() {
        let expected = Expected::last_number("15*20+15*3=300+45=345").unwrap();
        let short = expected.judge("345");
        assert_eq!((short.right, short.read.as_deref()), (true, Some("345")));
        assert_eq!(expected.exactly("345"), Some(false));
        assert_eq!(expected.exactly("15*20+15*3=300+45=345 "), Some(true));
        assert!(!expected.judge("345 and then 346").right && !expected.judge("").right);
        assert_eq!(Expected::last_number("none").unwrap_err(), BadExpectation::NoNumber);
    }

    #[test]
    fn patterns_match_anywhere() {
        let expected = Expected::pattern(r"(?i)\bparis\b").unwrap();
        assert_eq!(expected.judge("The capital is PARIS.").read.as_deref(), Some("PARIS"));
        assert!(!expected.judge("Parisian").right);
        assert_eq!(expected.exactly("Paris"), None);
        assert_eq!(Expected::pattern("a*").unwrap_err(), BadExpectation::AlwaysRight);
        let BadExpectation::Pattern(why) = Expected::pattern("(oops").unwrap_err() else { panic!() };
        assert!(why.contains("unclosed group") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn the_first_choice_named_counts() {
        let expected = Expected::choice("No", &choices(&["Yes", "No"])).unwrap();
        assert!(expected.judge("no, it is not. Yes would be wrong").right);
        assert_eq!(expected.judge("YES").read.as_deref(), Some("Yes"));
        for wrong in ["Nothing is known", "yes and no", ""] {
            assert!(!expected.judge(wrong).right, "{wrong}");
        }
        let longer = Expected::choice("dark blue", &choices(&["dark", "dark blue"])).unwrap();
        assert!(longer.judge("A Dark Blue one").right);
        let marks = Expected::choice("C++", &choices(&["C", "C++", "C#"])).unwrap();
        assert!(marks.judge("in C++, of course").right && !marks.judge("in C").right);
    }

    #[test]
    fn choices_that_cannot_be_are_refused() {
        for (answer, of, why) in [
            ("a", vec!["a"], BadExpectation::Choices),
            ("a", vec!["a", "A"], BadExpectation::Choices),
            ("a", vec!["a", " "], BadExpectation::Choices),
            ("c", vec!["a", "b"], BadExpectation::NotAChoice),
            ("A", vec!["a", "b"], BadExpectation::NotAChoice),
        ] {
            assert_eq!(Expected::choice(answer, &choices(&of)).unwrap_err(), why, "{answer} {of:?}");
        }
    }

    proptest! {
        #[test]
        fn any_number_is_found_after_any_words(words in "[a-z =]{0,20}", number in -1_000_000i64..1_000_000) {
            let text = format!("{words}= {number}");
            prop_assert_eq!(last_number(&text), Some(number.to_string()));
        }

        #[test]
        fn judging_takes_any_text(text in ".{0,60}") {
            for expected in [
                Expected::Exact("a".to_owned()),
                Expected::last_number("1").unwrap(),
                Expected::choice("yes", &choices(&["yes", "no"])).unwrap(),
            ] {
                let judged = expected.judge(&text);
                prop_assert!(!judged.right || judged.read.is_some());
            }
        }
    }
}
