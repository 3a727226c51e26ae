//! The objective of PipeDream's released optimizer, reproduced so that numbers can be compared.
//!
//! Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019; the code differs from
//! the paper and so does this file, on purpose:
//! - A stage's time is compute *plus* synchronisation, `(C + 4(m-1)P/(B·m))/m`: the sum, not the maximum; factor 4.
//! - A first stage's synchronisation is divided by the machine count of the level below, a later stage's is not.
//! - Transfers count only with `activation_transfer`; the first stage's output is never checked on its own.
//! - Exactly as many machines are used as are given.
//! - In a hierarchy a row may begin at a state that is no ancestor of a later one; such rows are kept.
//! - Graphs with too many states have their branches compressed first, as the authors' tool does; see [`Branches`].
//!
//! Cost: the original's loops are O(L·N³M²) for L levels. Here a lower bound of every stage and every prefix by its compute alone
//! leaves a handful of split points for each (start, end, machines): about O(L·N²M²·log N).
//! Ties: the plan found first wins, trying one stage, then few replicas for the last stage before many, then the
//! earliest split.

use partitioner::NodeSet;
use schema::{BytesPerSecond, PipedreamProfile};

use crate::{
    branches::Branches,
    compat_states::{States, states},
};

/// A question to the released optimizer.
#[derive(Clone, Debug)]
pub struct CompatQuestion<'a> {
    /// The profile.
    pub profile: &'a PipedreamProfile,
    /// Machines at each level, innermost first.
    pub machines: &'a [u32],
    /// Bandwidth at each level.
    pub bandwidths: &'a [BytesPerSecond],
    /// Whether activations take time to move (`--activation_compression_ratio 1`).
    pub activation_transfer: bool,
    /// Whether stages may not be replicated.
    pub straight: bool,
}

/// The optimizer's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CompatPlan {
    /// Seconds for each minibatch: the slowest stage.
    pub period: f64,
    /// The optimizer's time of data parallelism.
    pub data_parallel: f64,
    /// Stages in order.
    pub stages: Vec<CompatStage>,
    /// Splits by level, outermost first.
    pub levels: Vec<Vec<CompatSplit>>,
    /// States of the dynamic program.
    pub n_states: usize,
    /// Nodes after compressing branches, if there were too many states without that.
    pub compressed: Option<usize>,
    /// Lower bound of the period: the period itself, unless branches were compressed.
    pub lower_bound: f64,
}

/// A stage of the innermost level.
#[derive(Clone, Debug, PartialEq)]
pub struct CompatStage {
    /// Positions of its nodes in the profile.
    pub nodes: Vec<usize>,
    /// Replicas, all levels multiplied.
    pub replicas: u32,
    /// Seconds of compute for each minibatch, shared by the replicas.
    pub compute: f64,
    /// Seconds of synchronisation for each minibatch, all levels.
    pub sync: f64,
    /// Seconds of the larger transfer.
    pub transfer: f64,
    /// Bytes of parameters.
    pub parameters: f64,
    /// Bytes of outputs.
    pub activations: f64,
}

/// A stage of one level, over states `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompatSplit {
    /// First state.
    pub start: usize,
    /// One past the last state.
    pub end: usize,
    /// Replicas at this level.
    pub replicas: u32,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompatError {
    /// Machines and bandwidths do not pair up.
    #[error("{machines} machine counts but {bandwidths} bandwidths; each level needs one of each")]
    Levels {
        /// How many counts were given.
        machines: usize,
        /// How many bandwidths were given.
        bandwidths: usize,
    },
    /// Nothing to run on, or too much.
    #[error("level {level} has {machines} machines; 1 to {MACHINES} can be planned for")]
    Machines {
        /// Level, counted from one, innermost first.
        level: usize,
        /// Machines asked for.
        machines: u32,
    },
    /// No data ever arrives.
    #[error("level {level} has a bandwidth of {bandwidth} bytes a second")]
    Bandwidth {
        /// Level, counted from one, innermost first.
        level: usize,
        /// Bandwidth asked for.
        bandwidth: f64,
    },
    /// A graph too wide for this dynamic program.
    #[error(
        "the graph has more than {0} states, with its branches compressed as well; the released optimizer does not finish on it either"
    )]
    TooWide(usize),
    /// A straight pipeline longer than the graph.
    #[error("{machines} machines without replication need {machines} stages, the graph has {states} states")]
    TooManyStages {
        /// Machines, all levels.
        machines: u64,
        /// States of the graph.
        states: usize,
    },
}

/// The most machines in a level.
const MACHINES: u32 = 4096;
/// The most states; tables are quadratic in them.
const STATES: usize = 6000;

