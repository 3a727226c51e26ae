//! How far searches go, in numbers that a user can picture.
//!
//! A limit counts steps of a search, never seconds, so that the result is the same on any machine. At a limit, the best plan so
//! far is taken, and the optimality gap says how much may be missed.

/// How long a search may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// The initial blocks, no finer ones.
    Quick,
    /// Blocks are opened around the borders of the plans that are found.
    #[default]
    Normal,
    /// As `Normal`, and once more with each limit of a search [`Limits::MORE`] times as large; the better plan is kept.
    Thorough,
}

/// The most that one search looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Times that blocks are opened around the borders of plans, and others closed.
    pub rounds: usize,
    /// Passes of a micro-batch through a stage that are timed while cuts are moved, over all shapes of a strategy.
    pub timed_passes: usize,
    /// Cuts that are moved until no move gains, for each shape: the best of those by formula.
    pub moved_cuts: usize,
    /// Plans of a shape that are simulated where all its cuts are tried, and the passes of these plans together.
    pub simulated_plans: usize,
    /// See `simulated_plans`.
    pub simulated_passes: usize,
    /// Prefixes of a pipeline, one or more stages each, that are searched where all cuts are tried.
    pub beginnings: usize,
    /// Blocks of the stages that are scored there, all together.
    pub scored_blocks: usize,
    /// Stages that are compared where a device has several of them.
    pub chunked_stages: usize,
    /// Whether interleaved stages may have replicas for any number of chunks, and V-shaped stages any shape where blocks are
    /// opened: both are slow to search.
    pub replicated_chunks: bool,
    /// Stages that are compared for the bound from traffic across cuts: all together, and for one shape.
    pub bounded_stages: usize,
    /// See `bounded_stages`.
    pub bounded_stages_each: usize,
    /// Pairs of a stage's ends for which the least traffic is computed.
    pub cut_pairs: usize,
    /// Sizes up to which a method is used, the same for every effort.
    pub sizes: Sizes,
}

/// The largest inputs of each method; larger ones go to a faster method, or are left with a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Ideals of a graph that are planned over, each a possible boundary; wider graphs are planned over one topological order.
    pub ideals: usize,
    /// States between which all cuts of a grid are tried.
    pub all_cuts_states: usize,
    /// Cuts for two copies of the model that are all tried, and passes of a micro-batch that are simulated of them.
    pub two_copies_cuts: usize,
    /// See `two_copies_cuts`.
    pub two_copies_passes: usize,
    /// Passes of a step, and devices, that are simulated while planning; larger steps are timed by formula.
    pub simulated_step: usize,
    /// See `simulated_step`.
    pub simulated_devices: usize,
    /// Choices of what a stage recomputes that are looked at before the best so far is taken, with its gap.
    pub knapsack_nodes: usize,
    /// Choices that are listed for each of several chunks on one device.
    pub chunk_choices: usize,
    /// Stages that are scored where the memory of each depends on the replicas of the one before.
    pub chained_stages: usize,
    /// Blocks that a pipeline without a flush moves to a neighbouring stage to see whether that is faster.
    pub moved_blocks: usize,
    /// Windows of work for which the bound looks for the narrowest cut.
    pub windows: usize,
    /// Blocks times devices up to which several numbers of micro-batches are planned, and all other strategies beside the best.
    pub compared: usize,
}

impl Effort {
    /// Returns the name, as `--effort` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Normal => "normal",
            Self::Thorough => "thorough",
        }
    }
}

impl Limits {
    /// What is searched where nobody says.
    pub const NORMAL: Self = Self {
        rounds: 8,
        timed_passes: 20_000_000,
        moved_cuts: 4,
        simulated_plans: 200,
        simulated_passes: 50_000,
        beginnings: 100_000,
        scored_blocks: 400_000,
        chunked_stages: 150_000_000,
        replicated_chunks: false,
        bounded_stages: 16_000_000,
        bounded_stages_each: 3_000_000,
        cut_pairs: 100_000_000,
        sizes: Sizes {
            ideals: 3_000,
            all_cuts_states: 500,
            two_copies_cuts: 300,
            two_copies_passes: 150_000,
            simulated_step: 300_000,
            simulated_devices: 256,
            knapsack_nodes: 20_000,
            chunk_choices: 256,
            chained_stages: 3_000_000,
            moved_blocks: 2_000,
            windows: 128,
            compared: 20_000,
        },
    };

    /// How many times as much a thorough search looks at.
    pub const MORE: usize = 4;

    /// Returns limits `factor` times as large; sizes stay.
    pub fn times(self, factor: usize) -> Self {
        Self {
            rounds: self.rounds * factor,
            timed_passes: self.timed_passes * factor,
            moved_cuts: self.moved_cuts * factor,
            simulated_plans: self.simulated_plans * factor,
            simulated_passes: self.simulated_passes * factor,
            beginnings: self.beginnings * factor,
            scored_blocks: self.scored_blocks * factor,
            chunked_stages: self.chunked_stages * factor,
            replicated_chunks: self.replicated_chunks || factor > 1,
            bounded_stages: self.bounded_stages * factor,
            bounded_stages_each: self.bounded_stages_each * factor,
            cut_pairs: self.cut_pairs * factor,
            sizes: self.sizes,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::NORMAL
    }
}
