//! Tensors of a file by path: of a state dict that `torch.save` wrote, of a `.safetensors` file, or of a TorchScript archive.

use super::{
    other,
    pickle::Pickle,
    safetensors,
    script::read_archive_at,
    state_dict::{MAX_DEPTH, dictionary, role_by_name},
    tensor::{self, Extents},
    zip::Records,
};
use crate::{
    bytes::Bytes,
    error::TraceError,
    export::{self, Generation},
    program::{Role, Tensor},
};

/// Reads where the tensors of a state dict, a `.safetensors` file or a script module lie, and their sizes; never their elements.
///
/// A dictionary that holds the state dict beside other things (an epoch, an optimizer) will do: the first one inside
/// with tensors is taken.
///
/// # Errors
///
/// The file is none of these, is damaged, or asks for more than data.
pub fn read_tensors(bytes: &[u8]) -> Result<Vec<Tensor>, TraceError> {
    read_tensors_at(&bytes)
}

/// Reads a file at the places that it needs: [`read_tensors`] of one that is not in memory.
///
/// # Errors
///
/// As [`read_tensors`]; unreadable parts are treated as absent.
pub fn read_tensors_at(bytes: &dyn Bytes) -> Result<Vec<Tensor>, TraceError> {
    if safetensors::is_safetensors(bytes) {
        return safetensors::read(bytes);
    }
    if let Some(error) = other::recognise_file(bytes) {
        return Err(error);
    }
    let mut records = Records::open(bytes)?;
    if let Some(generation) = Generation::of(&records)? {
        return export::read_tensors(bytes, &mut records, &generation);
    }
    if records.names_under("code/").next().is_some() {
        return Ok(read_archive_at(bytes)?.tensors);
    }
    let data = records.read("data.pkl")?;
    let pickle = Pickle::read("data.pkl", &data)?;
    let Some(entries) = dictionary(&pickle, pickle.root, MAX_DEPTH) else {
        return Err(TraceError::NotArchive {
            found: "a torch.save file without a state dict",
            advice: "save the sizes with torch.save(model.state_dict(), \"model.pt\")",
        });
    };
    let mut extents = Extents::default();
    let mut tensors = Vec::new();
    for (path, id) in entries {
        let place = ("data", path, Role::Parameter);
        tensors.extend(tensor::tensor(&pickle, id, place, &mut extents, &mut records)?.map(|tensor| {
            let role = role_by_name(path, tensor.dtype);
            // A state dict holds detached tensors.
            Tensor { role, requires_grad: role == Role::Parameter, ..tensor }
        }));
    }
    Ok(tensors)
}
