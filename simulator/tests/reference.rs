//! The reference schedules beside the repository: every expected time, and every order that we can make.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{collections::BTreeMap, fs, path::Path};

use simulator::{
    Cost, clock,
    order::{Op, Order, Schedule, Shape, from_csv, make, make_for_costs},
};

#[path = "../../tests/needs/mod.rs"]
mod needs;

#[test]
fn every_expected_row_is_equal() {
    for (folder, at_least) in needs::outside_sets("schedules").iter().zip([655, 1135]) {
        let n_rows = equal_rows(folder);
        println!("{}: {n_rows} rows equal", folder.display());
        assert!(n_rows >= at_least, "{}: {n_rows}", folder.display());
    }
}

/// Holds every row of a folder's table against our clock; returns how many there are.
fn equal_rows(folder: &Path) -> usize {
    let table = fs::read_to_string(folder.join("expected.csv")).unwrap();
    let mut orders: BTreeMap<String, Order> = BTreeMap::new();
    let mut n_rows = 0;
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let number = |cell: usize| cells[cell].parse::<u64>().unwrap();
        let list =
            |cell: usize| cells[cell].split(' ').map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>();
        let path = folder.join(cells[0]);
        let chain = number(1) as u32;
        let order = orders
            .entry(cells[0].to_string())
            .or_insert_with(|| from_csv(&fs::read_to_string(path).unwrap(), Some(chain)).unwrap());
        let cost = Cost {
            forward: number(2),
            input_gradient: number(3),
            weight_gradient: number(4),
            hop: number(5),
        };
        if n_rows % 5 == 0 {
            assert_eq!(simulator::lint(order).errors().count(), 0, "{row}");
        }
        let found = clock(order, &cost).unwrap();
        let wide = |peaks: &[u32]| peaks.iter().map(|peak| u64::from(*peak)).collect::<Vec<_>>();
        assert_eq!(found.makespan, number(6), "makespan of {row}");
        assert_eq!(found.longest_span, number(7), "longest span of {row}");
        assert_eq!(found.busy, list(8), "busy time of {row}");
        assert_eq!(wide(&found.peak_activations), list(9), "peak activations of {row}");
        assert_eq!(wide(&found.peak_until_input_gradient), list(10), "peak until input gradient of {row}");
        n_rows += 1;
    }
    n_rows
}

#[test]
fn every_order_is_made_operation_by_operation() {
    let mut n_files = 0;
    let mut wrong = Vec::new();
    let mut equal: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let folders = needs::outside_sets("schedules");
    let sources = ["torch_2_11", "zero_bubble", "chimera", "dualpipe"];
    let each = folders.iter().flat_map(|folder| sources.map(|source| (folder, source)));
    for (folder, source) in each {
        // The sample lacks what nobody may hand on.
        let Ok(files) = fs::read_dir(folder.join(source)) else { continue };
        let mut files: Vec<_> = files.map(|f| f.unwrap().path()).collect();
        n_files += files.len();
        files.sort();
        for file in files {
            let name = file.file_name().unwrap().to_str().unwrap().to_string();
            let stem = name.strip_suffix(".compute.csv").unwrap();
            let expected = from_csv(&fs::read_to_string(&file).unwrap(), None).unwrap();
            let made = made(source, stem);
            let count = equal.entry(format!("{source}/{}", stem.split('_').next().unwrap())).or_default();
            count.1 += 1;
            let same: &dyn Fn(&[Vec<Op>]) -> bool = &|ranks| ranks == expected.ranks;
            if same(&made.ranks) {
                count.0 += 1;
            } else {
                wrong.push(format!("{source}/{stem}"));
            }
        }
    }
    for (name, (equal, all)) in &equal {
        println!("{name}: {equal} of {all} equal");
    }
    assert!(wrong.is_empty(), "differ: {wrong:#?}");
    assert!(n_files >= 131, "{n_files} files");
}

/// Makes the order that a file of the reference holds.
fn made(source: &str, stem: &str) -> Order {
    let parts: Vec<&str> = stem.split('_').collect();
    let field = |letter: char| {
        let value = |part: &&str| part.strip_prefix(letter)?.parse::<u32>().ok();
        parts[1..].iter().find_map(value)
    };
    let (ranks, micro_batches) = match source {
        "chimera" => (field('D').unwrap(), field('N').unwrap()),
        _ => (field('p').unwrap(), field('m').unwrap()),
    };
    if source == "zero_bubble" {
        let (schedule, chunks) = match parts[0] {
            "ZBV" => (Schedule::ZbvSearch, 2),
            "VPP2" => (Schedule::Vpp, 2),
            name => {
                let schedule = Schedule::from_name(name).unwrap();
                (schedule, schedule.fixed_chunks().unwrap())
            }
        };
        let time = |letter: char| u64::from(field(letter).unwrap());
        let cost = Cost {
            forward: time('F'),
            input_gradient: time('I'),
            weight_gradient: time('W'),
            hop: time('C'),
        };
        return make_for_costs(schedule, Shape { ranks, chunks, micro_batches }, cost).unwrap();
    }
    let schedule = Schedule::from_name(parts[0]).unwrap();
    let chunks = field('v').or(schedule.fixed_chunks()).unwrap();
    make(parts[0], ranks, chunks, micro_batches).unwrap()
}
