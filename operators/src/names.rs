//! The names that stages may call, from `names.txt`: all of torch 2.11 and of torchvision, each with the names of its
//! arguments.
//!
//! The text is printed by torch itself (`fixtures/signatures.py --names`), sorted: torch resolves each name to an
//! operator. It is searched, not loaded.

use std::cmp::Ordering;

static NAMES: &str = include_str!("names.txt");

/// Operators that do more than compute, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("aten::from_file", "it opens a file of any name, and may create it"),
    ("aten::save", "it writes a file of any name"),
    ("prim::rpc_async", OTHER_PROCESSES),
    ("prim::rpc_remote", OTHER_PROCESSES),
    ("prim::rpc_sync", OTHER_PROCESSES),
    ("aten::to_here", OTHER_PROCESSES),
    ("aten::dist_backward", OTHER_PROCESSES),
    ("aten::get_gradients", OTHER_PROCESSES),
    ("prim::PythonOp", "it runs Python"),
    ("prim::IgnoredPythonOp", "it runs Python"),
    ("aten::backward", GRADIENTS),
    ("aten::_backward", GRADIENTS),
    ("aten::set_grad_enabled", "it enables or disables gradients for everything that runs after it"),
    ("aten::manual_seed", SEED),
    ("aten::seed", SEED),
    ("aten::_cufft_set_plan_cache_max_size", "it changes a setting of the process"),
    ("aten::_cufft_clear_plan_cache", "it changes a setting of the process"),
    ("aten::_nested_view_from_buffer", UNCHECKED),
    ("aten::_nested_view_from_buffer_copy", UNCHECKED),
    ("aten::_sparse_bsc_tensor_unsafe", UNCHECKED),
    ("aten::_sparse_bsr_tensor_unsafe", UNCHECKED),
    ("aten::_sparse_compressed_tensor_unsafe", UNCHECKED),
    ("aten::_sparse_coo_tensor_unsafe", UNCHECKED),
    ("aten::_sparse_csc_tensor_unsafe", UNCHECKED),
    ("aten::_sparse_csr_tensor_unsafe", UNCHECKED),
];
const OTHER_PROCESSES: &str = "it runs code in other processes";
const GRADIENTS: &str = "it runs a backward pass inside the forward pass";
const SEED: &str = "it seeds the random numbers of the whole process";
const UNCHECKED: &str = "it reads memory at unchecked addresses";

/// Returns why stages may not call an operator of the list, if so.
pub fn refusal(operator: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(name, _)| *name == operator).map(|(_, reason)| *reason)
}

/// Returns the names of an operator's arguments, separated by spaces; `None` where the list lacks it. Binary search over the bytes.
pub fn argument_names(operator: &str) -> Option<&'static str> {
    let name = |line: &'static str| line.split(' ').next().unwrap_or(line);
    let (mut low, mut high) = (0, NAMES.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = NAMES[..middle].rfind('\n').map_or(0, |at| at + 1);
        let end = NAMES[middle..].find('\n').map_or(NAMES.len(), |at| middle + at);
        match name(&NAMES[start..end]).cmp(operator) {
            Ordering::Equal => {
                return Some(NAMES[start..end].split_once(' ').map_or("", |(_, names)| names));
            }
            Ordering::Less => low = end + 1,
            Ordering::Greater => high = start,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_of_the_list_is_found_and_no_other() {
        for line in NAMES.lines() {
            let (name, arguments) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(argument_names(name), Some(arguments), "{line}");
            let (_, short) = name.split_once("::").expect("a name space");
            assert!(short.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
        }
        for name in
            ["", "aten", "aten::", "aten::relu.out", "aten::relu self", "aten::zzz", "zzz", "prim::name"]
        {
            assert_eq!(argument_names(name), None, "{name}");
        }
        for (name, _) in REFUSED {
            assert!(argument_names(name).is_some(), "{name}");
        }
    }
}
