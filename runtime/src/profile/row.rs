//! One line of a profile.

use schema::Phase;

use super::{Item, Kind, Size, Split};

/// Our columns beside those of the schema; readers of the schema ignore them.
const MORE: [&str; 16] = [
    "seconds",
    "seconds_min",
    "seconds_p90",
    "samples",
    "warm_seconds",
    "flushed_seconds",
    "host_seconds",
    "first_seconds",
    "flops",
    "bytes",
    "output_bytes",
    "saved_bytes",
    "vocabulary",
    "item",
    "split",
    "repeats",
];

/// Returns the columns of a profile in order; one of the schema's is among ours, where older files have it.
pub fn columns() -> Vec<&'static str> {
    let schema = schema::COLUMNS.into_iter().filter(|column| !MORE.contains(column));
    schema.chain(MORE).chain(["path"]).collect()
}

/// One measured phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    cells: Vec<(&'static str, String)>,
}

impl Row {
    /// Starts the row of an item and a phase.
    pub fn of(item: &Item, phase: Phase, device: &str) -> Self {
        let mut row = Self::default();
        row.set("kind", item.kind.name());
        row.set("dtype", item.dtype.name());
        row.set("device", device);
        row.set("phase", phase.name());
        row.size(item.kind, item.size);
        let work = item.work();
        row.set("flops", work.flops);
        row.set("bytes", work.bytes);
        row.set("output_bytes", work.output_bytes);
        row.set("saved_bytes", work.saved_bytes);
        row.set("item", item.index);
        row.set("split", if item.split == Split::Test { "test" } else { "train" });
        if let Some(first) = item.repeats {
            row.set("repeats", first);
        }
        row
    }

    /// Starts the row of a block of a model, or of a whole model when `path` is empty. Its size is the first result's.
    pub fn block(path: &str, dtype: &str, phase: Phase, device: &str, output: &[i64]) -> Self {
        let elements: i64 = output.iter().product();
        let cols = output.last().copied().unwrap_or(1).max(1);
        let mut row = Self::default();
        row.set("kind", if path.is_empty() { "model" } else { "block" });
        row.set("dtype", dtype);
        row.set("device", device);
        row.set("phase", phase.name());
        row.set("rows", (elements / cols).max(1));
        row.set("cols", cols);
        row.set("path", path);
        row
    }

    /// Sets a cell.
    ///
    /// # Panics
    /// When there is no such column.
    pub fn set(&mut self, column: &'static str, value: impl ToString) {
        assert!(columns().contains(&column), "`{column}` is a column");
        self.cells.push((column, value.to_string()));
    }

    /// Sets a time; four digits are more than any clock resolves.
    pub fn set_time(&mut self, column: &'static str, seconds: f64) {
        self.set(column, format!("{seconds:.4e}"));
    }

    /// Returns a cell; empty when it is not set.
    pub fn get(&self, column: &str) -> &str {
        self.cells.iter().rev().find(|(name, _)| *name == column).map_or("", |(_, value)| value)
    }

    /// Writes rows as lines of CSV.
    pub fn lines(rows: &[Row]) -> String {
        let columns = columns();
        let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
        for row in rows {
            writer.write_record(columns.iter().map(|column| row.get(column))).expect("memory takes all");
        }
        String::from_utf8(writer.into_inner().expect("memory takes all")).expect("cells are text")
    }

