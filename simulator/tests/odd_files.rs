//! Schedules as other people's tools leave them: the same order is read, and every slip has a rank, a position and a reason.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{fs, path::PathBuf};

use simulator::{
    lint,
    order::{ALL, Order, Shape, from_csv, make_for_costs, to_csv},
};

#[path = "../../tests/needs/mod.rs"]
mod needs;

/// Every reference schedule that is here, and each of ours.
fn schedules() -> Vec<(String, String)> {
    let mut all = Vec::new();
    // The whole set holds the sample.
    let folder = needs::outside_sets("schedules").pop().unwrap();
    for source in ["torch_2_11", "zero_bubble", "chimera", "dualpipe"] {
        let Ok(files) = fs::read_dir(folder.join(source)) else { continue };
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        all.extend(files.iter().map(|file| (file.display().to_string(), fs::read_to_string(file).unwrap())));
    }
    for schedule in ALL {
        let chunks = schedule.fixed_chunks().unwrap_or(2);
        let micro_batches = if schedule.name() == "gems" { 2 } else { 8 };
        let shape = Shape { ranks: 4, chunks, micro_batches };
        let order = make_for_costs(schedule, shape, simulator::Cost::EQUAL).unwrap();
        all.push((schedule.name().to_string(), to_csv(&order)));
    }
    all
}

/// What spreadsheets, editors and other systems do to a file.
fn changed(text: &str) -> Vec<(&'static str, String)> {
    let each = |change: &dyn Fn(&str) -> String| -> String {
        let row = |row: &str| row.split(',').map(change).collect::<Vec<_>>().join(",") + "\n";
        text.lines().map(row).collect()
    };
    let lines = |end: &str| text.lines().map(|row| row.to_string() + end).collect::<String>();
    let widest = text.lines().map(|row| row.split(',').count()).max().unwrap_or(0);
    let padded = |row: &str| row.to_string() + &",".repeat(widest - row.split(',').count()) + "\n";
    vec![
        ("a byte-order mark", format!("\u{feff}{text}")),
        ("lines of Windows", lines("\r\n")),
        ("lines of old Macs", lines("\r")),
        ("no newline at the end", text.trim_end().to_string()),
        ("blank lines at the end", format!("{text}\n\r\n  \n")),
        ("quotes", each(&|cell| format!("\"{cell}\""))),
        ("spaces", each(&|cell| format!("  {cell}\t"))),
        ("idle slots", each(&|cell| format!(",{cell}, ,\"\""))),
        ("rows of equal length", text.lines().map(padded).collect()),
    ]
}

#[test]
fn odd_files_hold_the_same_order() {
    for (name, text) in schedules() {
        let plain = from_csv(&text, None).unwrap();
        for (what, odd) in changed(&text) {
            let read = from_csv(&odd, None).unwrap_or_else(|error| panic!("{name} with {what}: {error}"));
            assert_eq!(read, plain, "{name} with {what}");
        }
    }
}

/// The chain of the reference's schedules with two copies of the model.
fn copies(name: &str, order: Order) -> Order {
    let is_double = ["DualPipe_", "Chimera_"].iter().any(|two| name.contains(two))
        || ["dualpipe", "chimera", "gems", "gems-master"].contains(&name);
    Order { chain: if is_double { order.chain / 2 } else { order.chain }, ..order }
}

#[test]
fn every_slip_has_a_place_and_a_reason() {
    let mut n_slips = 0;
    for (nth, (name, text)) in schedules().into_iter().enumerate() {
        let plain = copies(&name, from_csv(&text, None).unwrap());
        assert_eq!(lint(&plain).errors().count(), 0, "{name}");
        let rank = nth % plain.ranks.len();
        let at = nth * 7 % plain.ranks[rank].len();
        let other = (rank + 1) % plain.ranks.len();
        let slip = |change: &dyn Fn(&mut Order)| {
            let mut order = plain.clone();
            // The half of a fused pair that is left stands alone.
            order.ranks.iter_mut().flatten().for_each(|op| op.joined = false);
            change(&mut order);
            order
        };
        let mut slips = vec![
            (
                "lost",
                slip(&|order| {
                    order.ranks[rank].remove(at);
                }),
            ),
            ("doubled", slip(&|order| order.ranks[rank].push(plain.ranks[rank][at]))),
        ];
        if plain.ranks.len() > 1 {
            let moved = |order: &mut Order| {
                let op = order.ranks[rank].remove(at);
                order.ranks[other].push(op);
            };
            slips.push(("on another rank", slip(&moved)));
            slips.push(("a rank lost", slip(&|order| order.ranks[rank].clear())));
        }
        for (what, order) in slips {
            let report = lint(&order);
            assert!(report.errors().count() > 0, "{name}, {what}: nothing is found");
            assert_eq!(report.peak_activations, None, "{name}, {what}");
            for finding in &report.findings {
                let (shown, place) = (finding.to_string(), finding.place);
                assert!(place.position < order.ranks[place.rank].len(), "{name}, {what}: {shown}");
                let prefix = format!("rank {}, position {}: ", place.rank, place.position);
                assert!(
                    shown.len() > prefix.len() + 10 && shown.starts_with(&prefix),
                    "{name}, {what}: {shown}"
                );
            }
            n_slips += 1;
        }
    }
    assert!(n_slips >= 4 * ALL.len(), "{n_slips}");
}