/// Plans as the released optimizer does.
///
/// # Errors
/// When the question makes no sense, the graph is too wide, or a straight pipeline has too few states.
pub fn compat_plan(question: &CompatQuestion) -> Result<CompatPlan, CompatError> {
    let (machines, bandwidths) = (question.machines, question.bandwidths);
    if machines.len() != bandwidths.len() || machines.is_empty() {
        return Err(CompatError::Levels { machines: machines.len(), bandwidths: bandwidths.len() });
    }
    for (index, (&machines, bandwidth)) in machines.iter().zip(bandwidths).enumerate() {
        if machines == 0 || machines > MACHINES {
            return Err(CompatError::Machines { level: index + 1, machines });
        }
        if bandwidth.0.is_nan() || bandwidth.0 <= 0.0 {
            return Err(CompatError::Bandwidth { level: index + 1, bandwidth: bandwidth.0 });
        }
    }
    if let Some(states) = states(question.profile, STATES) {
        return solve(question, &states);
    }
    let Branches { profile, members } = Branches::of(question.profile);
    let states = states(&profile, STATES).ok_or(CompatError::TooWide(STATES))?;
    let mut plan = solve(&CompatQuestion { profile: &profile, ..question.clone() }, &states)?;
    for stage in &mut plan.stages {
        stage.nodes = stage.nodes.iter().flat_map(|&node| members[node].iter().copied()).collect();
        stage.nodes.sort_unstable();
    }
    let n_machines: f64 = machines.iter().map(|&count| f64::from(count)).product();
    let work = states.compute.last().copied().unwrap_or_default();
    plan.compressed = Some(profile.nodes.len());
    plan.lower_bound = (work / n_machines).min(plan.period);
    Ok(plan)
}

/// Plans over the states of a graph.
fn solve(question: &CompatQuestion, states: &States) -> Result<CompatPlan, CompatError> {
    let (machines, bandwidths) = (question.machines, question.bandwidths);
    let mut levels = Vec::new();
    let mut times = Times::compute(states);
    for (index, (&machines, bandwidth)) in machines.iter().zip(bandwidths).enumerate() {
        let level = Level {
            states,
            times,
            n_machines: machines as usize,
            bandwidth: bandwidth.0,
            machines_below: index.checked_sub(1).map_or(1.0, |below| f64::from(question.machines[below])),
            activation_transfer: question.activation_transfer,
            straight: question.straight,
            floor: Floor::new(states, &question.machines[..index], &question.bandwidths[..=index]),
        };
        let is_last = index + 1 == question.machines.len();
        times = if is_last { Times::default() } else { level.whole_table() };
        levels.push(level);
    }
    let n_states = states.compute.len();
    let (last, below) = levels.split_last().expect("one level at least");
    let row = last.row(0);
    let period = row.best(n_states - 1, last.n_machines);
    if period == f64::INFINITY {
        let machines = question.machines.iter().map(|&count| u64::from(count)).product();
        return Err(CompatError::TooManyStages { machines, states: n_states });
    }

    // The outermost row has been solved; rows of inner levels are recomputed for the stages that need them.
    let mut found = vec![last.splits(&row, 0, n_states)];
    for level in below.iter().rev() {
        let outer = found.last().expect("not empty");
        let inner =
            outer.iter().flat_map(|split| level.splits(&level.row(split.start), split.start, split.end));
        found.push(inner.collect());
    }
    Ok(CompatPlan {
        period,
        data_parallel: data_parallel(states, question),
        stages: stages(states, question, &levels, &found),
        levels: found,
        n_states,
        compressed: None,
        lower_bound: period,
    })
}

/// The released optimizer's time of data parallelism over all machines.
fn data_parallel(states: &States, question: &CompatQuestion) -> f64 {
    let last = states.compute.len() - 1;
    let mut time = states.compute[last];
    let mut below = 1.0;
    for (&machines, bandwidth) in question.machines.iter().zip(question.bandwidths) {
        let machines = f64::from(machines);
        let sync = 4.0 * (machines - 1.0) * states.parameters[last] / (bandwidth.0 * machines) / below;
        time = (time + sync) / machines;
        below = machines;
    }
    time
}

