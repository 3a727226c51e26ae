//! A conversation with a Python interpreter: it gets a script on standard input and a request as its argument, and answers in
//! JSON lines.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{companion::Companion, failure::Failure};

/// A running interpreter; dropping this value ends it.
pub struct Conversation {
    program: String,
    companion: Companion,
}

impl Conversation {
    /// Starts an interpreter; `options` are the interpreter's own.
    ///
    /// # Errors
    /// If there is no such program.
    pub fn start(program: &str, options: &[&str], script: &str, request: &Value) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.args(options).arg("-").arg(request.to_string());
        let mut companion = Companion::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut stdin = companion.process.stdin.take().expect("standard input is piped");
        // An interpreter that ends early prints the reason itself.
        let _ = stdin.write_all(script.as_bytes());
        Ok(Self { program: program.to_string(), companion })
    }

    /// Waits for the last answer, `{"done": …}` or `{"error": …}`; passes the earlier ones to `hear`.
    ///
    /// # Errors
    /// If the interpreter ends without a last answer.
    pub fn finish(mut self, mut hear: impl FnMut(&Value)) -> Result<Value, Failure> {
        let lines = BufReader::new(self.companion.process.stdout.take().expect("standard output is piped"));
        let mut last = None;
        for line in lines.lines() {
            let line = line?;
            match serde_json::from_str::<Value>(&line) {
                Ok(value) if value.get("done").or(value.get("error")).is_some() => last = Some(value),
                Ok(value) if value.is_object() => hear(&value),
                // Not an answer of the script: output of another program, or of an interpreter before the script
                // starts.
                _ => crate::failure::say(&format!("{line}\n")),
            }
        }
        let status = self.companion.wait()?;
        last.ok_or_else(|| {
            Failure::input(format!("{} ended without a result ({status})", self.program))
                .with_hint("--python names the interpreter; its output is above")
        })
    }
}
