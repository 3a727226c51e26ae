//! `TorchError`: why libtorch could not do something.

/// libtorch's message without its stack trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TorchError(pub String);

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        // libtorch appends its C++ stack trace; the first lines hold the reason.
        let text = error.to_string();
        let reason = text.lines().take_while(|line| !line.starts_with("Exception raised from"));
        TorchError(reason.collect::<Vec<_>>().join("\n").trim_end().to_string())
    }
}

impl From<TorchError> for runtime::BackendError {
    fn from(error: TorchError) -> Self {
        runtime::BackendError(error.0)
    }
}
