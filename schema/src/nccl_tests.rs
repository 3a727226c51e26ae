//! Reads the output of nccl-tests: times of a collective by size.
//!
//! Its columns changed over the years, their names did not: a table begins with a comment that names `size` and `time`,
//! and its rows have numbers in that order. Ranks are listed one per line. A file may contain several outputs.

/// One table of nccl-tests.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclTest {
    /// `all_reduce`, `all_gather`, …
    pub collective: String,
    /// Ranks that took part.
    pub ranks: u32,
    /// Their hosts.
    pub hosts: u32,
    /// Bytes, and seconds out of place; both positive.
    pub rows: Vec<(u64, f64)>,
}

/// Why an output cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct NcclTestError {
    /// Line of the file, from 1.
    pub line: usize,
    /// The fault.
    pub fault: String,
}

/// Tells whether a text looks like the output of nccl-tests.
pub fn is_nccl_test(text: &str) -> bool {
    text.lines().take(2_000).any(|line| header(line).is_some())
}

/// Reads all tables of a text.
///
/// # Errors
/// At the first invalid row or table.
pub fn read_nccl_tests(text: &str) -> Result<Vec<NcclTest>, NcclTestError> {
    let mut tests: Vec<NcclTest> = Vec::new();
    let mut table: Option<Table> = None;
    let (mut ranks, mut hosts, mut name) = (0_u32, Vec::<&str>::new(), None);
    for (index, line) in text.lines().enumerate() {
        let at = |fault: String| NcclTestError { line: index + 1, fault };
        let words: Vec<&str> = line.trim_start_matches(['#', ' ']).split_whitespace().collect();
        if let Some(columns) = header(line) {
            finish(&mut tests, table.take())?;
            if ranks < 2 {
                let fault = format!("the table is for {ranks} ranks, a collective needs at least 2");
                return Err(at(fault));
            }
            let test = NcclTest {
                collective: name.map(str::to_string).unwrap_or_default(),
                ranks,
                hosts: hosts.len().max(1) as u32,
                rows: Vec::new(),
            };
            table = Some(Table { columns, line: index + 1, bus_ratio: None, test });
            (ranks, name) = (0, None);
            hosts.clear();
        } else if line.trim_start().starts_with('#') || words.is_empty() {
            match words.as_slice() {
                ["Rank", rest @ ..] => {
                    ranks += 1;
                    let host = rest.iter().skip_while(|word| **word != "on").nth(1);
                    hosts.extend(host.filter(|host| !hosts.contains(host)));
                }
                ["Collective", "test", "starting:", program, ..] => {
                    name = Some(program.trim_end_matches("_mpi").trim_end_matches("_perf"));
                }
                _ => {}
            }
        } else if let (Some(table), Some(Ok(bytes))) =
            (&mut table, words.first().map(|word| word.parse::<u64>()))
        {
            let number = |column: usize, what: &str| {
                let cell = words.get(column).ok_or_else(|| at(format!("the row ends before `{what}`")))?;
                let value = cell.parse::<f64>().ok().filter(|value| value.is_finite());
                value.ok_or_else(|| at(format!("{what} is `{cell}`, not a number")))
            };
            let Columns { time, algorithm, bus } = table.columns;
            let microseconds = number(time, "time")?;
            if bytes == 0 {
                continue;
            }
            if microseconds <= 0.0 {
                return Err(at(format!("time is {microseconds}, not a positive number")));
            }
            let (algorithm, bus) = (number(algorithm, "algbw")?, number(bus, "busbw")?);
            // With two decimals, only fast rows determine the ratio.
            if algorithm > 1.0 {
                table.bus_ratio = Some(bus / algorithm);
            }
            table.test.rows.push((bytes, microseconds * 1e-6));
        }
    }
    finish(&mut tests, table)?;
    if tests.is_empty() {
        let fault = "there is no table with the columns `size` and `time` of nccl-tests".to_string();
        return Err(NcclTestError { line: text.lines().count().max(1), fault });
    }
    Ok(tests)
}

/// The positions of a table's columns, counted in words.
#[derive(Clone, Copy, Debug)]
struct Columns {
    time: usize,
    algorithm: usize,
    bus: usize,
}

/// A table while it is read.
struct Table {
    columns: Columns,
    line: usize,
    bus_ratio: Option<f64>,
    test: NcclTest,
}

