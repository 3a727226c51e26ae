//! The choice of each operator's strategy: the search of `partitioner`, over a table of the seconds of strategies and
//! exchanges.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use graph::{
    ModelGraph, OperatorClass, OperatorId, TensorId, ValueId,
    layout::{
        Choice, Collective, Context, Exchange, Layout, Need, Source, Special, Strategy, Writes, exchanges,
    },
};
use partitioner::inside::{Choices, Cost, Matrix, eliminate};
use schema::SequenceParallel;

/// A group of devices, and the costs of its strategies.
pub struct Group<'a> {
    /// Number of devices.
    pub degree: u64,
    /// Seconds of an exchange of a value of the given bytes over all devices.
    pub seconds: &'a dyn Fn(Collective, u64) -> f64,
    /// Launch overhead of a kernel in seconds.
    pub launch: f64,
    /// Seconds per step and byte of parameters on a device, for the optimizer.
    pub per_byte: f64,
    /// Seconds of strategies.
    pub prices: Prices<'a>,
    /// Bytes on a device per byte of parameters: these, their gradients, the optimizer's state.
    pub held: f64,
    /// The form of values between matrix products, and the penalty of each exchange of the other form.
    pub sequences: Option<(SequenceParallel, f64)>,
    /// Weights are whole, and no product takes a part of one: each device has samples or positions.
    pub keeps_weights: bool,
    /// The share of the sum of a whole weight's gradient that each micro-batch bears.
    pub summed: f64,
    /// The strategies that are considered.
    pub wanted: &'a dyn Fn(OperatorId, &Strategy) -> bool,
    /// Fixed layouts of stored tensors.
    pub given: &'a BTreeMap<TensorId, Layout>,
}

/// Seconds of an operator's strategies.
#[derive(Clone, Copy)]
pub enum Prices<'a> {
    /// Those of the whole operator, dealt out.
    DealtOut {
        /// Seconds of each whole operator, and the part of them that shrinks with its share.
        seconds: &'a dyn Fn(OperatorId) -> (f64, f64),
        /// Penalty for an operator that each device does whole: users who share layers want their arithmetic shared,
        /// even if the host's calls take longer.
        whole: &'a dyn Fn(OperatorId) -> f64,
    },
    /// Those at a part's own sizes, per operator and strategy, and those of an exchange of a whole value of some bytes,
    /// with or without a gradient. Weights of the first device stay there.
    AtParts(&'a [Vec<Cost>], &'a dyn Fn(Exchange, u64, bool) -> f64),
    /// None: only what is possible matters.
    None,
}

/// The chosen strategies.
pub struct Chosen {
    /// Per operator and stored tensor.
    pub choice: Choice,
    /// Its cost, by the times of the choice.
    pub seconds: f64,
    /// A lower bound on the cost of any choice.
    pub bound: f64,
}

/// Chooses the fastest strategies.
pub fn choose(context: &Context<'_>, group: &Group<'_>) -> Option<Chosen> {
    let tables = Tables::of(context, group);
    let found = eliminate(&tables.choices, |cost| cost.seconds);
    found.value.is_finite().then(|| Chosen {
        choice: tables.choice(&found.picks),
        seconds: found.value,
        bound: found.bound,
    })
}

/// The choices of a graph, for any search. The first nodes are its operators.
pub struct Tables {
    /// Strategies of operators, layouts of stored tensors, and layouts of values that several operators take.
    pub choices: Choices,
    /// Number of operators.
    pub n_operators: usize,
    /// The strategies of each operator that are considered.
    pub kept: Vec<Vec<usize>>,
    /// Per stored tensor its node, and its layouts by pick; `None` for tensors that are whole.
    tensors: Vec<Option<(usize, Vec<Layout>)>>,
}

impl Tables {
    /// Makes them.
    pub fn of(context: &Context<'_>, group: &Group<'_>) -> Self {
        let mut table = Table::new(context, group);
        table.operators();
        table.tensors();
        table.values();
        table.outputs();
        let of = |index: usize| {
            let node = *table.tensor_node.get(&TensorId(index as u32))?;
            Some((node, table.layouts[&node].clone()))
        };
        let tensors = (0..context.graph.tensors.len()).map(of).collect();
        Self { tensors, n_operators: context.graph.operators.len(), kept: table.kept, choices: table.choices }
    }

