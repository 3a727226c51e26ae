"""The answers of the command as Python sees them. Made from schema/json by python/generate_answers.py."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Union


class Band(TypedDict):
    """Eight of ten measured times lie between."""

    # One of ten is shorter.
    p10: Seconds

    # One of ten is longer.
    p90: Seconds


class _ByHand(TypedDict):
    # `even-layers`, `even-parameters`, …
    strategy: str


class ByHand(_ByHand, total=False):
    """A split by hand."""

    # Its step, by the planner's objective.
    step_seconds: Union[float, None]

    # Why there is none.
    fails: Union[str, None]


Bytes = int


BytesPerSecond = float


class _CompareAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # Name of the model.
    model: str

    # The devices, as people say them: `4 × T4`.
    devices: str

    # Strategies with a plan, the one with the highest throughput first.
    strategies: list[StrategyRow]


class CompareAnswer(_CompareAnswer, total=False):
    """The answer of `compare`."""

    # Strategies without a plan, in the order in which they are tried.
    left_out: list[StrategyLeftOut]


class _ComparedPlan(TypedDict):
    # `best pipeline`, `even layers, by hand`; or a strategy.
    name: str

    # Whether it is the plan that was chosen.
    is_chosen: bool


class ComparedPlan(_ComparedPlan, total=False):
    """A plan beside the one that was chosen."""

    # Strategy that made it.
    strategy: Union[str, None]

    # Its schedule.
    schedule: Union[str, None]

    # Parts that the model is cut into.
    stages: Union[int, None]

    # Parts on each device, where there are several: `stages` counts them all.
    chunks: Union[int, None]

    # Its simulated step.
    step_seconds: Union[float, None]

    # By how much its step is longer, as a share.
    slower: Union[float, None]

    # Why there is none.
    fails: Union[str, None]


class CriticalStep(TypedDict):
    """One operation of the critical path."""

    # Device, or devices of a link: `gpu0 → gpu1`.
    place: str

    # Operation: `3F0`.
    name: str

    # What it is.
    kind: SpanKind

    # Start.
    start_seconds: Seconds

    # Time it takes of the step.
    seconds: Seconds


class DeviceAnswer(TypedDict):
    """A device of the catalogue."""

    # The name that plans and answers use; `aliases` of its figures serve as well.
    name: str

    # What a cluster file says of a device type.
    figures: DeviceType

    # Whether curves ship that are fitted to measurements of this device or of another of the same chip; without them
    # times come from its data sheet.
    has_curves: bool

    # What times of it come from.
    times: str


class _DeviceType(TypedDict):
    # Memory that a process can use.
    memory: Bytes

    # Memory bandwidth.
    memory_bandwidth: BytesPerSecond

    # Peak rates by data type: `float32`, `tf32`, `bfloat16`, `float16`, `float8`.
    peak: dict[str, FlopsPerSecond]


class DeviceType(_DeviceType, total=False):
    """What a device can do. Only the first three matter to every step; the rest refine a prediction and are facts of the catalogue."""

    # What of it no tensor gets: kernels, buffers of collectives, what the allocator cannot fill. Nothing when absent.
    reserve: Union[Bytes, None]

    # Host link, each way.
    host_bandwidth: Union[BytesPerSecond, None]

    # Speed relative to the device that costs were measured on; 1 when absent.
    speed: Union[float, None]

    # Other names it is known by, as in `torch.cuda.get_device_name`.
    aliases: list[str]

    # `sm90`, `gfx942`, …
    architecture: Union[str, None]

    # Streaming multiprocessors, compute units or cores.
    multiprocessors: Union[int, None]

    # Last cache that all of them share.
    l2: Union[Bytes, None]

    # Cache behind `l2`, of a processor whose last one is so large and slow that `l2` is the core's own.
    last_cache: Union[Bytes, None]

    # The whole port to the other devices of a node (NVLink, Infinity Fabric), each way; none when they only meet over
    # the host link.
    link_bandwidth: Union[BytesPerSecond, None]

    # The shortest time any operator takes.
    launch: Union[Seconds, None]

    # What the host takes to call an operator of an accelerator, Python included; 29 µs when absent.
    host_call: Union[Seconds, None]

    # What a training script takes of the host for each pass of a stage, beside the stage's own work; nothing when
    # absent. `train.py --host-trace` measures that of the folders that `emit` writes.
    host_overhead: Union[Seconds, None]

    # Time of large products relative to what the peak rate promises, whatever the data type; 1 when absent.
    product_slowdown: Union[float, None]

    # Time of plain copies relative to what the memory bandwidth promises; 1.25 when absent, 1.67 for processors.
    copy_slowdown: Union[float, None]

    # Time of fused attention as PyTorch runs it, relative to the newest kernels for the chip; 1 when absent.
    attention_slowdown: Union[float, None]

    # Time of products of 16 and 8 bits in a run of minutes, relative to bursts: the clock that the power allows; 1 when
    # absent.
    sustained_slowdown: Union[float, None]

    # Where a figure comes from, by field.
    sources: dict[str, str]


class DevicesAnswer(TypedDict):
    """Answer of `devices`."""

    # Version of this answer.
    schema_version: int

    # The devices of the catalogue, or the one that was asked for.
    devices: list[DeviceAnswer]


class DiffAnswer(TypedDict):
    """Answer of `diff`."""

    # Version of this answer.
    schema_version: int

    # The first plan.
    before: DiffSide

    # The second plan.
    after: DiffSide

    # Whether both are for the same trace.
    is_same_model: bool

    # Whether both are for the same cluster.
    is_same_cluster: bool

    # Time of a micro-batch after over before, less one: negative is faster.
    time_change: float

    # Bubble after minus before, in shares of device time.
    bubble_change: float

    # Blocks that are in another stage, in the order of the model.
    moved: list[MovedBlock]

    # Blocks whose activations are computed again, or wait in host memory, in one plan only.
    kept_otherwise: list[KeptOtherwise]

    # Devices of both, in order of their names.
    devices: list[DiffDevice]


class _DiffDevice(TypedDict):
    # Its name.
    name: str


class DiffDevice(_DiffDevice, total=False):
    """A device in both plans."""

    # Simulated peak before; absent where it runs nothing.
    before: Union[Bytes, None]

    # Simulated peak after; absent where it runs nothing.
    after: Union[Bytes, None]


class DiffSide(TypedDict):
    """What a plan comes to."""

    # The file.
    file: str

    # Name of the model.
    model: str

    # Strategy.
    strategy: str

    # Schedule.
    schedule: str

    # Micro-batches in a step.
    micro_batches: int

    # Devices of each stage.
    stages: list[list[str]]

    # One simulated step.
    step_seconds: Seconds

    # That over its micro-batches.
    micro_batch_seconds: Seconds

    # Share of device time spent idle.
    bubble: float


class DifferentBlock(TypedDict):
    """A block that two models do not have alike."""

    # Its path; empty for the model itself.
    block: str

    # Operators of the first model that the second does not have there.
    before: int

    # Operators of the second model that the first does not have there.
    after: int


class EmitAnswer(TypedDict):
    """Answer of `emit`."""

    # Version of this answer.
    schema_version: int

    # Where everything lies.
    folder: str

    # Bytes written.
    bytes: int

    # Stages in order.
    stages: list[EmittedStage]

    # Parameters that several stages hold: where, and under which name.
    tied: list[list[TiedPlace]]


class EmittedStage(TypedDict):
    """A stage that was written."""

    # Its blocks by path.
    blocks: list[str]

    # Number of its operators.
    operators: int

    # Trained elements.
    parameters: int

    # Names of its inputs.
    inputs: list[str]

    # Names of its outputs.
    outputs: list[str]


class _Executed(TypedDict):
    # Version of this answer.
    schema_version: int

    # The schedule that ran.
    schedule: str

    # Micro-batches in a step.
    micro_batches: int

    # Steps that were timed; warm-up is not among them.
    steps: int

    # Median time of a step.
    step_seconds: Seconds

    # Samples in a second, by the first dimension of the first input.
    samples_per_second: float

    # Share of device time that was idle.
    bubble: float

    # Stages in order.
    stages: list[ExecutedStage]

    # Mean loss of each step; empty without libtorch.
    losses: list[float]


class Executed(_Executed, total=False):
    """Answer of `run`: what the pipeline took."""

    # What the plan predicted for a step, where it did.
    predicted_step_seconds: Union[Seconds, None]

    # Peak memory of this process.
    process_peak_bytes: Union[Bytes, None]


class ExecutedStage(TypedDict):
    """What one stage took."""

    # Position.
    stage: int

    # Devices that ran it.
    devices: list[str]

    # Median forward time of a micro-batch.
    forward_seconds: Seconds

    # Median backward time of a micro-batch, both halves together.
    backward_seconds: Seconds


class FirstDifference(TypedDict):
    """The first tensor that differs."""

    # The stage.
    stage: int

    # The output, or the parameter or input whose gradient it is.
    tensor: str


class FitAnswer(TypedDict):
    """The answer of `fit`."""

    # Version of this shape.
    schema_version: int

    # `physical`, `raw` or `roofline`.
    features: str

    # `random`, `extrapolate` or `cross_validation`.
    split: str

    # Seed of the split.
    seed: int

    # One for each kind, data type, phase and device.
    groups: list[FitGroup]


class FitGroup(TypedDict):
    """How good the model of one group is on rows that it was not fitted to; errors are in percent."""

    # Kind of operator.
    kind: str

    # Data type.
    dtype: str

    # Part of the training step.
    phase: Phase

    # Device.
    device: str

    # Held-out rows.
    rows: int

    # Fitted rows.
    train_rows: int

    # Rows of a shape that was there already; their median was taken.
    duplicates: int

    # Fitted rows that lie far off and had little weight.
    outliers: int

    # Mean absolute relative error.
    mape: float

    # Median absolute relative error.
    median: float

    # Error that one of ten rows exceeds.
    p90: float

    # Sum of absolute errors over the sum of times.
    time_weighted: float

    # Rank correlation.
    spearman: float

    # Share of rows inside p10–p90.
    coverage: float

    # Predictions that are not positive.
    negative: int


class FittedCollective(TypedDict):
    """A measured collective and how well the fitted link tells its times; errors are in percent."""

    # `all_reduce`, `all_gather`, …
    collective: str

    # Ranks.
    ranks: int

    # Hosts that they ran on.
    hosts: int

    # Sizes that were measured.
    sizes: int

    # The smallest.
    least: Bytes

    # The largest.
    most: Bytes

    # Median absolute relative error.
    median: float

    # The largest.
    worst: float


class FittedLinks(TypedDict):
    """The answer of `fit` to the output of nccl-tests."""

    # Version of this shape.
    schema_version: int

    # The link that explains the times, as a level of a cluster file.
    level: Level

    # What it was fitted to.
    tests: list[FittedCollective]


Flops = int


FlopsPerSecond = float


class _InferenceAnswer(TypedDict):
    # What is made small.
    objective: InferenceObjective


class InferenceAnswer(_InferenceAnswer, total=False):
    """What a plan of the forward pass alone is for, and what it holds."""

    # Keys and values, where they are kept.
    kv_cache: Union[KvCacheAnswer, None]


InferenceObjective = Union[Literal['throughput'], Literal['latency']]


class _InsideAnswer(TypedDict):
    # Operators in the order of the model.
    operators: list[OperatorSplit]

    # Why nothing runs it.
    not_carried_out: str


class InsideAnswer(_InsideAnswer, total=False):
    """How the operators of a model are split over all devices."""

    # By which share random changes made the exact answer faster, where they were tried.
    random_gain: Union[float, None]


class _InspectBlock(TypedDict):
    # Unique in the model: `layer1.0.relu (call 2)`; empty for the root.
    path: str

    # The class's last name.
    kind: str

    # Distance from the root.
    depth: int

    # Number of operators in it.
    operators: int

    # Equal for blocks that do the same on the same sizes.
    structure: str


class InspectBlock(_InspectBlock, total=False):
    """One block."""

    # Sizes of the first tensor that it returns; null when it returns none or they are not known.
    output_shape: Union[list[Union[int, None]], None]

    # Element type of that tensor.
    output_dtype: Union[str, None]

    # Trained elements that it reads, tied ones once; null when not all of their sizes are known.
    parameters: Union[int, None]

    # Forward operations, those of `fused_flops` left out; null when sizes that they follow from are not known.
    flops: Union[int, None]

    # Further forward operations, in fused kernels.
    fused_flops: int

    # Backward operations; null where `flops` is.
    backward_flops: Union[int, None]

    # Bytes that autograd keeps from here; null when sizes that they follow from are not known.
    activation_bytes: Union[int, None]

    # Predicted seconds from inputs to outputs; absent, like what follows, when no device was asked for.
    forward_seconds: Union[float, None]

    # Predicted seconds of both gradients.
    backward_seconds: Union[float, None]

    # More about them.
    time: Union[InspectTime, None]


class _InspectMemory(TypedDict):
    # Bytes at the fullest moment.
    bytes: Bytes

    # That moment, in words.
    when: str

    # What the memory consists of then.
    parts: list[MemoryPart]

    # Operators that keep something of unknown size, which is not counted.
    unmeasured_operators: int

    # Devices that train together.
    devices: int

    # What would help, each change by itself.
    reliefs: list[MemoryRelief]


class InspectMemory(_InspectMemory, total=False):
    """What a training step holds on each device."""

    # The loss that was counted; absent where there is none.
    loss: Union[str, None]

    # The device's type; absent, like what follows from it, when none was asked for.
    device: Union[str, None]

    # The device's memory.
    memory: Union[Bytes, None]

    # Of it: kept clear for CUDA's context, buffers of collectives and what the allocator cannot fill.
    kept_clear: Union[Bytes, None]

    # `fits`; `tight` where it needs some of what is kept clear; `does not fit`.
    verdict: Union[str, None]

    # First size of the inputs, on each device.
    largest_batch: Union[LargestSize, None]

    # Second size, where the first input is of token ids.
    longest_sequence: Union[LargestSize, None]


class _InspectReport(TypedDict):
    # Version of this form.
    schema_version: int

    # The model's name.
    model: str

    # What is known of the model's inputs.
    inputs: list[NamedTensor]

    # What the model returns.
    outputs: list[NamedTensor]

    # Sums over the whole model.
    totals: InspectTotals

    # Blocks down to the asked depth, parents before their children; the root's path is empty.
    blocks: list[InspectBlock]

    # Operators that no rule knows.
    unknown: list[InspectUnknown]

    # Operators whose inferred type is not the recorded one: our error, and the recorded one was used.
    disagreements: list[str]

    # What could not be followed exactly when the trace was read.
    notes: list[str]


class InspectReport(_InspectReport, total=False):
    """A model as a table of blocks."""

    # Statements that the trace has fixed although they depend on data, and what else was found while tracing.
    trace_notes: list[str]

    # Where predicted times come from; absent when no device was asked for.
    times: Union[TimesFrom, None]

    # What a training step holds in memory; absent unless asked for.
    memory: Union[InspectMemory, None]


class InspectTime(TypedDict):
    """More about a block's predicted time."""

    # Eight of ten measured forward times lie between.
    forward: Band

    # Eight of ten measured backward times lie between.
    backward: Band

    # Seconds of the gradient of the inputs.
    input_gradient_seconds: float

    # Seconds of the gradient of the weights.
    weight_gradient_seconds: float

    # Scratch memory that a kernel asks for, at most.
    workspace_bytes: int

    # The least certain source: `measured`, `overhead`, `curve`, `scaled-curve`, `roofline`; `free` when nothing runs.
    source: str

    # Whether launching takes most of the forward time.
    is_launch_bound: bool


