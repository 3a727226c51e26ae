//! The arguments that `plan` and `split` share: each is defined here once, with its help.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cost_model::Rounding;
use partitioner::{Effort, STRATEGIES, Strategy};
use schema::{
    Assumed, Bytes, Cluster, Constraints, PinnedCalls, Plan, PlannedOptimizer, PlannedRounding,
    RecomputedCalls, Seconds, SequenceParallel, ShardingLevel,
};

use super::{
    PlanRequest, clusters,
    inside::method::Method,
    loss::Loss,
    request::{CARRIED_OUT, Degree},
    sizes::Sizes,
};
use crate::{cost_models::CostModels, failure::Failure, nearest::meant, plan_file};

/// Arguments of every command that plans.
#[derive(Args)]
pub struct PlanArguments {
    /// Devices on one line: 4xH100, 2x8xa100 (two nodes of eight), 4xa100+4xv100
    #[arg(long, value_name = "N×NAME", conflicts_with = "cluster")]
    pub devices: Option<String>,
    /// Cluster file, instead of --devices
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    pub cluster: Option<PathBuf>,
    // Its help lists the names.
    #[arg(long, default_value = "auto", value_name = "NAME", help = strategy_help())]
    pub strategy: String,
    /// Number of pipeline stages, each on devices of its own; `--strategy interleaved` splits each into several chunks
    /// [default: the fastest]
    #[arg(long, value_name = "N")]
    pub stages: Option<u32>,
    /// Samples per step, over all devices [default: see --micro-batches]
    #[arg(long, value_name = "N", conflicts_with = "micro_batches")]
    pub batch: Option<u64>,
    /// Micro-batches per step, each as large as the model's inputs: more make a larger batch [default: the fewest that
    /// give 95 % of the throughput]
    #[arg(long, value_name = "M")]
    pub micro_batches: Option<u32>,
    /// Samples per micro-batch: 8, 2..16 (smallest and largest), or auto for the fastest with a --batch; tensor sizes
    /// are inferred again for each [traced models; default: as traced]
    #[arg(long, value_name = "N", value_parser = Sizes::from_text)]
    pub micro_batch_size: Option<Sizes>,
    /// Shape of an input, [NAME=]SHAPE[:DTYPE], if the trace does not record it
    #[arg(long, value_name = "SHAPE")]
    pub input: Vec<String>,
    /// Optimizer, which decides the state kept per parameter [default: adam]
    #[arg(long, value_enum, ignore_case = true)]
    pub optimizer: Option<Optimizer>,
    /// Parameters of 16 bits have a float32 copy that is trained and has the optimizer's state, as in mixed precision
    /// of FSDP and Megatron [traced models]
    #[arg(long)]
    pub master_weights: bool,
    /// Calls that no cut divides, by path (encoder.*) or class (LlamaDecoderLayer); may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub keep_together: Vec<String>,
    /// Calls with which the second and later stages begin, by path: the model is cut there and nowhere else
    #[arg(long, value_name = "PATH,…", value_delimiter = ',', conflicts_with = "layers")]
    pub cut_at: Vec<String>,
    /// Number of the model's repeated blocks in each stage: 7,8,9,8 of 32 decoder layers
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Vec<u32>,
    /// Calls that must be in one stage (embed=0, head=last) or on some devices (decoder.*=node1:*), by path or class;
    /// may be given several times
    #[arg(long, value_name = "PATTERN=STAGE|DEVICE", value_parser = PinnedCalls::from_text)]
    pub pin: Vec<PinnedCalls>,
    /// Calls that are always recomputed in the backward pass, each as one unit (layers.*=always), all but the results of
    /// products, convolutions and fused attention (layers.*=light), or never (LlamaAttention=never), by path or class;
    /// may be given several times
    #[arg(long, value_name = "PATTERN=always|light|never", value_parser = RecomputedCalls::from_text)]
    pub recompute: Vec<RecomputedCalls>,
    /// Reuse the constraints of this plan; flags add to them, or replace its cuts
    #[arg(long, value_name = "PLAN")]
    pub constraints: Option<PathBuf>,
    /// Carry over this plan, made for fewer or more devices: with as many replicas of its stages as there are devices for,
    /// it is one of the candidates
    #[arg(long, value_name = "PLAN")]
    pub from: Option<PathBuf>,
    /// Devices to leave unused, by name (node0:3, node1:*); may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub leave_out: Vec<String>,
    /// Loss that training adds after the outputs [default: guessed from them]
    #[arg(long, value_enum)]
    pub loss: Option<Loss>,
    /// State that replicas shard instead of each keeping a copy: none (DDP), zero1 (optimizer state), zero2 (also
    /// gradients), zero3 (also parameters: FSDP) [default: the fastest that train.py can run]
    #[arg(long, value_name = "LEVEL", value_parser = sharding_level)]
    pub sharding: Option<ShardingLevel>,
    /// Devices that share the work of each layer, neighbours over the fastest links: 8 for Llama-3-70B on nodes of
    /// eight, auto for the fastest number, or none [default: auto in up to 32 groups if parameters, gradients and
    /// optimizer state fit no single one or devices would be idle a third of the time, else none]
    #[arg(long, value_name = "N", value_parser = Degree::from_text)]
    pub tensor_parallel: Option<Degree>,
    /// With --tensor-parallel: whether each device holds only its part of the samples or positions between matrix
    /// products (on, as Megatron's sequence parallelism) or all of them (off), or auto for the faster [default: auto]
    #[arg(long, value_enum, value_name = "on|off|auto")]
    pub sequence_parallel: Option<SequenceParallelArgument>,
    /// Devices that each hold a band of rows or columns of every image, neighbours over the fastest links: 4 for an
    /// image of 4096 x 4096 that fits no single device, or auto for the fastest number [default: none, unless the model
    /// fits no other way]
    #[arg(long, value_name = "N", value_parser = Degree::from_text)]
    pub spatial: Option<Degree>,
    /// Devices that each hold a part of the positions of every sequence, with all weights: 4 for a sequence of 131,072
    /// tokens, or auto for the fastest number; beside --tensor-parallel N parts of the positions, each on N devices that
    /// share its layers [default: none]
    #[arg(long, value_name = "N", value_parser = Degree::from_text)]
    pub context_parallel: Option<Degree>,
    /// Devices that each hold a part of the samples or positions, a part of the experts of each mixture, and all other
    /// weights: 8 for the experts of a node, or auto for the fastest number [default: looked at beside --tensor-parallel
    /// where a model with experts fits no single device, else none]
    #[arg(long, value_name = "N", value_parser = Degree::from_text)]
    pub expert_parallel: Option<Degree>,
    /// With --context-parallel: calls that only the first of these devices runs, with weights that no other holds:
    /// classifier for AlexNet's dense layers, or auto for dense layers if that is faster [default: none]
    #[arg(long, value_name = "CALLS", value_delimiter = ',')]
    pub on_first: Vec<String>,
    /// Share of each device's memory that tensors may fill [default: from the device type; 0.9 for those of the
    /// catalogue]
    #[arg(long, value_name = "SHARE")]
    pub memory_fraction: Option<f64>,
    /// Memory of each device to keep free, in addition to what --memory-fraction or the device type leaves: 2GiB, 500MB
    #[arg(long, value_name = "BYTES", value_parser = Bytes::from_text)]
    pub reserve: Option<Bytes>,
    /// Never recompute activations in the backward pass
    #[arg(long)]
    pub no_recompute: bool,
    /// Move activations to host memory if they do not fit otherwise
    #[arg(long)]
    pub offload: bool,
    /// Host time in microseconds that the script adds to each pass, as `train.py --host-trace` measures it: 280; a
    /// backward pass split into two halves counts as two passes [default: from the cluster's types, else 0]
    #[arg(long, value_name = "US", value_parser = microseconds)]
    pub host_overhead: Option<Seconds>,
    /// Host time in microseconds that a backward pass takes beyond its two passes where it is split into halves, as
    /// `train.py --host-trace` measures it: 900 [default: from the cluster's types, else 0]
    #[arg(long, value_name = "US", value_parser = microseconds)]
    pub split_overhead: Option<Seconds>,
    /// How long to search
    #[arg(long, value_enum, value_name = "EFFORT", default_value_t)]
    pub effort: EffortArgument,
    #[command(flatten)]
    pub rounding: RoundingArguments,
    /// Cost model of a device type, as written by `fit -o` [default: the built-in one, else its data sheet]
    #[arg(long = "cost-model", value_name = "FILE")]
    pub cost_models: Vec<PathBuf>,
}

