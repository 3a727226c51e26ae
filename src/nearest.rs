//! The nearest existing name to a misspelt one.

/// Returns the name that differs least, if by at most `within` letters; of equals the first alphabetically.
///
/// A word in which more than half of the letters differ is another word.
pub fn nearest<S: AsRef<str>>(wanted: &str, names: impl IntoIterator<Item = S>, within: usize) -> Option<S> {
    let within = within.min(wanted.chars().count() / 2);
    let scored = names.into_iter().map(|name| (strsim::damerau_levenshtein(name.as_ref(), wanted), name));
    let near = scored.filter(|(distance, _)| *distance <= within);
    near.min_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.as_ref().cmp(b.1.as_ref()))).map(|(_, name)| name)
}

/// Returns "did you mean" with the nearest name, to append to a message; empty if none is near.
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
