//! From a CSV file to a [`Profile`], through a map.
//!
//! Every fault has its line and column. Only cells that a shape needs are read, so that one file can contain several
//! kinds, each with its own columns.

mod work_size;

use csv::StringRecord;

use crate::{
    CallOverhead, ColumnSource, Condition, Hardware, Invalid, Pace, Phase, Profile, ProfileMap, ProfileRow,
    Rule, Scalar, Source,
};

/// The largest dimension; beyond it products of dimensions lose their meaning.
const MAX_DIMENSION: f64 = 1e15;
/// The range of an operator's seconds; shorter or longer times cannot be measurements.
const TIMES: std::ops::Range<f64> = 1e-12..1e12;

/// A fault of a CSV file, with its place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}{}: {fault}", column.as_ref().map(|name| format!(", column `{name}`")).unwrap_or_default())]
pub struct ProfileCsvError {
    /// Line, counted from one; the header is line 1.
    pub line: u64,
    /// Column of the file.
    pub column: Option<String>,
    /// The fault.
    pub fault: ProfileFault,
}

/// A fault at one place of a CSV file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileFault {
    /// Not one record.
    #[error("the file has no rows")]
    Empty,
    /// Not text.
    #[error("{0}")]
    Csv(String),
    /// A record of another length than the header.
    #[error("the row has {found} fields, the header has {expected}; the file may be truncated")]
    Fields {
        /// Fields of the header.
        expected: u64,
        /// Fields of the record.
        found: u64,
    },
    /// The map names a column that the file does not have.
    #[error("there is no such column; the file has {}", .known.join(", "))]
    NoColumn {
        /// Columns of the file.
        known: Vec<String>,
    },
    /// Two columns of one name.
    #[error("the header has this column twice")]
    TwiceColumn,
    /// An invalid time.
    #[error("the time is `{0}`, it must be a positive number")]
    Time(String),
    /// A time out of range.
    #[error("the time is {0:e} s, no operator takes less than {start:e} s or more than {end:e} s", start = TIMES.start, end = TIMES.end)]
    TimeSize(f64),
    /// An invalid dimension.
    #[error("`{name}` is `{text}`, it must be a number of at least 1")]
    Dimension {
        /// Its standard name.
        name: &'static str,
        /// The cell.
        text: String,
    },
    /// An invalid boolean.
    #[error("`{name}` is `{text}`, it must be true or false, 1 or 0")]
    Truth {
        /// Its standard name.
        name: &'static str,
        /// The cell.
        text: String,
    },
    /// A cell whose text the map does not translate.
    #[error("the map has no value for `{0}`")]
    NoValue(String),
    /// An invalid phase.
    #[error("`{0}` is not a phase: forward, backward, input_gradient, weight_gradient or training")]
    Phase(String),
    /// A missing value that a kind needs.
    #[error("kind `{kind}` needs `{name}`, which the map does not set or the row leaves empty")]
    Needs {
        /// Kind of the operator.
        kind: String,
        /// The standard name of the column.
        name: &'static str,
    },
    /// A row without a kind or a data type.
    #[error("`{0}` is empty")]
    NoText(&'static str),
    /// A kind of unknown shape.
    #[error(
        "kind `{0}` is unknown and its shape is not given: set m, n, k · in_channels, out_channels, kernel, size · heads, seq, head_dim · or rows, cols"
    )]
    UnknownKind(String),
    /// A convolution without output.
    #[error("the kernel of {kernel} is larger than the padded input of {size}")]
    Kernel {
        /// Size of the dilated kernel.
        kernel: f64,
        /// Size of the input with its padding.
        size: f64,
    },
}

/// Columns that a file of `profile` must have.
pub(crate) const NEEDED: [&str; 3] = ["kind", "dtype", "seconds"];