class _InspectTotals(TypedDict):
    # Elements of buffers.
    buffers: int

    # Further forward operations, in fused attention and recurrent kernels: torch's counter misses them on a CPU and
    # counts attention's by the same formula on a GPU.
    fused_flops: int

    # Number of operators.
    operators: int

    # Number of operators that no rule knows.
    unknown_operators: int


class InspectTotals(_InspectTotals, total=False):
    """Sums over the whole model."""

    # Trained elements, tied ones once; null when the trace does not say the sizes of all of them.
    parameters: Union[int, None]

    # Forward operations as torch's flop counter counts them on a CPU, one multiply-add as two; null when sizes that
    # they follow from are not known.
    flops: Union[int, None]

    # Backward operations; null where `flops` is.
    backward_flops: Union[int, None]

    # Bytes of parameters, tied ones once; null where `parameters` is.
    parameter_bytes: Union[int, None]

    # Bytes that autograd keeps for the backward pass; null when sizes that they follow from are not known.
    activation_bytes: Union[int, None]

    # Parameters and buffers whose sizes the trace neither says nor determines; some of them are named in the notes.
    tensors_of_unknown_size: int


class InspectUnknown(TypedDict):
    """An operator that no rule knows."""

    # Its name.
    name: str

    # How often it occurs.
    count: int

    # Paths of blocks that it occurs in, some of them when there are many.
    paths: list[str]

    # True when the shapes of its results are recorded.
    is_recorded: bool


