//! The files that contain weights: a trace, or a separate checkpoint, whole or in parts.
//!
//! Codegen copies from a single source, in which the files are concatenated, the trace first, so that a position
//! identifies the file; none is read before a tensor of it is copied.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use codegen::{Adopted, Prefix, ReadAt, WeightError};
use tracer::{Bytes, Role, Tensor};

use crate::{
    failure::{Failure, note},
    files::{self, Opened},
    model::{is_exported, trace_failure},
    workspace::ModelFile,
};

/// Concatenated files.
#[derive(Clone, Debug)]
pub struct Sources {
    files: Arc<Vec<Extent>>,
}

#[derive(Debug)]
struct Extent {
    path: PathBuf,
    start: u64,
    length: u64,
    state: files::State,
    /// The file itself, if it is open already: a model's.
    opened: Option<Arc<Opened>>,
}

impl Sources {
    /// One file.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        Self::joined(None, [path])
    }

    /// A model's file.
    pub fn of_model(model: &ModelFile) -> Result<Self, Failure> {
        Self::joined(Some(model), [])
    }

    fn joined<'p>(
        model: Option<&ModelFile>,
        paths: impl IntoIterator<Item = &'p Path>,
    ) -> Result<Self, Failure> {
        let mut start = 0_u64;
        let mut files = Vec::new();
        if let Some(model) = model {
            let (opened, state) = (model.opened(), model.opened().state());
            start = opened.size();
            let path = model.path().to_path_buf();
            files.push(Extent { path, start: 0, length: start, state, opened: Some(opened.clone()) });
        }
        for path in paths {
            let data =
                fs::metadata(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
            let (length, state) = (data.len(), files::State::of(&data));
            files.push(Extent { path: path.to_path_buf(), start, length, state, opened: None });
            start = start.saturating_add(length);
        }
        Ok(Self { files: Arc::new(files) })
    }

    /// Refuses results if a file has changed since the positions in it were read.
    pub fn check_unchanged(&self) -> Result<(), Failure> {
        let is_changed = |file: &&Extent| {
            !fs::metadata(&file.path).is_ok_and(|data| files::State::of(&data) == file.state)
        };
        self.files.iter().find(is_changed).map_or(Ok(()), |file| Err(files::changed(&file.path)))
    }

    /// Returns the file at a position.
    pub fn path_at(&self, position: u64) -> &Path {
        let index = self.files.partition_point(|file| file.start <= position).saturating_sub(1);
        self.files.get(index).map_or(Path::new(""), |file| &file.path)
    }

    /// Returns a reader with its own position, which keeps the last file open.
    pub fn open(&self) -> Source {
        Source { sources: self.clone(), open: None }
    }
}

/// Reads ranges of the sources: mapped pages would count as this process's memory.
pub struct Source {
    sources: Sources,
    open: Option<(usize, File)>,
}

impl ReadAt for Source {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        let files = &self.sources.files;
        let index = files.partition_point(|file| file.start <= position).saturating_sub(1);
        let extent = files.get(index).ok_or(io::ErrorKind::UnexpectedEof)?;
        let at = position - extent.start;
        // A tensor is in one file.
        if at.checked_add(buffer.len() as u64).is_none_or(|end| end > extent.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(opened) = &extent.opened {
            return opened.read_at(at, buffer).map_err(|error| of_source(&extent.path, &error));
        }
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            let file = File::open(&extent.path).map_err(|error| of_source(&extent.path, &error))?;
            // Another file may have taken its name since the code was read.
            if !file.metadata().is_ok_and(|data| files::State::of(&data) == extent.state) {
                return Err(of_source(&extent.path, &io::ErrorKind::UnexpectedEof.into()));
            }
            self.open = Some((index, file));
        }
        let (_, file) = self.open.as_mut().expect("opened above");
        read_exact_at(file, at, buffer).map_err(|error| of_source(&extent.path, &error))
    }
}

/// A read error of a source, which names it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct SourceError(String);

fn of_source(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(SourceError(match error.kind() {
        io::ErrorKind::UnexpectedEof => files::changed(path).to_string(),
        _ => format!("{}: {error}", path.display()),
    }))
}

/// Tells whether an error comes from reading a source, not from writing.
pub fn is_of_source(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<SourceError>())
}

/// Turns a read error of a source into a failure.
pub fn read_failure(error: io::Error) -> Failure {
    Failure::input(error)
}