/// Tells whether a name matches a pattern, in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Tells whether a pattern matches a call, by its path or its class.
pub(super) fn is_meant(pattern: &str, block: &graph::Block) -> bool {
    matches(pattern, &block.path) || *pattern == block.kind || *pattern == block.class
}

/// Parses a sharding level.
pub fn sharding_level(name: &str) -> Result<ShardingLevel, String> {
    let names = ShardingLevel::ALL.map(ShardingLevel::name).join(", ");
    ShardingLevel::from_name(name).ok_or_else(|| format!("levels are {names}"))
}

/// Parses microseconds, from none to one second.
pub(crate) fn microseconds(text: &str) -> Result<Seconds, String> {
    let parsed = text.parse().ok().filter(|microseconds| (0.0..=1e6).contains(microseconds));
    parsed
        .map(|microseconds: f64| Seconds(microseconds * 1e-6))
        .ok_or_else(|| "microseconds from 0 to 1000000".into())
}

/// The data types that products round their operands to.
#[derive(Clone, Copy, Args)]
pub struct RoundingArguments {
    /// Products of float32 numbers run in TF32, as torch.set_float32_matmul_precision("high") allows
    #[arg(long)]
    pub tf32: bool,
    /// Linear layers in 16 bits run in float8, except the last, as torchao's convert_to_float8_training converts them
    #[arg(long, conflicts_with = "tf32")]
    pub fp8: bool,
}