class KeptOtherwise(TypedDict):
    """A block whose activations are kept otherwise."""

    # Its path.
    block: str

    # `kept`, `computed again` or `in host memory`.
    before: str

    # The same, after.
    after: str


class _KvCacheAnswer(TypedDict):
    # Tokens of each sequence.
    tokens: int

    # Attentions that keep them.
    attentions: int

    # Bytes of one token of one sequence, all attentions together; what one device has of them where devices share each
    # layer.
    bytes_per_token: Bytes


class KvCacheAnswer(_KvCacheAnswer, total=False):
    """Keys and values that attentions keep from token to token."""

    # Sequences that are on their way at once, on all devices together, where the model's inputs tell.
    sequences: Union[int, None]

    # Tokens of each sequence that these stages have room for.
    most_tokens: Union[int, None]


class LargestSize(TypedDict):
    """The largest size that fits."""

    # Beside what is kept clear; 0 where nothing fits.
    safe: int

    # With all of the memory but CUDA's context.
    most: int


class Level(TypedDict):
    """What joins the members of one level."""

    # `nvlink`, `pcie`, `infiniband`, …; shown in messages.
    name: str

    # Bandwidth of one device's port, each way.
    bandwidth: BytesPerSecond

    # Time before the first byte arrives.
    latency: Seconds


