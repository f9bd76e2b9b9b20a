//! Hints in errors: the known name that a mistyped one is nearest to.

/// `; did you mean `NAME`?` for the known name nearest to `name`, or nothing where none is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // Where clap draws the line for its own flags.
    const NEAR: f64 = 0.7;
    let name = name.to_lowercase();
    let scored = known.into_iter().map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, known)) if score > NEAR => format!("; did you mean `{known}`?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_name_or_none() {
        let known = ["gen-dream", "gen-llada", "dream-arith"];
        assert_eq!(nearest("gen-dreem", known), "; did you mean `gen-dream`?");
        assert_eq!(nearest("Dream-Arith", known), "; did you mean `dream-arith`?");
        assert_eq!(nearest("smollm2.gguf", known), "");
        assert_eq!(nearest("gen", []), "");
    }
}
