//! A model's weights from a separate file: a checkpoint, whole or in parts.
//!
//! Tensors match by name. Names that differ by a prefix (`module.`, `transformer.`) also match, if a single prefix
//! explains them. Nothing is copied: each tensor of the program gets the position of its bytes.
//!
//! O(tensors × first parts of names).

use std::collections::{BTreeSet, HashMap};

use indexmap::IndexMap;
use thiserror::Error;
use tracer::{DType, Program, Role, Storage, Tensor, TensorId};

/// The most first parts of names that are tried as prefixes.
const MOST_PREFIXES: usize = 64;

/// Why a checkpoint does not fit the model.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum WeightError {
    /// A parameter that is missing.
    #[error("`{tensor}` is not in the checkpoint")]
    Missing {
        /// Path in the model.
        tensor: String,
        /// The most similar name in the checkpoint.
        similar: Option<String>,
    },
    /// A parameter with other sizes.
    #[error("`{tensor}` is {} in the model and {} in the checkpoint", sizes(expected), sizes(found))]
    Shape {
        /// Path in the model.
        tensor: String,
        /// In the model.
        expected: Vec<u64>,
        /// In the checkpoint.
        found: Vec<u64>,
    },
    /// A parameter with another type.
    #[error("`{tensor}` is {} in the model and {} in the checkpoint", expected.name(), found.name())]
    Type {
        /// Path in the model.
        tensor: String,
        /// In the model.
        expected: DType,
        /// In the checkpoint.
        found: DType,
    },
}

/// The difference between the names of a checkpoint and the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// All of its names begin with this, the model's do not: `module.`.
    InCheckpoint(String),
    /// Names of the model begin with this, the checkpoint's do not: `transformer.`.
    InModel(String),
}

/// A program with the weights of a checkpoint.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The program.
    pub program: Program,
    /// The difference between names.
    pub prefix: Option<Prefix>,
    /// Buffers that the checkpoint has with other sizes or types, and that keep their traced values.
    pub kept: Vec<String>,
    /// The number of tensors of the checkpoint that the model does not have.
    pub unused: usize,
}

/// Gives a program's tensors the positions of a checkpoint's, which are those in the source that stages will be written
/// from.
///
/// Every parameter must be present. Missing buffers keep their traced values: many are computed by the code and never
/// saved.
///
/// # Errors
/// All parameters that the checkpoint lacks, or has with other sizes or types.
pub fn adopt(program: &Program, checkpoint: &[Tensor]) -> Result<Adopted, Vec<WeightError>> {
    let names: HashMap<&str, &Tensor> = checkpoint.iter().map(|held| (held.path.as_str(), held)).collect();
    let prefix = prefix(program, &names);
    let mut errors = Vec::new();
    let mut kept = Vec::new();
    let mut used = BTreeSet::new();
    let mut adopted = program.clone();
    for group in tied(program) {
        // A checkpoint may use any name of a tensor; if it has several, the last one wins, as in torch.
        let held = group.iter().rev().find_map(|id| {
            let name = renamed(&program.tensors[id.index()].path, prefix.as_ref());
            names.get(name.as_ref()).copied()
        });
        let first = &program.tensors[group[0].index()];
        let is_needed = first.role == Role::Parameter || first.first_byte().is_none();
        match (check(first, held), held) {
            (Ok(()), Some(held)) => {
                for id in &group {
                    let tensor = &mut adopted.tensors[id.index()];
                    used.insert(renamed(&tensor.path, prefix.as_ref()).into_owned());
                    place(tensor, held, &first.path);
                }
            }
            (Err(error), _) if is_needed => errors.push(error),
            (_, Some(_)) => kept.push(first.path.clone()),
            (_, None) => {}
        }
    }
    if !errors.is_empty() {
        suggest(&mut errors, &names);
        return Err(errors);
    }
    let unused = checkpoint.iter().filter(|held| !used.contains(&held.path)).count();
    Ok(Adopted { program: adopted, prefix, kept, unused })
}

