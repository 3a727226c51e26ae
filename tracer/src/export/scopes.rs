//! Which module calls a node stands in.
//!
//! A node's `nn_module_stack` is `key,path,type;key,path,type;…`, outermost first, with nothing quoted or escaped, while names of
//! modules may hold commas and semicolons. A piece is taken for a frame where its path is one of the model's. The key tells calls
//! of one module apart (`relu`, then `relu@1`); it may be anything else, the address of an object, and serves for comparison alone.

use std::collections::HashSet;

/// Commas and semicolons in one name that are tried, so that no text takes long.
const MAX_ODD_LETTERS: usize = 8;

/// A module call around a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame<'d> {
    /// A key that is equal for nodes of one call.
    pub key: &'d str,
    /// Path of the module.
    pub path: &'d str,
    /// Its class.
    pub class: &'d str,
}

/// Takes a stack apart; `None` for what is not a stack of this model's modules, as of arithmetic on sizes.
pub(super) fn frames<'d>(stack: &'d str, known: &HashSet<&str>) -> Option<Vec<Frame<'d>>> {
    let mut frames = Vec::new();
    let mut rest = stack;
    while !rest.is_empty() {
        // A frame ends at a semicolon, but not every semicolon ends one.
        let semicolons = rest.match_indices(';').map(|(at, _)| at).take(MAX_ODD_LETTERS);
        let ends = semicolons.chain(std::iter::once(rest.len()));
        let (frame, end) = ends.into_iter().find_map(|end| Some((frame(&rest[..end], known)?, end)))?;
        frames.push(frame);
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    (!frames.is_empty()).then_some(frames)
}

fn frame<'d>(text: &'d str, known: &HashSet<&str>) -> Option<Frame<'d>> {
    let (rest, class) = text.rsplit_once(',')?;
    let mut commas = rest.match_indices(',').map(|(at, _)| at).take(MAX_ODD_LETTERS);
    let split = commas.find(|at| known.contains(&rest[at + 1..]))?;
    Some(Frame { key: &rest[..split], path: &rest[split + 1..], class })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_taken_apart_whatever_modules_are_called() {
        let known = HashSet::from(["", "a,b", "c;d", "c;d.e(f", "g@1", "layer1.0"]);
        let check = |stack: &str, expected: &[(&str, &str, &str)]| {
            let found = frames(stack, &known).unwrap_or_default();
            let found: Vec<_> = found.iter().map(|frame| (frame.key, frame.path, frame.class)).collect();
            assert_eq!(found, expected, "{stack}");
        };
        let root = ("L__self__", "", "m.Net");
        check("L__self__,,m.Net", &[root]);
        check(
            "L__self__,,m.Net;L__self__layer1.0@1,layer1.0,m.Block",
            &[root, ("L__self__layer1.0@1", "layer1.0", "m.Block")],
        );
        check("L__self__,,m.Net;L__self__a,b,a,b,m.A", &[root, ("L__self__a,b", "a,b", "m.A")]);
        check(
            "L__self__,,m.Net;L__self__c;d,c;d,m.C;L__self__c;d.e(f,c;d.e(f,m.E",
            &[root, ("L__self__c;d", "c;d", "m.C"), ("L__self__c;d.e(f", "c;d.e(f", "m.E")],
        );
        check("L__self__,,m.Net;L__self__g@1,g@1,m.G", &[root, ("L__self__g@1", "g@1", "m.G")]);
        check("1407,,m.Net;99@1,layer1.0,m.Block", &[("1407", "", "m.Net"), ("99@1", "layer1.0", "m.Block")]);
        check("hook,hook,hook;hook,hook,hook", &[]);
        check("", &[]);
        check(";;;", &[]);
        check("L__self__,,m.Net;", &[root]);
    }
}
