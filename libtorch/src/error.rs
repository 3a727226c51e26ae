//! `TorchError`: why libtorch could not do something.

/// libtorch's message without its stack trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TorchError(pub String);

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        TorchError(match error {
            // tch's own text begins with "Internal torch error".
            tch::TchError::Torch(text) => reason(&text),
            other => reason(&other.to_string()),
        })
    }
}

impl From<TorchError> for runtime::BackendError {
    fn from(error: TorchError) -> Self {
        runtime::BackendError(error.0)
    }
}

/// What TorchScript's interpreter says first.
const INTERPRETER: &str = "The following operation failed in the TorchScript interpreter.";

/// What a trace of its calls begins with: the code of the archive, and the Python that it was made of.
const SERIALIZED: [&str; 2] =
    ["Traceback of TorchScript, serialized code", "Traceback of TorchScript (most recent"];

/// Returns the reason in libtorch's message: of a failed archive, the call that failed and why, without all calls around it.
fn reason(text: &str) -> String {
    // libtorch appends its C++ stack trace; the first lines hold the reason.
    let lines: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Exception raised from"))
        .map(str::trim_end)
        .collect();
    let whole = lines.join("\n").trim().to_string();
    if !whole.starts_with(INTERPRETER) {
        return whole;
    }
    let is_fault = |line: &&str| {
        let name = line.split_once(": ").map_or("", |(name, _)| name);
        let is_class = |c: char| c.is_alphanumeric() || c == '.' || c == '_';
        (name.ends_with("Error") || name.ends_with("Exception")) && name.chars().all(is_class)
    };
    let Some(at) = lines.iter().rposition(is_fault) else { return whole };
    let fault = lines[at..].iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n");
    let fault = fault.split_once(": ").map_or(fault.as_str(), |(_, fault)| fault).trim();
    match failed_call(&lines[..at]) {
        Some(call) => format!("`{call}` failed: {fault}"),
        None => fault.to_string(),
    }
}

/// Returns the innermost line of the archive's code that is marked as failed, unless it is of the program that asks for gradients.
fn failed_call<'t>(lines: &[&'t str]) -> Option<&'t str> {
    let begin = lines.iter().position(|line| SERIALIZED.iter().any(|begin| line.starts_with(begin)))?;
    let end = lines[begin + 1..].iter().position(|line| line.starts_with("Traceback of"));
    let code = &lines[begin..end.map_or(lines.len(), |end| begin + 1 + end)];
    let marked = code.iter().rposition(|line| line.contains("<--- HERE"))?;
    let (line, mark) = (*code.get(marked.checked_sub(1)?)?, code[marked]);
    let from = mark.find('~')?;
    let call = line.get(from..)?.trim();
    // The mark spans the name that is called; the program that asks for gradients is this crate's own.
    (!call.starts_with("torch.autograd.grad(")).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_failed_archive_says_where_and_why() {
        let check = |text: &str, expected: &str| assert_eq!(reason(text), expected);
        check("a size is wrong\nException raised from here\n", "a size is wrong");
        let bag = "The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File \"code/__torch__.py\", line 19, in forward
    e1 = self.e
    _3 = (_0).forward(a, off, )
          ~~~~~~~~~~~ <--- HERE
  File \"code/__torch__/sparse.py\", line 11, in forward
    _0, _1 = torch.embedding_bag(weight, a, off)
             ~~~~~~~~~~~~~~~~~~~ <--- HERE
    return _0

Traceback of TorchScript, original code (most recent call last):
/model.py(2774): embedding_bag
RuntimeError: offsets[0] has to be 0. However, got 48

";
        check(bag, "`torch.embedding_bag(weight, a, off)` failed: offsets[0] has to be 0. However, got 48");
        let gradient = "The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File \"code/__torch__.py\", line 15, in forward
    _2 = torch.autograd.grad(roots, leaves, gradients, keep, False, True)
         ~~~~~~~~~~~~~~~~~~~ <--- HERE
RuntimeError: derivative for aten::_native_multi_head_attention is not implemented
";
        check(gradient, "derivative for aten::_native_multi_head_attention is not implemented");
        check(
            "The following operation failed in the TorchScript interpreter.\nno more is said",
            "The following operation failed in the TorchScript interpreter.\nno more is said",
        );
    }
}