/// Lists the parameters and buffers that a checkpoint may fill, grouped by tensor.
fn tied(program: &Program) -> Vec<Vec<TensorId>> {
    let mut groups: IndexMap<_, Vec<TensorId>> = IndexMap::new();
    for (index, tensor) in program.tensors.iter().enumerate() {
        let id = TensorId(index as u32);
        // Sizes were computed from the values of `literals`, which must not change.
        if tensor.role == Role::Constant || program.literals.contains_key(&id) {
            continue;
        }
        // A tensor without a position is tied to none.
        let key = tensor.place().ok_or(id);
        groups.entry((key, tensor.dtype)).or_default().push(id);
    }
    groups.into_values().collect()
}

/// Compares a tensor of the model with the checkpoint's.
fn check(tensor: &Tensor, held: Option<&Tensor>) -> Result<(), WeightError> {
    let path = tensor.path.clone();
    match held {
        None => Err(WeightError::Missing { tensor: path, similar: None }),
        Some(held) if held.shape != tensor.shape => Err(WeightError::Shape {
            tensor: path,
            expected: tensor.shape.clone(),
            found: held.shape.clone(),
        }),
        Some(held) if held.dtype != tensor.dtype => {
            Err(WeightError::Type { tensor: path, expected: tensor.dtype, found: held.dtype })
        }
        Some(_) => Ok(()),
    }
}

fn place(tensor: &mut Tensor, held: &Tensor, canonical: &str) {
    tensor.strides.clone_from(&held.strides);
    // Only tensors that the model ties share storage, even if the checkpoint stores others together.
    tensor.storage =
        held.storage.clone().map(|storage| Storage { record: format!("checkpoint/{canonical}"), ..storage });
}

/// Returns the checkpoint's name for a tensor of the model.
fn renamed<'n>(path: &'n str, prefix: Option<&Prefix>) -> std::borrow::Cow<'n, str> {
    match prefix {
        Some(Prefix::InCheckpoint(prefix)) => format!("{prefix}{path}").into(),
        Some(Prefix::InModel(prefix)) => path.strip_prefix(prefix.as_str()).unwrap_or(path).into(),
        None => path.into(),
    }
}

/// Returns the one prefix under which most parameters are found; `None` if as many names match without.
fn prefix(program: &Program, names: &HashMap<&str, &Tensor>) -> Option<Prefix> {
    let first_part = |name: &str| name.split_once('.').map(|(first, _)| format!("{first}."));
    let theirs: BTreeSet<String> = names.keys().filter_map(|name| first_part(name)).collect();
    let parameters = || program.tensors.iter().filter(|tensor| tensor.role == Role::Parameter);
    let ours: BTreeSet<String> = parameters().filter_map(|tensor| first_part(&tensor.path)).collect();
    let candidates = (theirs.into_iter().take(MOST_PREFIXES).map(Prefix::InCheckpoint))
        .chain(ours.into_iter().take(MOST_PREFIXES).map(Prefix::InModel));
    let found = |prefix: Option<&Prefix>| {
        parameters()
            .filter(|tensor| {
                names
                    .get(renamed(&tensor.path, prefix).as_ref())
                    .is_some_and(|held| held.shape == tensor.shape)
            })
            .count()
    };
    let mut best = (found(None), None);
    for candidate in candidates {
        let count = found(Some(&candidate));
        if count > best.0 {
            best = (count, Some(candidate));
        }
    }
    best.1
}

/// Adds the most similar name to the first missing tensors.
fn suggest(errors: &mut [WeightError], names: &HashMap<&str, &Tensor>) {
    let missing = errors.iter_mut().filter_map(|error| match error {
        WeightError::Missing { tensor, similar } => Some((tensor, similar)),
        _ => None,
    });
    for (tensor, similar) in missing.take(3) {
        let near = names.keys().map(|name| (strsim::normalized_levenshtein(name, tensor), *name));
        let best = near
            .filter(|(likeness, _)| *likeness > 0.6)
            .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
        *similar = best.map(|(_, name)| name.to_string());
    }
}

