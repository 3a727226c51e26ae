//! A stage's memory, and what it recomputes or offloads if that is too little.
//!
//! Memory: parameters with gradients and optimizer state, one more copy of the parameters for each older weight version, saved
//! activations of the micro-batches in flight, the largest workspace, and buffers for transfers.
//!
//! Blocks are chosen exactly, by a knapsack for each size of the largest recomputed block; if a stage is the unit
//! (`RecomputeUnit::Stage`) all of it is recomputed or nothing. A recomputed block keeps its inputs, and
//! exists once in full while its backward pass runs. An offloaded block is copied out behind the stage's forward pass and back before its
//! backward pass while the device waits (`Pinned` of the simulator): one micro-batch of it is on the device at a time, all in flight if
//! the backward pass is split.

use std::{cmp::Reverse, rc::Rc};

use schema::{RecomputePolicy, RecomputeUnit, ShardingLevel};

use crate::stage::{
    in_flight::InFlight,
    knapsack::{Choice, Items, pick},
    memory_plan::{MemoryPlan, Saving},
    place::Place,
    run::{Cut, Run},
    score::{Scorer, StageScore},
};

/// The most stages of which is kept what they recompute: some 10 MB.
const MEMORY_PLANS: usize = 30_000;

/// Optimality gap, as a share of the stage's time, at which the knapsack stops.
const NEAR: f64 = 1e-4;

/// What may become of a block's activations.
#[derive(Clone, Copy)]
struct Choices {
    /// Kept; of a block that is always computed again, that.
    kept: Choice,
    /// Recomputed.
    recomputed: Option<Choice>,
    /// Offloaded to host memory.
    offloaded: Option<Choice>,
}

impl Choices {
    /// Returns the choices, recomputation among them if it is allowed.
    fn open(self, may_recompute: bool) -> impl Iterator<Item = Choice> {
        [self.kept].into_iter().chain(self.recomputed.filter(|_| may_recompute)).chain(self.offloaded)
    }
}