/// Puts together the stages of the innermost level.
fn stages(
    states: &States,
    question: &CompatQuestion,
    levels: &[Level],
    found: &[Vec<CompatSplit>],
) -> Vec<CompatStage> {
    let mut taken = NodeSet::empty(question.profile.nodes.len());
    let innermost = found.last().expect("one level at least");
    let mut stages = Vec::with_capacity(innermost.len());
    for split in innermost {
        let (first, last) = (split.start, split.end - 1);
        let before = |sums: &[f64]| first.checked_sub(1).map_or(0.0, |state| sums[state]);
        let compute = states.compute[last] - before(&states.compute);
        let parameters = states.parameters[last] - before(&states.parameters);
        let mut nodes = states.ideals[last].clone();
        nodes.subtract(&taken);
        taken.unite(&nodes);
        let activations = nodes.iter().map(|node| question.profile.nodes[node].activations.0 as f64).sum();
        let (mut replicas, mut sync, mut transfer) = (1.0, 0.0, 0.0_f64);
        for (level, splits) in levels.iter().zip(found.iter().rev()) {
            let around = splits.iter().find(|around| around.start <= first && last < around.end);
            let here = around.map_or(1.0, |around| f64::from(around.replicas));
            // The sync of a level is divided by the replicas of the levels around it.
            let around_it = replicas * here;
            sync += 4.0 * (here - 1.0) * parameters / (level.bandwidth * here) / around_it;
            replicas = around_it;
            let ends = around.map_or((first, last), |around| (around.start, around.end - 1));
            transfer = transfer.max(level.transfer(ends.0, ends.1, here));
        }
        let nodes = nodes.iter().collect();
        let compute = compute / replicas;
        let replicas = replicas as u32;
        stages.push(CompatStage { nodes, replicas, compute, sync, transfer, parameters, activations });
    }
    // Nodes that the original drops: inputs join the first stage, others the stage of their input.
    let mut stage_of = vec![None; question.profile.nodes.len()];
    for (index, stage) in stages.iter().enumerate() {
        stage.nodes.iter().for_each(|&node| stage_of[node] = Some(index));
    }
    for node in 0..stage_of.len() {
        if stage_of[node].is_none() {
            let feeders = question.profile.edges.iter().filter(|&&(_, to)| to == node);
            let stage = feeders.filter_map(|&(from, _)| stage_of[from]).max().unwrap_or(0);
            stages[stage].nodes.push(node);
            stage_of[node] = Some(stage);
        }
    }
    stages.iter_mut().for_each(|stage| stage.nodes.sort_unstable());
    stages
}

/// Seconds of states `i..=j` on the level below, by rows; infinite where there are none.
#[derive(Default)]
struct Times {
    n_states: usize,
    values: Vec<f64>,
}

impl Times {
    fn compute(states: &States) -> Self {
        let n_states = states.compute.len();
        let mut values = vec![f64::INFINITY; n_states * n_states];
        for first in 0..n_states {
            let before = first.checked_sub(1).map_or(0.0, |state| states.compute[state]);
            for last in first..n_states {
                values[first * n_states + last] = states.compute[last] - before;
            }
        }
        Self { n_states, values }
    }

    fn get(&self, first: usize, last: usize) -> f64 {
        self.values.get(first * self.n_states + last).copied().unwrap_or(f64::INFINITY)
    }
}

/// A lower bound of a stage or prefix on a level: `(compute - slack) / machines`.
///
/// Rows that begin at no ancestor of their end may hold negative parameters; `slack` is the most time that these can save.
#[derive(Clone, Copy)]
struct Floor {
    machines_below: f64,
    slack_below: f64,
    slack: f64,
}

impl Floor {
    fn new(states: &States, below: &[u32], bandwidths: &[BytesPerSecond]) -> Self {
        let mut running = 0.0_f64;
        let mut most_negative = 0.0_f64;
        for &parameters in &states.parameters {
            running = running.max(parameters);
            most_negative = most_negative.max(running - parameters);
        }
        let (mut machines, mut slack) = (1.0, 0.0);
        for (&count, bandwidth) in below.iter().zip(bandwidths) {
            slack = f64::from(count) * slack + machines * 4.0 * most_negative / bandwidth.0;
            machines *= f64::from(count);
        }
        let own = bandwidths.last().map_or(0.0, |bandwidth| 4.0 * most_negative / bandwidth.0);
        Self { machines_below: machines, slack_below: slack, slack: own }
    }
}

/// One level of the hierarchy.
struct Level<'a> {
    states: &'a States,
    times: Times,
    n_machines: usize,
    bandwidth: f64,
    machines_below: f64,
    activation_transfer: bool,
    straight: bool,
    floor: Floor,
}

/// The best pipelines that begin at one state.
struct Row {
    n_machines: usize,
    /// By last state, then machines less one.
    times: Vec<f64>,
    /// The split that gives it: last state of the prefix, and replicas of the last stage.
    choices: Vec<(u32, u32)>,
}

const WHOLE: u32 = u32::MAX;

impl Row {
    fn best(&self, last: usize, machines: usize) -> f64 {
        self.times[last * self.n_machines + machines - 1]
    }
}