class _LintFinding(TypedDict):
    # `error` or `warning`.
    severity: str

    # The problem and its reason.
    message: str


class LintFinding(_LintFinding, total=False):
    """One problem of an order."""

    # The rank, where it has one.
    rank: Union[int, None]

    # The position in the rank's program, from 0, idle slots not counted.
    position: Union[int, None]


class _LintedOrder(TypedDict):
    # Version of this answer.
    schema_version: int

    # Whether the order runs and is complete.
    ok: bool

    # Problems, errors first.
    findings: list[LintFinding]


class LintedOrder(_LintedOrder, total=False):
    """Answer of `simulate --csv --lint`."""

    # Most activations each rank holds at once, when the order runs.
    peak_activations: Union[list[int], None]


class LossAnswer(TypedDict):
    """A loss."""

    # Which, of what, and whether it was guessed.
    what: str

    # Bytes that it takes of one micro-batch at the most.
    bytes: Bytes


class MemoryPart(TypedDict):
    """One part of a device's memory."""

    # `parameters`, `gradients`, `optimizer`, `weight versions`, `activations`, `workspace`, `buffers`.
    name: str

    # Bytes at the moment of the peak.
    bytes: Bytes


class MemoryRelief(TypedDict):
    """A change, and what a step holds with it."""

    # The change.
    what: str

    # Bytes at the fullest moment then.
    bytes: Bytes


class _MicroBatchSizeTried(TypedDict):
    # Samples of a micro-batch.
    samples: int


class MicroBatchSizeTried(_MicroBatchSizeTried, total=False):
    """Samples of a micro-batch that were tried."""

    # Seconds for each of them under the best plan.
    sample_seconds: Union[float, None]

    # Why there is no plan, where there is none.
    fails: Union[str, None]


class MicroBatchesTried(TypedDict):
    """The best plan with a number of micro-batches."""

    # Micro-batches of a step.
    micro_batches: int

    # Seconds for each of them.
    seconds_each: float


class ModelDiffAnswer(TypedDict):
    """What `diff` says of two models."""

    # Version of this answer.
    schema_version: int

    # The first model.
    before: ModelDiffSide

    # The second model.
    after: ModelDiffSide

    # Blocks with operators that the other model does not have there, in the order of the models.
    blocks: list[DifferentBlock]


class ModelDiffSide(TypedDict):
    """What a model comes to."""

    # The file.
    file: str

    # Parameters, tied ones once.
    parameters: int

    # Forward operations.
    forward_flops: Flops

    # Backward operations.
    backward_flops: Flops

    # What autograd keeps for the backward pass.
    saved_bytes: Bytes

    # Operators.
    operators: int

    # Those of them that the other model does not have.
    different: int


class _MovedBlock(TypedDict):
    # Its path.
    block: str


class MovedBlock(_MovedBlock, total=False):
    """A block in another stage."""

    # Its stage before; absent where the first plan does not have it.
    before: Union[int, None]

    # Its stage after; absent where the second plan does not have it.
    after: Union[int, None]


class _NamedTensor(TypedDict):
    # Its name.
    name: str


class NamedTensor(_NamedTensor, total=False):
    """A tensor with its name; sizes that depend on data are null."""

    # Sizes; null when even their number is not known.
    shape: Union[list[Union[int, None]], None]

    # Element type as torch names it.
    dtype: Union[str, None]


class OperatorSplit(TypedDict):
    """In how many parts an operator is split; their product is the number of devices that it uses."""

    # Path of the call that it is in; empty for the model's own code.
    block: str

    # Its name without name space: `conv2d`.
    operator: str

    # Parts of the samples of its result.
    samples: int

    # Parts of the channels; of the last axis of what is no image.
    channels: int

    # Parts of the height; of the positions of a sequence.
    height: int

    # Parts of the width.
    width: int

    # Parts of the sums that make one element.
    sums: int


