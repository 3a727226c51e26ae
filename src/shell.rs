//! Commands to be copied: words in a shell's notation.

/// Returns a word for a POSIX shell, quoted if it has special characters.
pub fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_a_shell() {
        let words =
            ["out", "my out", "it's", "$HOME", "", "a;b", "-o", "grün/ü", "~", "*", "a\nb", "#1", "!x"];
        let shown = words.map(quoted);
        assert_eq!(shown[..4], ["out", "'my out'", r"'it'\''s'", "'$HOME'"]);
        #[cfg(unix)]
        for (word, shown) in words.iter().zip(&shown) {
            let mut shell = std::process::Command::new("sh");
            let output = shell.args(["-c", &format!("printf %s. {shown}")]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{word}."), "{shown}");
        }
    }
}