    /// Returns picks as strategies and layouts.
    pub fn choice(&self, picks: &[usize]) -> Choice {
        let layout = |tensor: &Option<(usize, Vec<Layout>)>| {
            tensor.as_ref().map_or(Layout::Whole, |(node, layouts)| layouts[picks[*node]])
        };
        Choice {
            strategies: self.kept.iter().zip(picks).map(|(kept, pick)| kept[*pick]).collect(),
            tensors: self.tensors.iter().map(layout).collect(),
        }
    }

    /// Returns strategies and layouts as picks, with the cheapest layouts of values; `None` if they are incompatible.
    pub fn picks(&self, choice: &Choice) -> Option<Vec<usize>> {
        let mut nodes = self.choices.nodes.clone();
        let mut keep = |node: usize, pick: usize| {
            let others = nodes[node].iter_mut().enumerate().filter(|(at, _)| *at != pick);
            others.for_each(|(_, cost)| cost.seconds = f64::INFINITY);
        };
        for (node, (kept, own)) in self.kept.iter().zip(&choice.strategies).enumerate() {
            keep(node, kept.iter().position(|strategy| strategy == own)?);
        }
        for (layout, tensor) in choice.tensors.iter().zip(&self.tensors) {
            if let Some((node, layouts)) = tensor {
                keep(*node, layouts.iter().position(|own| own == layout)?);
            }
        }
        let found = eliminate(&Choices { nodes, edges: self.choices.edges.clone() }, |cost| cost.seconds);
        found.value.is_finite().then_some(found.picks)
    }
}

/// The choices of a graph: a node per operator, per stored tensor, and per value that several operators take.
struct Table<'a> {
    context: &'a Context<'a>,
    graph: &'a ModelGraph,
    group: &'a Group<'a>,
    ways: Vec<Vec<Strategy>>,
    kept: Vec<Vec<usize>>,
    leaves: Vec<Vec<graph::layout::Leaf>>,
    stored: HashSet<Source>,
    choices: Choices,
    tensor_node: HashMap<TensorId, usize>,
    /// Layouts by pick, for nodes of stored tensors.
    layouts: HashMap<usize, Vec<Layout>>,
    edges: BTreeMap<(usize, usize), Vec<f64>>,
}

/// One use of a tensor.
struct Use {
    operator: usize,
    leaf: usize,
    is_fixed: bool,
}

impl<'a> Table<'a> {
    fn new(context: &'a Context<'a>, group: &'a Group<'a>) -> Self {
        let graph = context.graph;
        let ids = || (0..graph.operators.len() as u32).map(OperatorId);
        let wanted = |id: OperatorId| {
            let all = context.strategies(id).into_iter().enumerate();
            all.filter(move |(at, way)| *at == 0 || (group.wanted)(id, way)).unzip()
        };
        let (kept, ways): (Vec<Vec<usize>>, Vec<Vec<Strategy>>) = ids().map(wanted).unzip();
        let leaves: Vec<_> = ids().map(|id| context.leaves(id)).collect();
        let stored = stored(graph, &leaves);
        Self {
            context,
            graph,
            group,
            ways,
            kept,
            leaves,
            stored,
            choices: Choices::default(),
            tensor_node: HashMap::new(),
            layouts: HashMap::new(),
            edges: BTreeMap::new(),
        }
    }

    fn operators(&mut self) {
        let weights = self.weights();
        for (index, ways) in self.ways.iter().enumerate() {
            let cuts_weights = |way: &Strategy| {
                let mut needs = self.leaves[index].iter().zip(&way.needs);
                weights.as_ref().is_some_and(|weights| {
                    takes_weights(self.graph.operator(OperatorId(index as u32)).class)
                        && needs.any(|(leaf, need)| {
                            weights.contains(&leaf.source) && matches!(need, Need::In(Layout::Even(_)))
                        })
                })
            };
            let id = OperatorId(index as u32);
            let is_dense = self.graph.operator(id).class == OperatorClass::Matmul;
            // Its weights are on the first device, and so is its work.
            let stays = self.leaves[index].iter().any(|leaf| {
                matches!(leaf.source, Source::Tensor(id) if matches!(self.group.given.get(&id), Some(Layout::First(_))))
            });
            let (seconds, penalty) = match self.group.prices {
                Prices::AtParts(costs, _) => {
                    self.choices.nodes.push(self.kept[index].iter().map(|at| costs[index][*at]).collect());
                    continue;
                }
                Prices::None => {
                    self.choices.nodes.push(vec![Cost::default(); ways.len()]);
                    continue;
                }
                Prices::DealtOut { seconds, whole } => (seconds, whole),
            };
            let (whole, divisible) = seconds(id);
            let divisible = (divisible - self.group.launch).max(0.0);
            let part = whole - divisible + divisible / self.group.degree as f64;
            let combined = self.combined(id);
            let cost = |way: &Strategy| Cost {
                // Of equal choices, whole operators are preferred: they need no later exchanges.
                seconds: if cuts_weights(way) {
                    f64::INFINITY
                } else if matches!(way.gives, Layout::First(_)) && (is_dense || stays) {
                    whole
                } else if matches!(way.special, Some(Special::Combine(..))) {
                    part + combined
                } else if way.is_split && !stays {
                    part
                } else {
                    whole + penalty(id)
                },
                ..Cost::default()
            };
            self.choices.nodes.push(ways.iter().map(cost).collect());
        }
    }

