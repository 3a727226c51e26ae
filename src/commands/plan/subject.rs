//! The subject of a plan: a profile graph or a traced model.

use std::path::Path;

use schema::PipedreamProfile;
use tracer::Program;

use crate::workspace::Workspace;

/// The subject of a plan.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// A profile graph and its file.
    Profile(&'a Path, &'a PipedreamProfile),
    /// A traced model.
    Model(&'a Workspace),
}

impl Subject<'_> {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Profile(path, _) => path,
            Self::Model(workspace) => workspace.file.path(),
        }
    }

    /// Returns the name of the model.
    pub(super) fn name(&self) -> String {
        name_of(self.path())
    }

    /// Returns the program that stages are cut from; `None` if it is not an archive.
    pub(super) fn archive(&self) -> Option<&Program> {
        match self {
            Self::Profile(..) => None,
            Self::Model(workspace) => {
                Some(&workspace.file.program).filter(|program| program.archive.is_some())
            }
        }
    }
}

/// Returns a model's name from its file.
pub(super) fn name_of(file: &Path) -> String {
    file.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