impl RoundingArguments {
    /// Returns the requested rounding as plans have it.
    fn planned(self) -> Option<PlannedRounding> {
        match self.rounding() {
            Rounding::Own => None,
            Rounding::Tf32 => Some(PlannedRounding::Tf32),
            Rounding::Float8 => Some(PlannedRounding::Float8),
        }
    }

    /// Returns the requested rounding.
    pub fn rounding(self) -> Rounding {
        if self.tf32 {
            Rounding::Tf32
        } else if self.fp8 {
            Rounding::Float8
        } else {
            Rounding::Own
        }
    }
}

/// The optimizer, by the state that it keeps.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Optimizer {
    /// Two numbers per parameter
    #[default]
    #[value(alias = "adamw")]
    Adam,
    /// One number per parameter
    Momentum,
    /// No state
    Sgd,
}

impl Optimizer {
    fn planned(self) -> PlannedOptimizer {
        match self {
            Self::Adam => PlannedOptimizer::Adam,
            Self::Momentum => PlannedOptimizer::Momentum,
            Self::Sgd => PlannedOptimizer::Sgd,
        }
    }
}

impl PlanArguments {
    /// Refuses counts of zero.
    pub fn check_counts(&self) -> Result<(), Failure> {
        let counts = [
            ("--micro-batches is 0; a step has at least one", self.micro_batches == Some(0)),
            ("--batch is 0; a step has at least one sample", self.batch == Some(0)),
            ("--stages is 0; a pipeline has at least one", self.stages == Some(0)),
        ];
        let wrong = counts.iter().filter(|(_, is_nothing)| *is_nothing);
        wrong.map(|(message, _)| Failure::input(message)).reduce(Failure::and).map_or(Ok(()), Err)
    }

    /// Returns the requested strategy; `None` to choose the best.
    pub fn strategy(&self) -> Result<Option<Strategy>, Failure> {
        let name = self.strategy.as_str();
        if name.eq_ignore_ascii_case("auto") {
            return Ok(None);
        }
        if Method::from_name(name).is_some() {
            return Ok(None);
        }
        Strategy::from_name(name).map(Some).ok_or_else(|| {
            let meant = meant(name, strategies(), 3);
            Failure::input(format!("no strategy is called `{name}`{meant}"))
                .with_hint(format!("strategies are {}", strategies().join(", "),))
        })
    }

    /// Returns the constraints on stages: those of the given plan, and those of the other arguments.
    fn constraints(&self) -> Result<Constraints, Failure> {
        let mut all = match &self.constraints {
            None => Constraints::default(),
            Some(path) => plan_file::read(path)?
                .constraints
                .ok_or_else(|| Failure::input("--constraints: the plan has none").in_file(path))?,
        };
        for (known, own) in
            [(&mut all.keep_together, &self.keep_together), (&mut all.leave_out, &self.leave_out)]
        {
            let new: Vec<String> = own.iter().filter(|one| !known.contains(one)).cloned().collect();
            known.extend(new);
        }
        let new: Vec<PinnedCalls> = self.pin.iter().filter(|one| !all.pin.contains(one)).cloned().collect();
        all.pin.extend(new);
        let new: Vec<RecomputedCalls> =
            self.recompute.iter().filter(|one| !all.recompute.contains(one)).cloned().collect();
        all.recompute.extend(new);
        let always = all.recompute.iter().find(|own| own.policy.is_again());
        if let Some(always) = always.filter(|_| self.no_recompute) {
            return Err(Failure::input(format!("--no-recompute contradicts --recompute {always}")));
        }
        if !(self.cut_at.is_empty() && self.layers.is_empty()) {
            (all.cut_at, all.layers) = (self.cut_at.clone(), self.layers.clone());
        }
        if let (Some(stages), Some(given)) = (self.stages, all.stages())
            && stages as usize != given
        {
            let what = if all.layers.is_empty() { "--cut-at" } else { "--layers" };
            return Err(Failure::input(format!("{what} makes {given} stages, --stages asks for {stages}")));
        }
        Ok(all)
    }