    /// Returns the seconds of bringing an operator's rows from the devices of their experts.
    fn combined(&self, id: OperatorId) -> f64 {
        let outputs = &self.graph.operator(id).outputs;
        let tensors: Vec<_> =
            outputs.iter().flat_map(|value| self.graph.value(*value).fact.tensors()).collect();
        let bytes: u64 = tensors.iter().filter_map(|tensor| tensor.bytes()).sum();
        let passes = if tensors.iter().any(|tensor| tensor.requires_grad) { 2.0 } else { 1.0 };
        passes * (self.group.launch + (self.group.seconds)(Collective::AllToAll, bytes))
    }

    /// Returns the weights that stay whole.
    fn weights(&self) -> Option<HashSet<Source>> {
        self.group.keeps_weights.then(|| stored(self.graph, &self.leaves))
    }

    /// Returns the penalty of exchanges that hold values in another form than requested.
    fn otherwise(&self, steps: &[Exchange], source: Source, rank: usize, has_gradient: bool) -> f64 {
        let Some((held, cost)) = self.group.sequences.filter(|_| has_gradient) else { return 0.0 };
        let is_other = |step: &&Exchange| match (held, step) {
            // Norms over parts have whole weights, products do not.
            (SequenceParallel::On, Exchange::Copy) => rank > 1 || !self.stored.contains(&source),
            (SequenceParallel::On, Exchange::Reduce) => !self.stored.contains(&source),
            (SequenceParallel::On, Exchange::Scatter(slice)) => {
                slice.dim + 1 == rank && !self.stored.contains(&source)
            }
            (SequenceParallel::Off, Exchange::Scatter(slice)) => slice.dim + 1 < rank,
            (SequenceParallel::Off, Exchange::ReduceScatter(_) | Exchange::GatherSplit(_)) => true,
            (SequenceParallel::Off, Exchange::Exchange { .. }) => true,
            _ => false,
        };
        cost * steps.iter().filter(is_other).count() as f64
    }

    /// Adds a node for all names of each stored tensor.
    fn tensors(&mut self) {
        let mut uses: BTreeMap<TensorId, Vec<Use>> = BTreeMap::new();
        let first = |id: TensorId| self.graph.tensor(id).first;
        self.each_use(|source, one| {
            if let Source::Tensor(id) = source {
                uses.entry(first(id)).or_default().push(one);
            }
        });
        for (id, uses) in uses {
            let tensor = self.graph.tensor(id);
            let names: Vec<TensorId> =
                self.graph.tensors.iter().filter(|other| other.first == id).map(|other| other.id).collect();
            let shares_otherwise =
                self.graph.tensors.iter().any(|other| other.storage == tensor.storage && other.first != id);
            let mut layouts = vec![Layout::Whole];
            // Constants of the trace are small, and stages hold them whole.
            if !shares_otherwise && tensor.role != graph::Role::Constant {
                for one in &uses {
                    for way in &self.ways[one.operator] {
                        let layout = match way.needs[one.leaf] {
                            Need::In(layout @ Layout::Even(_)) => layout,
                            Need::Lent(rows) => Layout::First(rows),
                            _ => continue,
                        };
                        if !layouts.contains(&layout) {
                            layouts.push(layout);
                        }
                    }
                }
            }
            if let Some(layout) = names.iter().find_map(|name| self.group.given.get(name)) {
                layouts.retain(|known| known == layout);
                if layouts.is_empty() {
                    layouts.push(*layout);
                }
            }
            let bytes = tensor.bytes as f64;
            let cost = |layout: &Layout| {
                let is_part = matches!(layout, Layout::Even(_));
                let held = if is_part { bytes / self.group.degree as f64 } else { bytes };
                Cost { seconds: held * self.group.per_byte, bytes: held * self.group.held, hidden: 0.0 }
            };
            let node = self.choices.nodes.len();
            self.choices.nodes.push(layouts.iter().map(cost).collect());
            for name in names {
                self.tensor_node.insert(name, node);
            }
            for one in &uses {
                self.join(node, &layouts, one, bytes as u64);
            }
            self.layouts.insert(node, layouts);
        }
        self.flush();
    }

