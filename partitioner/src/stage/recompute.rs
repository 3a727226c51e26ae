//! A stage's memory, and what it recomputes or offloads if that is too little.
//!
//! Memory: parameters with gradients and optimizer state, one more copy of the parameters for each older weight version, saved
//! activations of the micro-batches in flight, the largest workspace, and buffers for transfers.
//!
//! Blocks are chosen exactly, by a knapsack for each size of the largest recomputed block; if a stage is the unit
//! (`RecomputeUnit::Stage`) all of it is recomputed or nothing. A recomputed block keeps its inputs, and all of its activations
//! exist once while its backward pass runs; it may keep results that are dear to compute, too, and recompute only what lies
//! between them (`Block::light`). An offloaded block is copied out behind the stage's forward pass and back before its
//! backward pass while the device waits (`Pinned` of the simulator): one micro-batch of it is on the device at a time, all in
//! flight if the backward pass is split.

use std::rc::Rc;

use schema::{RecomputePolicy, RecomputeUnit, ShardingLevel};

use crate::{
    problem::Again,
    stage::{
        costs::StageCosts,
        knapsack::{Choice, Items, pick},
        memory_plan::{Conditions, Found, MemoryPlan, Saving},
        score::StageScore,
        scorer::Scorer,
    },
};

/// Optimality gap, as a share of the stage's time, at which the knapsack stops.
const NEAR: f64 = 1e-4;

/// The most numbers of blocks that are kept: 4 MiB.
const COUNTS: usize = 1 << 20;

/// What becomes of a block's activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    /// Recomputed but for dear results.
    Light,
    Recomputed,
    /// Moved to host memory.
    Offloaded,
}

/// Micro-batches whose weights' gradients wait hold what these are made of, if that is more than their activations.
#[derive(Clone, Copy)]
struct Waiting {
    /// Bytes that all of them hold.
    bytes: f64,
    /// The share of the micro-batches in flight that does not wait.
    others: f64,
}

impl Waiting {
    /// Returns the bytes of all micro-batches in flight, of whose activations there are so many.
    fn held(self, activations: f64) -> f64 {
        activations.max(activations * self.others + self.bytes)
    }

    /// Returns how many bytes of activations fit a room.
    fn room(self, room: f64) -> f64 {
        let left = room - self.bytes;
        let most = if self.others > 0.0 { left / self.others } else { f64::INFINITY };
        if left < 0.0 { f64::NEG_INFINITY } else { room.min(most) }
    }
}

/// The choices for a block's activations.
#[derive(Clone, Copy)]
struct Choices {
    /// Kept; for a block that is recomputed in any case, that.
    first: (Fate, Choice),
    light: Option<Choice>,
    recomputed: Option<Choice>,
    offloaded: Option<Choice>,
}

impl Choices {
    /// Returns all of them.
    fn all(self) -> impl Iterator<Item = (Fate, Choice)> {
        let named = |fate: Fate, choice: Option<Choice>| choice.map(|choice| (fate, choice));
        let light = named(Fate::Light, self.light);
        let recomputed = named(Fate::Recomputed, self.recomputed);
        let offloaded = named(Fate::Offloaded, self.offloaded);
        [self.first].into_iter().chain(light).chain(recomputed).chain(offloaded)
    }
}