    /// Returns the allowed micro-batch sizes, by the arguments and by the plan of --constraints.
    fn micro_batch_size(&self, constraints: &Constraints) -> Result<Option<Sizes>, Failure> {
        let kept = constraints.micro_batch_size.map(Sizes::of_constraint);
        let kept = kept.transpose().map_err(|reason| {
            let failure = Failure::input(format!("`micro_batch_size` of the constraints: {reason}"));
            self.constraints.iter().fold(failure, |failure, path| failure.in_file(path))
        })?;
        let (Some(own), Some(kept)) = (self.micro_batch_size, kept) else {
            return Ok(self.micro_batch_size.or(kept));
        };
        own.within(kept).map(Some).ok_or_else(|| {
            Failure::input(format!(
                "--micro-batch-size {own}: the plan of --constraints allows {kept} samples"
            ))
        })
    }

    /// Removes devices from the cluster.
    fn leave_out(&self, patterns: &[String], cluster: &mut Cluster) -> Result<(), Failure> {
        // Patterns of a plan may name devices of another cluster.
        for pattern in &self.leave_out {
            if !cluster.devices.iter().any(|device| matches(pattern, &device.name)) {
                let names: Vec<&str> =
                    cluster.devices.iter().take(4).map(|device| device.name.as_str()).collect();
                return Err(Failure::input(format!("--leave-out: no device is called `{pattern}`"))
                    .with_hint(format!("devices are {}, …", names.join(", "))));
            }
        }
        let is_left_out = |name: &str| patterns.iter().any(|pattern| matches(pattern, name));
        cluster.devices.retain(|device| !is_left_out(&device.name));
        cluster.links.retain(|link| !is_left_out(&link.from) && !is_left_out(&link.to));
        if cluster.devices.is_empty() { Err(Failure::input("--leave-out leaves no device")) } else { Ok(()) }
    }