    /// Joins the producers of values with their consumers; of several consumers, all that want the same layout share
    /// one exchange.
    fn values(&mut self) {
        let mut uses: BTreeMap<ValueId, Vec<Use>> = BTreeMap::new();
        self.each_use(|source, one| {
            if let Source::Value(id) = source {
                uses.entry(id).or_default().push(one);
            }
        });
        for (id, uses) in uses {
            let value = self.graph.value(id);
            let bytes: u64 = value.fact.tensors().iter().filter_map(|tensor| tensor.bytes()).sum();
            let Some(producer) = value.producer.map(OperatorId::index) else {
                for one in &uses {
                    let costs = self.costs(Layout::Whole, one, bytes, None);
                    for (cost, extra) in self.choices.nodes[one.operator].iter_mut().zip(costs) {
                        cost.seconds += extra;
                    }
                }
                continue;
            };
            let made: Vec<Layout> = self.ways[producer].iter().map(|way| way.gives).collect();
            let is_shared = uses.len() > 1 && made.len() > 1 && !self.is_free();
            if !is_shared {
                for one in &uses {
                    self.join(producer, &made, one, bytes);
                }
                continue;
            }
            let mut kinds = made.clone();
            kinds.sort_unstable();
            kinds.dedup();
            let mut needs: Vec<Need> = uses
                .iter()
                .flat_map(|one| self.ways[one.operator].iter().map(|way| way.needs[one.leaf]))
                .collect();
            needs.sort_unstable();
            needs.dedup();
            let has_gradient = value.fact.tensors().iter().any(|tensor| tensor.requires_grad);
            // The layout as produced, and the layouts that exchanges make of it.
            let mut states: Vec<(Layout, Option<Vec<Exchange>>)> = Vec::new();
            for kind in &kinds {
                states.push((*kind, None));
                for need in &needs {
                    if let Some(steps) = exchanges(*kind, *need, has_gradient)
                        && !steps.is_empty()
                        && !states.contains(&(*kind, Some(steps.clone())))
                    {
                        states.push((*kind, Some(steps)));
                    }
                }
            }
            let node = self.choices.nodes.len();
            let cost = |(_, steps): &(Layout, Option<Vec<Exchange>>)| Cost {
                seconds: steps.as_deref().map_or(0.0, |steps| {
                    let rank = self.context.sizes(id).map_or(0, |sizes| sizes.len());
                    self.seconds(steps, bytes, has_gradient)
                        + self.otherwise(steps, Source::Value(id), rank, has_gradient)
                }),
                ..Cost::default()
            };
            self.choices.nodes.push(states.iter().map(cost).collect());
            let cells = made.iter().flat_map(|own| {
                states.iter().map(move |(kind, _)| if own == kind { 0.0 } else { f64::INFINITY })
            });
            self.add((producer, node), cells.collect());
            for one in &uses {
                let cells: Vec<f64> = states
                    .iter()
                    .flat_map(|(kind, steps)| self.costs(*kind, one, bytes, steps.as_deref()))
                    .collect();
                self.add((node, one.operator), cells);
            }
        }
        self.flush();
    }

    /// The model's outputs are whole.
    fn outputs(&mut self) {
        for id in &self.graph.outputs {
            let value = self.graph.value(*id);
            let Some(producer) = value.producer.map(OperatorId::index) else { continue };
            let bytes: u64 = value.fact.tensors().iter().filter_map(|tensor| tensor.bytes()).sum();
            let is_list = matches!(value.fact, graph::Fact::List(_));
            for (at, way) in self.ways[producer].iter().enumerate() {
                let steps = exchanges(way.gives, Need::Whole, true).unwrap_or_default();
                let is_wrong = is_list && !steps.is_empty();
                let more = if is_wrong { f64::INFINITY } else { self.seconds(&steps, bytes, true) };
                self.choices.nodes[producer][at].seconds += more;
            }
        }
    }

    fn each_use(&self, mut with: impl FnMut(Source, Use)) {
        let writes = Writes::new(self.context);
        for operator in 0..self.graph.operators.len() {
            let fixed = self.context.fixed(OperatorId(operator as u32), &writes);
            for (leaf, (about, is_fixed)) in self.leaves[operator].iter().zip(fixed).enumerate() {
                with(about.source, Use { operator, leaf, is_fixed });
            }
        }
    }