impl Scorer<'_> {
    /// Memory without activations.
    pub(crate) fn fixed(&self, start: usize, end: usize, run: Run, in_flight: usize) -> f64 {
        let parameters = self.parameters(start, end);
        let older = || match self.versions.get(&run.first) {
            Some(&versions) => f64::from(versions) - 1.0,
            None => in_flight as f64 - 1.0,
        };
        let versions = if self.rules.is_asynchronous { older() } else { 0.0 };
        let copies = self.problem.training.copies(run.count) + versions;
        parameters * copies
            + self.gathered(start, end, run)
            + self.buffers(start, end, run, in_flight as f64, parameters)
    }

    /// Where replicas share them out: parameters brought together for a pass, and gradients that are whole until they are shared out.
    /// Those of two blocks at a time.
    fn gathered(&self, start: usize, end: usize, run: Run) -> f64 {
        let kinds = match self.problem.training.sharding {
            ShardingLevel::Zero3 => 2.0,
            ShardingLevel::Zero2 => 1.0,
            ShardingLevel::None | ShardingLevel::Zero1 => return 0.0,
        };
        if run.count < 2 {
            return 0.0;
        }
        let parameters = |&block: &usize| self.problem.blocks[block].parameters.0;
        let largest = self.by_parameters.get_or_init(|| {
            let mut blocks: Vec<usize> = (0..self.problem.blocks.len()).collect();
            blocks.sort_by_key(|block| Reverse(parameters(block)));
            blocks
        });
        let largest = largest.iter().find(|block| self.states.has_block(start, end, **block));
        let two = 2.0 * largest.map_or(0, parameters) as f64;
        kinds * two.min(self.parameters(start, end))
    }

    /// Values on their way, and gradients while replicas add them up.
    ///
    /// One is sent each way. The stage before may be one micro-batch ahead, and more where activations are not there yet; the
    /// stage behind may have made every gradient that is still to be used.
    fn buffers(&self, start: usize, end: usize, run: Run, in_flight: f64, parameters: f64) -> f64 {
        let states = self.states;
        let into = states.crossing[start];
        let early = self.early(start, end) * in_flight;
        let sent = states.crossing[end] + states.crossing_back[start];
        let back = states.crossing_back[end] * in_flight;
        let bucket = if run.count > 1 { parameters.min(schema::BUCKET.0 as f64) } else { 0.0 };
        // Every replica of the stage before may be ahead; where their number is not known yet, all devices before are.
        let most = if self.is_bound { run.first.min(1) } else { run.first };
        let before = self.before.get(&run.first).copied().unwrap_or(most);
        let ahead = if self.rules.is_asynchronous { before.div_ceil(run.count) as f64 } else { 0.0 };
        into * (1.0 + ahead) + early + sent + back + bucket.max(self.shared(start, end))
    }

    /// Bytes of a micro-batch that wait before a stage and are no part of what its blocks keep.
    fn early(&self, start: usize, end: usize) -> f64 {
        let (states, training) = (self.states, &self.problem.training);
        let is_by_block = training.recompute && training.recompute_unit.is_block();
        let kept = if is_by_block || training.offload {
            states.least_kept[end] - states.least_kept[start]
        } else {
            states.activations[end] - states.activations[start]
        };
        (states.crossing[start] - kept).max(0.0)
    }

    /// Bytes of a micro-batch that a stage keeps which is computed again as one: what it is given, and what stays in any case.
    fn kept_by_stage(&self, start: usize, end: usize, blocks: &[usize]) -> f64 {
        let given = self.states.crossing[start] - self.early(start, end);
        given + blocks.iter().map(|&block| self.stays[block]).sum::<f64>()
    }

    /// Returns a lower bound of the recomputation and offload time, and whether it is exact; `None` if nothing makes the stage fit.
    pub(crate) fn least_overhead(
        &self,
        start: usize,
        end: usize,
        place: &Place,
        behind: usize,
    ) -> Option<(f64, bool)> {
        let in_flight = self.rules.in_flight.count(place.run.count, behind);
        let (fixed, limit) = (self.fixed(start, end, place.run, in_flight), place.limit);
        let activations = (self.states.activations[end] - self.states.activations[start]) * in_flight as f64;
        // What is computed again in any case: how much less that holds, and its seconds.
        let (saved, again) = self.in_any_case((start, end), in_flight, place.speed);
        let activations = activations - saved;
        // A bound that needs no list of blocks decides most stages.
        if fixed + activations + self.largest_workspace <= limit {
            return Some((again, self.always.is_empty()));
        }
        if fixed + self.least_held(start, end, in_flight) > limit * (1.0 + 1e-12) {
            return None;
        }
        let more = self.least_overhead_for((start, end), in_flight, place, fixed + activations - limit);
        Some((again + more, false))
    }

    /// Returns the bytes that blocks which are always computed again hold less, and the seconds that they take once more.
    fn in_any_case(&self, (start, end): (usize, usize), in_flight: usize, speed: f64) -> (f64, f64) {
        let is_by_block = self.problem.training.recompute_unit.is_block();
        let own =
            self.always.iter().filter(|block| is_by_block && self.states.has_block(start, end, **block));
        own.fold((0.0, 0.0), |(bytes, seconds), &block| {
            let held = self.activations(block) - self.inputs[block];
            (bytes + held * in_flight as f64, seconds + self.problem.blocks[block].forward.0 / speed)
        })
    }

    /// Returns the least bytes of activations that a stage needs, whatever it recomputes.
    pub(crate) fn least_held(&self, start: usize, end: usize, in_flight: usize) -> f64 {
        let mut known = self.least_held.borrow_mut();
        let held = known.entry(in_flight).or_insert_with(|| {
            self.states.sums(|block| {
                let choices = self.choices(block, in_flight, (1.0, 1.0));
                choices.open(true).map(|choice| choice.memory).fold(f64::INFINITY, f64::min)
            })
        });
        held[end] - held[start]
    }

    /// Returns a lower bound of the time to save so many bytes: the fractional knapsack.
    fn least_overhead_for(
        &self,
        (start, end): (usize, usize),
        in_flight: usize,
        place: &Place,
        mut bytes: f64,
    ) -> f64 {
        let key = (in_flight, [place.speed, place.host].map(f64::to_bits));
        let known = self.savings.borrow().get(&key).map(Rc::clone);
        let savings = known.unwrap_or_else(|| {
            let savings = Rc::new(self.find_savings(in_flight, place));
            self.savings.borrow_mut().insert(key, Rc::clone(&savings));
            savings
        });
        let mut seconds = 0.0;
        for saving in savings.iter() {
            if bytes <= 0.0 {
                break;
            }
            if self.states.has_block(start, end, saving.block) {
                seconds += saving.seconds_per_byte * bytes.min(saving.bytes);
                bytes -= saving.bytes;
            }
        }
        // Sums are rounded.
        seconds * (1.0 - 1e-9)
    }

    /// Returns what recomputing and offloading blocks saves, the cheapest bytes first.
    fn find_savings(&self, in_flight: usize, place: &Place) -> Vec<Saving> {
        let mut savings = Vec::new();
        for index in 0..self.problem.blocks.len() {
            let Choices { kept, recomputed, offloaded } =
                self.choices(index, in_flight, (place.speed, place.host));
            let saving = |choice: Choice| (kept.memory - choice.memory, choice.time);
            let mut push = |(bytes, seconds): (f64, f64)| {
                savings.push(Saving { block: index, bytes, seconds_per_byte: seconds / bytes });
            };
            let rate = |choice: &(f64, f64)| choice.1 / choice.0;
            let mut choices: Vec<(f64, f64)> = recomputed.into_iter().chain(offloaded).map(saving).collect();
            choices.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
            if let Some(&first) = choices.first() {
                push(first);
            }
            // What brings more than the cheaper one costs more for the rest.
            if let [first, second] = choices[..]
                && second.0 > first.0
            {
                push((second.0 - first.0, second.1 - first.1));
            }
        }
        savings.sort_by(|a, b| a.seconds_per_byte.total_cmp(&b.seconds_per_byte).then(a.block.cmp(&b.block)));
        savings
    }

    /// Tells whether the whole model fits every device with as many micro-batches as are ever in flight: memory decides nothing.
    pub(crate) fn is_roomy(&self) -> bool {
        if !self.always.is_empty() {
            return false;
        }
        let n_devices = self.problem.machine.devices.len();
        let last = self.states.len() - 1;
        let most = |bytes: &[f64]| bytes.iter().copied().fold(0.0, f64::max);
        let in_flight = self.rules.in_flight.count(1, n_devices) as f64;
        let versions = if self.rules.is_asynchronous { in_flight } else { 0.0 };
        let ahead = if self.rules.is_asynchronous { n_devices as f64 } else { 1.0 };
        // One more copy for the buckets of gradients.
        let copies = 1.0 + self.problem.training.copies(1) + versions;
        let ways = 2.0 + ahead + 2.0 * in_flight;
        let values = ways * (most(&self.states.crossing) + most(&self.states.crossing_back));
        let activations = self.states.activations[last] * in_flight;
        let memory = self.problem.parameters() * copies + values + activations + self.largest_workspace;
        self.problem.machine.devices.iter().all(|device| memory <= device.memory.0 as f64)
    }

    /// Returns the fastest choice of recomputation and offload that fits a memory limit.
    pub(crate) fn memory_plan_within(&self, cut: &Cut, limit: f64) -> Option<MemoryPlan> {
        let in_flight = self.rules.in_flight.count(cut.run.count, cut.behind);
        let fixed = self.fixed(cut.start, cut.end, cut.run, in_flight);
        self.picked(cut, (fixed, limit))
    }

    /// The same where the bytes that no choice changes are known.
    pub(crate) fn picked(&self, cut: &Cut, (fixed, limit): (f64, f64)) -> Option<MemoryPlan> {
        if fixed > limit {
            return None;
        }
        let Cut { start, end, run, behind } = *cut;
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let activations = (self.states.activations[end] - self.states.activations[start]) * in_flight as f64;
        let fits = fixed + activations + self.largest_workspace <= limit;
        if !fits && fixed + self.least_held(start, end, in_flight) > limit * (1.0 + 1e-12) {
            return None;
        }
        let Place { speed, host, .. } = *self.place(run);
        let is_split = matches!(self.rules.in_flight, InFlight::Split(_));
        let kind = (in_flight, is_split, self.is_bound);
        let key = ((start, end), kind, [limit, speed, fixed, host].map(f64::to_bits));
        let known = self.memory_plans.borrow().get(&key).cloned();
        let gap = self.gap.get();
        let (again, own) = known.unwrap_or_else(|| {
            self.gap.set(0.0);
            let again = self.choose(start, end, in_flight, fixed, limit, (speed, host));
            let found = (again, self.gap.get());
            let mut all = self.memory_plans.borrow_mut();
            if all.len() == MEMORY_PLANS {
                all.clear();
            }
            all.insert(key, found.clone());
            found
        });
        self.gap.set(gap.max(own));
        again
    }

    /// Micro-batches of an offloaded block that are on the device at once.
    fn copies_held(&self, in_flight: usize) -> usize {
        match self.rules.in_flight {
            // What came back for the inputs' gradient stays for the weights'.
            InFlight::Split(_) => in_flight,
            _ => self.copies.min(in_flight),
        }
    }

    fn choose(
        &self,
        start: usize,
        end: usize,
        in_flight: usize,
        fixed: f64,
        limit: f64,
        (speed, host): (f64, f64),
    ) -> Option<MemoryPlan> {
        let blocks = self.states.blocks(start, end);
        let in_flight_factor = in_flight as f64;
        let workspace =
            blocks.iter().map(|&block| self.problem.blocks[block].workspace.0).max().unwrap_or(0) as f64;
        let all = blocks.iter().map(|&block| self.problem.blocks[block].activations.0 as f64).sum::<f64>();
        let policy = |block: &usize| self.problem.blocks[*block].recompute;
        let has = |own: RecomputePolicy| blocks.iter().any(|block| policy(block) == Some(own));
        if fixed + workspace + all * in_flight_factor <= limit && !has(RecomputePolicy::Always) {
            return Some(MemoryPlan::nothing(fixed + workspace + all * in_flight_factor));
        }
        if !self.problem.training.recompute_unit.is_block() {
            if has(RecomputePolicy::Never) {
                return None;
            }
            // The bound forgives what is there once more.
            let once_more: f64 = blocks.iter().map(|&block| self.once_more(block)).sum();
            let once_more = if self.is_bound { 0.0 } else { once_more };
            let kept = self.kept_by_stage(start, end, &blocks) * in_flight_factor;
            let memory = fixed + workspace + kept + once_more;
            let forward: f64 = blocks.iter().map(|&block| self.problem.blocks[block].forward.0).sum();
            let unit = RecomputeUnit::Stage;
            let again =
                MemoryPlan { seconds: forward / speed, memory, recompute: blocks, unit, offload: vec![] };
            return (self.problem.training.recompute && memory <= limit).then_some(again);
        }
        let work = (self.states.work[end] - self.states.work[start]) / speed;
        let open = blocks.iter().map(|&block| self.choices(block, in_flight, (speed, host)));
        let sizes = self.recomputed_sizes(&blocks);
        let search =
            Search { blocks: &blocks, choices: open.collect(), room: limit - fixed - workspace, work };
        let again = search.best(self, &sizes)?;
        Some(MemoryPlan { memory: fixed + workspace + again.memory, ..again })
    }

    /// Bytes of the largest block that is computed again, which exists once in full: all that may be asked for, the least first.
    fn recomputed_sizes(&self, blocks: &[usize]) -> Vec<f64> {
        let mut sizes = vec![0.0];
        // The bound forgives the largest block.
        if self.problem.training.recompute && !self.is_bound {
            let is_less = |block: &&usize| self.inputs[**block] < self.activations(**block);
            sizes.extend(blocks.iter().filter(is_less).map(|&block| self.once_more(block)));
            let always = blocks.iter().filter(|&&block| self.is_always(block));
            let least = always.map(|&block| self.once_more(block)).fold(0.0, f64::max);
            sizes.push(least);
            sizes.retain(|size| *size >= least);
            sizes.sort_by(f64::total_cmp);
            sizes.dedup();
        }
        sizes
    }

    /// Bytes of a block that are there once more while its backward pass runs: all but what has stayed.
    fn once_more(&self, block: usize) -> f64 {
        self.activations(block) - self.problem.blocks[block].kept.0 as f64
    }

    fn is_always(&self, block: usize) -> bool {
        self.problem.blocks[block].recompute == Some(RecomputePolicy::Always)
    }

    fn activations(&self, block: usize) -> f64 {
        self.problem.blocks[block].activations.0 as f64
    }

    /// Returns what may become of a block's activations.
    fn choices(&self, index: usize, in_flight: usize, (speed, host): (f64, f64)) -> Choices {
        let (in_flight_factor, held) = (in_flight as f64, self.copies_held(in_flight) as f64);
        let training = &self.problem.training;
        let activations = self.activations(index);
        let is_whole = !self.problem.blocks[index].is_operator;
        let is_by_block = training.recompute_unit.is_block();
        let inputs = if is_by_block { self.inputs[index] } else { self.stays[index] };
        let policy = self.problem.blocks[index].recompute;
        let again =
            Choice { time: self.problem.blocks[index].forward.0 / speed, memory: inputs * in_flight_factor };
        if is_by_block && policy == Some(RecomputePolicy::Always) {
            return Choices { kept: again, recomputed: None, offloaded: None };
        }
        let is_never = policy == Some(RecomputePolicy::Never);
        let is_recomputed =
            training.recompute && !is_never && (is_whole || !is_by_block) && inputs < activations;
        let is_offloaded =
            training.offload && is_by_block && is_whole && activations > 0.0 && held < in_flight_factor;
        Choices {
            kept: Choice { time: 0.0, memory: activations * in_flight_factor },
            recomputed: is_recomputed.then_some(again),
            offloaded: is_offloaded
                .then(|| Choice { time: 2.0 * activations / host, memory: activations * held }),
        }
    }

    /// Scores a stage with blocks that somebody else chose to compute again and to offload, whether it fits or not.
    pub(crate) fn score_given(
        &self,
        cut: &Cut,
        (recompute, unit): (&[usize], RecomputeUnit),
        offload: &[usize],
    ) -> StageScore {
        let Cut { start, end, run, behind } = *cut;
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let place = self.place(run);
        let fixed = self.fixed(start, end, run, in_flight);
        let block = |index: usize| &self.problem.blocks[index];
        let activations = |index: usize| block(index).activations.0 as f64;
        let blocks = self.states.blocks(start, end);
        let kept = blocks.iter().map(|index| match (recompute.contains(index), offload.contains(index)) {
            (true, _) => self.inputs[*index] * in_flight as f64,
            (_, true) => activations(*index) * self.copies_held(in_flight) as f64,
            _ => activations(*index) * in_flight as f64,
        });
        let workspace = blocks.iter().map(|&index| block(index).workspace.0).max().unwrap_or(0) as f64;
        let again = recompute.iter().map(|&index| self.once_more(index));
        let (kept, once_more) = match unit {
            RecomputeUnit::Block => (kept.sum::<f64>(), again.fold(0.0, f64::max)),
            RecomputeUnit::Stage => {
                (self.kept_by_stage(start, end, &blocks) * in_flight as f64, again.sum::<f64>())
            }
        };
        let memory = fixed + workspace + once_more + kept;
        let again: f64 = recompute.iter().map(|&index| block(index).forward.0).sum::<f64>() / place.speed;
        let copied: f64 = offload.iter().map(|&index| activations(index)).sum();
        // Copies beside compute are the simulator's to time.
        let copying = if self.copies == 1 { 2.0 * copied / place.host } else { 0.0 };
        let again = MemoryPlan {
            seconds: again + copying,
            memory,
            recompute: recompute.to_vec(),
            unit,
            offload: offload.to_vec(),
        };
        self.scored(cut, again, place.limit)
    }
}