    /// Reserves the requested part of each device's memory.
    fn set_reserves(&self, cluster: &mut Cluster) -> Result<(), Failure> {
        if let Some(share) = self.memory_fraction.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return Err(Failure::input(format!(
                "--memory-fraction is {share}; it must be above 0 and at most 1"
            )));
        }
        if self.memory_fraction.is_none() && self.reserve.is_none() {
            return Ok(());
        }
        for (name, type_) in &mut cluster.types {
            let by_share = self.memory_fraction.map(|share| (type_.memory.0 as f64 * (1.0 - share)) as u64);
            let before = by_share.unwrap_or(type_.reserve.unwrap_or_default().0);
            let more = self.reserve.map_or(0, |bytes| bytes.0);
            type_.reserve = Some(Bytes(before.saturating_add(more)));
            if type_.usable() == Bytes(0) {
                let memory = type_.memory;
                return Err(Failure::input(format!("{name} has {memory}; nothing is left for tensors")));
            }
        }
        Ok(())
    }

    /// Charges the same host overhead to every device: the requested one, or the highest of the types. The slowest
    /// device decides a step.
    fn charge_hosts(&self, cluster: &mut Cluster) {
        let charged = |asked: Option<Seconds>, most: Seconds| {
            Some(asked.unwrap_or(most)).filter(|overhead| overhead.0 > 0.0)
        };
        let of_pass = charged(self.host_overhead, cluster.host_overhead());
        let of_halves = charged(self.split_overhead, cluster.split_overhead());
        for type_ in cluster.types.values_mut() {
            (type_.host_overhead, type_.split_overhead) = (of_pass, of_halves);
        }
    }

    /// Returns what is said of a step.
    fn assumed(&self) -> Assumed {
        Assumed {
            optimizer: self.optimizer.map(Optimizer::planned),
            master_weights: self.master_weights,
            loss: self.loss.map(Loss::planned),
            rounding: self.rounding.planned(),
        }
    }

    /// Returns the requested sharding level: `--strategy fsdp` and similar names imply it.
    fn sharding(&self) -> Result<Option<ShardingLevel>, Failure> {
        let named = ShardingLevel::from_name(&self.strategy).filter(|level| *level != ShardingLevel::None);
        match (self.sharding, named) {
            (Some(level), Some(named)) if level != named => Err(Failure::input(format!(
                "--strategy {} implies {}, --sharding asks for {}",
                self.strategy,
                named.name(),
                level.name()
            ))),
            (level, named) => Ok(level.or(named)),
        }
    }

    /// Returns the plan to carry over, and its file.
    fn given(&self) -> Result<Option<(PathBuf, Plan)>, Failure> {
        let Some(path) = &self.from else { return Ok(None) };
        let shared = [
            ("--tensor-parallel", self.tensor_parallel),
            ("--spatial", self.spatial),
            ("--context-parallel", self.context_parallel),
            ("--expert-parallel", self.expert_parallel),
        ];
        let is_shared = |degree: &Option<Degree>| degree.is_some_and(|degree| degree != Degree::Of(1));
        match shared.iter().find(|(_, degree)| is_shared(degree)) {
            Some((name, _)) => Err(Failure::input(format!(
                "--from carries a plan whose devices have layers of their own, and {name} shares them"
            ))),
            None => Ok(Some((path.clone(), plan_file::read(path)?))),
        }
    }

    /// Turns the arguments into a request to the planner; `other` supplies the cluster if the arguments name none.
    pub fn request(
        &self,
        strategy: Option<Strategy>,
        other: impl FnOnce() -> Result<Cluster, Failure>,
    ) -> Result<PlanRequest, Failure> {
        let cost_models = CostModels::read(&self.cost_models)?;
        let cluster = clusters::named(self.devices.as_deref(), self.cluster.as_deref(), &cost_models)?;
        let mut cluster = cluster.map_or_else(other, Ok)?;
        let mut constraints = self.constraints()?;
        let micro_batch_size = self.micro_batch_size(&constraints)?;
        constraints.micro_batch_size = micro_batch_size.and_then(Sizes::constraint);
        self.leave_out(&constraints.leave_out, &mut cluster)?;
        self.set_reserves(&mut cluster)?;
        self.charge_hosts(&mut cluster);
        Ok(PlanRequest {
            is_endless: false,
            strategy,
            alternatives: strategy,
            stages: self.stages.or(constraints.stages().map(|stages| stages as u32)),
            batch: self.batch,
            micro_batch_size,
            micro_batches: self.micro_batches,
            inference: None,
            constraints,
            from: self.given()?,
            assumed: self.assumed(),
            sharding: self.sharding()?,
            sharding_up_to: CARRIED_OUT,
            operators: Method::from_name(&self.strategy),
            tensor_parallel: self.tensor_parallel.unwrap_or_default(),
            sequence_parallel: self.sequence_parallel.and_then(SequenceParallelArgument::asked),
            spatial: self.spatial.unwrap_or_default(),
            context_parallel: self.context_parallel.unwrap_or(Degree::Of(1)),
            expert_parallel: self.expert_parallel.unwrap_or(Degree::Of(1)),
            on_first: self.on_first.clone(),
            recompute: !self.no_recompute,
            offload: self.offload,
            effort: self.effort.into(),
            overlap: true,
            cluster,
            cluster_file: self.cluster.clone(),
            cost_models,
        })
    }
}

/// Which part of the values devices that share layers hold between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SequenceParallelArgument {
    /// Each a part of the samples or positions
    On,
    /// Each all of them
    Off,
    /// The faster of the two
    Auto,
}

impl SequenceParallelArgument {
    fn asked(self) -> Option<SequenceParallel> {
        match self {
            Self::On => Some(SequenceParallel::On),
            Self::Off => Some(SequenceParallel::Off),
            Self::Auto => None,
        }
    }
}

/// How long to search; the variants' comments are the help text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EffortArgument {
    /// One pass over the blocks that the model is made of: about a second
    Quick,
    /// Open blocks around the boundaries of the plans found, as long as that gains: seconds
    #[default]
    Normal,
    /// As normal, then once more with four times as many cuts, moves and simulations; the better plan is kept
    Thorough,
}

impl From<EffortArgument> for Effort {
    fn from(effort: EffortArgument) -> Self {
        match effort {
            EffortArgument::Quick => Self::Quick,
            EffortArgument::Normal => Self::Normal,
            EffortArgument::Thorough => Self::Thorough,
        }
    }
}

fn strategy_help() -> String {
    format!("Strategy: {}", strategies().join(", "))
}

/// Returns the names that `--strategy` lists.
pub fn strategies() -> Vec<&'static str> {
    let own = STRATEGIES.iter().map(|strategy| strategy.name());
    std::iter::once("auto").chain(own).chain(Method::NAMES).collect()
}
