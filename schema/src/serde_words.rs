//! Rewords serde's messages in the terms of a file: fields, lists, texts and numbers instead of sequences, structs and
//! u32.
//!
//! serde's messages are its only interface to the found and expected values. A message of another form is unchanged: a
//! test holds the known forms.

/// Rewrites a message about YAML or JSON.
pub fn in_file_words(message: &str) -> String {
    let message = without_place(message);
    const BEGINNINGS: [&str; 8] = [
        "invalid type: ",
        "invalid value: ",
        "invalid length ",
        "missing field ",
        "unknown field ",
        "unknown variant ",
        "duplicate field ",
        "duplicate entry ",
    ];
    let start = BEGINNINGS.iter().filter_map(|beginning| message.find(beginning)).min();
    let Some(start) = start else { return syntax(message) };
    let path = message[..start].trim_end_matches(": ");
    let at = |rest: String| if path.is_empty() { rest } else { format!("`{path}`{rest}") };
    let inside = |words: String| if path.is_empty() { words } else { format!("{words} in `{path}`") };
    let fault = &message[start..];
    let words = |prefix: &str| fault.strip_prefix(prefix);
    if let Some(rest) = words("invalid type: ").or(words("invalid value: "))
        && let Some((found, expected)) = rest.split_once(", expected ")
    {
        let hint = number_hint(found, expected);
        let given = given(found);
        let wanted = wanted(expected);
        return if path.is_empty() {
            format!("the file holds {given} where {wanted} is expected{hint}")
        } else {
            at(format!(" is {given}; it must be {wanted}{hint}"))
        };
    }
    if let Some(rest) = words("missing field ") {
        return inside(format!("{rest} is missing"));
    }
    if let Some(rest) = words("unknown field ") {
        let (name, fields) = rest.split_once(", expected ").unwrap_or((rest, ""));
        return inside(format!("there is no field {name}{}", choices(name, fields, "the fields are")));
    }
    if let Some(rest) = words("unknown variant ") {
        let (name, variants) = rest.split_once(", expected ").unwrap_or((rest, ""));
        let allowed = choices(name, variants, "it is one of");
        return if path.is_empty() {
            format!("{name} is unknown{allowed}")
        } else {
            at(format!(" is {name}{allowed}"))
        };
    }
    if let Some(rest) = words("duplicate field ") {
        return inside(format!("{rest} is given twice"));
    }
    message.to_string()
}

/// Removes ` at line 3 column 4` from the end; the line is shown separately.
fn without_place(message: &str) -> &str {
    let Some((head, tail)) = message.rsplit_once(" at line ") else { return message };
    let is_place = tail.split_once(" column ").is_some_and(|(line, column)| {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number(line) && is_number(column)
    });
    if is_place { head } else { message }
}

/// Describes the found value.
fn given(found: &str) -> String {
    let inner = |prefix: &str| found.strip_prefix(prefix);
    if let Some(text) = inner("string ") {
        return format!("the text {text}");
    }
    for number in ["integer ", "floating point ", "boolean "] {
        if let Some(value) = inner(number) {
            return value.trim_matches('`').to_string();
        }
    }
    match found {
        "sequence" => "a list".to_string(),
        "map" => "a group of fields".to_string(),
        "unit value" | "null" => "empty".to_string(),
        other => other.to_string(),
    }
}

/// Describes the allowed values.
fn wanted(expected: &str) -> String {
    let whole = |most: &str| format!("a whole number from 0 to {most}");
    match expected {
        "u8" => whole("255"),
        "u16" => whole("65,535"),
        "u32" => whole("4,294,967,295"),
        "u64" | "usize" => "a whole number, 0 or more".to_string(),
        "i32" | "i64" | "isize" => "a whole number".to_string(),
        "f64" | "f32" => "a number".to_string(),
        "a string" | "string" => "a text".to_string(),
        "a boolean" => "true or false".to_string(),
        "a sequence" => "a list".to_string(),
        "a map" => "a group of fields, `name: value` each".to_string(),
        other if other.starts_with("struct ") => "a group of fields, `name: value` each".to_string(),
        other if other.starts_with("a tuple of size ") => {
            format!("a list of {}", other.trim_start_matches("a tuple of size "))
        }
        other => other.to_string(),
    }
}

