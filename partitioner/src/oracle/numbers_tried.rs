//! What the search says it tried.

use schema::Bytes;

use crate::{
    MicroBatches, Problem,
    oracle::random_problems::{Dice, cases, is_skipped, problem},
    plan_model,
};

/// A problem whose number of micro-batches is open; memory is short in some.
fn open(dice: &mut Dice) -> Problem {
    let (n_blocks, n_devices) = (3 + dice.below(6) as usize, 2 + dice.below(4) as usize);
    let is_chain = dice.below(3) > 0;
    let mut problem = problem(dice, n_blocks, n_devices, is_chain, true);
    if dice.flip() {
        let memory = 60 + dice.below(400);
        problem.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(memory));
    }
    problem.training.micro_batches = MicroBatches::Enough;
    problem
}

/// Schedules that take micro-batches in rounds raise small numbers to larger ones that are tried as well.
#[test]
fn each_number_of_micro_batches_is_said_once() {
    let mut dice = Dice(71);
    let mut n_said = 0;
    for case in 0..cases(150) {
        let mut problem = open(&mut dice);
        if is_skipped(case) {
            continue;
        }
        let Ok(planned) = plan_model(&mut problem, None, None) else { continue };
        let said: Vec<u32> = planned.tried.iter().map(|one| one.micro_batches).collect();
        assert!(said.is_sorted_by(|one, next| one < next), "case {case}: {said:?}");
        let own = planned.tried.iter().find(|one| one.micro_batches == planned.best.micro_batches);
        let own = own.map(|own| own.seconds_each);
        assert_eq!(own, Some(planned.best.seconds_each()), "case {case}: {:?}", planned.tried);
        n_said += said.len();
    }
    assert!(is_skipped(0) || n_said > 100, "{n_said} numbers");
}
