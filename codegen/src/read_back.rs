//! The check after writing: reads the files back, independently of the code that wrote them.
//!
//! The manifest, the archives, the sources and the headers of weights are read back: every operator of the model runs
//! in one stage, in each format, and in further ones only as often as the manifest declares; every parameter is in a
//! stage, and those in several are declared tied; every transferred value is made before it is used; every tensor is
//! where its file declares it, with the model's bytes. Memory is O(code), independent of the size of the weights.

mod expression;
mod page;
mod source;
mod weights;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use safetensors::{SafeTensors, tensor::Metadata};
use schema::{Manifest, StageFiles};
use thiserror::Error;
use tracer::{Program, Role, Tensor};

use crate::{
    content::{Copied, ReadAt},
    manifest::cut_row,
    names::python_quoted,
    nodes::is_detour,
};

/// A fault of a written file.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{file}: {fault}")]
pub struct WrittenError {
    /// The file.
    pub file: String,
    /// The fault.
    pub fault: WrittenFault,
}

/// A fault of a written file.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum WrittenFault {
    /// It cannot be read back.
    #[error("it cannot be read back: {0}")]
    Unreadable(String),
    /// A line of Python that is not in the grammar of stages.
    #[error("line {line} is not in the grammar of stages: `{text}`")]
    Line {
        /// Which, counted from 1.
        line: usize,
        /// Its content.
        text: String,
    },
    /// An input that no earlier stage makes.
    #[error("input `{input}` comes from `{from}`, which is not available before it")]
    Boundary {
        /// Its name.
        input: String,
        /// Its declared source.
        from: String,
    },
    /// A stage whose arguments or results are not those of the manifest.
    #[error("it takes or returns {found}, the manifest has {expected}")]
    Signature {
        /// By the manifest.
        expected: String,
        /// In the file.
        found: String,
    },
    /// A tensor that the source and the manifest cut differently, or shards without exchanges.
    #[error("its cuts differ from the manifest's: {0}")]
    Cuts(String),
    /// A tensor that is missing, foreign, or of another size.
    #[error("tensor `{0}` is missing, or not the model's")]
    Tensor(String),
    /// Bytes of weights that are not the model's.
    #[error("{0}: these are not the model's bytes")]
    Bytes(String),
    /// A tensor in several stages that is not declared tied, or the reverse.
    #[error("tensor `{0}` is in several stages and not declared tied, or declared tied and in one stage")]
    Tied(String),
    /// An operator that runs in no stage, or in more than the manifest declares.
    #[error("operator {operator} runs {found} times in the stages, {expected} times in the model")]
    Operators {
        /// Its name.
        operator: String,
        /// In the model.
        expected: usize,
        /// In the stages.
        found: usize,
    },
    /// Operators run in another order than in the model.
    #[error("`{operator}` is not in the model's order, it follows {after}")]
    Order {
        /// The operator that comes too early or too late.
        operator: String,
        /// The preceding operator.
        after: String,
    },
}

use WrittenFault as Fault;

/// The path of the manifest.
const MANIFEST: &str = "stages/manifest.json";
/// The file with the exchanges of shared layers.
const SHARDS: &str = "stages/shards.py";

/// The emitted files in the output folder.
pub trait Written {
    /// The content of a file.
    type Bytes: AsRef<[u8]>;

    /// Returns a file, mapped: only accessed pages are read.
    ///
    /// # Errors
    /// If it cannot be read.
    fn bytes(&mut self, file: &str) -> io::Result<Self::Bytes>;

