//! Free functions that a scripted statement calls: written next to it, in TorchScript.
//!
//! Functions call others by `__torch__.package.name`, or by a local name for that. Each gets a name of its own in the
//! stage, and access beyond its parameters is refused as for the statement.

use indexmap::IndexMap;
use tracer::Program;

/// The longest total text of all functions.
const MAX_TEXT: usize = 100_000;
/// The prefix of names of functions and classes.
const GLOBAL: &str = "__torch__.";

/// Names that a free function cannot use.
const REACHING: &[&str] = &["self", "CONSTANTS", "getattr", "fork"];

/// The functions of a stage.
pub(crate) struct Called<'p> {
    program: &'p Program,
    /// Name space of the file that they are written to.
    space: &'p str,
    /// Positions of called functions, by their names in the archive.
    places: IndexMap<String, usize>,
    /// Their definitions, in order of position.
    definitions: Vec<String>,
}

impl<'p> Called<'p> {
    pub fn new(program: &'p Program, space: &'p str) -> Self {
        Self { program, space, places: IndexMap::new(), definitions: Vec::new() }
    }

    /// Returns all definitions.
    pub fn code(&self) -> String {
        self.definitions.concat()
    }

    /// Returns a text that calls the stage's own functions; `local` maps local names to functions.
    ///
    /// # Errors
    /// If one of them is not in the archive, or depends on its surroundings.
    pub fn follow(&mut self, text: &str, local: &[(&str, &str)]) -> Result<String, &'static str> {
        let followed = self.renamed(text, local);
        let mut open = self.definitions.len();
        let mut length = 0;
        while let Some((name, _)) = self.places.get_index(open) {
            let definition =
                definition(self.program, name).ok_or("it calls a function that is not in the archive")?;
            refuse(definition)?;
            length += definition.len();
            if length > MAX_TEXT {
                return Err("it is too long");
            }
            let (_, rest) =
                definition.split_once('(').ok_or("it calls a function that is not in the archive")?;
            let body = self.renamed(rest, &[]);
            self.definitions.push(format!("def {}({body}", own_name(open)));
            open += 1;
        }
        Ok(followed)
    }

    /// Replaces every function name in a text by the stage's name for it; strings are unchanged.
    fn renamed(&mut self, text: &str, local: &[(&str, &str)]) -> String {
        let mut result = String::with_capacity(text.len());
        for part in parts(text) {
            let global = match part {
                Part::Path(path) => local
                    .iter()
                    .find_map(|(word, global)| (path == *word).then_some(*global))
                    .or_else(|| path.starts_with(GLOBAL).then_some(path)),
                Part::Other(_) => None,
            };
            match (global, part) {
                (Some(global), _) => {
                    let entry = self.places.entry(global.to_owned());
                    let place = entry.index();
                    entry.or_insert(place);
                    result.push_str(&format!("{}.{}", self.space, own_name(place)));
                }
                (None, Part::Path(same) | Part::Other(same)) => result.push_str(same),
            }
        }
        result
    }
}

fn own_name(place: usize) -> String {
    format!("scripted_{place}")
}

/// A piece of a text.
pub(crate) enum Part<'t> {
    /// A name, with the attributes after it.
    Path(&'t str),
    /// A string, a comment, anything else.
    Other(&'t str),
}

/// Splits a text into parts.
pub(crate) fn parts(text: &str) -> Vec<Part<'_>> {
    let bytes = text.as_bytes();
    let is_path = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.');
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Some(first) = bytes.get(at) {
        let start = at;
        at += 1;
        let is_part = match first {
            b'"' | b'\'' => {
                while let Some(letter) = bytes.get(at) {
                    at += if *letter == b'\\' { 2 } else { 1 };
                    if letter == first {
                        break;
                    }
                }
                at = at.min(bytes.len());
                false
            }
            b'#' => {
                at += bytes[at..].iter().take_while(|b| **b != b'\n').count();
                false
            }
            b if is_path(b) => {
                at += bytes[at..].iter().take_while(|b| is_path(b)).count();
                true
            }
            _ => {
                let is_other = |b: &&u8| !is_path(b) && !matches!(b, b'"' | b'\'' | b'#');
                at += bytes[at..].iter().take_while(is_other).count();
                false
            }
        };
        // Only a string could end inside a multi-byte character, in a text that ends in a backslash.
        let part = text.get(start..at).unwrap_or_default();
        parts.push(if is_part { Part::Path(part) } else { Part::Other(part) });
    }
    parts
}