/// The source of a value: resolved once, used for each record.
enum Cell<'a> {
    Absent,
    Constant(&'a Scalar),
    Column(usize, &'a ColumnSource),
}

/// Reads the measurements of a CSV file.
///
/// # Errors
/// At the first fault.
pub fn read_profile(text: &str, map: &ProfileMap) -> Result<Profile, ProfileCsvError> {
    read(text, map, false)
}

fn reader(text: &str) -> csv::Reader<&[u8]> {
    let header = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    // If the comma is the decimal separator, spreadsheets separate fields by semicolons.
    let delimiter = *[b',', b';', b'\t'].iter().find(|one| header.as_bytes().contains(one)).unwrap_or(&b',');
    csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .delimiter(delimiter)
        .from_reader(text.as_bytes())
}

fn read(text: &str, map: &ProfileMap, is_own: bool) -> Result<Profile, ProfileCsvError> {
    // A comment at the end of the file without a line break is a row to the CSV reader.
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    let rows = if text[end..].starts_with('#') { &text[..end] } else { text };
    let mut reader = reader(rows);
    let header = reader.headers().map_err(in_csv)?.clone();
    if header.is_empty() || header.iter().all(str::is_empty) {
        return Err(ProfileCsvError { line: 1, column: None, fault: ProfileFault::Empty });
    }
    let mut columns = Columns::resolve(&header, map)?;
    if is_own {
        let position = |name: &str| header.iter().position(|known| known == name);
        [columns.times_beside[0], columns.times_beside[1], columns.path] =
            ["warm_seconds", "flushed_seconds", "path"].map(position);
    }
    let mut profile = Profile { is_cut_off: !rows.is_empty() && !rows.ends_with('\n'), ..Profile::default() };
    let mut record = StringRecord::new();
    let mut n_records = 0_usize;
    while reader.read_record(&mut record).map_err(in_csv)? {
        n_records += 1;
        let line = record.position().map_or(0, csv::Position::line);
        if !columns.conditions.iter().all(|(index, condition)| holds(condition, &record[*index])) {
            profile.n_filtered += 1;
            continue;
        }
        columns.read(&record, line, &header, &mut profile)?;
    }
    if n_records == 0 {
        return Err(ProfileCsvError { line: 1, column: None, fault: ProfileFault::Empty });
    }
    Ok(profile)
}

/// Reads the measurements of a file of `profile`.
///
/// # Errors
/// At the first fault.
pub fn read_own_profile(text: &str) -> Result<Profile, ProfileCsvError> {
    let mut reader = reader(text);
    let header = reader.headers().map_err(in_csv)?.clone();
    let map = ProfileMap::own(&header);
    for needed in NEEDED {
        if !header.iter().any(|name| name == needed) {
            let known = header.iter().map(str::to_string).collect();
            return Err(ProfileCsvError {
                line: 1,
                column: Some(needed.to_string()),
                fault: ProfileFault::NoColumn { known },
            });
        }
    }
    let mut profile = read(text, &map, true)?;
    let condition = |key: &str| {
        let mut comments = text.lines().take_while(|line| line.starts_with('#'));
        comments.find_map(|line| line.trim_start_matches('#').trim().strip_prefix(key)?.strip_prefix(": "))
    };
    let overheads = text.lines().filter_map(|line| line.strip_prefix("# overhead: "));
    profile.overhead =
        CallOverhead::median(&overheads.filter_map(CallOverhead::from_text).collect::<Vec<_>>());
    profile.paces = text.lines().filter_map(|line| Pace::from_text(line.strip_prefix("# pace: ")?)).collect();
    profile.hardware = condition("hardware").map(Hardware::from_text).unwrap_or_default();
    profile.sources =
        text.lines().filter_map(|line| Some(line.strip_prefix("# source: ")?.to_string())).collect();
    profile.threads = condition("threads").and_then(|threads| threads.parse().ok());
    Ok(profile)
}

/// Reads a time as seconds.
fn time(text: &str, unit: f64) -> Result<f64, ProfileFault> {
    let seconds = text.parse::<f64>().ok().map(|time| time * unit);
    match seconds.filter(|time| time.is_finite() && *time > 0.0) {
        None => Err(ProfileFault::Time(text.to_string())),
        Some(time) if !TIMES.contains(&time) => Err(ProfileFault::TimeSize(time)),
        Some(time) => Ok(time),
    }
}

struct Columns<'a> {
    /// By position in [`crate::COLUMNS`].
    cells: Vec<Cell<'a>>,
    /// Column, seconds of its unit, phase.
    times: Vec<(usize, f64, Option<Phase>)>,
    conditions: Vec<(usize, &'a Condition)>,
    /// Columns that only files of `profile` have.
    times_beside: [Option<usize>; 2],
    path: Option<usize>,
    map: &'a ProfileMap,
}

impl<'a> Columns<'a> {
    fn resolve(header: &StringRecord, map: &'a ProfileMap) -> Result<Self, ProfileCsvError> {
        let position = |name: &str| {
            let in_header = |fault| ProfileCsvError { line: 1, column: Some(name.to_string()), fault };
            let mut found = header.iter().enumerate().filter(|(_, known)| *known == name);
            match (found.next(), found.next()) {
                (Some((index, _)), None) => Ok(index),
                (Some(_), Some(_)) => Err(in_header(ProfileFault::TwiceColumn)),
                (None, _) => {
                    let known = header.iter().map(str::to_string).collect();
                    Err(in_header(ProfileFault::NoColumn { known }))
                }
            }
        };
        let cell = |name: &&str| match map.columns.get(*name) {
            None => Ok(Cell::Absent),
            Some(Source::Constant(value)) => Ok(Cell::Constant(value)),
            Some(Source::Column(source)) => Ok(Cell::Column(position(&source.column)?, source)),
        };
        Ok(Self {
            cells: crate::COLUMNS.iter().map(cell).collect::<Result<_, _>>()?,
            times: map
                .times
                .iter()
                .map(|time| Ok((position(&time.column)?, time.unit.seconds(), time.phase)))
                .collect::<Result<_, ProfileCsvError>>()?,
            conditions: map
                .conditions
                .iter()
                .map(|(name, condition)| Ok((position(name)?, condition)))
                .collect::<Result<_, ProfileCsvError>>()?,
            times_beside: [None; 2],
            path: None,
            map,
        })
    }

    fn read(
        &self,
        record: &StringRecord,
        line: u64,
        header: &StringRecord,
        profile: &mut Profile,
    ) -> Result<(), ProfileCsvError> {
        let row = Record { columns: self, record, line, header };
        let mut shared = None;
        for (index, unit, phase) in &self.times {
            let text = &record[*index];
            if self.map.missing.iter().any(|missing| missing == text) {
                profile.n_missing += 1;
                continue;
            }
            let seconds = match time(text, *unit) {
                Ok(seconds) => seconds,
                Err(_) if self.map.invalid == Invalid::Drop => {
                    profile.n_invalid += 1;
                    continue;
                }
                Err(fault) => {
                    let column = Some(header[*index].to_string());
                    return Err(ProfileCsvError { line, column, fault });
                }
            };
            if shared.is_none() {
                let kind = row.text("kind")?.ok_or_else(|| row.fault(ProfileFault::NoText("kind")))?;
                let dtype = row.text("dtype")?.ok_or_else(|| row.fault(ProfileFault::NoText("dtype")))?;
                let shape = row.shape(&kind)?;
                let dtype = crate::data_type(&dtype);
                shared = Some((kind, dtype, row.text("device")?.unwrap_or_default(), row.phase()?, shape));
            }
            let (kind, dtype, device, own_phase, size) = shared.clone().expect("set above");
            let phase = phase.unwrap_or(own_phase);
            let mut beside = [None; 2];
            let mut is_invalid = false;
            for (seconds, column) in beside.iter_mut().zip(self.times_beside) {
                let Some(index) = column.filter(|index| !record[*index].is_empty()) else { continue };
                match time(&record[index], 1.0) {
                    Ok(found) => *seconds = Some(found),
                    Err(_) if self.map.invalid == Invalid::Drop => is_invalid = true,
                    Err(fault) => return Err(row.fault_in(index, fault)),
                }
            }
            if is_invalid {
                profile.n_invalid += 1;
                continue;
            }
            let [warm_seconds, flushed_seconds] = beside;
            let path = self.path.map(|index| record[index].to_string()).unwrap_or_default();
            profile.rows.push(ProfileRow {
                line,
                kind,
                dtype,
                device,
                phase,
                size,
                seconds,
                warm_seconds,
                flushed_seconds,
                path,
            });
        }
        Ok(())
    }
}

/// One record with the context to read it and to locate faults.
struct Record<'a> {
    columns: &'a Columns<'a>,
    record: &'a StringRecord,
    line: u64,
    header: &'a StringRecord,
}

