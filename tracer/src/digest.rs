//! The name that a plan knows its model by.

use sha2::{Digest, Sha256};

use crate::program::Program;

/// Returns the SHA-256 of a model's code and tensor table, in hex.
///
/// Weights do not enter: a plan holds for every training state of a model. O(code).
pub fn digest(program: &Program) -> String {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        // Lengths keep neighbours apart.
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for source in &program.sources {
        put(source.name.as_bytes());
        put(source.text.as_bytes());
    }
    put(b"tensors");
    for tensor in &program.tensors {
        put(tensor.path.as_bytes());
        put(format!("{:?} {:?} {:?} {}", tensor.dtype, tensor.shape, tensor.role, tensor.requires_grad)
            .as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Source;

    #[test]
    fn code_and_tensors_change_the_digest_and_names_of_the_file_do_not() {
        let program = |text: &str, name: &str| Program {
            name: name.into(),
            sources: vec![Source { name: "code/a.py".into(), text: text.into() }],
            ..Program::default()
        };
        assert_eq!(digest(&program("x", "a")), digest(&program("x", "b")));
        assert_ne!(digest(&program("x", "a")), digest(&program("y", "a")));
        assert_eq!(digest(&program("x", "a")).len(), 64);
    }
}
