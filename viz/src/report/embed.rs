//! Data and code inside a page: escaped, compressed when large, and listed by their hash in the page's policy.

use std::{fmt::Write as _, io::Write as _};

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

/// Data that only the page's script reads is compressed from this length on; its colours need a newer browser than
/// decompression.
pub(super) const OWN_LIMIT: usize = 24_000;
/// Data for other programs is compressed only where it would make the page large.
pub(super) const PLAIN_LIMIT: usize = 200_000;

/// Returns a `<script>` element that holds data and is never executed; data longer than `limit` is compressed.
pub(super) fn data(id: &str, json: &str, limit: usize) -> String {
    if json.len() <= limit {
        return format!("<script id=\"{id}\" type=\"application/json\">{}</script>\n", plain(json));
    }
    // No time stamp, no name: the same data gives the same bytes.
    let mut packer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(8));
    packer.write_all(json.as_bytes()).expect("memory takes every write");
    let bytes = packer.finish().expect("memory takes every write");
    format!("<script id=\"{id}\" type=\"application/gzip\">{}</script>\n", base64(&bytes))
}

/// Escapes what could end the element, begin a comment, end a line in old JavaScript, or turn a reader's text around.
fn plain(json: &str) -> String {
    let mut text = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text
}

/// Returns the source of a content security policy that allows exactly this text.
pub(super) fn hash_source(text: &str) -> String {
    format!("'sha256-{}'", base64(&Sha256::digest(text.as_bytes())))
}

/// Removes indentation, empty lines and lines that are comments.
///
/// The code keeps its line breaks, so that an error's line can be found, and has no texts over several lines.
pub(super) fn squeezed(code: &str) -> String {
    let mut text = String::with_capacity(code.len());
    for line in code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let check = |text: &str, expected: &str| assert_eq!(base64(text.as_bytes()), expected);
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foo", "Zm9v");
        check("foobar", "Zm9vYmFy");
    }

    #[test]
    fn hashes_are_those_of_the_standard() {
        // The digest of empty input, as in every implementation.
        assert_eq!(hash_source(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }

    #[test]
    fn data_cannot_leave_its_element() {
        let json = serde_json::json!("</script><script>alert(1)</script><!--\u{2028}").to_string();
        let element = data("d", &json, PLAIN_LIMIT);
        assert_eq!(element.matches('<').count(), 2, "{element}");
        let inside = element.split_once('>').unwrap().1.split_once('<').unwrap().0;
        assert_eq!(
            serde_json::from_str::<String>(inside).unwrap(),
            serde_json::from_str::<String>(&json).unwrap()
        );
    }

    #[test]
    fn large_data_is_packed_and_stays_the_same() {
        let json = format!("[{}0]", "1234567,".repeat(30_000));
        let element = data("d", &json, PLAIN_LIMIT);
        assert!(element.len() < 2_000, "{}", element.len());
        assert_eq!(element, data("d", &json, PLAIN_LIMIT));
        let packed = element.split_once('>').unwrap().1.split_once('<').unwrap().0;
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut bytes = Vec::new();
        for four in packed.as_bytes().chunks(4) {
            let value = |c: u8| letters.iter().position(|l| *l == c).unwrap_or(0) as u32;
            let bits = four.iter().fold(0, |bits, c| bits << 6 | value(*c));
            bytes.extend(&bits.to_be_bytes()[1..]);
        }
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, json);
    }

    #[test]
    fn code_loses_its_layout_only() {
        assert_eq!(squeezed("// what\n  a();\n\n    b(\"// c\");\n"), "a();\nb(\"// c\");\n");
    }
}