impl StageCosts<'_> {
    /// Returns the bytes of a stage without activations.
    fn fixed(&self, start: usize, end: usize) -> f64 {
        let Self { scorer, place, in_flight, .. } = self;
        let parameters = scorer.parameters(start, end);
        let older = || match scorer.versions.get(&place.run.first) {
            Some(&versions) => f64::from(versions) - 1.0,
            None => *in_flight as f64 - 1.0,
        };
        let versions = if scorer.rules.is_asynchronous { older() } else { 0.0 };
        let copies = scorer.problem.training.copies(place.run.count) + versions;
        parameters * copies + self.gathered(start, end) + self.buffers(start, end, parameters)
    }

    /// Returns the bytes that sharded replicas hold whole for a time: gathered parameters (ZeRO-3), and gradients before they are
    /// reduce-scattered (ZeRO-2 and 3), of two blocks at once.
    fn gathered(&self, start: usize, end: usize) -> f64 {
        let (scorer, blocks) = (self.scorer, &self.scorer.problem.blocks);
        let kinds = match scorer.problem.training.sharding {
            ShardingLevel::Zero3 => 2.0,
            ShardingLevel::Zero2 => 1.0,
            ShardingLevel::None | ShardingLevel::Zero1 => return 0.0,
        };
        if self.place.run.count < 2 {
            return 0.0;
        }
        let is_own = |block: &&usize| scorer.states.has_block(start, end, **block);
        let largest = scorer.bytes.by_parameters.iter().find(is_own);
        let two = 2.0 * largest.map_or(0, |&block| blocks[block].parameters.0) as f64;
        kinds * two.min(scorer.parameters(start, end))
    }

    /// Returns the bytes of values in transfer, and of a bucket while replicas sum it.
    ///
    /// One value is sent each way. The stage before may be one micro-batch ahead, or more if a value arrives before the stage
    /// keeps it; the stage behind may have made all gradients of the micro-batches in flight.
    fn buffers(&self, start: usize, end: usize, parameters: f64) -> f64 {
        let (scorer, run, in_flight) = (self.scorer, self.place.run, self.in_flight as f64);
        let states = scorer.states;
        let into = states.crossing[start];
        let early = scorer.early(start, end) * in_flight;
        let sent = states.crossing[end] + states.crossing_back[start];
        let back = states.crossing_back[end] * in_flight;
        let bucket = if run.count > 1 { parameters.min(schema::BUCKET.0 as f64) } else { 0.0 };
        // Each replica of the stage before may be ahead; if their number is not known yet, all devices before are counted.
        let most = if scorer.is_bound { run.first.min(1) } else { run.first };
        let before = scorer.before.get(&run.first).copied().unwrap_or(most);
        let ahead = if scorer.rules.is_asynchronous { before.div_ceil(run.count) as f64 } else { 0.0 };
        into * (1.0 + ahead) + early + sent + back + bucket.max(scorer.shared(start, end))
    }

    /// Returns what micro-batches hold whose weights' gradients wait, for a stage where one holds so many bytes then.
    fn waiting(&self, bytes: f64) -> Waiting {
        let waiting = self.waiting as f64;
        Waiting { bytes: bytes * waiting, others: 1.0 - waiting / self.in_flight as f64 }
    }

    /// Returns a lower bound of the recomputation and offload time, and whether it is exact; `None` if nothing makes the stage fit.
    pub(crate) fn least_overhead(&self, start: usize, end: usize) -> Option<(f64, bool)> {
        let Self { scorer, place, in_flight, .. } = self;
        let (fixed, limit) = (self.fixed(start, end), place.limit);
        // Bytes saved and seconds spent by blocks that are always recomputed.
        let (saved, seconds) = self.in_any_case(start, end);
        let activations = scorer.all_activations(start, end) * *in_flight as f64 - saved;
        let waiting = self.waiting(scorer.waiting(start, end));
        // A bound that needs no list of blocks decides for most stages.
        if fixed + waiting.held(activations) + scorer.bytes.largest_workspace <= limit {
            return Some((seconds, scorer.bytes.always.is_empty()));
        }
        if fixed + scorer.least_held(start, end, *in_flight) > limit * (1.0 + 1e-12) {
            return None;
        }
        Some((seconds + self.least_time_to_save(start, end, fixed + activations - limit), false))
    }

    /// Returns a lower bound of the seconds for each micro-batch that only grows with the stage: without transfers, and with
    /// memory only if its buffers, of at least so many bytes, are given; infinite if the stage cannot fit.
    pub(crate) fn relaxed(&self, start: usize, end: usize, buffers: Option<f64>) -> f64 {
        let Self { scorer, place, in_flight, .. } = self;
        let work = (scorer.states.work[end] - scorer.states.work[start]) / place.speed;
        let overhead = |buffers: f64| {
            let parameters = scorer.parameters(start, end) * scorer.problem.training.copies(place.run.count);
            let fixed = parameters + self.gathered(start, end) + buffers;
            if fixed + scorer.least_held(start, end, *in_flight) > place.limit * (1.0 + 1e-12) {
                return f64::INFINITY;
            }
            let (saved, seconds) = self.in_any_case(start, end);
            let activations = scorer.all_activations(start, end) * *in_flight as f64 - saved;
            seconds + self.least_time_to_save(start, end, fixed + activations - place.limit)
        };
        let overhead = buffers.map_or(0.0, overhead);
        let passes = work + overhead + self.accumulation(start, end) + scorer.problem.host_of_two();
        passes / place.run.count as f64
    }

    /// Returns the bytes that always recomputed blocks save, and the seconds that this takes.
    fn in_any_case(&self, start: usize, end: usize) -> (f64, f64) {
        let Self { scorer, place, in_flight, .. } = self;
        let is_by_block = scorer.problem.training.recompute_unit.is_block();
        let is_own = |block: &&usize| is_by_block && scorer.states.has_block(start, end, **block);
        scorer.bytes.always.iter().filter(is_own).fold((0.0, 0.0), |(bytes, seconds), &block| {
            let again = scorer.again_as_asked(block);
            let saved = scorer.activations(block) - scorer.bytes.inputs[block] - again.held.0 as f64;
            (bytes + saved * *in_flight as f64, seconds + again.forward.0 / place.speed)
        })
    }

    /// Returns a lower bound of the time to save a number of bytes: the fractional knapsack.
    fn least_time_to_save(&self, start: usize, end: usize, mut bytes: f64) -> f64 {
        let Self { scorer, place, in_flight, .. } = self;
        let in_flight_there = (*in_flight, scorer.copies_held(*in_flight));
        let key = (in_flight_there, [place.speed, place.host].map(f64::to_bits));
        let find = || Rc::new(scorer.find_savings(*in_flight, (place.speed, place.host)));
        if bytes <= 0.0 {
            return 0.0;
        }
        let count: &dyn Fn(usize) -> u32 = match scorer.kinds_before() {
            Some(before) => &|kind: usize| before[end][kind] - before[start][kind],
            None => {
                let members = scorer.states.members(start, end);
                &move |block: usize| u32::from(members.contains(block))
            }
        };
        let mut seconds = 0.0;
        for saving in scorer.memory_plans.savings.get(key, find).iter() {
            if bytes <= 0.0 {
                break;
            }
            let saved = f64::from(count(saving.of)) * saving.bytes;
            seconds += saving.seconds_per_byte * bytes.min(saved);
            bytes -= saved;
        }
        // Sums are rounded.
        seconds * (1.0 - 1e-9)
    }

    /// Returns what a memory plan depends on besides the blocks, and the bytes that no choice changes; `None` if no choice fits.
    fn conditions(&self, start: usize, end: usize, limit: f64) -> Option<(Conditions, f64)> {
        let Self { scorer, place, in_flight, .. } = self;
        let fixed = self.fixed(start, end);
        if fixed > limit {
            return None;
        }
        let activations = scorer.all_activations(start, end) * *in_flight as f64;
        let waiting = self.waiting(scorer.waiting(start, end));
        let fits = fixed + waiting.held(activations) + scorer.bytes.largest_workspace <= limit;
        if !fits && fixed + scorer.least_held(start, end, *in_flight) > limit * (1.0 + 1e-12) {
            return None;
        }
        let is_split = scorer.rules.in_flight.is_split();
        let kind = (*in_flight, self.waiting, is_split, scorer.is_bound);
        Some(((kind, [limit, place.speed, fixed, place.host].map(f64::to_bits)), fixed))
    }

    /// Returns the fastest choice of recomputation and offload that fits a memory limit.
    pub(crate) fn memory_plan(&self, start: usize, end: usize, limit: f64) -> Option<MemoryPlan> {
        let scorer = self.scorer;
        let (conditions, fixed) = self.conditions(start, end, limit)?;
        let choose = || {
            let blocks = scorer.states.blocks(start, end);
            let (plan, gap) = self.choose(&blocks, (start, end), (fixed, limit), conditions);
            // From positions in the stage to blocks.
            let named = |positions: &[usize]| positions.iter().map(|&position| blocks[position]).collect();
            let plan = plan.map(|plan| MemoryPlan {
                recompute: named(&plan.recompute),
                light: named(&plan.light),
                offload: named(&plan.offload),
                ..*plan
            });
            (plan, gap)
        };
        let (plan, gap) = scorer.memory_plans.by_states.get(((start, end), conditions), choose);
        scorer.gap.set(scorer.gap.get().max(gap));
        plan
    }

    /// Returns the seconds of that choice, for callers that keep them themselves.
    pub(crate) fn seconds_to_fit(&self, start: usize, end: usize) -> Option<f64> {
        let scorer = self.scorer;
        let limit = self.place.limit;
        let (conditions, fixed) = self.conditions(start, end, limit)?;
        let blocks = scorer.states.blocks(start, end);
        let (plan, gap) = self.choose(&blocks, (start, end), (fixed, limit), conditions);
        scorer.gap.set(scorer.gap.get().max(gap));
        plan.map(|plan| plan.seconds)
    }

    /// Chooses what is recomputed and offloaded of some blocks, by their positions in the stage; also returns the optimality gap
    /// of the search.
    fn choose(
        &self,
        blocks: &[usize],
        (start, end): (usize, usize),
        (fixed, limit): (f64, f64),
        conditions: Conditions,
    ) -> Found {
        let Self { scorer, place, in_flight, .. } = self;
        let training = &scorer.problem.training;
        let workspace = scorer.workspace(blocks);
        let all = blocks.iter().map(|&block| scorer.activations(block)).sum::<f64>() * *in_flight as f64;
        let waiting = self.waiting(scorer.waiting(start, end));
        let all = waiting.held(all);
        let policies = || blocks.iter().filter_map(|&block| scorer.problem.blocks[block].recompute);
        if fixed + workspace + all <= limit && !policies().any(RecomputePolicy::is_again) {
            return (Some(Rc::new(MemoryPlan::nothing(fixed + workspace + all))), 0.0);
        }
        if !training.recompute_unit.is_block() {
            if policies().any(|policy| policy != RecomputePolicy::Always) {
                return (None, 0.0);
            }
            // For a lower bound the second copy during the backward pass is not counted.
            let once_more: f64 = blocks.iter().map(|&block| scorer.once_more(block, false)).sum();
            let once_more = if scorer.is_bound { 0.0 } else { once_more };
            let kept = scorer.kept_by_stage(start, end, blocks) * *in_flight as f64;
            let memory = fixed + workspace + waiting.held(kept) + once_more;
            let seconds = scorer.forward_again(blocks) / place.speed;
            let (unit, recompute) = (RecomputeUnit::Stage, (0..blocks.len()).collect());
            let plan =
                Rc::new(MemoryPlan { seconds, memory, recompute, light: vec![], unit, offload: vec![] });
            return ((training.recompute && memory <= limit).then_some(plan), 0.0);
        }
        let kinds = blocks.iter().map(|&block| scorer.bytes.kinds[block]).collect();
        let search = || self.search(blocks, (fixed, workspace), limit);
        scorer.memory_plans.by_kinds.get((kinds, conditions), search)
    }

    /// Searches the fastest memory plan of some blocks, by their positions in the stage, beside bytes that no choice changes.
    fn search(&self, blocks: &[usize], (fixed, workspace): (f64, f64), limit: f64) -> Found {
        let Self { scorer, place, in_flight, .. } = self;
        let work: f64 = blocks.iter().map(|&block| scorer.problem.blocks[block].seconds()).sum();
        let mut search = Search {
            scorer,
            options: Vec::with_capacity(3 * blocks.len()),
            ends: Vec::with_capacity(blocks.len()),
            room: limit - fixed - workspace,
            waiting: self
                .waiting(blocks.iter().map(|&block| scorer.problem.blocks[block].waiting.0 as f64).sum()),
            work: work / place.speed,
            gap: 0.0,
        };
        for &block in blocks {
            search.push(block, scorer.choices(block, *in_flight, (place.speed, place.host)));
        }
        let plan = search.best(&scorer.recomputed_sizes(blocks));
        let beside = |plan: MemoryPlan| MemoryPlan { memory: fixed + workspace + plan.memory, ..plan };
        (plan.map(|plan| Rc::new(beside(plan))), search.gap)
    }

    /// Scores a stage with given blocks to recompute and to offload, whether it fits or not.
    pub(crate) fn score_given(
        &self,
        start: usize,
        end: usize,
        (recompute, light, unit): (&[usize], &[usize], RecomputeUnit),
        offload: &[usize],
    ) -> StageScore {
        let Self { scorer, place, in_flight, .. } = self;
        let blocks = scorer.states.blocks(start, end);
        let again = |index: usize| scorer.problem.blocks[index].again(light.contains(&index));
        let kept = blocks.iter().map(|index| match (recompute.contains(index), offload.contains(index)) {
            (true, _) => (scorer.bytes.inputs[*index] + again(*index).held.0 as f64) * *in_flight as f64,
            (_, true) => scorer.activations(*index) * scorer.copies_held(*in_flight) as f64,
            _ => scorer.activations(*index) * *in_flight as f64,
        });
        let once_more = recompute.iter().map(|&index| again(index).once_more.0 as f64);
        let (kept, once_more) = match unit {
            RecomputeUnit::Block => (kept.sum::<f64>(), once_more.fold(0.0, f64::max)),
            RecomputeUnit::Stage => {
                (scorer.kept_by_stage(start, end, &blocks) * *in_flight as f64, once_more.sum::<f64>())
            }
        };
        let held = self.waiting(scorer.waiting(start, end)).held(kept);
        let memory = self.fixed(start, end) + scorer.workspace(&blocks) + once_more + held;
        let copied: f64 = offload.iter().map(|&index| scorer.activations(index)).sum();
        // The simulator times copies that run beside compute.
        let copying = if scorer.copies == 1 { 2.0 * copied / place.host } else { 0.0 };
        let forward = match unit {
            RecomputeUnit::Block => recompute.iter().map(|&index| again(index).forward.0).sum(),
            RecomputeUnit::Stage => scorer.forward_again(&blocks),
        };
        let plan = MemoryPlan {
            seconds: forward / place.speed + copying,
            memory,
            recompute: recompute.to_vec(),
            light: light.to_vec(),
            unit,
            offload: offload.to_vec(),
        };
        self.scored(start, end, plan, place.limit)
    }
}

