//! Lower bounds of the step of a grid, over all cuts and all choices of devices.
//!
//! The largest of: the order of its passes over all cuts (`work`), the work of its devices together, one micro-batch all the way,
//! the gradient sums, and the traffic across its cuts (`crossing`). `docs/bounds.md` derives each.

use simulator::order::Schedule;

use crate::{
    bound::{
        crossing::{Ordered, Question},
        work::Steps,
    },
    cut_space::CutSpace,
    dag::cut_states::States,
    grid::shape::Grid,
    problem::Problem,
    simulate::is_simulated,
    stage::memo::Memo,
    strategy::Strategy,
};

/// Lower bounds of grids over all cuts and all choices of devices.
pub(crate) struct GridBounds<'a> {
    problem: &'a Problem,
    /// Work and forward work before each state, where all are known: without adding gradients up, and with it.
    work_before: [Vec<(f64, f64)>; 2],
    /// Most bytes that cross a cut one way.
    widest: f64,
    /// Seconds of one micro-batch on the fastest device.
    total: f64,
    /// The same without the weight gradients.
    there_and_back: f64,
    /// Seconds of adding up all gradients once on the device with the fastest memory, tied ones left out.
    accumulation: f64,
    /// Seconds of one micro-batch's forward pass on the fastest device.
    forward: f64,
    /// Running sums of the devices' speeds, the fastest first.
    power: Vec<f64>,
    /// Speed of the slowest device.
    slowest: f64,
    cut_space: &'a CutSpace,
    /// Whether the bound from traffic across cuts applies: not if a rule makes the cuts.
    is_open: bool,
    /// Bounds by work, by schedule, ranks, chunks, replicas and micro-batches: a number for each grid of a search.
    by_work: Memo<(Schedule, [usize; 4]), f64>,
}

impl<'a> GridBounds<'a> {
    pub(crate) fn new(
        problem: &'a Problem,
        cut_space: &'a CutSpace,
        (states, is_complete): (&States, bool),
        strategy: Strategy,
    ) -> Self {
        let mut speeds: Vec<f64> = problem.machine.devices.iter().map(|device| device.speed).collect();
        speeds.sort_by(|a, b| b.total_cmp(a));
        let (fastest, slowest) = (speeds[0], speeds[speeds.len() - 1]);
        let mut sum = 0.0;
        let power = speeds.iter().map(|speed| {
            sum += speed;
            sum
        });
        let power = power.collect();
        let accumulation = problem.least_accumulation();
        let before = |accumulation: f64| {
            let known = is_complete.then(|| states.work_and_forward(problem, fastest, accumulation));
            known.unwrap_or_default()
        };
        let work_before = [before(0.0), before(accumulation)];
        let own_parameters: f64 = problem.blocks.iter().map(|block| block.parameters.0 as f64).sum();
        let accumulation = own_parameters * accumulation;
        let widest = states.crossing.iter().chain(&states.crossing_back).copied().fold(0.0, f64::max);
        let weights: f64 = problem.blocks.iter().map(|block| block.weight_gradient.0).sum();
        let total = problem.seconds() / fastest;
        let is_open = !strategy.is_rule() && problem.begins.is_none();
        let there_and_back = total - weights / fastest;
        let forward = problem.blocks.iter().map(|block| block.forward.0).sum::<f64>() / fastest;
        let by_work = Memo::default();
        Self {
            problem,
            work_before,
            widest,
            total,
            there_and_back,
            accumulation,
            forward,
            power,
            slowest,
            cut_space,
            is_open,
            by_work,
        }
    }

    /// Returns a lower bound of the step of a grid: by its order of operations, the work of its devices and the traffic across
    /// its cuts.
    ///
    /// Stops as soon as it is `enough`.
    pub(crate) fn least_step(&self, grid: Grid, micro_batches: usize, enough: f64) -> f64 {
        let by_work = self.by_work(grid, micro_batches);
        // Not for other schedules: without pipelining traffic is little beside the work, and the turn of a V crosses no link.
        let is_known = matches!(
            grid.schedule,
            Schedule::GPipe
                | Schedule::OneForwardOneBackward
                | Schedule::Interleaved1F1B
                | Schedule::InterleavedZeroBubble
        );
        let is_asked = self.is_open && is_known && grid.ranks > 1;
        if is_asked && by_work < enough {
            let question = self.question(grid, micro_batches);
            by_work.max(self.cut_space.crossing_bound(self.problem).step(&question, enough))
        } else {
            by_work
        }
    }

    /// The same without the traffic across cuts.
    pub(crate) fn by_work(&self, grid: Grid, micro_batches: usize) -> f64 {
        let Grid { schedule, ranks, chunks, replicas, .. } = grid;
        let key = (schedule, [ranks, chunks, replicas, micro_batches]);
        self.by_work.get(key, || self.find_by_work(grid, micro_batches))
    }

