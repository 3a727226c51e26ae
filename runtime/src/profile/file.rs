//! The file of a profile: a header of comments, then rows; how an interrupted one is resumed.
//!
//! ```text
//! # model-analyze profile, version 1
//! # device: AMD EPYC
//! # plan: seed=0 kinds=all …
//! kind,dtype,…
//! linear,float32,…
//! ```
//!
//! Rows are appended an item at a time. A run that was killed leaves half a line, or an item without all its phases:
//! both are truncated before the next run resumes.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::{Kind, columns};

/// First line of every profile of ours.
const MAGIC: &str = "# model-analyze profile, version ";
const VERSION: u32 = 1;

/// Conditions of the measurement in the order they are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    entries: IndexMap<String, String>,
}

/// Returns the line of columns.
pub fn header_line() -> String {
    columns().join(",") + "\n"
}

/// The content of an interrupted run's file.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Its conditions.
    pub header: Header,
    /// Positions of the items that are complete.
    pub items: BTreeSet<u64>,
    /// The number of their rows.
    pub n_rows: usize,
    /// The number of bytes to keep; an incomplete item follows.
    pub keep: usize,
}

/// Why a run cannot resume from a file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FileError {
    /// Not written by this program.
    #[error("the file exists and is not a profile")]
    Foreign,
    /// Written for a later release.
    #[error("profile version {0} is not known, the newest known is {VERSION}")]
    Version(String),
    /// Columns that differ from ours.
    #[error("line {0}: the columns are not those of this release")]
    Columns(usize),
    /// A row that this program did not write.
    #[error("line {line}: {fault}")]
    Row {
        /// Counted from one.
        line: usize,
        /// The reason.
        fault: String,
    },
}

/// A condition that has changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the file was measured with {key} `{found}`, this is `{expected}`")]
pub struct HeaderDifference {
    /// Its key.
    pub key: String,
    /// The value in the file.
    pub found: String,
    /// The current value.
    pub expected: String,
}

impl Header {
    /// Adds a condition. Line breaks in the value become spaces.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.entries.insert(key.to_string(), value.to_string().replace(['\n', '\r'], " "));
    }

    /// Returns a condition.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(String::as_str)
    }

    /// Writes it as comments.
    pub fn text(&self) -> String {
        let lines = self.entries.iter().map(|(key, value)| format!("# {key}: {value}\n"));
        format!("{MAGIC}{VERSION}\n{}", lines.collect::<String>())
    }

    /// Compares the conditions that must be the same in one file.
    ///
    /// # Errors
    /// With the first that differs.
    pub fn require_same(&self, now: &Header, keys: &[&str]) -> Result<(), HeaderDifference> {
        for key in keys {
            let (found, expected) = (self.get(key).unwrap_or("none"), now.get(key).unwrap_or("none"));
            if found != expected {
                let (found, expected) = (found.to_string(), expected.to_string());
                return Err(HeaderDifference { key: (*key).to_string(), found, expected });
            }
        }
        Ok(())
    }
}

/// Reads what an earlier run left.
///
/// # Errors
/// When another program wrote it, or a later release of this one.
pub fn read(text: &str) -> Result<Contents, FileError> {
    let version = text.lines().next().and_then(|line| line.strip_prefix(MAGIC)).ok_or(FileError::Foreign)?;
    if version.trim() != VERSION.to_string() {
        return Err(FileError::Version(version.trim().to_string()));
    }
    let mut contents = Contents { header: Header::default(), items: BTreeSet::new(), n_rows: 0, keep: 0 };
    let mut has_columns = false;
    // Rows of the current item, and how many it must have.
    let mut open: Option<(u64, usize, usize)> = None;
    let mut place = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        place += line.len();
        let Some(line) = line.strip_suffix('\n') else { break };
        if let Some(comment) = line.strip_prefix('#') {
            if let Some((key, value)) = comment.trim().split_once(": ").filter(|_| !has_columns) {
                contents.header.set(key, value);
            }
        } else if !has_columns {
            if line != header_line().trim_end() {
                return Err(FileError::Columns(index + 1));
            }
            has_columns = true;
        } else {
            let (item, n_phases) = item(line).map_err(|fault| FileError::Row { line: index + 1, fault })?;
            let n_rows = match open {
                Some((known, n_rows, _)) if known == item => n_rows + 1,
                Some(_) => {
                    let fault = "an item is not complete".to_string();
                    return Err(FileError::Row { line: index + 1, fault });
                }
                None => 1,
            };
            open = Some((item, n_rows, n_phases));
            if n_rows == n_phases {
                contents.items.insert(item);
                contents.n_rows += n_rows;
                open = None;
            }
        }
        if open.is_none() {
            contents.keep = place;
        }
    }
    Ok(contents)
}