#[cfg(unix)]
fn read_exact_at(file: &mut File, position: u64, buffer: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, position)
}

#[cfg(not(unix))]
fn read_exact_at(file: &mut File, position: u64, buffer: &mut [u8]) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(position))?;
    file.read_exact(buffer)
}

/// Refuses a model whose trace has no weights, before anything is planned or written.
pub fn require(model: &ModelFile) -> Result<(), Failure> {
    if !model.program.tensors.iter().any(is_absent) {
        return Ok(());
    }
    let made = if is_exported(&model.program) { "exported" } else { "traced" };
    Err(Failure::input(format!("{} was {made} without its weights", model.path().display())).with_hint(
        "name the checkpoint that holds them: --weights FILE or FOLDER (.safetensors, or state dicts of torch.save)",
    ))
}

/// Tells whether a trace names the tensor but lacks its values.
fn is_absent(tensor: &Tensor) -> bool {
    tensor.storage.as_ref().is_some_and(|storage| storage.position.is_none())
}

/// A program with the weights of a checkpoint, and the files to copy from.
pub struct Weighted {
    /// The program, and how the checkpoint matches it.
    pub adopted: Adopted,
    /// Trace and checkpoint.
    pub sources: Sources,
}

/// Takes the weights of a model from a checkpoint: returns the positions of its tensors in the model's file and the
/// checkpoint's.
pub fn adopt(model: &ModelFile, checkpoint: &Path) -> Result<Weighted, Failure> {
    let parts = parts(checkpoint)?;
    let sources = Sources::joined(Some(model), parts.iter().map(|part| part.path.as_path()))?;
    let starts = sources.files[1..].iter().map(|file| file.start);
    let mut tensors = Vec::new();
    let mut met: BTreeMap<String, &Path> = BTreeMap::new();
    for (part, start) in parts.iter().zip(starts) {
        for mut tensor in part.tensors()? {
            if let Some(storage) = &mut tensor.storage {
                storage.position = storage.position.and_then(|position| position.checked_add(start));
            }
            if let Some(other) = met.insert(tensor.path.clone(), &part.path) {
                return Err(Failure::input(format!(
                    "`{}` is in {} and in {}",
                    tensor.path,
                    other.display(),
                    part.path.display()
                ))
                .with_hint("name one file, or the index of the checkpoint"));
            }
            tensors.push(tensor);
        }
    }
    let adopted = codegen::adopt(&model.program, &tensors)
        .map_err(|errors| mismatch(&errors, tensors.len(), checkpoint))?;
    Ok(Weighted { adopted, sources })
}

impl Weighted {
    /// Reports the differences between the checkpoint and the model.
    pub fn say(&self, checkpoint: &Path) {
        let checkpoint = checkpoint.display();
        match &self.adopted.prefix {
            Some(Prefix::InCheckpoint(prefix)) => {
                note(format!("names in {checkpoint} begin with `{prefix}`, the model's do not"));
            }
            Some(Prefix::InModel(prefix)) => {
                note(format!("names in {checkpoint} lack the model's `{prefix}`"));
            }
            None => {}
        }
        if let Some(first) = self.adopted.kept.first() {
            let more = match self.adopted.kept.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            note(format!("`{first}`{more} stays as traced: {checkpoint} has it with another size or type"));
        }
        if self.adopted.unused > 0 {
            note(format!("{} tensors in {checkpoint} are not the model's", self.adopted.unused));
        }
    }
}

fn mismatch(errors: &[WeightError], held: usize, checkpoint: &Path) -> Failure {
    let mut message = format!("{} does not hold the weights of this model", checkpoint.display());
    for error in errors.iter().take(8) {
        message.push_str(&format!("\n       {error}"));
        if let WeightError::Missing { similar: Some(similar), .. } = error {
            message.push_str(&format!(" (`{similar}` is)"));
        }
    }
    if errors.len() > 8 {
        message.push_str(&format!("\n       and {} more, of {held} tensors that it holds", errors.len() - 8));
    }
    let dtype = errors.iter().find_map(|error| match error {
        WeightError::Type { found, .. } if found.is_float() => Some(found.name()),
        _ => None,
    });
    Failure::input(message).with_hint(match dtype {
        Some(dtype) => format!("trace the model with the type of its weights: trace --dtype {dtype}"),
        None => "names must be those of the traced model's state_dict()".to_owned(),
    })
}