impl Record<'_> {
    fn cell(&self, name: &'static str) -> &Cell<'_> {
        let index = crate::COLUMNS.iter().position(|known| *known == name).expect("a column of ours");
        &self.columns.cells[index]
    }

    fn fault(&self, fault: ProfileFault) -> ProfileCsvError {
        ProfileCsvError { line: self.line, column: None, fault }
    }

    fn fault_in(&self, index: usize, fault: ProfileFault) -> ProfileCsvError {
        self.fault_at(Some(index), fault)
    }

    fn fault_at(&self, index: Option<usize>, fault: ProfileFault) -> ProfileCsvError {
        let column = index.map(|index| self.header[index].to_string());
        ProfileCsvError { line: self.line, column, fault }
    }

    /// Returns the translated value, its factor and its column; `None` for absent and empty cells.
    fn value(&self, name: &'static str) -> Result<Option<(Scalar, f64, Option<usize>)>, ProfileCsvError> {
        match self.cell(name) {
            Cell::Absent => Ok(None),
            Cell::Constant(value) => Ok(Some(((*value).clone(), 1.0, None))),
            Cell::Column(index, source) => {
                let text = &self.record[*index];
                let scale = source.scale.unwrap_or(1.0);
                let listed = source.values.get(text).or_else(|| {
                    source
                        .values
                        .iter()
                        .find(|(key, _)| is(&Scalar::Text((*key).clone()), text))
                        .map(|(_, v)| v)
                });
                match (listed, &source.otherwise) {
                    (Some(value), _) => Ok(Some((value.clone(), scale, Some(*index)))),
                    (None, Some(value)) if text.is_empty() || !source.values.is_empty() => {
                        Ok(Some((value.clone(), scale, Some(*index))))
                    }
                    (None, _) if text.is_empty() => Ok(None),
                    (None, _) if source.values.is_empty() => {
                        Ok(Some((Scalar::Text(text.to_string()), scale, Some(*index))))
                    }
                    (None, _) => Err(self.fault_in(*index, ProfileFault::NoValue(text.to_string()))),
                }
            }
        }
    }

    fn text(&self, name: &'static str) -> Result<Option<String>, ProfileCsvError> {
        Ok(self.value(name)?.map(|(value, _, _)| show(&value)).filter(|text| !text.is_empty()))
    }

    fn phase(&self) -> Result<Phase, ProfileCsvError> {
        let Some((value, _, index)) = self.value("phase")? else { return Ok(Phase::Forward) };
        let text = show(&value);
        Phase::find(&text).ok_or_else(|| self.fault_at(index, ProfileFault::Phase(text.clone())))
    }

    /// Returns a number that is at least `least`.
    fn number(&self, name: &'static str, least: f64) -> Result<Option<f64>, ProfileCsvError> {
        let Some((value, scale, index)) = self.value(name)? else { return Ok(None) };
        let number = match &value {
            Scalar::Number(number) => Some(*number),
            Scalar::Bool(truth) => Some(f64::from(u8::from(*truth))),
            Scalar::Text(text) => text.parse().ok(),
        };
        match number.map(|number: f64| number * scale) {
            Some(number) if number >= least && number <= MAX_DIMENSION => Ok(Some(number)),
            _ => Err(self.fault_at(index, ProfileFault::Dimension { name, text: show(&value) })),
        }
    }

    /// Returns a boolean; absent ones are false.
    fn truth(&self, name: &'static str) -> Result<bool, ProfileCsvError> {
        let Some((value, _, index)) = self.value(name)? else { return Ok(false) };
        let text = show(&value);
        match text.to_ascii_lowercase().as_str() {
            "1" | "1.0" | "true" | "yes" => Ok(true),
            "" | "0" | "0.0" | "false" | "no" => Ok(false),
            _ => Err(self.fault_at(index, ProfileFault::Truth { name, text })),
        }
    }

    fn dimension(&self, name: &'static str) -> Result<Option<f64>, ProfileCsvError> {
        self.number(name, 1.0)
    }

    fn needed(&self, kind: &str, name: &'static str) -> Result<f64, ProfileCsvError> {
        let missing = || self.fault(ProfileFault::Needs { kind: kind.to_string(), name });
        self.dimension(name)?.ok_or_else(missing)
    }

    fn has(&self, name: &'static str) -> bool {
        match self.cell(name) {
            Cell::Absent => false,
            Cell::Constant(_) => true,
            Cell::Column(index, source) => !self.record[*index].is_empty() || source.otherwise.is_some(),
        }
    }
}