class OutOfMemory(TypedDict):
    """A device that runs out of memory."""

    # Device name.
    device: str

    # When it first needs more than it has.
    at_seconds: Seconds

    # What it needs at its peak.
    needed: Bytes

    # What it has.
    limit: Bytes

    # The three largest causes at that moment.
    causes: list[MemoryPart]


Phase = Union[Literal['forward'], Literal['backward'], Literal['input_gradient'], Literal['weight_gradient'], Literal['training']]


class _PlanAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # Name of the model.
    model: str

    # Strategy that made the plan.
    strategy: str

    # No plan of the family is faster.
    lower_bound_seconds: float

    # Share by which the plan may be worse than the best.
    gap: float

    # Whether no plan of the family is better.
    optimal: bool

    # Stages in the order of the model.
    stages: list[StageAnswer]


class PlanAnswer(_PlanAnswer, total=False):
    """The answer of `plan`."""

    # What replicas share out, where there are any and they do: `zero1`, `zero2`, `zero3`, `zero3 in groups of 8`.
    sharding: Union[str, None]

    # What devices share within each layer, where they do.
    shared: Union[SharedAnswer, None]

    # Schedule it runs under.
    schedule: Union[str, None]

    # Micro-batches in a step.
    micro_batches: Union[int, None]

    # Samples in a step, where the model's inputs tell.
    samples: Union[int, None]

    # Samples a second, where the model's inputs tell how many a micro-batch has.
    samples_per_second: Union[float, None]

    # Tokens a second, where the model takes rows of them.
    tokens_per_second: Union[float, None]

    # Model FLOPs utilisation: the model's own operations in a second, what is computed again left out, as a share of
    # the peak of the devices that are used.
    mfu: Union[float, None]

    # What the forward pass alone was planned for; absent where training was.
    inference: Union[InferenceAnswer, None]

    # The loss behind the outputs, which is part of the last stage.
    loss: Union[LossAnswer, None]

    # What keeps a step from being larger, where the planner chose its size and this was the reason.
    step_limit: Union[str, None]

    # Seconds for each micro-batch in steady state; in the file's own unit for dnn-partitioning workloads.
    period_seconds: Union[float, None]

    # Seconds of one step.
    step_seconds: Union[float, None]

    # Seconds of data parallelism by the same objective.
    data_parallel_seconds: Union[float, None]

    # What is pinned: bounds and plans are of what keeps it so.
    pins: list[str]

    # Blocks between which cuts were looked for.
    blocks: Union[int, None]

    # Operators of the model that take time; as many as blocks where every cut was looked at.
    operators: Union[int, None]

    # How long the search was allowed to take, where that was not `normal`: `quick` or `thorough`.
    effort: Union[str, None]

    # Share of device time spent idle.
    bubble: Union[float, None]

    # How uncertain the step, or else the period, is; see [`Predicted::band`](crate::Predicted::band).
    band: Union[Band, None]

    # Where the times of operators come from.
    times: Union[TimesFrom, None]

    # What the script takes of the host for each pass, where that was charged.
    host_overhead_seconds: Union[float, None]

    # Bytes at the peak of the fullest device.
    memory_bytes: Union[int, None]

    # What else was tried, best first.
    runners_up: list[RunnerUp]

    # What a change of the cluster would give.
    what_if: list[WhatIf]

    # Numbers of micro-batches that were tried, where none was asked for.
    micro_batches_tried: list[MicroBatchesTried]

    # Samples of a micro-batch that were tried, where that was asked for.
    micro_batch_sizes_tried: list[MicroBatchSizeTried]

    # How operators are split, where they are.
    inside: Union[InsideAnswer, None]


class _ProfileAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # Where the rows went.
    file: str

    # What was measured on.
    device: str


class ProfileAnswer(_ProfileAnswer, total=False):
    """Answer of `profile`: of operators with `--suite`, of blocks with `--model`."""

    # Operators that were measured now.
    operators: Union[int, None]

    # Operators that an earlier run had left in the file.
    operators_before: Union[int, None]

    # Operators that could not be measured; comments in the file say why.
    failed: Union[int, None]

    # Rows in the file.
    rows: Union[int, None]

    # Seconds that measuring took.
    seconds: Union[float, None]

    # Blocks, in the order of the model.
    blocks: list[ProfiledBlock]

    # The whole model by itself.
    model: Union[ProfiledTimes, None]


class ProfiledBlock(TypedDict):
    """Measured medians of a block."""

    # The block.
    path: str

    # Its forward pass.
    forward_seconds: float

    # Its backward pass.
    backward_seconds: float


class ProfiledTimes(TypedDict):
    """Measured medians of a model."""

    # Its forward pass.
    forward_seconds: float

    # Its backward pass.
    backward_seconds: float


class Proved(TypedDict):
    """What was proven of the program that one of several devices runs: given that the rule of each operator is right, outputs and gradients are those of the whole model."""

    # Operators whose operands and gradients lie as their rules need them.
    operators: int

    # Exchanges that bring them there.
    exchanges: int

    # Results that no device holds whole.
    parts: int


RecomputeUnit = Union[Literal['block'], Literal['stage']]


class _RunnerUp(TypedDict):
    # Its strategy.
    strategy: str


