//! `model-analyze profile --links`: times of collectives between processes, in the form of nccl-tests, and the link fitted to them.
//!
//! Python's torch.distributed measures, as `train.py` will call it: over gloo between processes, over NCCL between GPUs. Under torchrun
//! each of its processes runs this command, and the first writes the file.

use serde_json::{Value, json};

use super::{Answer, Profile};
use crate::{
    commands::{fit::links, trace::converse},
    failure::Failure,
    files,
    shell::quoted,
};

const SCRIPT: &str = include_str!("../../links.py");

/// The largest messages unless `--largest` names others: 64 MiB between processes, 512 MiB between GPUs.
const LARGEST: [u64; 2] = [64 << 20, 512 << 20];
/// Smaller ones do not tell a bandwidth.
const LEAST_LARGEST: u64 = 1 << 20;

/// Measures, writes the file and fits a link to it; returns nothing where another rank answers.
pub fn measure(profile: &Profile) -> Result<Option<Answer>, Failure> {
    let is_cuda = match profile.device.as_str() {
        "cpu" => false,
        "cuda" => true,
        other => {
            return Err(Failure::input(format!("--links joins several devices, not `{other}` alone"))
                .with_hint("--device cpu or --device cuda"));
        }
    };
    let largest = profile.largest.map_or(LARGEST[usize::from(is_cuda)], |bytes| bytes.0);
    if largest < LEAST_LARGEST {
        return Err(Failure::input("--largest is less than 1 MiB, which does not tell a bandwidth"));
    }
    let request = json!({
        "ranks": profile.ranks, "device": profile.device, "largest": largest, "minutes": profile.minutes,
    });
    let last = converse(&profile.python, SCRIPT, &request)?;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    if let Some(error) = last.get("error") {
        let failure = Failure::input(text(error, "message").unwrap_or_default());
        let hint = text(error, "hint").filter(|hint| !hint.is_empty());
        return Err(match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        });
    }
    let Some(tables) = text(&last["done"], "text") else { return Ok(None) };
    files::write(&profile.output, tables.as_bytes())?;
    let path = profile.output.display().to_string();
    let found = links::fit(std::slice::from_ref(&profile.output)).map_err(|failure| {
        failure.with_hint("measure again while nothing else runs, or up to a larger --largest")
    })?;
    let next = format!("\n# written to a file: model-analyze fit {} -o level.yaml\n", quoted(&path));
    Ok(Some(Answer {
        text: links::text(&found) + &next,
        json: serde_json::to_value(&found).expect("an answer is JSON"),
    }))
}