/// Explains why a text that looks like a number is not one.
fn number_hint(found: &str, expected: &str) -> &'static str {
    let is_number =
        matches!(expected, "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "f64" | "f32");
    let Some(text) = found.strip_prefix("string \"").and_then(|text| text.strip_suffix('"')) else {
        return "";
    };
    if !is_number {
        ""
    } else if text.trim().parse::<f64>().is_ok() {
        " (without quotes)"
    } else if text.trim_start().starts_with(|first: char| first.is_ascii_digit()) {
        " (without a unit)"
    } else {
        ""
    }
}

/// Lists the allowed names, after the most similar one.
fn choices(name: &str, allowed: &str, are: &str) -> String {
    let names: Vec<&str> = allowed.split('`').skip(1).step_by(2).collect();
    let wanted = name.trim_matches('`');
    let near = names
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, wanted), known))
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(1) && *distance < known.len())
        .min();
    let meant = near.map_or(String::new(), |(_, near)| format!(", did you mean `{near}`?"));
    match names.as_slice() {
        [] => meant,
        [only] if meant.is_empty() => format!("; {are} `{only}`"),
        _ if meant.is_empty() => format!("; {are} {}", names.join(", ")),
        _ => meant,
    }
}

/// Describes a syntax error.
fn syntax(message: &str) -> String {
    // The YAML reader also reports its context.
    let head = message.split(" at line ").next().unwrap_or(message);
    let inside = message.rsplit_once("while parsing ").map_or("", |(_, inside)| inside);
    let words = match head {
        "found character that cannot start any token" => {
            "a tab, or a character that must be in quotes: YAML is indented by spaces"
        }
        "could not find expected ':'" => "a field lacks its colon: `name: value`",
        "did not find expected key" if inside.starts_with("a block mapping") => {
            "this line is not indented like the fields above it"
        }
        "did not find expected '-' indicator" => "this line is not indented like the list above it",
        "did not find expected ',' or ']'" => "a list that begins with `[` is not closed, or lacks a comma",
        "did not find expected ',' or '}'" => "fields that begin with `{` are not closed, or lack a comma",
        "mapping values are not allowed in this context" => {
            "a second colon in the line: texts with colons must be in quotes"
        }
        "control characters are not allowed" => "this is not a text file",
        "EOF while parsing a value"
        | "EOF while parsing an object"
        | "EOF while parsing a list"
        | "EOF while parsing a string" => "the file ends too early; it may be truncated",
        "trailing comma" => "a superfluous comma",
        "key must be a string" => "names of fields must be in double quotes",
        "trailing characters" => "text after the end",
        _ => return message.to_string(),
    };
    words.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_is_put_into_the_words_of_files() {
        let check = |serde: &str, expected: &str| assert_eq!(in_file_words(serde), expected);
        check(
            "stages[0].cost.forward: invalid type: string \"21 ms\", expected f64 at line 30 column 14",
            "`stages[0].cost.forward` is the text \"21 ms\"; it must be a number (without a unit)",
        );
        check("model: missing field `name` at line 4 column 1", "`name` is missing in `model`");
        check(
            "invalid type: sequence, expected struct Plan",
            "the file holds a list where a group of fields, `name: value` each is expected",
        );
        check(
            "unknown field `stagse`, expected one of `kind`, `stages` at line 1 column 1",
            "there is no field `stagse`, did you mean `stages`?",
        );
        check(
            "unknown field `x`, expected `kind` or `stages`",
            "there is no field `x`; the fields are kind, stages",
        );
        check("a.b: unknown variant `c`, expected `d` or `e`", "`a.b` is `c`; it is one of d, e");
        check("nothing of that kind", "nothing of that kind");
    }
}