class RunnerUp(_RunnerUp, total=False):
    """A plan that was not chosen."""

    # What its replicas share out, as in the plan.
    sharding: Union[str, None]

    # Seconds for each micro-batch.
    seconds: Union[float, None]

    # How much longer each micro-batch takes, as a share of the chosen plan's time.
    loses: Union[float, None]

    # Its schedule.
    schedule: Union[str, None]

    # Parts that the model is cut into.
    stages: Union[int, None]

    # Parts on each device, where there are several: `stages` counts them all.
    chunks: Union[int, None]

    # Bytes at the peak of its fullest device's stages.
    memory_bytes: Union[int, None]

    # Why there is no such plan.
    fails: Union[str, None]


class Saving(TypedDict):
    """What a faster part would save."""

    # `device gpu0`, `link gpu0 → gpu1` or `all devices`.
    what: str

    # Seconds of the step.
    seconds: Seconds


Seconds = float


class _SharedAnswer(TypedDict):
    # Devices that share each layer.
    degree: int

    # Share of the forward pass's FLOPs that they share; the rest each of them does.
    split_flops: float

    # Exchanges of a micro-batch in the whole model.
    exchanges: int

    # Seconds that compute waits for them in a micro-batch, there and back, through the whole model.
    exchange_seconds: float

    # Share by which layers might be shared faster, by the times that it was chosen by.
    gap: float


class SharedAnswer(_SharedAnswer, total=False):
    """Layers that devices share."""

    # The dimension along which images lie in bands, one for each device; none where weights and values are cut evenly.
    bands: Union[int, None]

    # Samples, or positions of their sequences, are dealt out; each device has all weights.
    whole_weights: bool

    # Weights that the first device of each group has alone, and computes with.
    on_first: list[str]

    # What was proven of the program that one device runs.
    proved: Proved

    # Other numbers of devices that were tried, with the seconds of a micro-batch; none where there is no plan.
    tried: list[SharedTried]


class _SharedTried(TypedDict):
    # Devices that share each layer.
    degree: int


class SharedTried(_SharedTried, total=False):
    """A number of devices that might share each layer."""

    # Seconds of a micro-batch, all devices together.
    seconds_each: Union[float, None]


class SimulatedDevice(TypedDict):
    """One device of a simulated plan."""

    # Device name.
    name: str

    # Time of its forward and backward passes.
    busy_seconds: Seconds

    # What the step's time goes to on this device.
    time_parts: TimeParts

    # Most memory in use.
    peak_memory_bytes: Bytes

    # What the device has.
    memory_limit_bytes: Bytes

    # When the peak is reached first.
    peak_at_seconds: Seconds

    # What the peak consists of, largest first.
    parts: list[MemoryPart]

    # Most micro-batches whose activations it holds at once.
    peak_activations: int


class _SimulatedOrder(TypedDict):
    # Version of this answer.
    schema_version: int

    # From the first operation's start to the last one's end, in units of the costs.
    makespan: int

    # Longest time from a rank's first operation to its last.
    longest_span: int

    # Time each rank computes.
    busy: list[int]

    # Most activations each rank holds at once.
    peak_activations: list[int]

    # The same if activations were freed with the input gradient.
    peak_until_input_gradient: list[int]

    # Share of rank time that is idle.
    bubble: float

    # Pipeline ranks.
    ranks: int

    # Stages, all copies of the model counted.
    stages: int

    # Operations of all ranks.
    operations: int

    # What the linter warns of.
    warnings: list[str]


class SimulatedOrder(_SimulatedOrder, total=False):
    """Answer of `simulate --csv`."""

    # Versions of its weights that each stage keeps, and updates that its gradients miss, where steps follow each other
    # without a flush.
    versions: list[StageVersions]


class _SimulatedPlan(TypedDict):
    # Version of this answer.
    schema_version: int

    # The schedule.
    schedule: str

    # Micro-batches of the step.
    micro_batches: int

    # One training step: all micro-batches, gradient sync, optimizer.
    step_seconds: Seconds

    # Longest time from a device's first operation to its last.
    longest_span_seconds: Seconds

    # What each further step adds when steps follow each other.
    period_seconds: Seconds

    # The same for each micro-batch.
    micro_batch_seconds: Seconds

    # Share of device time that no forward or backward pass fills.
    bubble: float

    # By device, in the order of the cluster.
    devices: list[SimulatedDevice]

    # How the step divides; the parts sum to it.
    split: StepSplit

    # The chain of operations that the step waits for, in order of time.
    critical_path: list[CriticalStep]

    # What 10 % more speed of a device or bandwidth of a link would save, largest first.
    savings: list[Saving]

    # Devices that run out of memory.
    out_of_memory: list[OutOfMemory]

    # What the model leaves out or assumes for this plan.
    notes: list[str]


class SimulatedPlan(_SimulatedPlan, total=False):
    """Answer of `simulate PLAN`."""

    # By stage, where steps follow each other without a flush.
    versions: list[StageVersions]


SpanKind = Union[Literal['forward'], Literal['input-gradient'], Literal['weight-gradient'], Literal['backward'], Literal['pair'], Literal['transfer'], Literal['collective'], Literal['copy'], Literal['optimizer']]


class _SplitAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # Name of the model's file.
    model: str

    # The plan that was chosen.
    plan: PlanAnswer

    # Its step.
    simulated: SimulatedPlan

    # What people do by hand today.
    by_hand: list[ByHand]


