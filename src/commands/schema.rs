//! `model-analyze schema`: the JSON Schemas of files and answers.

use clap::Args;

use crate::{
    failure::Failure,
    nearest::nearest,
    output::{Format, Output},
};

/// Arguments of `schema`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze schema
  model-analyze schema plan > plan.schema.json
  model-analyze schema --format json

Answers are named answer-COMMAND: answer-inspect is the output of `inspect --format json`.")]
pub struct Schema {
    /// A file or an answer; lists all when absent
    name: Option<String>,
    /// Output format; with json all schemas in one document
    #[arg(long, value_enum, default_value_t, conflicts_with = "name")]
    format: Format,
}

impl Schema {
    /// Prints one schema, or the list.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let all = schema::json_schemas();
        let Some(name) = &self.name else {
            return match self.format {
                Format::Json => {
                    let schemas = all.into_iter().map(|one| (one.name.to_string(), one.schema));
                    let schemas: serde_json::Map<_, _> = schemas.collect();
                    output.json(&serde_json::json!({"schema_version": 1, "schemas": schemas}))
                }
                Format::Text => {
                    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0);
                    let lines = all.iter().map(|one| format!("{:<width$}  {}\n", one.name, one.about));
                    output.text(&lines.collect::<String>())
                }
            };
        };
        if let Some(found) = all.iter().find(|one| one.name == name) {
            return output.json(&found.schema);
        }
        let failure = Failure::input(format!("there is no schema `{name}`"));
        Err(match nearest(name, all.iter().map(|one| one.name), 3) {
            Some(known) => failure.with_hint(format!("did you mean `{known}`?")),
            None => failure.with_hint("`model-analyze schema` lists them"),
        })
    }
}
