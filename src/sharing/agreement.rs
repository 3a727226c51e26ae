//! The splits of operators that are found, beside all that can be written of small models.

use std::collections::BTreeSet;

use cost_model::Rounding;
use graph::{
    BuildOptions, OperatorId,
    layout::{Choice, Context, Layout, Need, Source, Strategy},
};
use schema::short_cluster;

use super::{
    choice::Chosen,
    links::links,
    model::{OperatorSearch, Subject},
    operators::{Parts, best, micro_batch, ways},
};
use crate::cost_models::CostModels;

/// The share by which the times of tables and of programs may differ.
const SAME: f64 = 0.01;

/// Numbers that look random (SplitMix64).
struct Dice(u64);

impl Dice {
    fn one_of<const N: usize>(&mut self, all: [u64; N]) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        all[((mixed ^ (mixed >> 27)) % N as u64) as usize]
    }
}

/// Two linear layers with an activation between, whose sizes decide what is fastest. Kernels take longer than the host's
/// calls: else a pass takes as long as all its calls together, which no sum over operators is.
fn dense(dice: &mut Dice) -> String {
    // Large weights, or many samples.
    let (samples, widths) = if dice.one_of([0, 1]) == 0 { (256, [4096, 8192]) } else { (65536, [256, 512]) };
    let [x, y, z] = [0; 3].map(|_| dice.one_of(widths));
    let fact = |rows: u64, columns: u64, grad: u64| {
        format!("Float({rows}, {columns}, strides=[{columns}, 1], requires_grad={grad}, device=cpu)")
    };
    format!(
        "graph(%self : __torch__.Dense,
      %x : {}):
  %first : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"first\"](%self)
  %second : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"second\"](%self)
  %none : NoneType = prim::Constant()
  %v : {} = prim::GetAttr[name=\"weight\"](%first)
  %y : {} = aten::linear(%x, %v, %none)
  %z : {} = aten::relu(%y)
  %w : {} = prim::GetAttr[name=\"weight\"](%second)
  %u : {} = aten::linear(%z, %w, %none)
  return (%u)
",
        fact(samples, x, 0),
        fact(y, x, 1),
        fact(samples, y, 1),
        fact(samples, y, 1),
        fact(z, y, 1),
        fact(samples, z, 1),
    )
}

/// Returns the layouts of weights that strategies need: a weight that is taken in parts may be held whole, too.
fn layouts(ways: &[Vec<Strategy>], strategies: &[usize], context: &Context<'_>) -> Vec<Vec<Layout>> {
    let mut all = vec![vec![Layout::Whole; context.graph.tensors.len()]];
    for (index, pick) in strategies.iter().enumerate() {
        let leaves = context.leaves(OperatorId(index as u32));
        for (leaf, need) in leaves.iter().zip(&ways[index][*pick].needs) {
            let layout = match (leaf.source, need) {
                (Source::Tensor(id), Need::In(layout)) => (id, *layout),
                (Source::Tensor(id), Need::Lent(rows)) => (id, Layout::First(*rows)),
                _ => continue,
            };
            let cut = all.iter().map(|whole| {
                let mut cut = whole.clone();
                cut[layout.0.index()] = layout.1;
                cut
            });
            all = all.iter().cloned().chain(cut.collect::<Vec<_>>()).collect();
        }
    }
    all
}

#[test]
fn no_split_that_can_be_written_is_faster() {
    let mut dice = Dice(7);
    let models = CostModels::default();
    let mut kinds = BTreeSet::new();
    for case in 0..8 {
        let degree = dice.one_of([2, 4]) as u32;
        let device = ["t4", "v100"][dice.one_of([0, 1]) as usize];
        let cluster = short_cluster(&format!("{degree}x{device}"), &models.devices()).expect("it is one");
        let text = dense(&mut dice);
        let program = tracer::ir::read_ir(&text).expect("it is IR text");
        let graph = graph::build(&program, &BuildOptions::default()).expect("its sizes are known");
        let costs = graph::costs(&graph);
        let subject = Subject {
            program: &program,
            graph: &graph,
            costs: &costs,
            inputs: &[],
            cluster: &cluster,
            models: &models,
            rounding: Rounding::Own,
            degree,
            links: links(&cluster, degree, 1),
            of_groups: false,
            part: None,
        };
        let search = OperatorSearch { name: "optcnn", random: None, optimizer_factor: 2.0, micro_batches: 1 };
        let context = Context::of_all(&graph, u64::from(degree));
        let ways = ways(&context);
        let mut parts = Parts::of(&subject, &context, &ways).expect("they are timed");
        let found = best(&subject, &context, &ways, &mut parts, (search, false)).expect("it is legal");
        let found = found.expect("there is one");
        let mut least = f64::INFINITY;
        let mut strategies = vec![0; ways.len()];
        loop {
            for tensors in layouts(&ways, &strategies, &context) {
                let choice = Choice { strategies: strategies.clone(), tensors };
                let chosen = Chosen { choice, seconds: 0.0, bound: 0.0 };
                let Ok((shared, _)) = subject.made(&context, &chosen) else { continue };
                least = least.min(micro_batch(&subject, &shared, search).expect("it has a time"));
            }
            let next = (0..ways.len()).rev().find(|at| strategies[*at] + 1 < ways[*at].len());
            let Some(next) = next else { break };
            strategies[next] += 1;
            strategies[next + 1..].fill(0);
        }
        let (own, bound) = found.shared.seconds;
        assert!(
            found.seconds <= least * (1.0 + SAME),
            "case {case}: {}, least {least}\n{text}",
            found.seconds
        );
        assert!(
            (own / found.seconds - 1.0).abs() < SAME,
            "case {case}: {own} in tables, {}\n{text}",
            found.seconds
        );
        assert!(bound <= own, "case {case}: {bound}, {own}");
        let splits = found.shared.operators.into_iter().flatten().map(|own| own.split);
        kinds.insert(splits.collect::<Vec<_>>().join(", "));
    }
    // Sizes differ enough for the answers to.
    assert!(kinds.len() >= 3, "{kinds:?}");
}

#[test]
fn splits_are_chosen_by_times_of_rounded_products() {
    let text = "graph(%x : Float(4096, 4096, strides=[4096, 1], requires_grad=1, device=cpu),
      %w : Float(4096, 4096, strides=[4096, 1], requires_grad=1, device=cpu)):
  %none : NoneType = prim::Constant()
  %y : Tensor = aten::linear(%x, %w, %none)
  return (%y)
";
    let program = tracer::ir::read_ir(text).expect("it is IR text");
    let graph = graph::build(&program, &BuildOptions::default()).expect("its sizes are known");
    let (costs, models) = (graph::costs(&graph), CostModels::default());
    let seconds = |device: &str, rounding| {
        let cluster = short_cluster(device, &models.devices()).expect("it is one");
        let (cluster, program, graph, costs, models) = (&cluster, &program, &graph, &costs, &models);
        let links = links(cluster, 2, 1);
        let subject = Subject {
            program,
            graph,
            costs,
            inputs: &[],
            cluster,
            models,
            rounding,
            degree: 2,
            links,
            of_groups: false,
            part: None,
        };
        subject.predicted(graph, costs).expect("it has a time").operator(OperatorId(0)).forward.seconds
    };
    assert!(seconds("2xa100", Rounding::Tf32) < 0.5 * seconds("2xa100", Rounding::Own));
    // Which has no tensor cores for it.
    assert!((seconds("2xt4", Rounding::Tf32) / seconds("2xt4", Rounding::Own) - 1.0).abs() < 1e-12);
}
