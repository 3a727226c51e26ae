//! Packs the cost models that ship: as text they would take 2.6 MB of every binary.

use std::{env, fs, io::Write, path::Path};

use flate2::{Compression, write::GzEncoder};

fn main() {
    let folder = Path::new("src/shipped");
    println!("cargo::rerun-if-changed={}", folder.display());
    let out = env::var_os("OUT_DIR").expect("cargo names a folder");
    for entry in fs::read_dir(folder).expect("the models are there") {
        let path = entry.expect("the folder can be listed").path();
        let text = fs::read(&path).expect("a model can be read");
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&text).expect("memory takes all");
        let name = path.file_stem().expect("a file has a name").to_owned();
        let packed = packed.finish().expect("memory takes all");
        fs::write(Path::new(&out).join(name).with_extension("gz"), packed)
            .expect("cargo's folder takes files");
    }
}