    fn find_by_work(&self, grid: Grid, micro_batches: usize) -> f64 {
        let Grid { schedule, ranks, chunks, replicas, .. } = grid;
        // With as many micro-batches as stages, adding gradients up as if each did gains more than the first ones, which do not,
        // take off any path through the step again.
        let adds = micro_batches >= ranks;
        let states = if chunks == 1 { &self.work_before[usize::from(adds)][..] } else { &[] };
        let accumulation = if adds { self.accumulation } else { 0.0 };
        let host = self.problem.training.host_overhead.0;
        // Each chunk's passes have host overhead; `steps` counts those of one chunk.
        let in_chunks = 2.0 * host * (chunks - 1) as f64;
        let total = self.total + accumulation + in_chunks * ranks as f64;
        let steps = Steps { schedule, ranks, micro_batches, states, total, host };
        // All devices together do no more work than the sum of their speeds allows.
        let n_devices = (ranks * replicas).min(self.power.len());
        let power = self.power[n_devices - 1];
        let all = (micro_batches * replicas) as f64 * self.problem.seconds() / power;
        let all = all + ((micro_batches - 1) * replicas) as f64 * self.accumulation * self.slowest / power;
        let in_flight = schedule.in_flight(ranks, chunks, micro_batches, 1);
        let all = all + (micro_batches * chunks) as f64 * 2.0 * host;
        // One micro-batch passes through all stages and back; of a split backward pass, the weight gradients may run beside that.
        let one = if in_flight.is_split() { self.there_and_back } else { self.total };
        let one = one + (ranks * chunks) as f64 * 2.0 * host;
        // The replicas of a stage sum gradients no earlier than its last backward pass begins; averaged over stages. Sums of one
        // chunk's gradients may run beside the passes of another.
        let sums = if replicas > 1 && chunks == 1 {
            let (n, rate) = (replicas as f64, self.problem.machine.least_seconds_per_byte());
            let sums = 2.0 * (n - 1.0) / n * self.problem.parameters() * rate;
            let forward = self.forward + ranks as f64 * host;
            let whole = self.total + 2.0 * ranks as f64 * host;
            ((micro_batches - 1) as f64 * whole + forward + sums) / ranks as f64
        } else {
            0.0
        };
        let steps = steps.least_step() - accumulation;
        steps.max(all).max(one).max(sums)
    }

    /// Returns a lower bound of the step if its slowest stage computes for `slowest` seconds per micro-batch on one replica,
    /// wherever in the pipeline that stage is (`docs/bounds.md`, "Memory"); adding gradients up is part of that. 0 if transfers may
    /// take as long as that stage. O(ranks).
    pub(crate) fn fill(&self, grid: Grid, micro_batches: usize, slowest: f64) -> f64 {
        let machine = &self.problem.machine;
        let transfer = 2.0 * self.widest * machine.least_seconds_per_byte();
        if self.work_before.is_empty() || grid.chunks > 1 || !machine.overlaps || slowest <= transfer {
            return 0.0;
        }
        let host = 2.0 * self.problem.training.host_overhead.0 * grid.ranks as f64;
        let (m, all) = (micro_batches as f64, self.total + host);
        // No stage works longer than `step / m` for each micro-batch.
        let turns = |step: f64| {
            let most = step / m;
            let at = |stage: usize| {
                let behind = (grid.ranks - 1 - stage) as f64;
                let (least, most) = ((all - (behind + 1.0) * most).max(0.0), stage as f64 * most);
                if m <= behind + 1.0 {
                    return least + m * slowest;
                }
                let later = |before: f64| 2.0 * (all - before - slowest) - behind * slowest;
                // `turns` is least where `later` reaches 0, or as near to it as the range of `before` allows.
                let before = (all - (1.0 + behind / 2.0) * slowest).min(most).max(least);
                before + m * slowest + later(before).max(0.0)
            };
            (0..grid.ranks).map(at).fold(f64::INFINITY, f64::min)
        };
        match grid.schedule {
            Schedule::GPipe => all + (m - 1.0) * slowest,
            Schedule::OneForwardOneBackward => {
                // `turns` falls as the step grows: bisect for the step at which both are equal.
                let (mut low, mut high) = (m * slowest, 2.0 * (all + m * slowest));
                for _ in 0..40 {
                    let middle = (low + high) / 2.0;
                    if turns(middle) >= middle { low = middle } else { high = middle }
                }
                // Its first micro-batch adds to none.
                low - self.problem.accumulation()
            }
            _ => 0.0,
        }
    }

    /// Returns topological orders that pass through low-traffic cuts, with the stage boundaries if enough were found. Empty if
    /// all cuts are enumerated.
    pub(crate) fn narrow_orders(&self, grid: Grid, micro_batches: usize) -> Vec<Ordered> {
        if self.is_open && grid.chunks == 1 && grid.ranks > 1 {
            self.cut_space.crossing_bound(self.problem).lines(&self.question(grid, micro_batches))
        } else {
            Vec::new()
        }
    }

    fn question(&self, grid: Grid, micro_batches: usize) -> Question {
        let Grid { schedule, ranks, chunks, replicas, .. } = grid;
        let least = self.by_work(grid, micro_batches);
        let machine = &self.problem.machine;
        // On a single level, transfers to both neighbours share a port; steps too large to simulate are timed by formula, which
        // does not count that.
        let shares_ports = machine.levels.len() == 1
            && machine.links.is_empty()
            && is_simulated(self.problem, grid.n_stages(), micro_batches * replicas, ranks * replicas);
        // `power` begins with the fastest device's speed.
        let (speed, rate) = (self.power[0], machine.least_seconds_per_byte());
        let limit = machine.devices.iter().map(|device| device.memory.0 as f64).fold(0.0, f64::max);
        let in_flight = schedule.in_flight(ranks, chunks, micro_batches, 1);
        Question {
            schedule,
            speed,
            rate,
            ranks,
            chunks,
            micro_batches,
            shares_ports,
            limit,
            copies: self.problem.training.copies(replicas),
            in_flight,
            least,
        }
    }
}