fn holds(condition: &Condition, text: &str) -> bool {
    match condition {
        Condition::Is(value) => is(value, text),
        Condition::OneOf(values) => values.iter().any(|value| is(value, text)),
        Condition::Rule(Rule { not, min, max }) => {
            let number = text.parse::<f64>().ok();
            !not.iter().any(|value| is(value, text))
                && min.is_none_or(|min| number.is_some_and(|number| number >= min))
                && max.is_none_or(|max| number.is_some_and(|number| number <= max))
        }
    }
}

/// Compares a value of the map with a cell, numbers by value: `1` equals `1.0`.
fn is(value: &Scalar, text: &str) -> bool {
    let number = match value {
        Scalar::Number(number) => Some(*number),
        Scalar::Text(own) if own == text => return true,
        Scalar::Text(own) => own.parse().ok(),
        Scalar::Bool(truth) => return text.eq_ignore_ascii_case(if *truth { "true" } else { "false" }),
    };
    number.is_some_and(|number| text.parse::<f64>().is_ok_and(|other| other == number))
}

fn show(value: &Scalar) -> String {
    match value {
        Scalar::Bool(truth) => truth.to_string(),
        Scalar::Number(number) => number.to_string(),
        Scalar::Text(text) => text.clone(),
    }
}

fn in_csv(error: csv::Error) -> ProfileCsvError {
    let line = error.position().map_or(1, csv::Position::line);
    let fault = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            ProfileFault::Fields { expected: *expected_len, found: *len }
        }
        csv::ErrorKind::Utf8 { .. } => ProfileFault::Csv("not UTF-8 text".to_string()),
        _ => ProfileFault::Csv(error.to_string()),
    };
    ProfileCsvError { line, column: None, fault }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkSize;

    const MAP: &str = "
