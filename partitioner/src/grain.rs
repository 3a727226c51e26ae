//! How finely a model is taken apart before stages are cut: coarse everywhere, fine where a cut may pay.
//!
//! Begins with the repeated units of a model. A call next to a boundary is opened into its parts if it is so heavy that devices
//! wait, and closed again once no boundary is near: a closed call is one unit of recomputation. Which calls are opened depends on
//! the plans found, never on the number of devices alone.
//!
//! O(operators) for each grain.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use graph::{BlockId, Item, Level, ModelGraph, OperatorId};
use schema::{OperatorPaths, operator_path};

use crate::{Problem, Solution};

/// Seconds of one operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OperatorSeconds {
    /// Forward pass.
    pub forward: f64,
    /// Gradient of the inputs.
    pub input_gradient: f64,
    /// Gradient of the parameters.
    pub weight_gradient: f64,
    /// Once a step: sums of gradients over devices that share it.
    pub once: f64,
}

/// Share of an even stage's work below which a call next to a border is not worth opening.
const WORTH_OPENING: f64 = 1e-3;

/// Which calls of a model are opened, and which blocks are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grain {
    opened: Opened,
    /// Paths of blocks that go with the ones before them.
    pub joined: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Opened {
    /// Some calls, beyond those that only hold the model's repeated units.
    These(Calls),
    /// Every call: each operator that takes time stands alone.
    All,
}

impl Default for Opened {
    fn default() -> Self {
        Self::These(Calls::default())
    }
}

/// Calls that are opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Calls {
    /// Calls whose direct parts stand by themselves.
    opened: BTreeSet<BlockId>,
    /// Calls whose operators between these parts stand alone too, instead of with the part before them.
    parted: BTreeSet<BlockId>,
}

impl Calls {
    /// Opens a call down to its last operator.
    fn part(&mut self, call: BlockId, model: &Sliceable<'_>) {
        self.parted.insert(call);
        self.open(Some(call), model);
    }

    /// Opens a call and all calls that contain it.
    fn open(&mut self, mut call: Option<BlockId>, model: &Sliceable<'_>) {
        while let Some(block) = call.filter(|call| !model.containers[call.index()]) {
            self.opened.insert(block);
            call = model.graph.block(block).parent;
        }
    }
}

/// A traced model with all that cutting it needs.
pub struct Sliceable<'a> {
    pub(crate) graph: &'a ModelGraph,
    /// Seconds of each operator.
    seconds: Vec<f64>,
    /// Calls that hold the repeated units and nothing else.
    containers: Vec<bool>,
    /// Calls that are never opened.
    closed: BTreeSet<BlockId>,
}

/// Consecutive operators that form one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First to last. Invariant: at least one.
    pub(crate) paths: Vec<String>,
    pub(crate) operators: Range<u32>,
    /// The call; `None` for a loose operator.
    call: Option<BlockId>,
}

impl Grain {
    /// Tells whether every operator that takes time stands alone: no finer cut is left.
    /// A model of which parts are kept whole may have a finest grain before that.
    pub fn is_finest(&self) -> bool {
        self.opened == Opened::All && self.joined.is_empty()
    }
}

impl<'a> Sliceable<'a> {
    /// Prepares a model whose operators take these seconds.
    pub fn new(graph: &'a ModelGraph, seconds: &[OperatorSeconds]) -> Self {
        let of = |time: &OperatorSeconds| time.forward + time.input_gradient + time.weight_gradient;
        let mut containers = vec![false; graph.blocks.len()];
        for item in graph.level(Level::Block) {
            let mut inside = match item {
                Item::Block(block) => graph.block(block).parent,
                Item::Operator(operator) => Some(graph.operator(operator).block),
            };
            while let Some(block) = inside.filter(|block| !containers[block.index()]) {
                containers[block.index()] = true;
                inside = graph.block(block).parent;
            }
        }
        Self { graph, seconds: seconds.iter().map(of).collect(), containers, closed: BTreeSet::new() }
    }

