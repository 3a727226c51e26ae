//! The model's result: the graph's results are a flat list, and a tree tells how tuples, lists and dictionaries are built of them.

use super::document::TreeSpec;
use crate::program::{Constant, Operand};

/// Deepest nesting that is followed.
const MAX_DEPTH: usize = 32;

/// Builds the result. Without a tree, or with one that does not fit, results stay a flat tuple, and a single one alone.
pub(super) fn output(results: Vec<Operand>, spec: &str) -> Operand {
    let tree = serde_json::from_str::<(u64, TreeSpec)>(spec).ok().map(|(_, tree)| tree);
    let mut left = results.iter().cloned();
    let built = tree.and_then(|tree| build(&tree, &mut left, 0));
    if let (Some(built), None) = (built, left.next()) {
        return built;
    }
    let mut results = results;
    if results.len() == 1 { results.swap_remove(0) } else { Operand::Tuple(results) }
}

fn build(tree: &TreeSpec, results: &mut dyn Iterator<Item = Operand>, depth: usize) -> Option<Operand> {
    if depth > MAX_DEPTH {
        return None;
    }
    let Some(type_) = &tree.type_ else { return results.next() };
    let children: Option<Vec<Operand>> =
        tree.children_spec.iter().map(|child| build(child, results, depth + 1)).collect();
    let children = children?;
    let keys = || -> Option<Vec<String>> {
        let keys: Vec<String> = serde_json::from_str(tree.context.as_deref()?).ok()?;
        (keys.len() == children.len()).then_some(keys)
    };
    Some(match type_.as_str() {
        "builtins.list" => Operand::List(children),
        "builtins.dict" | "collections.OrderedDict" => match keys() {
            Some(keys) => {
                let key = |key: String| Operand::Constant(Constant::Str(key));
                Operand::Dict(keys.into_iter().map(key).zip(children).collect())
            }
            None => Operand::Tuple(children),
        },
        _ => Operand::Tuple(children),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: i64) -> Operand {
        Operand::Constant(Constant::Int(value))
    }

    #[test]
    fn results_are_built_as_the_model_returned_them() {
        const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;
        let of = |type_: &str, context: &str, children: &[&str]| {
            format!(
                r#"{{"type": "{type_}", "context": {context}, "children_spec": [{}]}}"#,
                children.join(", ")
            )
        };
        let check = |tree: String, count: i64, expected: Operand| {
            let results = (0..count).map(number).collect();
            assert_eq!(output(results, &format!("[1, {tree}]")), expected, "{tree}");
        };
        check(LEAF.to_owned(), 1, number(0));
        let pair = of("builtins.tuple", "\"null\"", &[LEAF, LEAF]);
        check(pair.clone(), 2, Operand::Tuple(vec![number(0), number(1)]));
        let dict = of("builtins.dict", r#""[\"a\", \"b\"]""#, &[LEAF, &pair]);
        let key = |key: &str| Operand::Constant(Constant::Str(key.to_owned()));
        check(
            dict,
            3,
            Operand::Dict(vec![
                (key("a"), number(0)),
                (key("b"), Operand::Tuple(vec![number(1), number(2)])),
            ]),
        );
        check(of("builtins.list", "null", &[LEAF]), 1, Operand::List(vec![number(0)]));
        // A tree that does not fit says nothing.
        check(pair, 3, Operand::Tuple(vec![number(0), number(1), number(2)]));
        check("{".to_owned(), 1, number(0));
    }
}