class SplitAnswer(_SplitAnswer, total=False):
    """Answer of `split`; the parts are the answers of `plan` and `simulate`."""

    # A step with as many micro-batches on one device; absent where the model does not fit one.
    one_device_step_seconds: Union[float, None]

    # Throughput, by the first size of the first input; absent where that is not known.
    samples_per_second: Union[float, None]

    # The best of each family and what people do by hand, simulated with as many micro-batches, best first.
    compared: list[ComparedPlan]

    # Every strategy, likewise.
    strategies: list[ComparedPlan]

    # Why the plan is better than the next.
    why: list[str]

    # Numbers of micro-batches that were tried, where none was asked for.
    micro_batches_tried: list[MicroBatchesTried]


class _StageAnswer(TypedDict):
    # Blocks by path.
    blocks: list[str]

    # Devices by name.
    devices: list[str]

    # Replicas.
    replicas: int

    # Seconds for each micro-batch, all replicas together.
    seconds: float

    # Seconds of that which are compute.
    compute_seconds: float

    # Seconds of synchronising replicas.
    sync_seconds: float

    # Seconds of transfers.
    transfer_seconds: float

    # Bytes at the peak, on each device.
    memory_bytes: int

    # `compute`, `host` where calling the operators takes longer than computing them, `sync`, `transfer` or `memory`.
    bound_by: str


class StageAnswer(_StageAnswer, total=False):
    """One stage."""

    # Devices that share each layer; absent where each device has layers of its own.
    shared_by: Union[int, None]

    # What the peak on its fullest device consists of, largest first, where the step is simulated.
    memory_parts: list[MemoryPart]

    # Bytes of its devices' memory that tensors may fill, and all that there is, of the smallest.
    memory_usable: Union[Bytes, None]

    # See `memory_usable`.
    memory_limit: Union[Bytes, None]

    # Bytes of one micro-batch that go on to the next stage; gradients go back the same way.
    sends: Union[Bytes, None]

    # Blocks that are computed again in the backward pass.
    recompute: list[str]

    # What is computed again at a time.
    recompute_unit: RecomputeUnit

    # Blocks whose activations wait in host memory.
    offload: list[str]


class StageVersions(TypedDict):
    """A stage of a pipeline without a flush."""

    # Most versions of its weights that a device keeps at once, the newest included.
    kept: int

    # Most updates between the weights that a gradient is computed with and those that it changes.
    staleness: int


class StepSplit(TypedDict):
    """How a step divides; the parts sum to it."""

    # Average computing time of a device.
    compute: Seconds

    # The busiest device's time above the average.
    imbalance: Seconds

    # Waiting that the order makes even with free communication.
    bubble: Seconds

    # What latency adds.
    latency: Seconds

    # What limited bandwidth adds.
    bandwidth: Seconds

    # What host overhead adds.
    host: Seconds

    # What the optimizer's step adds.
    optimizer: Seconds


class _StrategyLeftOut(TypedDict):
    # Its name in this comparison.
    name: str

    # What it is, in a line.
    about: str

    # Why there is none.
    reason: str


class StrategyLeftOut(_StrategyLeftOut, total=False):
    """A strategy without a plan."""

    # Memory that each device lacks, where that is the reason and a plan is known that would fit with it.
    missing_bytes: Union[Bytes, None]


class _StrategyRow(TypedDict):
    # Its name in this comparison: `data-parallel zero1`, `p3`, `auto`.
    name: str

    # What it is, in a line.
    about: str

    # The flags that make `plan` give the same numbers, beside those of this comparison; with `simulate` behind them,
    # those that make `simulate` give them of that plan.
    flags: str

    # Whether it is what `plan` would give without a strategy.
    is_plan: bool

    # The planner's strategy.
    strategy: str

    # Whether it was chosen as the best, and not asked for.
    is_chosen: bool

    # Parts that the model is cut into.
    stages: int

    # Parts on each device: `stages` counts them all.
    chunks: int

    # Devices that it uses.
    devices: int

    # Micro-batches in a step.
    micro_batches: int

    # Seconds of a step; of pipelines without an end, and where a step begins before the last has ended, from step to
    # step.
    step_seconds: float

    # Seconds for each micro-batch.
    micro_batch_seconds: float

    # How much longer each sample takes than with the first of all, as a share.
    slower: float

    # Bytes at the peak of the device that is nearest to its limit.
    memory_bytes: Bytes

    # What tensors may fill of that device.
    memory_limit: Bytes

    # Whether gradients are those of the newest weights: pipelines without an end train otherwise than one device does.
    trains_as_one_device: bool


class StrategyRow(_StrategyRow, total=False):
    """A strategy, and what it gives."""

    # What replicas share out, where there are any and they do.
    sharding: Union[str, None]

    # Devices that share each layer, where they do.
    shared_by: Union[int, None]

    # Its schedule; absent where operators are split and there are no stages.
    schedule: Union[str, None]

    # Samples in a micro-batch, where they are not the trace's.
    micro_batch_size: Union[int, None]

    # Samples in a step, where the model's inputs tell.
    samples: Union[int, None]

    # Samples a second, where the model's inputs tell.
    samples_per_second: Union[float, None]

    # Tokens a second, where the model takes rows of them.
    tokens_per_second: Union[float, None]

    # Model FLOPs utilisation of the devices that are used.
    mfu: Union[float, None]

    # Share of the used devices' time in which they compute nothing; absent where operators are split.
    idle: Union[float, None]

    # Bytes that devices send each other in a step, all together; absent where operators are split, and where the step
    # is too large to be simulated in passing.
    sent_bytes: Union[Bytes, None]

    # What of it `train.py` does not carry out; nothing where it runs as it stands.
    not_carried_out: list[str]


class _TensorDifference(TypedDict):
    # `output` or `gradient`.
    kind: str

    # Output or parameter.
    name: str

    # Largest absolute difference.
    absolute: float

    # That, relative to the largest value of the tensor.
    relative: float