    /// Keeps calls whole: no cut goes through them.
    pub fn keeping(mut self, whole: impl Fn(&graph::Block) -> bool) -> Self {
        for block in self.graph.blocks.iter().filter(|block| block.parent.is_some() && whole(block)) {
            self.containers[block.id.index()] = false;
            self.closed.insert(block.id);
        }
        self
    }

    /// Opens the calls around some of them, so that these stand alone; calls that are kept whole stay closed.
    pub fn opening(mut self, own: impl Fn(&graph::Block) -> bool) -> Self {
        for block in self.graph.blocks.iter().filter(|block| own(block)) {
            let mut holder = block.parent;
            while let Some(call) = holder.filter(|call| !self.closed.contains(call)) {
                self.containers[call.index()] = true;
                holder = self.graph.block(call).parent;
            }
        }
        self
    }

    /// Returns the blocks of a grain that contain operators of these ranges which take time.
    pub fn blocks_of(&self, grain: &Grain, operators: &[Range<u32>]) -> Vec<usize> {
        let is_own = |operator: u32| {
            self.is_working(operator as usize) && operators.iter().any(|own| own.contains(&operator))
        };
        let runs = self.runs(grain).into_iter().enumerate();
        runs.filter(|(_, run)| run.operators.clone().any(is_own)).map(|(index, _)| index).collect()
    }

    fn work(&self, operators: Range<u32>) -> f64 {
        self.seconds[operators.start as usize..operators.end as usize].iter().sum()
    }

    fn is_working(&self, operator: usize) -> bool {
        self.seconds[operator] > 0.0
    }

    /// Returns the number of operators that take time.
    pub fn n_working(&self) -> usize {
        (0..self.seconds.len()).filter(|&operator| self.is_working(operator)).count()
    }

    /// Tells whether a call has more than one part.
    fn is_divisible(&self, call: BlockId) -> bool {
        if self.closed.contains(&call) {
            return false;
        }
        let operators = self.graph.block(call).operators.clone();
        operators.filter(|&operator| self.is_working(operator as usize)).take(2).count() > 1
    }

    /// Tells whether a run has but one operator that takes time.
    pub(crate) fn is_operator(&self, run: &Run) -> bool {
        run.operators.clone().filter(|&operator| self.is_working(operator as usize)).take(2).count() < 2
    }

    /// Opens the heaviest calls until `n_blocks` blocks have work, or nothing is left to open.
    pub fn enough(&self, n_blocks: usize, joined: &BTreeSet<String>) -> Grain {
        let mut calls = Calls::default();
        loop {
            let grain = Grain { opened: Opened::These(calls.clone()), joined: joined.clone() };
            let runs = self.runs(&grain);
            let work = |run: &Run| self.work(run.operators.clone());
            if runs.iter().filter(|run| work(run) > 0.0).count() >= n_blocks {
                return grain;
            }
            let openable = runs.iter().filter_map(|run| {
                // Opening the call that holds both separates a call from the loose operators behind it.
                let call = run.call?;
                let within = self.is_divisible(call).then_some(call);
                let around = self.tail(run, call).filter(|(holder, _)| !calls.parted.contains(holder));
                Some((work(run), within.or(around.map(|(holder, _)| holder))?))
            });
            let heaviest = openable.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
            match heaviest {
                Some((_, call)) => calls.part(call, self),
                None => return Grain { opened: Opened::All, joined: joined.clone() },
            };
        }
    }

