//! Records the writing program and the model in every emitted file: as a comment in texts, as metadata in archives.
//!
//! JSON and layout strings have no place for it; the manifest records it for them.

use crate::{
    content::{Content, File, Piece, Record},
    manifest::About,
};

/// Adds the tool's version and the model's digest to files.
pub fn sign(files: &mut [File], about: &About) {
    let origin = match &about.model {
        Some(model) => format!("{}, model {}", about.written_by, model.digest),
        None => about.written_by.clone(),
    };
    for file in files {
        let kind = file.path.rsplit_once('.').map_or("", |(_, kind)| kind);
        match (&mut file.content, kind) {
            (Content::Zip(records), "pt") => {
                let top = records.first().and_then(|record| record.name.split('/').next()).unwrap_or("stage");
                let name = format!("{top}/extra/written_by");
                records.push(Record { name, pieces: vec![Piece::Bytes(origin.clone().into_bytes())] });
            }
            (Content::Plain(pieces), "safetensors") => {
                if let Some(Piece::Bytes(header)) = pieces.first_mut() {
                    *header = in_header(header, &origin);
                }
            }
            (Content::Plain(pieces), "py" | "toml" | "env" | "sh" | "sbatch" | "yaml") => {
                if let Some(Piece::Bytes(text)) = pieces.first_mut() {
                    // The interpreter's line stays first.
                    let at = if text.starts_with(b"#!") {
                        text.iter().position(|b| *b == b'\n').map_or(text.len(), |at| at + 1)
                    } else {
                        0
                    };
                    text.splice(at..at, format!("# Written by {origin}.\n").into_bytes());
                }
            }
            _ => {}
        }
    }
}

/// Adds an entry to the metadata of a `.safetensors` header, which its length precedes.
fn in_header(header: &[u8], origin: &str) -> Vec<u8> {
    const METADATA: &[u8] = br#"{"__metadata__":{"#;
    let Some(rest) = header.get(8..).and_then(|json| json.strip_prefix(METADATA)) else {
        return header.to_vec();
    };
    let mut json = METADATA.to_vec();
    let value = serde_json::Value::from(origin);
    json.extend(format!("\"written_by\":{value},").into_bytes());
    json.extend(rest.trim_ascii_end());
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut signed = (json.len() as u64).to_le_bytes().to_vec();
    signed.append(&mut json);
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(path: &str, bytes: &[u8]) -> Vec<u8> {
        let about = About { written_by: "model-analyze 9".into(), ..About::default() };
        let content = Content::Plain(vec![Piece::Bytes(bytes.to_vec())]);
        let mut files = [File { path: path.into(), content }];
        sign(&mut files, &about);
        match &files[0].content {
            Content::Plain(pieces) => match &pieces[..] {
                [Piece::Bytes(bytes)] => bytes.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn comments_stand_where_they_do_no_harm() {
        assert_eq!(signed("a.py", b"import torch\n"), b"# Written by model-analyze 9.\nimport torch\n");
        assert_eq!(signed("a.sh", b"#!/bin/sh\nls\n"), b"#!/bin/sh\n# Written by model-analyze 9.\nls\n");
        assert_eq!(signed("a.json", b"{}"), b"{}");
    }

    #[test]
    fn metadata_keeps_the_header_readable() {
        let json =
            br#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend(json);
        let mut file = signed("a.safetensors", &file);
        file.extend(1_f32.to_le_bytes());
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&file).expect("a header");
        let about = metadata.metadata().as_ref().expect("metadata");
        assert_eq!(about["written_by"], "model-analyze 9");
        assert_eq!(about["format"], "pt");
        assert_eq!(safetensors::SafeTensors::deserialize(&file).expect("a file").names(), ["w"]);
    }
}
