//! Whatever stands in a CSV, the answer is a finding or an error, never a panic, and a clean order runs.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use simulator::{
    Cost, Link, Machine, Workload, clock, lint,
    order::{from_csv, make, to_csv},
    simulate,
};

fn check(text: &str, chain: Option<u32>) {
    let Ok(order) = from_csv(text, chain) else { return };
    assert_eq!(from_csv(&to_csv(&order), chain).unwrap().ranks.concat(), order.ranks.concat());
    let report = lint(&order);
    let times = clock(&order, &Cost::EQUAL);
    if report.errors().count() == 0 {
        assert!(times.is_ok(), "{text}: {times:?}");
    }
    let workload = Workload::uniform(order.chain as usize, order.ranks.len(), &Cost::EQUAL);
    let machine = Machine::uniform(order.ranks.len(), Link { latency: 1, bandwidth: 1e9 });
    let _ = simulate(&workload, &order, &machine);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_text(text in "[0-9FIWB,;()\nOVERLAP_ .-]{0,80}", chain in proptest::option::of(0_u32..5)) {
        check(&text, chain);
    }

    #[test]
    fn any_operations(
        cells in prop::collection::vec((0_u32..5, prop::sample::select(vec!['F', 'I', 'W', 'B']), 0_u32..4, 0..8), 0..24),
        chain in proptest::option::of(1_u32..4),
    ) {
        let mut text = String::new();
        for (stage, kind, micro_batch, end) in cells {
            let cell = format!("{stage}{kind}{micro_batch}");
            text += &match end {
                0 => format!("{cell}\n"),
                1 => format!("({cell};{stage}B{micro_batch})OVERLAP_F_B,"),
                _ => format!("{cell},"),
            };
        }
        check(&text, chain);
    }

    /// A right order with two operations exchanged or one lost.
    #[test]
    fn any_slip(
        name in prop::sample::select(vec!["1f1b", "zbv", "dualpipev", "v-min", "interleaved-zero-bubble"]),
        rank in 0_usize..3, from in 0_usize..40, to in 0_usize..40, is_lost in any::<bool>(),
    ) {
        let chunks = if matches!(name, "zbv" | "dualpipev" | "v-min") { 2 } else { 1 };
        let mut order = make(name, 3, chunks, 6).unwrap();
        let ops = &mut order.ranks[rank];
        let (from, to) = (from % ops.len(), to % ops.len());
        if is_lost {
            ops.remove(from);
        } else {
            ops.swap(from, to);
        }
        let report = lint(&order);
        // The linter and the clock agree on what runs.
        if is_lost {
            prop_assert!(report.errors().count() > 0);
        } else {
            prop_assert_eq!(report.errors().count() == 0, clock(&order, &Cost::EQUAL).is_ok());
        }
    }
}