    /// Joins a node whose picks are layouts with a consumer.
    fn join(&mut self, node: usize, layouts: &[Layout], one: &Use, bytes: u64) {
        let cells: Vec<f64> =
            layouts.iter().flat_map(|layout| self.costs(*layout, one, bytes, None)).collect();
        self.add((node, one.operator), cells);
    }

    /// Returns the cost of exchanges of one operand, for each strategy of a consumer, with some of them already made.
    fn costs(&self, from: Layout, one: &Use, bytes: u64, made: Option<&[Exchange]>) -> Vec<f64> {
        let leaf = &self.leaves[one.operator][one.leaf];
        let has_gradient = leaf.has_gradient;
        let stays = !matches!(self.group.prices, Prices::DealtOut { .. })
            && matches!((leaf.source, from), (Source::Tensor(_), Layout::First(_)));
        let cost = |way: &Strategy| match exchanges(from, way.needs[one.leaf], has_gradient) {
            None => f64::INFINITY,
            Some(_) if stays && !matches!(way.needs[one.leaf], Need::Lent(_)) => f64::INFINITY,
            Some(steps) if steps.is_empty() => 0.0,
            Some(_) if one.is_fixed => f64::INFINITY,
            Some(steps) if Some(steps.as_slice()) == made => 0.0,
            Some(steps) => {
                let is_summed = steps == [Exchange::Copy] && matches!(leaf.source, Source::Tensor(_));
                let share = if is_summed { self.group.summed } else { 1.0 };
                share * self.seconds(&steps, bytes, has_gradient)
                    + self.otherwise(&steps, leaf.source, leaf.sizes.len(), has_gradient)
            }
        };
        self.ways[one.operator].iter().map(cost).collect()
    }

    fn seconds(&self, steps: &[Exchange], bytes: u64, has_gradient: bool) -> f64 {
        match self.group.prices {
            Prices::AtParts(_, seconds) => {
                return steps.iter().map(|step| seconds(*step, bytes, has_gradient)).sum();
            }
            Prices::None => return 0.0,
            Prices::DealtOut { .. } => {}
        }
        let launch = self.group.launch;
        let of = |collective: Option<Collective>| {
            collective.map_or(0.0, |collective| launch + (self.group.seconds)(collective, bytes))
        };
        let one = |step: &Exchange| {
            // A slice is a copy, too: at no cost, useless ones would be chosen.
            let least = self.group.launch * 0.01;
            of(step.forward(self.group.degree)).max(least)
                + if has_gradient { of(step.backward(self.group.degree)) } else { 0.0 }
        };
        steps.iter().map(one).sum()
    }

    fn add(&mut self, (a, b): (usize, usize), cells: Vec<f64>) {
        // An operator that consumes its own result has no edge.
        match self.edges.get_mut(&(a, b)) {
            Some(known) => known.iter_mut().zip(cells).for_each(|(cell, more)| *cell += more),
            None => {
                self.edges.insert((a, b), cells);
            }
        }
    }

    /// Tells whether only what is possible matters.
    fn is_free(&self) -> bool {
        matches!(self.group.prices, Prices::None)
    }

    fn flush(&mut self) {
        for ((a, b), cells) in std::mem::take(&mut self.edges) {
            // Where all goes with all, one does not depend on the other.
            if self.is_free() && cells.iter().all(|cell| *cell == 0.0) {
                continue;
            }
            let (rows, columns) = (self.choices.nodes[a].len(), self.choices.nodes[b].len());
            self.choices.edges.push((a, b, Arc::new(Matrix::new(rows, columns, cells))));
        }
    }
}

/// Tells whether operators of a class work with weights that devices would share in another way. Returns stored
/// tensors, and values made only of them, such as casts.
fn stored(graph: &ModelGraph, leaves: &[Vec<graph::layout::Leaf>]) -> HashSet<Source> {
    let mut found: HashSet<Source> =
        (0..graph.tensors.len() as u32).map(|id| Source::Tensor(TensorId(id))).collect();
    for (operator, leaves) in graph.operators.iter().zip(leaves) {
        if !leaves.is_empty() && leaves.iter().all(|leaf| found.contains(&leaf.source)) {
            found.extend(operator.outputs.iter().map(|value| Source::Value(*value)));
        }
    }
    found
}

fn takes_weights(class: OperatorClass) -> bool {
    matches!(
        class,
        OperatorClass::Matmul
            | OperatorClass::Convolution
            | OperatorClass::Embedding
            | OperatorClass::Recurrent
    )
}
