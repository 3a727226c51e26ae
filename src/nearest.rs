//! What somebody meant who wrote a name that there is not.

/// Returns the name that differs least, if by `within` letters or fewer; the first by alphabet among equals.
///
/// A word of which more than half is other letters is another word.
pub fn nearest<S: AsRef<str>>(wanted: &str, names: impl IntoIterator<Item = S>, within: usize) -> Option<S> {
    let within = within.min(wanted.chars().count() / 2);
    let scored = names.into_iter().map(|name| (strsim::damerau_levenshtein(name.as_ref(), wanted), name));
    let near = scored.filter(|(distance, _)| *distance <= within);
    near.min_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.as_ref().cmp(b.1.as_ref()))).map(|(_, name)| name)
}

/// Asks whether the nearest name was meant, behind a message; nothing where none is near.
pub fn meant<S: AsRef<str>>(wanted: &str, names: impl IntoIterator<Item = S>, within: usize) -> String {
    let near = nearest(wanted, names, within);
    near.map_or_else(String::new, |near| format!(", did you mean `{}`?", near.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_near() {
        assert_eq!(nearest("sharp", ["shape", "harp", "chart"], 2), Some("harp"));
        assert_eq!(nearest("sharp", ["hybrid"], 2), None);
        assert_eq!(nearest("ab", ["ac", "aa"], 2), Some("aa"));
        assert_eq!(nearest("foo", ["1f1b"], 3), None);
    }
}