    /// The grain at which blocks of these names are found: calls of any depth, and operators.
    pub fn named<'n>(&self, names: impl Iterator<Item = &'n str>) -> Grain {
        let graph = self.graph;
        let calls: HashMap<&str, BlockId> =
            graph.blocks.iter().map(|block| (block.path.as_str(), block.id)).collect();
        let mut opened = Calls::default();
        for name in names {
            match calls.get(name) {
                Some(call) => opened.open(graph.block(*call).parent, self),
                None => {
                    let holder = name.rsplit_once('/').and_then(|(holder, _)| calls.get(holder));
                    holder.iter().for_each(|holder| opened.part(**holder, self));
                }
            }
        }
        Grain { opened: Opened::These(opened), joined: BTreeSet::new() }
    }

    /// Returns the first operator of a call, or an operator itself, by the name that plans have for it.
    pub fn first_operator(&self, name: &str) -> Option<u32> {
        let call = self.graph.blocks.iter().find(|block| block.path == name);
        if let Some(call) = call.filter(|call| !call.operators.is_empty()) {
            return Some(call.operators.start);
        }
        let (holder, _) = name.rsplit_once('/')?;
        let places = places(self.graph);
        let is_meant = |operator: &&graph::Operator| {
            let own = &self.graph.block(operator.block).path;
            own == holder && operator_path(own, &operator.name, places[operator.id.index()]) == name
        };
        self.graph.operators.iter().find(is_meant).map(|operator| operator.id.0)
    }

    /// Returns the number of operators with work before one.
    pub fn working_before(&self, operator: u32) -> usize {
        (0..operator as usize).filter(|&before| self.is_working(before)).count()
    }

    /// Returns the grain at which stages can begin at these operators, with no other call opened.
    ///
    /// # Errors
    /// The first operator at which no stage can begin: a call kept whole contains it, or it is joined to the one before it.
    pub fn beginning_at(&self, starts: &[u32], joined: &BTreeSet<String>) -> Result<Grain, u32> {
        let mut calls = Calls::default();
        loop {
            let grain = Grain { opened: Opened::These(calls.clone()), joined: joined.clone() };
            let runs = self.runs(&grain);
            let is_between = |start: u32| self.border(&runs, start).is_some();
            let Some(&start) = starts.iter().find(|start| !is_between(**start)) else { return Ok(grain) };
            let inside = runs.iter().find(|run| run.operators.contains(&start)).ok_or(start)?;
            let before = calls.clone();
            match inside.call.filter(|call| self.graph.block(*call).operators.contains(&start)) {
                Some(call) if self.is_divisible(call) => calls.part(call, self),
                Some(_) => return Err(start),
                None => calls.part(self.graph.operators[start as usize].block, self),
            }
            if calls == before {
                return Err(start);
            }
        }
    }

    /// Returns the blocks of a grain at which operators stand first; operators that take no time may stand before them.
    pub fn begins(&self, grain: &Grain, starts: &[u32]) -> Option<Vec<usize>> {
        let runs = self.runs(grain);
        starts.iter().map(|start| self.border(&runs, *start)).collect()
    }

    /// Returns the run that begins at an operator, without regard to operators that take no time.
    fn border(&self, runs: &[Run], start: u32) -> Option<usize> {
        let index = runs.iter().position(|run| run.operators.contains(&start))?;
        let works =
            |operators: Range<u32>| operators.into_iter().any(|operator| self.is_working(operator as usize));
        let own = &runs[index].operators;
        if !works(own.start..start) {
            Some(index)
        } else if !works(start..own.end) && index + 1 < runs.len() {
            Some(index + 1)
        } else {
            None
        }
    }

    /// The grain at which every operator that takes time stands alone.
    pub fn finest(&self, joined: &BTreeSet<String>) -> Grain {
        Grain { opened: Opened::All, joined: joined.clone() }
    }

    /// The call that holds operators behind a run's own call, and their seconds.
    fn tail(&self, run: &Run, call: BlockId) -> Option<(BlockId, f64)> {
        let end = self.graph.block(call).operators.end;
        let first = (end..run.operators.end).find(|&operator| self.is_working(operator as usize))?;
        let holder = self.graph.operators[first as usize].block;
        Some((holder, self.work(end..run.operators.end)))
    }

    /// Opens the calls next to the boundaries of some plans, and closes all others.
    pub fn around<'p>(
        &self,
        grain: &Grain,
        problem: &Problem,
        plans: impl Iterator<Item = &'p Solution>,
    ) -> Grain {
        if grain.opened == Opened::All {
            return grain.clone();
        }
        let runs = self.runs(grain);
        let index_of: HashMap<&str, usize> =
            runs.iter().enumerate().map(|(index, run)| (run.paths[0].as_str(), index)).collect();
        let mut calls = Calls::default();
        for plan in plans {
            let stages = plan.stages.len();
            let worth = WORTH_OPENING * problem.seconds() / stages as f64;
            let last = |stage: usize| plan.stages[stage].blocks.iter().max().copied();
            let first = |stage: usize| plan.stages[stage].blocks.iter().min().copied();
            let borders = (1..stages).flat_map(|stage| [last(stage - 1), first(stage)]).flatten();
            for block in borders {
                let Some(&index) = index_of.get(problem.blocks[block].path.as_str()) else { continue };
                self.open_at(&runs[index], worth, &mut calls);
            }
        }
        Grain { opened: Opened::These(calls), joined: grain.joined.clone() }
    }

    /// Opens a run and all calls that contain it.
    fn open_at(&self, run: &Run, worth: f64, calls: &mut Calls) {
        let Some(call) = run.call else {
            // A loose operator: separate the operators of the call that contains it.
            return calls.part(self.graph.operators[run.operators.start as usize].block, self);
        };
        if self.is_divisible(call) && self.work(run.operators.clone()) > worth {
            calls.part(call, self);
        } else {
            calls.open(self.graph.block(call).parent, self);
        }
        if let Some((holder, seconds)) = self.tail(run, call)
            && seconds > worth
        {
            calls.part(holder, self);
        }
    }

    /// Returns the operators of a grain's last block; none if the model has none.
    pub fn last_block(&self, grain: &Grain) -> Range<u32> {
        self.runs(grain).pop().map_or(0..0, |run| run.operators)
    }

    /// Returns the runs of operators that stages are cut from, in order.
    pub(crate) fn runs(&self, grain: &Grain) -> Vec<Run> {
        let mut runs = self.parted(grain);
        // Loose operators before the first call go with it.
        if runs.len() > 1 && runs[0].paths[0].is_empty() {
            let first = runs.remove(0);
            runs[0].operators.start = first.operators.start;
        }
        join(runs, &grain.joined)
    }

    /// Returns the runs; the first has no path where loose operators stand before the first call.
    fn parted(&self, grain: &Grain) -> Vec<Run> {
        let graph = self.graph;
        let items = graph.items(|call| match &grain.opened {
            Opened::All => call.parent.is_none() || self.is_divisible(call.id),
            Opened::These(calls) => self.containers[call.id.index()] || calls.opened.contains(&call.id),
        });
        let has_calls = items.iter().any(|item| matches!(item, Item::Block(_)));
        let stands_alone = |operator: OperatorId| match &grain.opened {
            // Without calls every operator is an item, so that all are counted.
            Opened::These(_) if !has_calls => true,
            Opened::These(calls) => {
                self.is_working(operator.index()) && calls.parted.contains(&graph.operator(operator).block)
            }
            Opened::All => self.is_working(operator.index()),
        };
        let places = places(graph);
        let mut runs: Vec<Run> = Vec::with_capacity(items.len());
        for item in items {
            let operators = item.operators(graph);
            let (path, call) = match item {
                _ if operators.is_empty() => continue,
                Item::Block(block) => (graph.block(block).path.clone(), Some(block)),
                Item::Operator(id) if stands_alone(id) => {
                    let operator = graph.operator(id);
                    let holder = &graph.block(operator.block).path;
                    (operator_path(holder, &operator.name, places[id.index()]), None)
                }
                Item::Operator(_) => match runs.last_mut() {
                    Some(before) => {
                        before.operators.end = operators.end;
                        continue;
                    }
                    None => (String::new(), None),
                },
            };
            runs.push(Run { paths: vec![path], operators, call });
        }
        runs
    }
}

/// Tells for each operator its place among those of its name in its call.
fn places(graph: &ModelGraph) -> Vec<usize> {
    let mut paths = OperatorPaths::default();
    graph.operators.iter().map(|operator| paths.count(operator.block.0, &operator.name)).collect()
}

/// Puts the runs of these paths to the ones before them.
fn join(all: Vec<Run>, joined: &BTreeSet<String>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(all.len());
    for run in all {
        match runs.last_mut().filter(|_| joined.contains(&run.paths[0])) {
            Some(before) => {
                before.paths.extend(run.paths);
                before.operators.end = run.operators.end;
            }
            None => runs.push(run),
        }
    }
    runs
}