    /// Fills a buffer from this position of a file on. Mapped pages would count as this process's memory.
    ///
    /// # Errors
    /// If the file ends or cannot be read.
    fn read_at(&mut self, file: &str, position: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Reads the files of an emitted model back and checks them. `copied` has the pieces that each took from `source`.
///
/// # Errors
/// The first fault.
pub fn check_written(
    program: &Program,
    copied: &BTreeMap<String, Vec<Copied>>,
    source: &mut dyn ReadAt,
    written: &mut impl Written,
) -> Result<(), WrittenError> {
    let at = |file: &str, fault: Fault| WrittenError { file: file.to_string(), fault };
    let unreadable = |file: &str, error: io::Error| at(file, Fault::Unreadable(error.to_string()));
    let copied = |file: &str| copied.get(file).map_or(&[][..], Vec::as_slice);
    let text = written.bytes(MANIFEST).map_err(|error| unreadable(MANIFEST, error))?;
    let manifest: Manifest = serde_json::from_slice(text.as_ref())
        .map_err(|error| at(MANIFEST, Fault::Unreadable(error.to_string())))?;
    check_boundaries(program, &manifest).map_err(|fault| at(MANIFEST, fault))?;
    check_homes(program, &manifest).map_err(|fault| at(MANIFEST, fault))?;
    let by_path: BTreeMap<&str, &Tensor> = program.tensors.iter().map(|t| (t.path.as_str(), t)).collect();
    let by_place: BTreeMap<String, &Tensor> =
        by_path.iter().map(|(path, tensor)| (in_tree(path), *tensor)).collect();
    // Conditions are repeated with the branches that they decide, without a declaration.
    let may_repeat = branches(program);
    let mut operators: BTreeMap<String, usize> = BTreeMap::new();
    let mut has_archives = false;
    let mut sources = source::Sources::new(program);
    let mut has_sources = false;
    for stage in &manifest.stages {
        if let Some(name) = &stage.files.torchscript {
            let file = format!("stages/{name}");
            let archive = written.bytes(&file).map_err(|error| unreadable(&file, error))?;
            let found = tracer::read_archive(archive.as_ref())
                .map_err(|error| at(&file, Fault::Unreadable(error.to_string())))?;
            check_archive(&by_place, stage, &found).map_err(|fault| at(&file, fault))?;
            check_order(program, &found, may_repeat).map_err(|fault| at(&file, fault))?;
            drop(archive);
            let mut read = |place: u64, buffer: &mut [u8]| written.read_at(&file, place, buffer);
            weights::archive(&by_place, &found, copied(&file), source, &mut read)
                .map_err(|fault| at(&file, fault))?;
            for operator in shown(&found) {
                *operators.entry(operator).or_default() += 1;
            }
            has_archives = true;
        }
        if let Some(name) = &stage.files.weights {
            let file = format!("stages/{name}");
            let held = written.bytes(&file).map_err(|error| unreadable(&file, error))?;
            let (start, metadata) =
                check_weights(&by_path, stage, held.as_ref()).map_err(|fault| at(&file, fault))?;
            drop(held);
            let mut read = |place: u64, buffer: &mut [u8]| written.read_at(&file, place, buffer);
            weights::safetensors(&by_path, stage, &metadata, start, copied(&file), source, &mut read)
                .map_err(|fault| at(&file, fault))?;
        }
        if let Some(name) = &stage.files.python {
            let file = format!("stages/{name}");
            let text = written.bytes(&file).map_err(|error| unreadable(&file, error))?;
            let text = std::str::from_utf8(text.as_ref())
                .map_err(|error| at(&file, Fault::Unreadable(error.to_string())))?;
            check_source(stage, text).map_err(|fault| at(&file, fault))?;
            let repeated = stage.repeated_operators as usize;
            sources.read(text, repeated).map_err(|fault| at(&file, fault))?;
            has_sources = true;
        }
    }
    if has_sources && manifest.stages.iter().any(|stage| stage.cuts.is_some()) {
        let held = written.bytes(SHARDS).map_err(|error| unreadable(SHARDS, error))?;
        // The line with the writing program precedes it.
        if !held.as_ref().ends_with(crate::python::shipped::SHARDS.as_bytes()) {
            return Err(at(SHARDS, Fault::Unreadable("it is not the file that ships".into())));
        }
    }
    if has_sources {
        sources.finish().map_err(|fault| at(MANIFEST, fault))?;
    }
    if has_archives {
        check_operators(program, &manifest, &operators, may_repeat).map_err(|fault| at(MANIFEST, fault))
    } else {
        Ok(())
    }
}

/// Every input is one of the model's, or an output of an earlier stage.
fn check_boundaries(program: &Program, manifest: &Manifest) -> Result<(), Fault> {
    if manifest.inputs.len() != program.inputs.len() || manifest.stages.is_empty() {
        let expected = format!("{} inputs", manifest.inputs.len());
        return Err(Fault::Signature { expected, found: format!("{} inputs", program.inputs.len()) });
    }
    let mut made: BTreeSet<String> =
        manifest.inputs.iter().map(|input| format!("input:{}", input.name)).collect();
    for (index, stage) in manifest.stages.iter().enumerate() {
        for input in &stage.inputs {
            let is_late = manifest.skips == "relay"
                && input.from.strip_prefix("stage:").is_some_and(|from| {
                    from.split_once(':').and_then(|(k, _)| k.parse().ok()) != index.checked_sub(1)
                });
            if is_late || !made.contains(&input.from) {
                return Err(Fault::Boundary { input: input.name.clone(), from: input.from.clone() });
            }
        }
        made.extend(stage.outputs.iter().map(|output| format!("stage:{index}:{}", output.name)));
    }
    Ok(())
}

/// Every parameter and buffer is in a stage; those that are trained in several are declared tied.
fn check_homes(program: &Program, manifest: &Manifest) -> Result<(), Fault> {
    let mut homes: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for stage in &manifest.stages {
        for name in stage.parameters.iter().chain(&stage.buffers) {
            homes.entry(name).or_default().insert(stage.stage);
        }
    }
    let mut shared: BTreeMap<(&str, u64), BTreeSet<(u32, &str)>> = BTreeMap::new();
    for tensor in program.tensors.iter().filter(|tensor| tensor.role != Role::Constant) {
        let Some(stages) = homes.remove(tensor.path.as_str()) else {
            return Err(Fault::Tensor(tensor.path.clone()));
        };
        if let (Role::Parameter, Some(storage)) = (tensor.role, &tensor.storage) {
            let holders = shared.entry((storage.record.as_str(), storage.offset)).or_default();
            holders.extend(stages.iter().map(|stage| (*stage, tensor.path.as_str())));
        }
    }
    if let Some(name) = homes.keys().next() {
        return Err(Fault::Tensor((*name).to_string()));
    }
    for holders in shared.values() {
        let stages: BTreeSet<u32> = holders.iter().map(|(stage, _)| *stage).collect();
        let is_declared = || {
            manifest.tied.iter().any(|tied| {
                let declared: BTreeSet<u32> = tied.holders.iter().map(|holder| holder.stage).collect();
                let is_known = |holder: &schema::TiedHolder| holders.contains(&(holder.stage, &*holder.name));
                declared == stages && tied.holders.iter().all(is_known)
            })
        };
        if stages.len() > 1 && !is_declared() {
            let first = holders.first().expect("there are several");
            return Err(Fault::Tied(first.1.to_string()));
        }
    }
    for tied in &manifest.tied {
        let is_one = |holders: &BTreeSet<(u32, &str)>| {
            tied.holders.iter().all(|holder| holders.contains(&(holder.stage, &*holder.name)))
        };
        if !shared.values().any(is_one) {
            let name = tied.holders.first().map_or_else(String::new, |holder| holder.name.clone());
            return Err(Fault::Tied(name));
        }
    }
    Ok(())
}

/// Returns a tensor's path as a tree of modules stores it, nested at dots. A path that begins with a dot has parts
/// without a name, which a tree loses.
fn in_tree(path: &str) -> String {
    path.trim_start_matches('.').to_string()
}

/// The archive has the arguments of the manifest, and the model's tensors, each at its place in the tree.
fn check_archive(
    by_place: &BTreeMap<String, &Tensor>,
    stage: &StageFiles,
    found: &Program,
) -> Result<(), Fault> {
    let names = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(", ");
    let expected = names(&mut stage.inputs.iter().map(|input| input.name.as_str()));
    let taken = names(&mut found.inputs.iter().map(|input| found.values[input.index()].name.as_str()));
    if expected != taken {
        return Err(Fault::Signature { expected, found: taken });
    }
    let mut returned = 0;
    crate::nodes::leaves(&found.output, &mut |_| returned += 1);
    if returned != stage.outputs.len() {
        let expected = format!("{} outputs", stage.outputs.len());
        return Err(Fault::Signature { expected, found: format!("{returned} outputs") });
    }
    let mut wanted: BTreeSet<String> =
        stage.parameters.iter().chain(&stage.buffers).map(|name| in_tree(name)).collect();
    for tensor in found.tensors.iter().filter(|tensor| tensor.role != Role::Constant) {
        let is_right = by_place.get(&in_tree(&tensor.path)).is_some_and(|model| {
            (model.dtype, &model.shape, model.role, model.requires_grad)
                == (tensor.dtype, &tensor.shape, tensor.role, tensor.requires_grad)
                && model.storage.is_some() == tensor.storage.is_some()
        });
        if !is_right || !wanted.remove(&in_tree(&tensor.path)) {
            return Err(Fault::Tensor(tensor.path.clone()));
        }
    }
    wanted.pop_first().map_or(Ok(()), |name| Err(Fault::Tensor(name)))
}

/// The header of the weights names the stage's tensors with their sizes, and the file has the declared length; returns
/// the position of its data, and the header.
fn check_weights(
    by_path: &BTreeMap<&str, &Tensor>,
    stage: &StageFiles,
    bytes: &[u8],
) -> Result<(u64, Metadata), Fault> {
    let unreadable = |error: safetensors::SafeTensorError| Fault::Unreadable(error.to_string());
    // The crate checks that the length matches the header.
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
    // The second name of a tied tensor has no bytes of its own.
    let key = |name: &str| {
        let tensor = by_path.get(name)?;
        let storage = tensor.storage.as_ref()?;
        Some((&storage.record, storage.offset, &tensor.shape, &tensor.strides, tensor.dtype))
    };
    let tensors = metadata.tensors();
    let held: BTreeSet<_> = tensors.keys().filter_map(|name| key(name)).collect();
    for name in stage.parameters.iter().chain(&stage.buffers) {
        let fault = || Fault::Tensor(name.clone());
        let tensor = by_path.get(name.as_str()).ok_or_else(fault)?;
        let is_complex = matches!(tensor.dtype, tracer::DType::Complex64 | tracer::DType::Complex128);
        let expected: Vec<usize> =
            tensor.shape.iter().map(|size| *size as usize).chain(is_complex.then_some(2)).collect();
        match tensors.get(name) {
            Some(info) if info.shape == expected => {}
            None if key(name).is_some_and(|key| held.contains(&key)) => {}
            _ => return Err(fault()),
        }
    }
    let names: BTreeSet<&str> = stage.parameters.iter().chain(&stage.buffers).map(String::as_str).collect();
    let is_foreign = |name: &&String| by_path.contains_key(name.as_str()) && !names.contains(name.as_str());
    match tensors.keys().find(is_foreign) {
        Some(name) => Err(Fault::Tensor(name.clone())),
        None => Ok((header as u64 + 8, metadata)),
    }
}

/// The source has the arguments of the manifest, and names the stage's tensors.
fn check_source(stage: &StageFiles, source: &str) -> Result<(), Fault> {
    let expected: String = stage.inputs.iter().map(|input| format!(", {}", input.name)).collect();
    let expected = format!("def forward(self{expected}):");
    // Classes of blocks stand in front of the stage.
    let found = source.lines().map(str::trim).rfind(|line| line.starts_with("def forward("));
    if found != Some(expected.as_str()) {
        let found = found.unwrap_or("no forward").to_string();
        return Err(Fault::Signature { expected, found });
    }
    let entries: BTreeSet<&str> = source.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    for name in stage.parameters.iter().chain(&stage.buffers) {
        let start = format!("{}: ", python_quoted(name));
        let is_there = entries.range(start.as_str()..).next().is_some_and(|line| line.starts_with(&start));
        if !is_there {
            return Err(Fault::Tensor(name.clone()));
        }
    }
    check_cuts(stage, source, &entries)
}

/// The source cuts the tensors that the manifest names; second names of a tensor are cut with the first.
fn check_cuts(stage: &StageFiles, source: &str, entries: &BTreeSet<&str>) -> Result<(), Fault> {
    let table = source.split_once("\nCUTS = {\n").and_then(|(_, rest)| rest.split_once("}\n"));
    let (Some((table, _)), Some(cuts)) = (table, &stage.cuts) else {
        return match (table, &stage.cuts) {
            (None, None) => Ok(()),
            _ => Err(Fault::Cuts("whether it is cut at all".into())),
        };
    };
    let names = || cuts.keys().chain(stage.group_cuts.keys());
    let row = |name: &String| cut_row(cuts.get(name).copied(), stage.group_cuts.get(name).copied());
    let declared: BTreeSet<String> =
        names().map(|name| format!("    {}: {},", python_quoted(name), row(name))).collect();
    if let Some(line) = table.lines().find(|line| !declared.contains(*line)) {
        return Err(Fault::Cuts(line.trim().into()));
    }
    let is_second = |name: &str| {
        let start = format!("{}: \"", python_quoted(name));
        entries.range(start.as_str()..).next().is_some_and(|line| line.starts_with(&start))
    };
    let missing = names().find(|name| {
        let start = format!("    {}: (", python_quoted(name));
        !table.lines().any(|line| line.starts_with(&start)) && !is_second(name)
    });
    missing.map_or(Ok(()), |name| Err(Fault::Cuts(name.clone())))
}

/// Operators of a program that its stages show; in-place ones may have become out-of-place. A cut adds and removes
/// steps that only convert numbers to tensors and back.
fn shown(program: &Program) -> impl Iterator<Item = String> + Clone {
    let names = program.nodes.iter().map(|node| node.operator.as_str());
    // A dictionary is constructed at the first operator that changes it, which depends on the order of lines.
    names.filter(|name| !is_detour(name) && *name != "prim::DictConstruct").map(|name| match name {
        // An item of a tuple, if the reader knows that it is one.
        "prim::TupleIndex" => "aten::__getitem__".to_string(),
        name if name.ends_with("__") => name.to_string(),
        name => name.trim_end_matches('_').to_string(),
    })
}

/// Tells whether a part of the model is kept as text because it branches: its conditions occur again there.
fn branches(program: &Program) -> bool {
    program.nodes.iter().any(|node| node.operator == "prim::Opaque")
}

/// A stage's operators are in the model's order, recomputed ones at their original place.
fn check_order(program: &Program, found: &Program, may_repeat: bool) -> Result<(), Fault> {
    let mut ahead = shown(program);
    let mut after = "nothing".to_string();
    for operator in shown(found) {
        let mut rest = ahead.clone();
        if rest.any(|other| other == operator) {
            ahead = rest;
        } else if !may_repeat || !shown(program).any(|other| other == operator) {
            return Err(Fault::Order { operator, after });
        }
        after = format!("`{operator}`");
    }
    Ok(())
}

/// Each operator runs as often as in the model; more often only as the manifest declares.
fn check_operators(
    program: &Program,
    manifest: &Manifest,
    found: &BTreeMap<String, usize>,
    may_repeat: bool,
) -> Result<(), Fault> {
    let mut expected: BTreeMap<String, usize> = BTreeMap::new();
    for operator in shown(program) {
        *expected.entry(operator).or_default() += 1;
    }
    let mut declared: usize = manifest.stages.iter().map(|stage| stage.repeated_operators as usize).sum();
    let names: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for operator in names {
        let count = |counts: &BTreeMap<String, usize>| counts.get(operator).copied().unwrap_or(0);
        let (expected, found) = (count(&expected), count(found));
        let wrong = || Fault::Operators { operator: operator.clone(), expected, found };
        if expected == 0 || found < expected {
            return Err(wrong());
        }
        declared = match declared.checked_sub(found - expected) {
            Some(rest) => rest,
            None if may_repeat => declared,
            None => return Err(wrong()),
        };
    }
    Ok(())
}