impl Scorer<'_> {
    /// Returns the bytes of a micro-batch's inputs that wait before a stage and that its blocks do not keep.
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

    /// Returns the bytes of a micro-batch that a stage keeps if all of it is recomputed: its inputs, and what is never dropped.
    fn kept_by_stage(&self, start: usize, end: usize, blocks: &[usize]) -> f64 {
        let given = self.states.crossing[start] - self.early(start, end);
        given + blocks.iter().map(|&block| self.bytes.stays[block]).sum::<f64>()
    }

    /// Returns the least bytes of activations that a stage needs, whatever it recomputes.
    pub(crate) fn least_held(&self, start: usize, end: usize, in_flight: usize) -> f64 {
        let least = |block: usize| {
            let choices = self.choices(block, in_flight, (1.0, 1.0));
            choices.all().map(|(_, choice)| choice.memory).fold(f64::INFINITY, f64::min)
        };
        let key = (in_flight, self.copies_held(in_flight));
        let held = self.memory_plans.least_held.get(key, || Rc::new(self.states.sums(least)));
        held[end] - held[start]
    }

    /// Returns the memory that recomputing and offloading blocks saves, the least seconds a byte first.
    fn find_savings(&self, in_flight: usize, rates: (f64, f64)) -> Vec<Saving> {
        let mut savings = Vec::new();
        let are_counted = self.kinds_before().is_some();
        let mut next = 0;
        for (index, &kind) in self.bytes.kinds.iter().enumerate() {
            // Kinds are numbered as they appear.
            if are_counted && kind < next {
                continue;
            }
            next = kind + 1;
            let of = if are_counted { kind as usize } else { index };
            let choices = self.choices(index, in_flight, rates);
            let kept = choices.first.1;
            let saving = |(_, choice): (Fate, Choice)| (kept.memory - choice.memory, choice.time - kept.time);
            let mut left: Vec<(f64, f64)> = choices.all().skip(1).map(saving).collect();
            // From one choice to the next, that which saves the most for its time: only what it saves more counts, at its
            // additional time.
            let mut from = (0.0, 0.0);
            loop {
                left.retain(|choice| choice.0 > from.0);
                let rate = |choice: &(f64, f64)| (choice.1 - from.1) / (choice.0 - from.0);
                let Some(&next) = left.iter().min_by(|a, b| rate(a).total_cmp(&rate(b))) else { break };
                savings.push(Saving { of, bytes: next.0 - from.0, seconds_per_byte: rate(&next) });
                from = next;
            }
        }
        savings.sort_by(|a, b| a.seconds_per_byte.total_cmp(&b.seconds_per_byte).then(a.of.cmp(&b.of)));
        savings
    }

    /// Returns the blocks before each state by kinds, if these are few.
    fn kinds_before(&self) -> Option<&Vec<Vec<u32>>> {
        let count = || {
            let kinds = &self.bytes.kinds;
            let n_kinds = kinds.iter().max().map_or(0, |most| *most as usize + 1);
            let counts = |state: usize| {
                let mut counts = vec![0; n_kinds];
                let blocks = self.states.blocks(0, state);
                blocks.into_iter().for_each(|block| counts[kinds[block] as usize] += 1);
                counts
            };
            let is_small = n_kinds * self.states.len() <= COUNTS;
            is_small.then(|| (0..self.states.len()).map(counts).collect())
        };
        self.memory_plans.kinds_before.get_or_init(count).as_ref()
    }

    /// Tells whether the whole model fits every device with as many micro-batches as are ever in flight: memory decides nothing.
    pub(crate) fn is_roomy(&self) -> bool {
        if !self.bytes.always.is_empty() {
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
        let transfers = 2.0 + ahead + 2.0 * in_flight;
        let values = transfers * (most(&self.states.crossing) + most(&self.states.crossing_back));
        let activations = self.states.activations[last] * in_flight;
        // At most all of them wait.
        let waiting = if self.rules.in_flight.is_split() { self.waiting(0, last) * in_flight } else { 0.0 };
        let memory = self.problem.parameters() * copies
            + values
            + activations
            + waiting
            + self.bytes.largest_workspace;
        self.problem.machine.devices.iter().all(|device| memory <= device.memory.0 as f64)
    }

    /// Bytes of a micro-batch that a stage holds between the gradients of its inputs and those of its weights.
    fn waiting(&self, start: usize, end: usize) -> f64 {
        let of = |block: usize| self.problem.blocks[block].waiting.0 as f64;
        let before = self.memory_plans.waiting.get_or_init(|| self.states.sums(of));
        before[end] - before[start]
    }

    /// Micro-batches of an offloaded block that are on the device at once.
    fn copies_held(&self, in_flight: usize) -> usize {
        // After the input gradient, activations that came back stay for the weight gradient.
        if self.rules.in_flight.is_split() { in_flight } else { self.copies.min(in_flight) }
    }

    /// Returns the sizes that the largest recomputed block may have, ascending: it exists once in full.
    fn recomputed_sizes(&self, blocks: &[usize]) -> Vec<f64> {
        let mut sizes = vec![0.0];
        // A lower bound does not count the largest block.
        if self.problem.training.recompute && !self.is_bound {
            let is_less = |block: &&usize| self.bytes.inputs[**block] < self.activations(**block);
            sizes.extend(blocks.iter().filter(is_less).map(|&block| self.once_more(block, false)));
            let with_light = blocks.iter().filter(|&&block| self.problem.blocks[block].light.is_some());
            sizes.extend(with_light.map(|&block| self.once_more(block, true)));
            let always = blocks.iter().filter(|&&block| self.is_always(block));
            let least =
                always.map(|&block| self.again_as_asked(block).once_more.0 as f64).fold(0.0, f64::max);
            sizes.push(least);
            sizes.retain(|size| *size >= least);
            sizes.sort_by(f64::total_cmp);
            sizes.dedup();
        }
        sizes
    }

    /// Returns the bytes of a recomputed block that exist once while its backward pass runs.
    fn once_more(&self, block: usize, is_light: bool) -> f64 {
        self.problem.blocks[block].again(is_light).once_more.0 as f64
    }

    /// Returns what it takes to recompute a block that is recomputed in any case.
    fn again_as_asked(&self, block: usize) -> Again {
        let block = &self.problem.blocks[block];
        block.again(block.recompute == Some(RecomputePolicy::Light))
    }

    fn is_always(&self, block: usize) -> bool {
        self.problem.blocks[block].recompute.is_some_and(RecomputePolicy::is_again)
    }

    fn activations(&self, block: usize) -> f64 {
        self.problem.blocks[block].activations.0 as f64
    }

    /// Bytes of a micro-batch that all blocks of a stage save.
    fn all_activations(&self, start: usize, end: usize) -> f64 {
        self.states.activations[end] - self.states.activations[start]
    }

    /// Bytes of the largest workspace of some blocks.
    fn workspace(&self, blocks: &[usize]) -> f64 {
        blocks.iter().map(|&block| self.problem.blocks[block].workspace.0).max().unwrap_or(0) as f64
    }

    /// Seconds of computing the blocks of a stage again at once, on a device of speed 1.
    fn forward_again(&self, blocks: &[usize]) -> f64 {
        let own = |block: &usize| &self.problem.blocks[*block];
        let all: f64 = blocks.iter().map(|block| own(block).forward.0).sum();
        all - blocks.last().map_or(0.0, |block| own(block).left_out.0)
    }

    /// Returns the choices for a block's activations.
    fn choices(&self, index: usize, in_flight: usize, (speed, host): (f64, f64)) -> Choices {
        let (in_flight_factor, held) = (in_flight as f64, self.copies_held(in_flight) as f64);
        let training = &self.problem.training;
        let activations = self.activations(index);
        let is_whole = !self.problem.blocks[index].is_operator;
        let is_by_block = training.recompute_unit.is_block();
        let inputs = if is_by_block { self.bytes.inputs[index] } else { self.bytes.stays[index] };
        let own = &self.problem.blocks[index];
        let policy = own.recompute;
        let of = |again: Again| Choice {
            time: again.forward.0 / speed,
            memory: (inputs + again.held.0 as f64) * in_flight_factor,
        };
        if is_by_block && policy.is_some_and(RecomputePolicy::is_again) {
            let is_light = policy == Some(RecomputePolicy::Light) && own.light.is_some();
            let fate = if is_light { Fate::Light } else { Fate::Recomputed };
            let first = (fate, of(self.again_as_asked(index)));
            return Choices { first, light: None, recomputed: None, offloaded: None };
        }
        let kept = Choice { time: 0.0, memory: activations * in_flight_factor };
        let is_never = policy == Some(RecomputePolicy::Never);
        let may_again = training.recompute && !is_never && (is_whole || !is_by_block);
        let saves = |choice: &Choice| choice.memory < kept.memory;
        let recomputed = may_again.then(|| of(own.again(false))).filter(saves);
        let light = own.light.filter(|_| may_again && is_by_block).map(of).filter(saves);
        let is_offloaded =
            training.offload && is_by_block && is_whole && activations > 0.0 && held < in_flight_factor;
        Choices {
            first: (Fate::Kept, kept),
            light,
            recomputed,
            offloaded: is_offloaded
                .then(|| Choice { time: 2.0 * activations / host, memory: activations * held }),
        }
    }
}

