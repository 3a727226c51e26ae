//! A fixture as it is emitted, in memory.

use std::{collections::BTreeMap, path::Path};

use codegen::{
    About, Assignment, Copied, CutOptions, Names, ReadAt, Targets, Written, WrittenError, check_written, cut,
};
use tracer::Program;

/// An emitted model, and what its check needs.
pub struct Emitted {
    pub program: Program,
    pub source: Vec<u8>,
    pub copied: BTreeMap<String, Vec<Copied>>,
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Emitted {
    /// Emits a fixture in as many equal stages.
    pub fn of(name: &str, n_stages: usize, about: &About, targets: Targets) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/traces").join(name);
        let source = std::fs::read(path).unwrap();
        let program = tracer::read_archive(&source).unwrap();
        let names = Names::new(&program);
        let n_nodes = program.nodes.len();
        let cuts: Vec<usize> = (1..n_stages).map(|stage| stage * n_nodes / n_stages).collect();
        let pipeline =
            cut(&program, &Assignment::at(n_nodes, &cuts), &names, &CutOptions::default()).unwrap();
        let model = schema::ModelReference { name: program.name.clone(), digest: tracer::digest(&program) };
        let about = About { model: Some(model), ..about.clone() };
        let facts = codegen::facts(&program);
        let (mut stages, manifest) =
            codegen::stages(&program, &names, &pipeline, &facts, &about, targets).unwrap();
        stages.push(codegen::manifest_file(&manifest));
        let (mut files, mut copied) = (BTreeMap::new(), BTreeMap::new());
        for file in stages {
            let mut out = Vec::new();
            let filled = file.content.write(&mut &source[..], &mut out).unwrap();
            assert_eq!(filled.digest.bytes, out.len() as u64, "{}", file.path);
            assert_eq!(filled.digest.crc32, format!("{:08x}", crc32fast::hash(&out)), "{}", file.path);
            copied.insert(file.path.clone(), filled.copied);
            files.insert(file.path, out);
        }
        Self { program, source, copied, files }
    }

    /// Reads the files back.
    pub fn check(mut self: &Self) -> Result<(), WrittenError> {
        check_written(&self.program, &self.copied, &mut &self.source[..], &mut self)
    }
}

impl Written for &Emitted {
    type Bytes = Vec<u8>;

    fn bytes(&mut self, file: &str) -> std::io::Result<Vec<u8>> {
        self.files.get(file).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn read_at(&mut self, file: &str, position: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        (&self.files[file][..]).read_at(position, buffer)
    }
}