/// Returns the columns when a line names them.
fn header(line: &str) -> Option<Columns> {
    let mut words = line.trim_start().strip_prefix('#')?.split_whitespace();
    let names: Vec<&str> = words.by_ref().take(64).collect();
    let at = |name: &str| names.iter().position(|own| *own == name);
    (at("size") == Some(0)).then_some(())?;
    Some(Columns { time: at("time")?, algorithm: at("algbw")?, bus: at("busbw")? })
}

fn finish(tests: &mut Vec<NcclTest>, table: Option<Table>) -> Result<(), NcclTestError> {
    let Some(Table { line, bus_ratio, mut test, .. }) = table else { return Ok(()) };
    let at = |fault: &str| NcclTestError { line, fault: fault.to_string() };
    if test.rows.len() < 3 {
        return Err(at("the table has fewer than 3 sizes: latency and bandwidth need small and large ones"));
    }
    if test.collective.is_empty() {
        // Older programs do not print their collective; it follows from the bytes on the bus per byte.
        let n = f64::from(test.ranks);
        let ratio = bus_ratio.ok_or_else(|| at("the table does not tell its collective"))?;
        let is = |factor: f64| (ratio / factor - 1.0).abs() < 0.03;
        test.collective = match () {
            () if is(2.0 * (n - 1.0) / n) && test.ranks > 2 => "all_reduce",
            () if is((n - 1.0) / n) => "all_gather",
            () if is(1.0) && test.ranks > 2 => "broadcast",
            () => return Err(at("the table does not tell its collective")),
        }
        .to_string();
    }
    tests.push(test);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 8 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1234 on      nodeA device  0 [0000:07:00] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   1234 on      nodeA device  1 [0000:0f:00] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid   1235 on      nodeB device  0 [0000:07:00] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid   1235 on      nodeB device  1 [0000:0f:00] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.12    0.00    0.00      0     0.12    0.00    0.00      0
           8             2     float     sum      -1    21.65    0.00    0.00      0    21.36    0.00    0.00      0
     1048576        262144     float     sum      -1    53.70   19.53   29.29      0    53.10   19.75   29.62      0
    33554432       8388608     float     sum      -1   595.30   56.37   84.55      0   594.20   56.47   84.71      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 38.0
";

    #[test]
    fn a_table_is_read() {
        assert!(is_nccl_test(OUTPUT));
        let [test] = read_nccl_tests(OUTPUT).expect("a table").try_into().expect("one");
        let rows = [(8, 21.65e-6), (1_048_576, 53.70e-6), (33_554_432, 595.30e-6)];
        let shown: Vec<_> = test.rows.iter().map(|(bytes, time)| (*bytes, format!("{time:.3e}"))).collect();
        assert_eq!(shown, rows.iter().map(|(b, t)| (*b, format!("{t:.3e}"))).collect::<Vec<_>>());
        assert_eq!((test.collective.as_str(), test.ranks, test.hosts), ("all_reduce", 4, 2));
        // Two outputs in sequence are two tables.
        assert_eq!(read_nccl_tests(&OUTPUT.repeat(2)).expect("tables").len(), 2);
    }

    #[test]
    fn older_output_tells_the_collective_by_its_bus() {
        let unnamed = OUTPUT.replace("# Collective test starting: all_reduce_perf\n", "");
        assert_eq!(read_nccl_tests(&unnamed).expect("a table")[0].collective, "all_reduce");
        let gather = unnamed.replace("84.55", "42.28").replace("29.29", "14.65");
        assert_eq!(read_nccl_tests(&gather).expect("a table")[0].collective, "all_gather");
    }

    #[test]
    fn faults_have_their_line() {
        let check = |from: &str, to: &str, expected: &str| {
            let error = read_nccl_tests(&OUTPUT.replace(from, to)).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        };
        check("    53.70", "      nan", "line 16: time is `nan`, not a number");
        check("    53.70", "   -53.70", "line 16: time is -53.7, not a positive number");
        let rest = "   56.37   84.55      0   594.20   56.47   84.71      0";
        check(rest, "", "line 17: the row ends before `algbw`");
        check("#  Rank", "#  Device", "line 12: the table is for 0 ranks, a collective needs at least 2");
        check(
            "     1048576 ",
            "# 1048576",
            "line 12: the table has fewer than 3 sizes: latency and bandwidth need small and large ones",
        );
        assert!(!is_nccl_test("size,time\n1,2\n"));
        assert!(read_nccl_tests("size,time\n1,2\n").is_err());
    }
}