/// Returns a row's item and the number of rows of that item.
fn item(line: &str) -> Result<(u64, usize), String> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
    let record = reader.records().next().and_then(Result::ok).ok_or("the line is not a row")?;
    let columns = columns();
    if record.len() != columns.len() {
        return Err(format!("the row has {} fields instead of {}", record.len(), columns.len()));
    }
    let cell =
        |name: &str| columns.iter().position(|column| *column == name).map_or("", |index| &record[index]);
    if matches!(cell("kind"), "block" | "model") {
        return Err("this is the profile of a model, not of the suite".to_string());
    }
    let kind = Kind::find(cell("kind")).map_err(|error| error.to_string())?;
    let number = cell("item").parse().map_err(|_| format!("`{}` is not an item", cell("item")))?;
    Ok((number, kind.phases().len()))
}

#[cfg(test)]
mod tests {
    use schema::Phase;

    use super::*;
    use crate::profile::{DType, Item, Plan, Rates, Row, Scale};

    fn rows(item: &Item) -> String {
        let row = |phase: &Phase| {
            let mut row = Row::of(item, *phase, "a device, with a comma");
            row.set_time("seconds", 1e-3);
            row
        };
        Row::lines(&item.kind.phases().iter().map(row).collect::<Vec<_>>())
    }

    fn sample(n_items: u64) -> (Header, String) {
        let scale = Scale { flops: Rates::all(1e10), bytes: 1e10, longest: 0.01, largest: 1e8 };
        let plan = Plan::new(1, &[], &[DType::Float32], scale);
        let mut header = Header::default();
        header.set("device", "a device, with a comma");
        header.set("plan", plan.text());
        let body: String = (0..n_items).map(|index| rows(&plan.item(index))).collect();
        let text = format!("{}{}{body}", header.text(), header_line());
        (header, text)
    }

    #[test]
    fn what_was_written_is_read() {
        let (header, text) = sample(5);
        let contents = read(&text).unwrap();
        assert_eq!(contents.header, header);
        assert_eq!(contents.items, (0..5).collect());
        assert_eq!(contents.keep, text.len());
        assert!(text.starts_with("# model-analyze profile, version 1\n# device: a device"));
    }

    #[test]
    fn a_cut_at_any_byte_loses_the_last_item_only() {
        let (_, text) = sample(3);
        let two = read(&text).unwrap();
        let whole: Vec<usize> = (0..=3).map(|n| sample(n).1.len()).collect();
        for end in whole[0]..text.len() {
            let contents = read(&text[..end]).unwrap();
            let n = whole.iter().rposition(|length| *length <= end).unwrap();
            assert_eq!(contents.items.len(), n, "cut at {end}");
            assert_eq!(contents.keep, whole[n], "cut at {end}");
        }
        assert_eq!(two.items.len(), 3);
    }

    #[test]
    fn a_cut_header_keeps_nothing_wrong() {
        let (_, text) = sample(1);
        let start = sample(0).1.len();
        let columns_at = text.find("kind,").unwrap();
        for end in text.find('\n').unwrap() + 1..start {
            let contents = read(&text[..end]).unwrap();
            assert!(contents.items.is_empty() && contents.keep <= columns_at, "cut at {end}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(read("kind,dtype\n"), Err(FileError::Foreign));
        assert_eq!(read(""), Err(FileError::Foreign));
        let newer = "# model-analyze profile, version 9\n";
        assert_eq!(
            read(newer).unwrap_err().to_string(),
            "profile version 9 is not known, the newest known is 1"
        );
        let (_, text) = sample(2);
        assert_eq!(read(&text.replacen("kind,", "sort,", 1)), Err(FileError::Columns(4)));
        let strange = format!("{text}what,is,this\n");
        assert!(matches!(read(&strange), Err(FileError::Row { .. })));
    }

    #[test]
    fn another_device_is_told() {
        let (header, _) = sample(0);
        let mut now = header.clone();
        assert_eq!(header.require_same(&now, &["device", "plan"]), Ok(()));
        now.set("device", "another");
        let error = header.require_same(&now, &["device", "plan"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the file was measured with device `a device, with a comma`, this is `another`"
        );
    }
}