    fn size(&mut self, kind: Kind, size: Size) {
        match size {
            Size::Product { batch, m, n, k } => {
                for (column, value) in [("batch", batch), ("m", m), ("n", n), ("k", k)] {
                    self.set(column, value);
                }
            }
            Size::Convolution {
                batch,
                in_channels,
                out_channels,
                groups,
                height,
                width,
                kernel,
                stride,
                padding,
            } => {
                for (column, value) in [
                    ("batch", batch),
                    ("in_channels", in_channels),
                    ("out_channels", out_channels),
                    ("groups", groups),
                    ("height", height),
                    ("width", width),
                    ("kernel", kernel),
                    ("stride", stride),
                    ("padding", padding),
                ] {
                    self.set(column, value);
                }
            }
            Size::Attention { batch, heads, seq, kv_seq, head_dim, causal } => {
                for (column, value) in [
                    ("batch", batch),
                    ("heads", heads),
                    ("kv_heads", heads),
                    ("seq", seq),
                    ("kv_seq", kv_seq),
                    ("head_dim", head_dim),
                    ("causal", u64::from(causal)),
                ] {
                    self.set(column, value);
                }
            }
            Size::Images { batch, channels, groups, height, width } => {
                for (column, value) in [
                    ("batch", batch),
                    ("in_channels", channels),
                    ("groups", groups),
                    ("height", height),
                    ("width", width),
                ] {
                    self.set(column, value);
                }
            }
            Size::Table { vocabulary, .. } => self.set("vocabulary", vocabulary),
            Size::Rows { .. } | Size::Heads { .. } => {}
        }
        if let Some((rows, cols)) = size.matrix(kind) {
            self.set("rows", rows);
            self.set("cols", cols);
            self.set("inputs", size.inputs(kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::WorkSize;

    use super::*;
    use crate::profile::{DType, Plan, Rates, Scale};

    #[test]
    fn the_schema_reads_every_kind() {
        let scale = Scale { flops: Rates::all(6.4e10), bytes: 1.6e10, longest: 0.02, largest: 2.6e8 };
        let plan = Plan::new(1, &[], &[DType::Float32], scale);
        let mut rows = Vec::new();
        for index in 0..300 {
            let item = plan.item(index);
            for phase in item.kind.phases() {
                let mut row = Row::of(&item, *phase, "A CPU, of commas");
                row.set_time("seconds", 1e-3);
                rows.push(row);
            }
        }
        let mut block = Row::block("layer1.0 (call 2)", "float32", Phase::Forward, "cpu", &[2, 3, 4]);
        block.set_time("seconds", 0.5);
        rows.push(block);
        let text = format!("# a comment\n{}\n{}", columns().join(","), Row::lines(&rows));
        let profile = schema::read_own_profile(&text).unwrap();
        assert_eq!(profile.rows.len(), rows.len());
        for kind in Kind::usual() {
            assert!(profile.rows.iter().any(|row| row.kind == kind.name()), "no {}", kind.name());
        }
        assert_eq!(profile.rows[0].device, "A CPU, of commas");
    }

    /// The reader computes a convolution's output itself; it must agree with ours.
    #[test]
    fn a_convolution_is_read_with_its_output() {
        let size = Size::Convolution {
            batch: 2,
            in_channels: 3,
            out_channels: 8,
            groups: 1,
            height: 33,
            width: 33,
            kernel: 3,
            stride: 2,
            padding: 1,
        };
        let item = Item {
            index: 0,
            kind: Kind::Convolution,
            dtype: DType::Float32,
            size,
            split: Split::Train,
            repeats: None,
        };
        let mut row = Row::of(&item, Phase::Forward, "cpu");
        row.set_time("seconds", 1.0);
        let text = format!("{}\n{}", columns().join(","), Row::lines(&[row]));
        let profile = schema::read_own_profile(&text).unwrap();
        // The field's name differs between versions of the schema; its debug text does not.
        let shown = format!("{:?}", profile.rows[0]);
        let expected = WorkSize::Convolution {
            batch: 2.0,
            in_channels: 3.0,
            out_channels: 8.0,
            groups: 1.0,
            input: [1.0, 33.0, 33.0],
            output: [1.0, 17.0, 17.0],
            kernel: [1.0, 3.0, 3.0],
            stride: [1.0, 2.0, 2.0],
        };
        assert!(shown.contains(&format!("{expected:?}")), "{shown}");
        assert_eq!(Size::reach(33, 3, 2, 1), 17);
    }
}