columns: {kind: linear, dtype: {column: type, values: {half: float16}}, device: A100, m: {column: m}, n: {column: n}, k: 64}
times: [{column: ms, unit: ms}, {column: back, unit: us, phase: backward}]
where: {split: [train, 1]}
missing: [\"\", \"-\"]
";

    fn read(text: &str) -> Result<Profile, String> {
        let map = ProfileMap::read(MAP).expect("a map");
        read_profile(text, &map).map_err(|error| error.to_string())
    }

    #[test]
    fn a_map_makes_rows() {
        let text = "type,m,n,ms,back,split\nhalf,8,16,0.5,-,train\nhalf,8,32,,7,1.0\nother,,,x,x,test\n";
        let profile = read(text).expect("rows");
        assert_eq!((profile.rows.len(), profile.n_filtered, profile.n_missing), (2, 1, 2));
        let row = &profile.rows[0];
        assert_eq!(
            (row.line, row.dtype.as_str(), row.phase, row.seconds),
            (2, "float16", Phase::Forward, 5e-4)
        );
        assert_eq!(row.size, WorkSize::Product { batch: 1.0, m: 8.0, n: 16.0, k: 64.0 });
        assert_eq!(profile.rows[1].phase, Phase::Backward);
        // An editor may remove the last line break: after a row that may mean truncation, after a comment it does not.
        let again = read(&format!("{text}# until: noon")).expect("rows");
        assert_eq!((again.rows.len(), again.is_cut_off), (2, false));
        assert!(read(text.trim_end()).expect("rows").is_cut_off);
    }

    #[test]
    fn every_fault_has_its_place() {
        let check = |rows: &str, expected: &str| {
            let text = format!("type,m,n,ms,back,split\nhalf,8,16,0.5,7,train\n{rows}");
            assert_eq!(read(&text), Err(expected.to_string()), "{rows}");
        };
        for text in ["nan", "-1", "0", "inf", "fast"] {
            let expected = format!("line 3, column `ms`: the time is `{text}`, it must be a positive number");
            check(&format!("half,8,16,{text},7,train\n"), &expected);
        }
        check(
            "half,8,16,1e-20,7,train\n",
            "line 3, column `ms`: the time is 1e-23 s, no operator takes less than 1e-12 s or more than 1e12 s",
        );
        check("half,8,16\n", "line 3: the row has 3 fields, the header has 6; the file may be truncated");
        check(
            "half,zero,16,1,7,train\n",
            "line 3, column `m`: `m` is `zero`, it must be a number of at least 1",
        );
        check(
            "half,8,1e99,1,7,train\n",
            "line 3, column `n`: `n` is `1e99`, it must be a number of at least 1",
        );
        check("full,8,16,1,7,train\n", "line 3, column `type`: the map has no value for `full`");
        check(
            "half,,16,1,7,train\n",
            "line 3: kind `linear` needs `m`, which the map does not set or the row leaves empty",
        );
    }

    #[test]
    fn a_file_must_have_what_the_map_names() {
        let check = |text: &str, expected: &str| assert_eq!(read(text), Err(expected.to_string()));
        check("type,m,ms\n", "line 1, column `n`: there is no such column; the file has type, m, ms");
        check("type,m,n,ms,back,split\n", "line 1: the file has no rows");
        check("", "line 1: the file has no rows");
    }

    #[test]
    fn padding_decides_the_output() {
        let header = "kind,dtype,device,seconds,in_channels,out_channels,size,kernel,stride,padding";
        let check = |cells: &str, expected: [f64; 3]| {
            let text = format!("{header}\nconv2d,float32,T4,1,3,8,{cells}\n");
            let profile = read_own_profile(&text).expect(cells);
            let WorkSize::Convolution { output, .. } = profile.rows[0].size else { panic!("{cells}") };
            assert_eq!(output, expected, "{cells}");
        };
        check("224,7,2,3", [1.0, 112.0, 112.0]);
        check("7,3,2,same", [1.0, 4.0, 4.0]);
        check("7,3,2,valid", [1.0, 3.0, 3.0]);
        check("7,3,1,", [1.0, 5.0, 5.0]);
    }

    #[test]
    fn odd_but_legal_files_are_read() {
        let rows = read("type,m,n,ms,back,split\nhalf,8,16,0.5,7,train\n").expect("rows").rows;
        let check = |text: &str| {
            let read = read(text).expect(text).rows;
            let same = |a: &ProfileRow, b: &ProfileRow| {
                (a.size, a.seconds, &a.dtype) == (b.size, b.seconds, &b.dtype)
            };
            assert!(read.len() == 2 && read.iter().zip(&rows).all(|(a, b)| same(a, b)), "{text}: {read:?}");
        };
        check("\u{feff}type,m,n,ms,back,split\r\nhalf,8,16,0.5,7,train\r\n");
        check("split,extra,back,ms,n,m,type\ntrain,\"a, b\",7,0.5,16,8,half\n");
        check(
            "\"type\",\"m\",\"n\",\"ms\",\"back\",\"split\"\n\"half\",\"8\",\"16\",\"0.5\",\"7\",\"train\"\n",
        );
        check("type;m;n;ms;back;split\nhalf;8;16;0.5;7;train");
        check("# by hand\ntype\tm\tn\tms\tback\tsplit\nhalf\t8\t16\t5e-1\t7.0\t1\n");
        check("type , m,n, ms,back,split\n half, 8.0,16 ,.5,+7,train\n\n");
    }

    #[test]
    fn truth_values_are_words_or_digits() {
        let check = |cell: &str, expected: Result<bool, &str>| {
            let text = format!("kind,dtype,seconds,heads,seq,head_dim,causal\nsdpa,bf16,1,2,3,4,{cell}\n");
            let found = read_own_profile(&text).map(|profile| match profile.rows[0].size {
                WorkSize::Attention { causal, .. } => causal,
                _ => panic!("no attention"),
            });
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_string), "{cell}");
        };
        ["1", "TRUE", "yes", "1.0"].iter().for_each(|cell| check(cell, Ok(true)));
        ["", "0", "False", "no"].iter().for_each(|cell| check(cell, Ok(false)));
        check("half", Err("line 2, column `causal`: `causal` is `half`, it must be true or false, 1 or 0"));
    }

    #[test]
    fn times_in_other_caches_are_held_to_the_rules_of_times() {
        for column in ["warm_seconds", "flushed_seconds"] {
            let check = |beside: &str, expected: Result<Option<f64>, &str>| {
                let text = format!("kind,dtype,seconds,m,n,k,{column}\nlinear,float32,1,2,3,4,{beside}\n");
                let found = read_own_profile(&text).map(|profile| match column {
                    "warm_seconds" => profile.rows[0].warm_seconds,
                    _ => profile.rows[0].flushed_seconds,
                });
                let expected = expected.map_err(|fault| format!("line 2, column `{column}`: {fault}"));
                assert_eq!(found.map_err(|error| error.to_string()), expected);
            };
            check("0.5", Ok(Some(0.5)));
            check("", Ok(None));
            check("0", Err("the time is `0`, it must be a positive number"));
            check(
                "1e-13",
                Err("the time is 1e-13 s, no operator takes less than 1e-12 s or more than 1e12 s"),
            );
        }
    }
}