class TensorDifference(_TensorDifference, total=False):
    """How far one tensor is off."""

    # The first stage that holds the parameter.
    stage: Union[int, None]


class TiedPlace(TypedDict):
    """One holder of a tied parameter."""

    # The stage.
    stage: int

    # Its name in the original model.
    name: str


class TimeParts(TypedDict):
    """What a device's step time goes to; the parts sum to the step."""

    # Forward passes.
    forward: Seconds

    # Backward passes, whole or in parts.
    backward: Seconds

    # Forward passes run again for the backward.
    recompute: Seconds

    # Collectives that computation waits in.
    collective: Seconds

    # Copies and sends that computation waits in.
    copy: Seconds

    # Host overhead of launching operations.
    host: Seconds

    # Optimizer step.
    optimizer: Seconds

    # Nothing to do.
    idle: Seconds


class _TimesFrom(TypedDict):
    # The cost model: what it was fitted to, or the data sheet.
    cost_model: str

    # Share of the predicted seconds by source: `measured`, `curve`, `scaled-curve` (a gradient by the curve of the
    # forward pass), `overhead` (a call without work), `host` (calls of an accelerator, where they take longer than what
    # they call), `roofline` (a data sheet).
    shares: dict[str, float]


class TimesFrom(_TimesFrom, total=False):
    """Where the times of a model's operators come from."""

    # Share of the predicted seconds that curves give for sizes outside those they were fitted to, where any do.
    outside: float


class _TraceAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # The archive.
    output: str

    # Number of its operators.
    operators: int

    # Trained elements.
    parameters: int

    # Version of torch that traced.
    torch: str


class TraceAnswer(_TraceAnswer, total=False):
    """Answer of `trace`."""

    # Statements that the trace has fixed although they depend on data, and what else was found while tracing.
    trace_notes: list[str]


class UncheckedForm(TypedDict):
    """A form that was not compared."""

    # `torchscript` or `python`.
    form: str

    # Why.
    reason: str


class _Verified(TypedDict):
    # Version of this answer.
    schema_version: int

    # True when every difference of every form is within its tolerance.
    ok: bool

    # Where it ran.
    device: str

    # Training steps compared.
    steps: int

    # Largest absolute difference of an output.
    outputs_max_difference: float

    # Largest difference of a gradient, relative to the largest value of its tensor, or to a thousandth of the model's
    # largest gradient where that is more.
    gradients_max_difference: float

    # Largest difference of a loss, relative to the loss where that is more than 1.
    losses_max_difference: float

    # Number of parameters whose gradients were compared.
    gradients_compared: int

    # How many of those were exactly zero on both sides in every step: they prove little.
    gradients_zero: int

    # The worst tensors, outputs and gradients together.
    worst: list[TensorDifference]

    # Losses of each step: whole model, stages.
    losses: list[list[float]]

    # The forms that were compared, each by itself.
    forms: list[VerifiedForm]

    # The forms that the folder has and that were not compared.
    unchecked: list[UncheckedForm]


class Verified(_Verified, total=False):
    """Answer of `verify`: how far the stages are from the whole model, the worst of all forms."""

    # True when both sides ran in float64.
    float64: bool

    # What was proven of the program that one device runs, where devices share layers and the sources are those of the
    # plan.
    proved: Union[Proved, None]

    # Why nothing was proven where devices share layers.
    unproved: Union[str, None]

    # Where the first difference is, when there is one and its place was found.
    first_difference: Union[FirstDifference, None]


class _VerifiedExchange(TypedDict):
    # `forward` or `backward`.
    phase: str

    # `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all` or `point-to-point`.
    collective: str

    # How many.
    calls: int

    # Bytes of the whole values; those of all messages where they go from one to another.
    bytes: int


class VerifiedExchange(_VerifiedExchange, total=False):
    """What went through one kind of collective in a step."""

    # Bytes that the plan counts; none where the folder was written by a version that did not record them.
    planned_bytes: Union[int, None]


class _VerifiedForm(TypedDict):
    # `torchscript` or `python`.
    form: str

    # True when every difference is within its tolerance.
    ok: bool

    # Training steps compared.
    steps: int

    # As in the whole answer.
    outputs_max_difference: float

    # As in the whole answer.
    gradients_max_difference: float

    # As in the whole answer.
    losses_max_difference: float

    # As in the whole answer.
    gradients_compared: int

    # As in the whole answer.
    gradients_zero: int

    # The worst tensors, outputs and gradients together.
    worst: list[TensorDifference]

    # Losses of each step: whole model, stages.
    losses: list[list[float]]


class VerifiedForm(_VerifiedForm, total=False):
    """One form of the stages beside the whole model."""

    # What several processes did together, where stages are held by several devices.
    shards: Union[VerifiedShards, None]


class _VerifiedShards(TypedDict):
    # Processes.
    ranks: int

    # Outputs, gradients and buffers that each of them holds whole, and that were compared with the first one's.
    replicated_compared: int

    # Largest difference of these, relative to the tensor's largest value; 0 where they are the same to the last bit.
    replicated_max_difference: float

    # What they sent each other in a step, by kind.
    exchanges: list[VerifiedExchange]


class VerifiedShards(_VerifiedShards, total=False):
    """Stages that several devices hold together, run by a process for each."""

    # The one that differs most.
    replicated_worst: Union[str, None]


class WhatIf(TypedDict):
    """A change of the cluster."""

    # The change in words.
    change: str

    # Seconds for each micro-batch after it.
    seconds: float

    # Share by which each micro-batch is faster.
    gains: float