/// A file of a checkpoint.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    /// The tensors that an index assigns to it.
    wanted: Option<BTreeSet<String>>,
}

impl Part {
    fn tensors(&self) -> Result<Vec<Tensor>, Failure> {
        let file = files::open(&self.path)?;
        let tensors = file.unless_changed(tracer::read_tensors_at(&file).map_err(|error| {
            trace_failure(&self.path, &error)
                .with_hint("--weights takes .safetensors and files of torch.save(model.state_dict(), FILE)")
        }))?;
        // A trace has more than weights, or fewer.
        let tensors = tensors.into_iter().filter(|tensor| tensor.role != Role::Constant);
        let tensors: Vec<Tensor> = tensors.collect();
        if tensors.iter().any(is_absent) {
            let failure = Failure::input(format!("{} was traced without its weights", self.path.display()));
            return Err(failure.with_hint("--weights needs a file that has them"));
        }
        let Some(wanted) = &self.wanted else { return Ok(tensors) };
        let tensors: Vec<Tensor> =
            tensors.into_iter().filter(|tensor| wanted.contains(&tensor.path)).collect();
        if tensors.len() < wanted.len() {
            let held: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.path.as_str()).collect();
            let lost = wanted.iter().find(|name| !held.contains(name.as_str())).map_or("", String::as_str);
            return Err(Failure::input(format!(
                "{} lacks `{lost}`, which the index lists",
                self.path.display()
            )));
        }
        Ok(tensors)
    }
}

/// Finds the files of a checkpoint.
fn parts(checkpoint: &Path) -> Result<Vec<Part>, Failure> {
    if !checkpoint.is_dir() {
        return if checkpoint.extension().is_some_and(|extension| extension == "json") {
            indexed(checkpoint)
        } else {
            Ok(vec![Part { path: checkpoint.to_path_buf(), wanted: None }])
        };
    }
    let mut names: Vec<PathBuf> = fs::read_dir(checkpoint)?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    let ending = |end: &str| -> Vec<&PathBuf> {
        names
            .iter()
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(end)))
            .collect()
    };
    // In the order of preference of Hugging Face's loader.
    for end in [".safetensors.index.json", ".safetensors", ".bin.index.json", ".bin", ".pt", ".pth"] {
        let found = ending(end);
        match (&found[..], end.ends_with(".json")) {
            ([], _) => {}
            ([index], true) => return indexed(index),
            ([first, second, ..], true) => {
                return Err(Failure::input(format!(
                    "{} holds several checkpoints: {} and {}",
                    checkpoint.display(),
                    first.file_name().unwrap_or_default().display(),
                    second.file_name().unwrap_or_default().display()
                ))
                .with_hint("name one of them"));
            }
            (all, false) => {
                return Ok(all.iter().map(|path| Part { path: (*path).clone(), wanted: None }).collect());
            }
        }
    }
    Err(Failure::input(format!("{} holds no weights", checkpoint.display()))
        .with_hint("expected are .safetensors files, or .bin, .pt or .pth files that torch.save wrote"))
}

/// Reads the index of a sharded checkpoint: `{"weight_map": {NAME: FILE, …}}`.
fn indexed(index: &Path) -> Result<Vec<Part>, Failure> {
    let wrong = |reason: &str| Failure::input(format!("{}: {reason}", index.display()));
    let json: serde_json::Value =
        serde_json::from_str(&files::read_text(index)?).map_err(|error| wrong(&error.to_string()))?;
    let map = json.get("weight_map").and_then(serde_json::Value::as_object).ok_or_else(|| {
        wrong("there is no `weight_map`")
            .with_hint("the index of a sharded checkpoint has one: {\"weight_map\": {NAME: FILE, …}}")
    })?;
    let folder = index.parent().unwrap_or(Path::new(""));
    let mut parts: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in map {
        let file = file.as_str().ok_or_else(|| wrong(&format!("the file of `{name}` is not a string")))?;
        // An index from a stranger must not open files elsewhere.
        if !matches!(Path::new(file).components().collect::<Vec<_>>()[..], [Component::Normal(_)]) {
            return Err(wrong(&format!("`{file}` is not a file in its folder")));
        }
        parts.entry(file).or_default().insert(name.clone());
    }
    let part =
        |(file, wanted): (&str, BTreeSet<String>)| Part { path: folder.join(file), wanted: Some(wanted) };
    Ok(parts.into_iter().map(part).collect())
}