/// Searches for what a stage recomputes and offloads.
///
/// How large the largest block computed again may be is decided first: a range of sizes is halved unless no choice in it, blocks up to
/// the largest size open and memory for the smallest, can be better than what is known.
struct Search<'a> {
    blocks: &'a [usize],
    choices: Vec<Choices>,
    /// Bytes for activations, the largest block computed again among them.
    room: f64,
    /// Seconds of the stage without what it does again.
    work: f64,
}

impl Search<'_> {
    fn best(&self, scorer: &Scorer, sizes: &[f64]) -> Option<MemoryPlan> {
        let mut best: Option<(MemoryPlan, f64)> = None;
        let mut ranges = vec![(0, sizes.len() - 1)];
        while let Some((low, high)) = ranges.pop() {
            let room = self.room - sizes[low];
            if self.is_too_full(scorer, room, sizes[high]) {
                continue;
            }
            if let Some((known, price)) = &best
                && self.least(scorer, room, sizes[high], *price) >= known.seconds
            {
                continue;
            }
            if low < high {
                let middle = (low + high) / 2;
                ranges.extend([(low, middle), (middle + 1, high)]);
                continue;
            }
            if let Some((again, price)) = self.pick(scorer, room, sizes[low])
                && best.as_ref().is_none_or(|(best, _)| again.seconds < best.seconds)
            {
                best = Some((again, price));
            }
        }
        best.map(|(best, _)| best)
    }

    /// Choices of all blocks where none larger than `largest` is computed again.
    fn open(&self, scorer: &Scorer, largest: f64) -> impl Iterator<Item = impl Iterator<Item = Choice>> {
        self.blocks
            .iter()
            .zip(&self.choices)
            .map(move |(&block, choices)| choices.open(scorer.is_bound || scorer.once_more(block) <= largest))
    }

    fn is_too_full(&self, scorer: &Scorer, room: f64, largest: f64) -> bool {
        let least = |choices: &mut dyn Iterator<Item = Choice>| {
            choices.map(|choice| choice.memory).fold(f64::INFINITY, f64::min)
        };
        self.open(scorer, largest).map(|mut choices| least(&mut choices)).sum::<f64>() > room
    }

    /// Seconds that no choices take less than, as far as a price of memory tells.
    fn least(&self, scorer: &Scorer, room: f64, largest: f64, price: f64) -> f64 {
        let of = |choices: &mut dyn Iterator<Item = Choice>| {
            choices.map(|choice| choice.time + price * choice.memory).fold(f64::INFINITY, f64::min)
        };
        let sum: f64 = self.open(scorer, largest).map(|mut choices| of(&mut choices)).sum();
        // Sums are rounded.
        sum * (1.0 - 1e-9) - price * room
    }

    /// Picks where no block larger than `largest` is computed again; memory is that of activations alone. Also tells what memory is
    /// worth.
    fn pick(&self, scorer: &Scorer, room: f64, largest: f64) -> Option<(MemoryPlan, f64)> {
        let mut items = Items::default();
        self.open(scorer, largest).for_each(|choices| items.push(choices));
        let picked = pick(&items, room, NEAR * self.work)?;
        let kept: f64 = items.sum(&picked.choices, |choice| choice.memory);
        self.note_gap(scorer, picked.time - picked.lower_bound);
        let (mut recompute, mut offload) = (Vec::new(), Vec::new());
        for ((&block, choices), choice) in self.blocks.iter().zip(&self.choices).zip(picked.choices) {
            let is_recomputed =
                choices.recomputed.is_some() && (scorer.is_bound || scorer.once_more(block) <= largest);
            match choice {
                0 if scorer.is_always(block) => recompute.push(block),
                0 => {}
                1 if is_recomputed => recompute.push(block),
                _ => offload.push(block),
            }
        }
        let seconds = if scorer.is_bound { picked.lower_bound } else { picked.time };
        let unit = RecomputeUnit::Block;
        Some((MemoryPlan { seconds, memory: largest + kept, recompute, unit, offload }, picked.price))
    }

    /// Notes the optimality gap of a knapsack that was not solved to the end.
    fn note_gap(&self, scorer: &Scorer, seconds: f64) {
        if seconds > 0.0 && self.work > 0.0 {
            scorer.gap.set(scorer.gap.get().max(seconds / self.work));
        }
    }
}
