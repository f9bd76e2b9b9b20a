//! Where a fault was planted, and whether a verdict's reason says so.

/// A place, as the reason of a verdict must name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// For people.
    pub(crate) words: String,
    /// Every entry must be in the reason, through one of its spellings.
    wanted: Vec<Vec<String>>,
}

impl Place {
    /// A place of which every one of `parts` must be named.
    pub(crate) fn all<const N: usize>(words: impl ToString, parts: [String; N]) -> Self {
        let wanted = parts.into_iter().map(|part| vec![part]).collect();
        Self { words: words.to_string(), wanted }
    }

    /// A place that any one of `spellings` names.
    pub(crate) fn any<const N: usize>(words: impl ToString, spellings: [String; N]) -> Self {
        Self { words: words.to_string(), wanted: vec![spellings.to_vec()] }
    }

    /// Whether `reason` names it.
    pub(crate) fn named_in(&self, reason: &str) -> bool {
        let named = |spellings: &Vec<String>| spellings.iter().any(|spelling| has_phrase(reason, spelling));
        !self.wanted.is_empty() && self.wanted.iter().all(named)
    }
}

/// Whether `text` has `phrase` between characters that continue no word and no number: `row 1` is neither in
/// `row 17` nor in `narrow 1`.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let edge = |c: Option<char>| !c.is_some_and(char::is_alphanumeric);
    !phrase.is_empty()
        && text.match_indices(phrase).any(|(at, _)| {
            edge(text[..at].chars().next_back()) && edge(text[at + phrase.len()..].chars().next())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_are_taken_whole() {
        let reason = "logits NMSE 1.0e-3 > 1e-9, worst row 17 of 24; NMSE of k.10 inf";
        for (phrase, found) in [
            ("row 17 of", true),
            ("row 1", false),
            ("k.1", false),
            ("k.10", true),
            ("SE of", false),
            ("", false),
        ] {
            assert_eq!(has_phrase(reason, phrase), found, "{phrase}");
        }
    }

    #[test]
    fn a_place_is_named_by_all_its_parts_or_one_of_its_spellings() {
        let parts = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        assert!(Place::all("", parts("row 3", "column 4")).named_in("row 3 column 4"));
        assert!(!Place::all("", parts("row 3", "column 4")).named_in("row 3 column 5"));
        assert!(Place::any("", parts("row 3", "row 4")).named_in("row 4"));
        assert!(!Place::any("", parts("row 3", "row 4")).named_in("row 5"));
        assert!(!Place::all::<0>("", []).named_in("anything"));
    }
}