/// A choice for a block's activations.
#[derive(Clone, Copy)]
struct Open {
    fate: Fate,
    choice: Choice,
    /// Bytes that exist once while the block's backward pass runs; none for a lower bound, which does not count them.
    once_more: f64,
}

/// Searches the memory plan of a stage.
///
/// Branches first on the size of the largest recomputed block. A range of sizes is pruned if its relaxation, with blocks up to
/// its largest size open and memory for its smallest, is no better than the best plan; else it is halved.
struct Search<'a> {
    scorer: &'a Scorer<'a>,
    /// The choices of each block, one block after the other.
    options: Vec<Open>,
    /// Where each block's end.
    ends: Vec<usize>,
    /// Bytes for activations, the largest block recomputed among them.
    room: f64,
    waiting: Waiting,
    /// Seconds of the stage without recomputation.
    work: f64,
    /// Optimality gap of the knapsacks so far, as a share of the work: non-zero where one hit its node limit.
    gap: f64,
}

impl Search<'_> {
    fn best(&mut self, sizes: &[f64]) -> Option<MemoryPlan> {
        let mut best: Option<(MemoryPlan, f64)> = None;
        let mut ranges = vec![(0, sizes.len() - 1)];
        while let Some((low, high)) = ranges.pop() {
            let room = self.waiting.room(self.room - sizes[low]);
            if self.is_too_full(room, sizes[high]) {
                continue;
            }
            if let Some((found, price)) = &best
                && self.least(room, sizes[high], *price) >= found.seconds
            {
                continue;
            }
            if low < high {
                let middle = (low + high) / 2;
                ranges.extend([(low, middle), (middle + 1, high)]);
                continue;
            }
            if let Some((plan, price)) = self.pick(room, sizes[low])
                && best.as_ref().is_none_or(|(best, _)| plan.seconds < best.seconds)
            {
                best = Some((plan, price));
            }
        }
        best.map(|(best, _)| best)
    }

    /// Adds the choices of a block.
    fn push(&mut self, block: usize, choices: Choices) {
        let scorer = self.scorer;
        let once_more = |fate: Fate| match fate {
            Fate::Light | Fate::Recomputed if !scorer.is_bound => {
                scorer.once_more(block, fate == Fate::Light)
            }
            _ => 0.0,
        };
        let open = choices.all();
        self.options.extend(open.map(|(fate, choice)| Open { fate, choice, once_more: once_more(fate) }));
        self.ends.push(self.options.len());
    }

    /// Choices of all blocks where none that takes more than `largest` is recomputed.
    fn open(&self, largest: f64) -> impl Iterator<Item = impl Iterator<Item = &Open>> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let own = &self.options[std::mem::replace(&mut start, end)..end];
            own.iter().filter(move |open| open.once_more <= largest)
        })
    }

    fn is_too_full(&self, room: f64, largest: f64) -> bool {
        let least =
            self.open(largest).map(|open| open.map(|open| open.choice.memory).fold(f64::INFINITY, f64::min));
        least.sum::<f64>() > room
    }

    /// Lower bound of the seconds of any choice: the Lagrangian relaxation at a price of memory.
    fn least(&self, room: f64, largest: f64, price: f64) -> f64 {
        let of = |open: &Open| open.choice.time + price * open.choice.memory;
        let sum: f64 = self.open(largest).map(|open| open.map(of).fold(f64::INFINITY, f64::min)).sum();
        // Sums are rounded.
        sum * (1.0 - 1e-9) - price * room
    }

    /// Picks a choice where no block larger than `largest` is recomputed; `room` is for activations alone. Also returns the price
    /// of memory.
    fn pick(&mut self, room: f64, largest: f64) -> Option<(MemoryPlan, f64)> {
        let mut items = Items::for_about(self.ends.len());
        self.open(largest).for_each(|choices| items.push(choices.map(|open| open.choice)));
        let nodes = self.scorer.problem.training.limits.sizes.knapsack_nodes;
        let picked = pick(&items, room, NEAR * self.work, nodes)?;
        let kept: f64 = items.sum(&picked.choices, |choice| choice.memory);
        if picked.time > picked.lower_bound && self.work > 0.0 {
            self.gap = self.gap.max((picked.time - picked.lower_bound) / self.work);
        }
        let (mut recompute, mut light, mut offload) = (Vec::new(), Vec::new(), Vec::new());
        for (position, (mut choices, choice)) in self.open(largest).zip(picked.choices).enumerate() {
            match choices.nth(choice).map(|open| open.fate) {
                Some(Fate::Offloaded) => offload.push(position),
                Some(Fate::Recomputed) => recompute.push(position),
                Some(Fate::Light) => {
                    recompute.push(position);
                    light.push(position);
                }
                Some(Fate::Kept) | None => {}
            }
        }
        let seconds = if self.scorer.is_bound { picked.lower_bound } else { picked.time };
        let unit = RecomputeUnit::Block;
        Some((
            MemoryPlan {
                seconds,
                memory: largest + self.waiting.held(kept),
                recompute,
                light,
                unit,
                offload,
            },
            picked.price,
        ))
    }
}

