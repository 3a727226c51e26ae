//! The code files, parsed when a class or function of theirs is first asked for.

use std::{cell::OnceCell, collections::HashMap};

use crate::{
    code::{
        self,
        ast::{Class, File, Function},
        offset_in,
    },
    error::{SourceRange, TraceError},
    program::{Source, Span},
};

/// All code of an archive.
pub(crate) struct Library<'a> {
    pub(crate) sources: &'a [Source],
    by_name: HashMap<&'a str, usize>,
    files: Vec<OnceCell<Result<File<'a>, TraceError>>>,
}

impl<'a> Library<'a> {
    pub(crate) fn new(sources: &'a [Source]) -> Self {
        Library {
            sources,
            by_name: sources
                .iter()
                .enumerate()
                .map(|(index, source)| (source.name.as_str(), index))
                .collect(),
            files: sources.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// Finds `__torch__.a.b.Name` in `code/__torch__/a/b.py`.
    pub(crate) fn class(&self, qualified: &str) -> Result<Option<(usize, &Class<'a>)>, TraceError> {
        let Some((space, name)) = qualified.rsplit_once('.') else { return Ok(None) };
        let Some((index, file)) = self.file(space)? else { return Ok(None) };
        Ok(file.classes.get(name).map(|class| (index, class)))
    }

    /// Finds a free function by its qualified name.
    pub(crate) fn function(&self, qualified: &str) -> Result<Option<(usize, &Function<'a>)>, TraceError> {
        let Some((space, name)) = qualified.rsplit_once('.') else { return Ok(None) };
        let Some((index, file)) = self.file(space)? else { return Ok(None) };
        Ok(file.functions.get(name).map(|function| (index, function)))
    }

    fn file(&self, space: &str) -> Result<Option<(usize, &File<'a>)>, TraceError> {
        let name = format!("code/{}.py", space.replace('.', "/"));
        let Some(&index) = self.by_name.get(name.as_str()) else { return Ok(None) };
        let file = self.files[index].get_or_init(|| code::parse_file(&self.sources[index]));
        match file {
            Ok(file) => Ok(Some((index, file))),
            Err(error) => Err(error.clone()),
        }
    }

    pub(crate) fn span(&self, source: usize, text: &str) -> Span {
        let start = offset_in(&self.sources[source].text, text);
        Span { source: source as u32, start: start as u32, end: (start + text.len()) as u32 }
    }

    pub(crate) fn place(&self, source: usize, text: &str) -> SourceRange {
        let start = offset_in(&self.sources[source].text, text);
        SourceRange { source: Box::new(self.sources[source].clone()), range: start..start + text.len() }
    }
}

/// Takes the marks of `torch.jit` off a class name: `__torch__.a.___torch_mangle_3.B` is `a.B`.
pub(crate) fn unmangle(qualified: &str) -> String {
    let mut name = String::with_capacity(qualified.len());
    let bare = qualified.strip_prefix("__torch__.").unwrap_or(qualified);
    for part in bare.split('.').filter(|part| !part.starts_with("___torch_mangle_")) {
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(part);
    }
    name
}