impl Level<'_> {
    /// Seconds of the larger transfer of a stage; the first stage has no input and the last no output.
    fn transfer(&self, first: usize, last: usize, replicas: f64) -> f64 {
        let moved = |state: usize| 2.0 * self.states.output[state] / (self.bandwidth * replicas);
        match (self.activation_transfer, first) {
            (false, _) | (true, 0) => 0.0,
            (true, _) if last + 1 == self.states.output.len() => moved(first - 1),
            (true, _) => moved(first - 1).max(moved(last)),
        }
    }

    /// Seconds of a later stage, `before` being the last state ahead of it.
    fn stage(&self, before: usize, last: usize, replicas: usize) -> f64 {
        let replicas = replicas as f64;
        let parameters = self.states.parameters[last] - self.states.parameters[before];
        let sync = 4.0 * (replicas - 1.0) * parameters / (self.bandwidth * replicas);
        let busy = (self.times.get(before + 1, last) + sync) / replicas;
        busy.max(self.transfer(before + 1, last, replicas))
    }

    /// Seconds of a first stage.
    fn first_stage(&self, first: usize, last: usize, replicas: usize) -> f64 {
        let replicas = replicas as f64;
        let before = first.checked_sub(1).map_or(0.0, |state| self.states.parameters[state]);
        let parameters = self.states.parameters[last] - before;
        let sync = 4.0 * (replicas - 1.0) * parameters / (self.bandwidth * replicas);
        (self.times.get(first, last) + sync / self.machines_below) / replicas
    }

    /// Solves for all pipelines that begin at state `first`.
    fn row(&self, first: usize) -> Row {
        let n_states = self.states.compute.len();
        let n_machines = self.n_machines;
        let mut row = Row {
            n_machines,
            times: vec![f64::INFINITY; n_states * n_machines],
            choices: vec![(WHOLE, 0); n_states * n_machines],
        };
        for last in first..n_states {
            for machines in 1..=if self.straight { 1 } else { n_machines } {
                row.times[last * n_machines + machines - 1] = self.first_stage(first, last, machines);
            }
        }
        // Split points by compute time: the lower bounds leave a window of them.
        let mut by_compute: Vec<usize> = (first..n_states)
            .filter(|&state| first == 0 || !is_below(self.states, state, first - 1))
            .collect();
        by_compute.sort_by(|&a, &b| self.states.compute[a].total_cmp(&self.states.compute[b]));
        let sorted: Vec<f64> = by_compute.iter().map(|&state| self.states.compute[state]).collect();
        let start = first.checked_sub(1).map_or(0.0, |state| self.states.compute[state]);
        let slack = if first == 0 { 0.0 } else { self.floor.slack };

        for last in first + 1..n_states {
            let end = self.states.compute[last];
            // Ancestors of `last` that later stages may begin after.
            for machines in 2..=n_machines {
                let at = last * n_machines + machines - 1;
                let mut best = row.times[at];
                let mut choice = row.choices[at];
                for replicas in 1..=if self.straight { 1 } else { machines - 1 } {
                    let rest = machines - replicas;
                    let scale = self.floor.machines_below * (1.0 + 1e-9);
                    let from = end - self.floor.slack_below - best * scale * replicas as f64;
                    let to = start
                        + self.floor.slack_below * rest as f64
                        + slack * self.floor.machines_below
                        + best * scale * rest as f64;
                    let low = sorted.partition_point(|&compute| compute < from);
                    for (&split, &compute) in by_compute[low..].iter().zip(&sorted[low..]) {
                        if compute > to {
                            break;
                        }
                        let ahead = row.times[split * n_machines + rest - 1];
                        if ahead >= best || !is_below(self.states, split, last) {
                            continue;
                        }
                        let time = ahead.max(self.stage(split, last, replicas));
                        if time < best {
                            best = time;
                            choice = (split as u32, replicas as u32);
                        }
                    }
                }
                row.times[at] = best;
                row.choices[at] = choice;
            }
        }
        row
    }

    /// Solves for all starts, with all machines of this level.
    fn whole_table(&self) -> Times {
        let n_states = self.states.compute.len();
        let mut values = vec![f64::INFINITY; n_states * n_states];
        for first in 0..n_states {
            let row = self.row(first);
            for last in first..n_states {
                values[first * n_states + last] = row.best(last, self.n_machines);
            }
        }
        Times { n_states, values }
    }

    /// Follows the choices back from the last state.
    fn splits(&self, row: &Row, start: usize, end: usize) -> Vec<CompatSplit> {
        let mut splits = Vec::new();
        let (mut last, mut machines) = (end - 1, self.n_machines);
        loop {
            let (split, replicas) = row.choices[last * self.n_machines + machines - 1];
            if split == WHOLE {
                splits.push(CompatSplit { start, end: last + 1, replicas: machines as u32 });
                break;
            }
            splits.push(CompatSplit { start: split as usize + 1, end: last + 1, replicas });
            last = split as usize;
            machines -= replicas as usize;
        }
        splits.reverse();
        splits
    }
}

/// Tells whether a state's ideal lies strictly inside another's.
fn is_below(states: &States, state: usize, of: usize) -> bool {
    state < of && states.ideals[state].is_subset(&states.ideals[of])
}