#[cfg(test)]
mod tests {
    use simulator::order::InFlight;

    use super::*;
    use crate::{
        dag::cut_states::States,
        oracle::random_problems::{Dice, problem},
        stage::{place::Neighbours, run::Run, score::Rules},
    };

    /// Stages of the same kinds of blocks share one search: the choice is that of a stage which is searched alone.
    #[test]
    fn stages_of_repeated_layers_choose_as_each_alone() {
        let (mut dice, mut n_chosen) = (Dice(61), 0);
        for case in 0..30 {
            let mut problem = problem(&mut dice, 12, 2, true, true);
            problem.training.recompute = true;
            // Kinds differ by their activations alone, and so do stages.
            for block in &mut problem.blocks {
                (block.parameters.0, block.workspace.0) = (8, 2);
                block.activations.0 = 60 + dice.below(60);
                (block.forward.0, block.input_gradient.0, block.weight_gradient.0) = (1.0, 1.0, 1.0);
            }
            problem.values.iter_mut().for_each(|value| value.forward.0 = 10);
            for index in 3..12 {
                let path = problem.blocks[index].path.clone();
                problem.blocks[index] = crate::Block { path, ..problem.blocks[index - 3].clone() };
            }
            for index in 3..11 {
                problem.values[index].forward = problem.values[index - 3].forward;
                problem.values[index].backward = problem.values[index - 3].backward;
            }
            let states = States::line(&problem, (0..12).collect());
            let rules = Rules {
                is_asynchronous: false,
                in_flight: InFlight::Depth(4),
                neighbours: Neighbours::Paired,
            };
            let shared = Scorer::new(&problem, &states, rules);
            let run = Run { first: 0, count: 1, stride: 1 };
            for (start, end) in (0..12).flat_map(|start| (start + 1..13).map(move |end| (start, end))) {
                let alone = Scorer::new(&problem, &states, rules);
                let limit = 200.0 + 330.0 * (end - start) as f64;
                let plan = |scorer: &Scorer| {
                    let plan = scorer.on(run, 2).memory_plan(start, end, limit)?;
                    Some((plan.seconds, plan.memory, plan.recompute, plan.offload))
                };
                let (ours, own) = (plan(&shared), plan(&alone));
                assert_eq!(ours, own, "case {case}: {start}..{end} of {:?}", problem.blocks);
                n_chosen += usize::from(own.is_some_and(|plan| !plan.2.is_empty()));
            }
        }
        assert!(n_chosen > 50, "{n_chosen} stages recompute");
    }
}