fn sizes(shape: &[u64]) -> String {
    match shape {
        [] => "a scalar".to_string(),
        shape => shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(path: &str, shape: &[u64], role: Role, position: Option<u64>) -> Tensor {
        let elements = shape.iter().product::<u64>();
        let mut strides = vec![1; shape.len()];
        for dim in (1..strides.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        Tensor {
            path: path.into(),
            dtype: DType::Float32,
            shape: shape.to_vec(),
            strides,
            storage: Some(Storage {
                record: path.into(),
                offset: 0,
                elements,
                position,
                bytes: 4 * elements,
                checksum: None,
            }),
            requires_grad: role == Role::Parameter,
            role,
            device: "cpu".into(),
        }
    }

    fn program() -> Program {
        let mut tied = tensor("head.weight", &[5, 2], Role::Parameter, None);
        tied.storage.as_mut().unwrap().record = "base.words.weight".into();
        let tensors = vec![
            tensor("base.words.weight", &[5, 2], Role::Parameter, None),
            tensor("base.norm.mean", &[2], Role::Buffer, Some(40)),
            tied,
        ];
        Program { tensors, ..Program::default() }
    }

    fn held(path: &str, shape: &[u64], position: u64) -> Tensor {
        tensor(path, shape, Role::Parameter, Some(position))
    }

    fn places(adopted: &Adopted) -> Vec<Option<u64>> {
        adopted.program.tensors.iter().map(Tensor::first_byte).collect()
    }

    #[test]
    fn either_name_of_a_tied_parameter_will_do() {
        for name in ["base.words.weight", "head.weight"] {
            let adopted = adopt(&program(), &[held(name, &[5, 2], 100)]).unwrap();
            assert_eq!(places(&adopted), [Some(100), Some(40), Some(100)], "{name}");
            let [one, _, other] = &adopted.program.tensors[..] else { panic!("three") };
            assert_eq!(one.storage, other.storage);
            assert_eq!((adopted.prefix, adopted.unused), (None, 0));
        }
    }

    #[test]
    fn buffers_are_taken_where_they_fit() {
        let words = held("base.words.weight", &[5, 2], 100);
        let adopted = adopt(&program(), &[words.clone(), held("base.norm.mean", &[2], 200)]).unwrap();
        assert_eq!(places(&adopted)[1], Some(200));
        let adopted = adopt(&program(), &[words, held("base.norm.mean", &[3], 200)]).unwrap();
        assert_eq!((places(&adopted)[1], &adopted.kept[..]), (Some(40), &["base.norm.mean".to_string()][..]));
    }

    #[test]
    fn a_prefix_on_either_side_is_seen() {
        let wrapped = adopt(&program(), &[held("module.base.words.weight", &[5, 2], 7)]).unwrap();
        assert_eq!(wrapped.prefix, Some(Prefix::InCheckpoint("module.".into())));
        assert_eq!((places(&wrapped)[0], wrapped.unused), (Some(7), 0));
        let bare =
            adopt(&program(), &[held("words.weight", &[5, 2], 7), held("norm.mean", &[2], 9)]).unwrap();
        assert_eq!(bare.prefix, Some(Prefix::InModel("base.".into())));
        assert_eq!(places(&bare), [Some(7), Some(9), Some(7)]);
    }

    #[test]
    fn what_does_not_fit_is_listed() {
        let faults = |checkpoint: &[Tensor]| {
            let errors = adopt(&program(), checkpoint).unwrap_err();
            errors.iter().map(WeightError::to_string).collect::<Vec<_>>()
        };
        assert_eq!(faults(&[]), ["`base.words.weight` is not in the checkpoint"]);
        assert_eq!(
            faults(&[held("base.words.weight", &[4, 2], 0)]),
            ["`base.words.weight` is 5x2 in the model and 4x2 in the checkpoint"]
        );
        let low = Tensor { dtype: DType::BFloat16, ..held("base.words.weight", &[5, 2], 0) };
        assert_eq!(
            faults(&[low]),
            ["`base.words.weight` is float32 in the model and bfloat16 in the checkpoint"]
        );
        let errors = adopt(&program(), &[held("base.word.weight", &[5, 2], 0)]).unwrap_err();
        let near = WeightError::Missing {
            tensor: "base.words.weight".into(),
            similar: Some("base.word.weight".into()),
        };
        assert_eq!(errors, [near]);
    }

    #[test]
    fn numbers_that_sizes_were_computed_from_stay() {
        let mut program = program();
        program.literals.insert(TensorId(1), tracer::Constant::Int(3));
        let checkpoint = [held("base.words.weight", &[5, 2], 100), held("base.norm.mean", &[2], 200)];
        assert_eq!(places(&adopt(&program, &checkpoint).unwrap())[1], Some(40));
    }
}