/// Returns the definition of a free function, from `def` to the next line that is not indented.
fn definition<'p>(program: &'p Program, global: &str) -> Option<&'p str> {
    let (module, name) = global.rsplit_once('.')?;
    let file = format!("code/{}.py", module.replace('.', "/"));
    let source = program.sources.iter().find(|source| source.name == file)?;
    let head = format!("def {name}(");
    let mut at = 0;
    let mut start = None;
    for line in source.text.split_inclusive('\n') {
        match start {
            None if line.starts_with(&head) => start = Some(at),
            Some(start) if !line.starts_with([' ', '\n']) => return source.text.get(start..at),
            _ => {}
        }
        at += line.len();
    }
    source.text.get(start?..)
}

/// Refuses a function that does more than compute its result.
fn refuse(definition: &str) -> Result<(), &'static str> {
    let parts = parts(definition);
    let (mut parameters, mut is_head, mut changed) = (Vec::new(), true, false);
    for (index, part) in parts.iter().enumerate() {
        let next = match parts.get(index + 1) {
            Some(Part::Other(next)) => *next,
            _ => "",
        };
        match part {
            Part::Path(path) if REACHING.contains(&path.split('.').next().unwrap_or(path)) => {
                return Err("it calls a function that accesses a module or a constant");
            }
            Part::Path("def") if index > 0 => return Err("it calls a function that defines another"),
            Part::Path(path) => {
                let last = path.rsplit('.').next().unwrap_or(path);
                if is_head && next.starts_with(':') {
                    parameters.push(*path);
                }
                // The caller does not know that its operands change.
                if next.starts_with('(') && (path.starts_with("torch.") || path.starts_with("ops.")) {
                    changed = operators::changes_container(last);
                    if operators::is_in_place(last) {
                        return Err("it calls a function that writes in place");
                    }
                } else {
                    if changed && parameters.contains(path) {
                        return Err("it calls a function that changes its operands");
                    }
                    changed = false;
                }
                if *path == "out" && next.starts_with('=') {
                    return Err("it calls a function that writes in place");
                }
            }
            // The types of parameters contain no line that ends in a colon.
            Part::Other(other) => is_head = is_head && !other.contains(":\n"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tracer::Source;

    use super::*;

    fn program(text: &str) -> Program {
        let source = Source { name: "code/__torch__/a/b.py".into(), text: text.into() };
        Program { sources: vec![source], ..Program::default() }
    }

    #[test]
    fn functions_are_followed_through_others_and_strings_kept() {
        let program = program(
            "class M(Module):\n  def first(self) -> int:\n    return 1\n\
             def first(x: Tensor,\n    n: int=2) -> Tensor:\n  _0 = __torch__.a.b.second\n  return _0(x, \"_0 __torch__.a.b.second\", )\n\
             def second(x: Tensor,\n    s: str) -> Tensor:\n  return torch.mul(x, 2)\ndef third() -> int:\n  return 3\n",
        );
        let mut called = Called::new(&program, "__torch__.here");
        let text = "if c:\n  y = _3(x, )\nelse:\n  y = __torch__.a.b.second(x, '\\'_3', )\n";
        let found = called.follow(text, &[("_3", "__torch__.a.b.first")]).unwrap();
        let expected = "if c:\n  y = __torch__.here.scripted_0(x, )\nelse:\n  y = __torch__.here.scripted_1(x, '\\'_3', )\n";
        assert_eq!(found, expected);
        assert_eq!(
            called.code(),
            "def scripted_0(x: Tensor,\n    n: int=2) -> Tensor:\n  _0 = __torch__.here.scripted_1\n  \
             return _0(x, \"_0 __torch__.a.b.second\", )\ndef scripted_1(x: Tensor,\n    s: str) -> Tensor:\n  return torch.mul(x, 2)\n",
        );
        // A known function is not written twice.
        assert!(called.follow("__torch__.a.b.second", &[]).is_ok());
        assert_eq!(called.definitions.len(), 2);
    }

    #[test]
    fn what_reaches_further_is_refused() {
        let check = |body: &str, expected: &str| {
            let program = program(&format!("def f(x: Tensor,\n    l: List[int]) -> Tensor:\n{body}"));
            let found = Called::new(&program, "__torch__.here").follow("__torch__.a.b.f(x, [], )", &[]);
            assert_eq!(found.err(), (!expected.is_empty()).then_some(expected), "{body}");
        };
        check(
            "  y = torch.append(annotate(List[int], []), 1)\n  return torch.add_(x, 1)\n",
            "it calls a function that writes in place",
        );
        check("  return torch.add(x, 1, out=x)\n", "it calls a function that writes in place");
        check("  y = torch.append(l, 1)\n  return x\n", "it calls a function that changes its operands");
        check("  m = [1]\n  y = torch.append(m, 1)\n  return torch.sum(x, l)\n", "");
        check(
            "  return torch.add(x, CONSTANTS.c0)\n",
            "it calls a function that accesses a module or a constant",
        );
        check("  return __torch__.a.b.g(x, )\n", "it calls a function that is not in the archive");
        check("  return __torch__.a.b.f(x, l, )\n", "");
        check("  return x", "");
    }
}
