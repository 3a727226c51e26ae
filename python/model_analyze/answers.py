"""The answers of the command as Python sees them. Made from schema/json by python/generate_answers.py."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Union


class Band(TypedDict):
    """The p10–p90 band of a time."""

    # The 10th percentile.
    p10: Seconds

    # The 90th percentile.
    p90: Seconds


class _ByHand(TypedDict):
    # `even-layers`, `even-parameters`, …
    strategy: str


class ByHand(_ByHand, total=False):
    """A rule-of-thumb cut."""

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

    # The devices, for people: `4 × T4`.
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
    """A plan to compare with the chosen one."""

    # Strategy that made it.
    strategy: Union[str, None]

    # Its schedule.
    schedule: Union[str, None]

    # Stages of the model.
    stages: Union[int, None]

    # Stages per device, if several: `stages` counts all.
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

    # Its kind.
    kind: SpanKind

    # Start.
    start_seconds: Seconds

    # Its share of the step's time.
    seconds: Seconds


class DeviceAnswer(TypedDict):
    """A device of the catalogue."""

    # The name that plans and answers use; the `aliases` of its figures are accepted as well.
    name: str

    # The figures of a device type, as in a cluster file.
    figures: DeviceType

    # Whether curves ship that were fitted to measurements of this device or of another with the same chip; otherwise
    # times come from its data sheet.
    has_curves: bool

    # The source of its times.
    times: str


class _DeviceType(TypedDict):
    # Memory that a process can use.
    memory: Bytes

    # Memory bandwidth.
    memory_bandwidth: BytesPerSecond

    # Peak rates by data type: `float32`, `tf32`, `bfloat16`, `float16`, `float8`.
    peak: dict[str, FlopsPerSecond]


class DeviceType(_DeviceType, total=False):
    """The figures of a device type. Only the first three affect every step; the rest refine a prediction and are facts of the catalogue."""

    # The part of it that tensors cannot use: kernels, buffers of collectives, fragmentation. Zero when absent.
    reserve: Union[Bytes, None]

    # Host link, each way.
    host_bandwidth: Union[BytesPerSecond, None]

    # Speed relative to the device that costs were measured on; 1 when absent.
    speed: Union[float, None]

    # Other names, such as those of `torch.cuda.get_device_name`.
    aliases: list[str]

    # `sm90`, `gfx942`, …
    architecture: Union[str, None]

    # Streaming multiprocessors, compute units or cores.
    multiprocessors: Union[int, None]

    # The last cache shared by all of them.
    l2: Union[Bytes, None]

    # The next larger cache, for a CPU whose last cache is so large and slow that `l2` is the core's own.
    last_cache: Union[Bytes, None]

    # Total bandwidth of the port to the other devices of a node (NVLink, Infinity Fabric), each way; absent if they
    # only communicate over the host link.
    link_bandwidth: Union[BytesPerSecond, None]

    # The shortest time any operator takes.
    launch: Union[Seconds, None]

    # Time in which the host calls an operator of an accelerator, Python included; 29 µs when absent.
    host_call: Union[Seconds, None]

    # Host time of a training script per pass of a stage, in addition to the stage's own work; zero when absent.
    # `train.py --host-trace` measures it for the folders of `emit`.
    host_overhead: Union[Seconds, None]

    # Host time that a backward pass split into two halves takes beyond a whole one and the second pass; zero when
    # absent. `train.py --host-trace` measures it under a schedule with halves.
    split_overhead: Union[Seconds, None]

    # Time of large products relative to the peak rate's, whatever the data type; 1 when absent.
    product_slowdown: Union[float, None]

    # Time of plain copies relative to the memory bandwidth's; 1.25 when absent, 1.67 for CPUs.
    copy_slowdown: Union[float, None]

    # Time of fused attention in PyTorch, relative to the newest kernels for the chip; 1 when absent.
    attention_slowdown: Union[float, None]

    # Time of products of 16 and 8 bits in a run of minutes, relative to short bursts: the power limit lowers the clock;
    # 1 when absent.
    sustained_slowdown: Union[float, None]

    # The source of each figure, by field.
    sources: dict[str, str]


class DevicesAnswer(TypedDict):
    """Answer of `devices`."""

    # Version of this answer.
    schema_version: int

    # The devices of the catalogue, or the requested one.
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

    # Time per micro-batch, after relative to before, minus one: negative is faster.
    time_change: float

    # Bubble after minus before, in shares of device time.
    bubble_change: float

    # Blocks that are in another stage, in the order of the model.
    moved: list[MovedBlock]

    # Blocks whose activations are recomputed, or moved to host memory, in one plan only.
    kept_otherwise: list[KeptOtherwise]

    # Devices of both, in order of their names.
    devices: list[DiffDevice]


class _DiffDevice(TypedDict):
    # Its name.
    name: str


class DiffDevice(_DiffDevice, total=False):
    """A device in both plans."""

    # Simulated peak before; absent if it runs nothing.
    before: Union[Bytes, None]

    # Simulated peak after; absent if it runs nothing.
    after: Union[Bytes, None]


class DiffSide(TypedDict):
    """Totals of a plan."""

    # The file.
    file: str

    # Name of the model.
    model: str

    # Strategy.
    strategy: str

    # Schedule.
    schedule: str

    # Micro-batches per step.
    micro_batches: int

    # Devices of each stage.
    stages: list[list[str]]

    # One simulated step.
    step_seconds: Seconds

    # The same per micro-batch.
    micro_batch_seconds: Seconds

    # Share of device time spent idle.
    bubble: float


class DifferentBlock(TypedDict):
    """A block in which two models differ."""

    # Its path; empty for the model itself.
    block: str

    # Operators of the first model that the second lacks.
    before: int

    # Operators of the second model that the first lacks.
    after: int


class EmitAnswer(TypedDict):
    """Answer of `emit`."""

    # Version of this answer.
    schema_version: int

    # The output folder.
    folder: str

    # Bytes written.
    bytes: int

    # Stages in order.
    stages: list[EmittedStage]

    # Parameters that several stages hold, with their stages and names.
    tied: list[list[TiedPlace]]


class EmittedStage(TypedDict):
    """A written stage."""

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

    # The schedule.
    schedule: str

    # Micro-batches per step.
    micro_batches: int

    # Timed steps, without warm-up.
    steps: int

    # Median time of a step.
    step_seconds: Seconds

    # Samples per second, by the first dimension of the first input.
    samples_per_second: float

    # Share of device time that was idle.
    bubble: float

    # Stages in order.
    stages: list[ExecutedStage]

    # Mean loss of each step; empty without libtorch.
    losses: list[float]


class Executed(_Executed, total=False):
    """Answer of `run`: the measured pipeline."""

    # The plan's prediction of a step, if it has one.
    predicted_step_seconds: Union[Seconds, None]

    # Peak memory of this process.
    process_peak_bytes: Union[Bytes, None]


class ExecutedStage(TypedDict):
    """Measurements of one stage."""

    # Position.
    stage: int

    # Devices that ran it.
    devices: list[str]

    # Median forward time of a micro-batch.
    forward_seconds: Seconds

    # Median backward time of a micro-batch, both halves.
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

    # One per kind, data type, phase and device.
    groups: list[FitGroup]


class FitGroup(TypedDict):
    """Held-out errors of one group's model, in percent."""

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

    # Rows of a repeated shape, whose median was taken.
    duplicates: int

    # Fitted outliers, which had little weight.
    outliers: int

    # Mean absolute relative error.
    mape: float

    # Median absolute relative error.
    median: float

    # The 90th percentile of the error.
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
    """A measured collective and the errors of the fitted link, in percent."""

    # `all_reduce`, `all_gather`, …
    collective: str

    # Ranks.
    ranks: int

    # Their hosts.
    hosts: int

    # Number of measured sizes.
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

    # The fitted tests.
    tests: list[FittedCollective]


Flops = int


FlopsPerSecond = float


class _InferenceAnswer(TypedDict):
    # The minimised quantity.
    objective: InferenceObjective


class InferenceAnswer(_InferenceAnswer, total=False):
    """The objective and the memory of an inference plan."""

    # Keys and values, if they are kept.
    kv_cache: Union[KvCacheAnswer, None]


InferenceObjective = Union[Literal['throughput'], Literal['latency']]


class _InsideAnswer(TypedDict):
    # Operators in the order of the model.
    operators: list[OperatorSplit]

    # Seconds of a step as the paper's search has it, of the model's own inputs.
    step_seconds: float

    # No split of the operators is faster.
    lower_bound_seconds: float

    # Seconds of gradient sync beside them.
    sync_seconds: float

    # Bytes on a device.
    memory_bytes: int


class InsideAnswer(_InsideAnswer, total=False):
    """How the operators of a model are split over all devices."""

    # Seconds of a step under data parallelism; absent if it does not fit.
    data_parallel_seconds: Union[float, None]

    # Share by which random changes improved the exact answer, if they were tried.
    random_gain: Union[float, None]

    # Why no split of the operators can be run, if so.
    not_carried_out: Union[str, None]


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

    # Sizes of the first tensor that it returns; null if it returns none or they are unknown.
    output_shape: Union[list[Union[int, None]], None]

    # Element type of that tensor.
    output_dtype: Union[str, None]

    # Trained elements that it reads, tied ones once; null if some of their sizes are unknown.
    parameters: Union[int, None]

    # Forward operations, without those of `fused_flops`; null if sizes are unknown.
    flops: Union[int, None]

    # Further forward operations, in fused kernels.
    fused_flops: int

    # Backward operations; null if `flops` is.
    backward_flops: Union[int, None]

    # Bytes that autograd saves here; null if sizes are unknown.
    activation_bytes: Union[int, None]

    # Predicted seconds of the forward pass; absent, like the following fields, if no device was requested.
    forward_seconds: Union[float, None]

    # Predicted seconds of both gradients.
    backward_seconds: Union[float, None]

    # Details of the predicted times.
    time: Union[InspectTime, None]


class _InspectMemory(TypedDict):
    # Bytes at the fullest moment.
    bytes: Bytes

    # That moment, described.
    when: str

    # The parts of the memory at that moment.
    parts: list[MemoryPart]

    # Operators that save tensors of unknown size, which are not counted.
    unmeasured_operators: int

    # Devices for data parallelism.
    devices: int

    # Changes that would help, each by itself.
    reliefs: list[MemoryRelief]


class InspectMemory(_InspectMemory, total=False):
    """Memory of a training step on each device."""

    # The counted loss; absent if there is none.
    loss: Union[str, None]

    # Its time on the device, which those of the model leave out; absent where starting kernels decides it.
    loss_forward_seconds: Union[Seconds, None]

    # The same of its backward pass.
    loss_backward_seconds: Union[Seconds, None]

    # The device's type; absent, like the fields that depend on it, if none was requested.
    device: Union[str, None]

    # The device's memory.
    memory: Union[Bytes, None]

    # The part of it reserved for CUDA's context, buffers of collectives and fragmentation.
    kept_clear: Union[Bytes, None]

    # `fits`; `tight` if it needs some of the reserve; `does not fit`.
    verdict: Union[str, None]

    # First size of the inputs, per device.
    largest_batch: Union[LargestSize, None]

    # Second size, if the first input is token ids.
    longest_sequence: Union[LargestSize, None]


class _InspectReport(TypedDict):
    # Version of this form.
    schema_version: int

    # The model's name.
    model: str

    # The model's inputs, as far as known.
    inputs: list[NamedTensor]

    # The model's outputs.
    outputs: list[NamedTensor]

    # Sums over the whole model.
    totals: InspectTotals

    # Blocks down to the requested depth, parents before their children; the root's path is empty.
    blocks: list[InspectBlock]

    # Operators without a rule.
    unknown: list[InspectUnknown]

    # Operators whose inferred type differs from the recorded one, which was used: an error of the rule.
    disagreements: list[str]

    # Parts of the trace that could not be followed exactly.
    notes: list[str]


class InspectReport(_InspectReport, total=False):
    """A model as a table of blocks."""

    # Statements that the trace has fixed although they depend on data, and other findings of tracing.
    trace_notes: list[str]

    # The source of predicted times; absent if no device was requested.
    times: Union[TimesFrom, None]

    # Memory of a training step; absent unless requested.
    memory: Union[InspectMemory, None]


class InspectTime(TypedDict):
    """Details of a block's predicted time."""

    # p10–p90 band of the forward time.
    forward: Band

    # p10–p90 band of the backward time.
    backward: Band

    # Seconds of the gradient of the inputs.
    input_gradient_seconds: float

    # Seconds of the gradient of the weights.
    weight_gradient_seconds: float

    # The most scratch memory of a kernel.
    workspace_bytes: int

    # The least certain source: `measured`, `overhead`, `curve`, `scaled-curve`, `roofline`; `free` if nothing runs.
    source: str

    # Whether launch overhead is most of the forward time.
    is_launch_bound: bool


class _InspectTotals(TypedDict):
    # Elements of buffers.
    buffers: int

    # Further forward operations, in fused attention and recurrent kernels: torch's counter misses them on a CPU and
    # counts attention's by the same formula on a GPU.
    fused_flops: int

    # Number of operators.
    operators: int

    # Number of operators without a rule.
    unknown_operators: int


class InspectTotals(_InspectTotals, total=False):
    """Sums over the whole model."""

    # Trained elements, tied ones once; null if the trace does not state all of their sizes.
    parameters: Union[int, None]

    # Forward operations as torch's flop counter counts them on a CPU, one multiply-add as two; null if sizes are
    # unknown.
    flops: Union[int, None]

    # Backward operations; null if `flops` is.
    backward_flops: Union[int, None]

    # Bytes of parameters, tied ones once; null if `parameters` is.
    parameter_bytes: Union[int, None]

    # Bytes that autograd saves for the backward pass; null if sizes are unknown.
    activation_bytes: Union[int, None]

    # Parameters and buffers whose sizes the trace neither states nor determines; the notes name some of them.
    tensors_of_unknown_size: int


class InspectUnknown(TypedDict):
    """An operator without a rule."""

    # Its name.
    name: str

    # How often it occurs.
    count: int

    # Paths of blocks that contain it; only some of them if there are many.
    paths: list[str]

    # True if the shapes of its results are recorded.
    is_recorded: bool


class KeptOtherwise(TypedDict):
    """A block whose saved activations are handled differently."""

    # Its path.
    block: str

    # `kept`, `computed again` or `in host memory`.
    before: str

    # The same, after.
    after: str


class _KvCacheAnswer(TypedDict):
    # Tokens per sequence.
    tokens: int

    # Attentions that keep them.
    attentions: int

    # Bytes per token and sequence over all attentions; one device's part if devices share each layer.
    bytes_per_token: Bytes


class KvCacheAnswer(_KvCacheAnswer, total=False):
    """Keys and values that attentions keep between tokens."""

    # Concurrent sequences over all devices, if the model's inputs tell them.
    sequences: Union[int, None]

    # Tokens per sequence for which these stages have room.
    most_tokens: Union[int, None]


class LargestSize(TypedDict):
    """The largest size that fits."""

    # Without the reserve; 0 if nothing fits.
    safe: int

    # With all memory except CUDA's context.
    most: int


class Level(TypedDict):
    """The link between the members of one level."""

    # `nvlink`, `pcie`, `infiniband`, …; shown in messages.
    name: str

    # Bandwidth of one device's port, each way.
    bandwidth: BytesPerSecond

    # Time until the first byte arrives.
    latency: Seconds


class _LintFinding(TypedDict):
    # `error` or `warning`.
    severity: str

    # The problem and its reason.
    message: str


class LintFinding(_LintFinding, total=False):
    """One problem of an order."""

    # The rank, if it has one.
    rank: Union[int, None]

    # The position in the rank's program, from 0, without idle slots.
    position: Union[int, None]


class _LintedOrder(TypedDict):
    # Version of this answer.
    schema_version: int

    # Whether the order is valid and complete.
    ok: bool

    # Problems, errors first.
    findings: list[LintFinding]


class LintedOrder(_LintedOrder, total=False):
    """Answer of `simulate --csv --lint`."""

    # Peak number of activations on each rank, if the order is valid.
    peak_activations: Union[list[int], None]


class LossAnswer(TypedDict):
    """A loss."""

    # Its kind, the sizes of its input, and whether it was guessed.
    what: str

    # Its largest memory for one micro-batch, in bytes.
    bytes: Bytes


class MemoryPart(TypedDict):
    """One part of a device's memory."""

    # `parameters`, `gradients`, `optimizer`, `weight versions`, `activations`, `workspace`, `buffers`.
    name: str

    # Bytes at the moment of the peak.
    bytes: Bytes


class MemoryRelief(TypedDict):
    """A change, and the memory of a step with it."""

    # The change.
    what: str

    # Bytes at the fullest moment with the change.
    bytes: Bytes


class _MicroBatchSizeTried(TypedDict):
    # Samples per micro-batch.
    samples: int


class MicroBatchSizeTried(_MicroBatchSizeTried, total=False):
    """Samples per micro-batch that were tried."""

    # Seconds per sample under the best plan.
    sample_seconds: Union[float, None]

    # Why there is no plan, if so.
    fails: Union[str, None]


class MicroBatchesTried(TypedDict):
    """The best plan with a number of micro-batches."""

    # Micro-batches per step.
    micro_batches: int

    # Seconds per micro-batch.
    seconds_each: float


class ModelDiffAnswer(TypedDict):
    """The answer of `diff` for two models."""

    # Version of this answer.
    schema_version: int

    # The first model.
    before: ModelDiffSide

    # The second model.
    after: ModelDiffSide

    # Blocks with operators that the other model lacks, in the order of the models.
    blocks: list[DifferentBlock]


class ModelDiffSide(TypedDict):
    """Totals of a model."""

    # The file.
    file: str

    # Parameters, tied ones once.
    parameters: int

    # Forward operations.
    forward_flops: Flops

    # Backward operations.
    backward_flops: Flops

    # Saved activations.
    saved_bytes: Bytes

    # Operators.
    operators: int

    # Operators that the other model lacks.
    different: int


class _MovedBlock(TypedDict):
    # Its path.
    block: str


class MovedBlock(_MovedBlock, total=False):
    """A block in another stage."""

    # Its stage before; absent if the first plan does not have it.
    before: Union[int, None]

    # Its stage after; absent if the second plan does not have it.
    after: Union[int, None]


class _NamedTensor(TypedDict):
    # Its name.
    name: str


class NamedTensor(_NamedTensor, total=False):
    """A tensor with its name; sizes that depend on data are null."""

    # Sizes; null if even their number is unknown.
    shape: Union[list[Union[int, None]], None]

    # Element type as torch names it.
    dtype: Union[str, None]


class OperatorLayout(TypedDict):
    """How devices share an operator."""

    # Path of the call that contains it; empty for the model's own code.
    block: str

    # Its name without name space: `conv2d`; numbered if the call has several.
    operator: str

    # What each device has of its result: `samples`, `channels`, `rows`, `whole`, a term of `sums`, …
    split: str


class OperatorSplit(TypedDict):
    """The degrees of an operator; their product is the number of devices that it uses."""

    # Path of the call that contains it; empty for the model's own code.
    block: str

    # Its name without name space: `conv2d`.
    operator: str

    # Parts of the samples of its result.
    samples: int

    # Parts of the channels; for other tensors than images, of the last axis.
    channels: int

    # Parts of the height, or of the positions of a sequence.
    height: int

    # Parts of the width.
    width: int

    # Parts of the sums of one element.
    sums: int


class OutOfMemory(TypedDict):
    """A device that runs out of memory."""

    # Device name.
    device: str

    # The first time at which it needs more than it has.
    at_seconds: Seconds

    # Its peak.
    needed: Bytes

    # Its memory.
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

    # No plan is faster, or none of those that `bound_of` names.
    lower_bound_seconds: float

    # Optimality gap, as a share.
    gap: float

    # Whether no plan of the family is better.
    optimal: bool

    # Stages in the order of the model.
    stages: list[StageAnswer]


class PlanAnswer(_PlanAnswer, total=False):
    """The answer of `plan`."""

    # Sharding level, if there are replicas that shard: `zero1`, `zero2`, `zero3`, `zero3 in groups of 8`.
    sharding: Union[str, None]

    # How devices share each layer, if they do.
    shared: Union[SharedAnswer, None]

    # Schedule it runs under.
    schedule: Union[str, None]

    # Micro-batches per step.
    micro_batches: Union[int, None]

    # Samples per step, if the model's inputs tell them.
    samples: Union[int, None]

    # Samples per second, if the model's inputs tell the size of a micro-batch.
    samples_per_second: Union[float, None]

    # Tokens per second, if the model takes rows of them.
    tokens_per_second: Union[float, None]

    # Model FLOPs utilisation: the model's own operations per second, without recomputation, as a share of the peak of
    # the used devices.
    mfu: Union[float, None]

    # The inference objective; absent for training.
    inference: Union[InferenceAnswer, None]

    # The loss after the outputs, which is part of the last stage.
    loss: Union[LossAnswer, None]

    # The limit on the size of a step, if the planner chose the size and met a limit.
    step_limit: Union[str, None]

    # Seconds per micro-batch in steady state; in the file's own unit for dnn-partitioning workloads.
    period_seconds: Union[float, None]

    # Seconds of one step.
    step_seconds: Union[float, None]

    # Seconds of data parallelism by the same objective.
    data_parallel_seconds: Union[float, None]

    # The plans that the lower bound holds for, if not for all: `gpipe plan with 2 stages`.
    bound_of: Union[str, None]

    # Pinned calls: bounds and plans are under these pins.
    pins: list[str]

    # Number of blocks between which cuts were searched.
    blocks: Union[int, None]

    # Operators of the model that take time; the number of blocks if every cut was searched.
    operators: Union[int, None]

    # Effort of the search, if not `normal`: `quick` or `thorough`.
    effort: Union[str, None]

    # Share of device time spent idle.
    bubble: Union[float, None]

    # The uncertainty of the step, or else the period; see [`Predicted::band`](crate::Predicted::band).
    band: Union[Band, None]

    # The source of the operators' times.
    times: Union[TimesFrom, None]

    # Host time of the script per pass, if it was charged.
    host_overhead_seconds: Union[float, None]

    # Host time charged per split backward pass, in addition to that of its two passes; `None` if zero.
    split_overhead_seconds: Union[float, None]

    # Peak bytes of the fullest device.
    memory_bytes: Union[int, None]

    # Other plans that were tried, best first.
    runners_up: list[RunnerUp]

    # Effects of changes to the cluster.
    what_if: list[WhatIf]

    # Numbers of micro-batches that were tried, if none was requested.
    micro_batches_tried: list[MicroBatchesTried]

    # Micro-batch sizes that were tried, if that was requested.
    micro_batch_sizes_tried: list[MicroBatchSizeTried]

    # How operators are split, if they are.
    inside: Union[InsideAnswer, None]


class _ProfileAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # The file with the rows.
    file: str

    # The measured device.
    device: str


class ProfileAnswer(_ProfileAnswer, total=False):
    """Answer of `profile`: for operators with `--suite`, for blocks with `--model`."""

    # Operators measured by this run.
    operators: Union[int, None]

    # Operators measured by earlier runs of the file.
    operators_before: Union[int, None]

    # Operators that could not be measured; comments in the file give the reasons.
    failed: Union[int, None]

    # Rows in the file.
    rows: Union[int, None]

    # Seconds of measuring.
    seconds: Union[float, None]

    # Blocks, in the order of the model.
    blocks: list[ProfiledBlock]

    # The whole model.
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
    """The proof of the program of one of several devices: given that the rule of each operator is correct, outputs and gradients are those of the whole model."""

    # Operators whose operands and gradients have the layouts that their rules need.
    operators: int

    # Exchanges that convert layouts.
    exchanges: int

    # Results that are not whole on any device.
    parts: int


RecomputeUnit = Union[Literal['block'], Literal['stage']]


class _RunnerUp(TypedDict):
    # Its strategy.
    strategy: str


class RunnerUp(_RunnerUp, total=False):
    """A plan that was not chosen."""

    # Sharding level of its replicas.
    sharding: Union[str, None]

    # Seconds per micro-batch.
    seconds: Union[float, None]

    # How much longer each micro-batch takes, as a share of the chosen plan's time.
    loses: Union[float, None]

    # Its schedule.
    schedule: Union[str, None]

    # Stages of the model.
    stages: Union[int, None]

    # Stages per device, if several: `stages` counts all.
    chunks: Union[int, None]

    # Peak bytes of its fullest device.
    memory_bytes: Union[int, None]

    # Why there is no such plan.
    fails: Union[str, None]


class Saving(TypedDict):
    """The saving by a faster part."""

    # `device gpu0`, `link gpu0 → gpu1` or `all devices`.
    what: str

    # Seconds of the step.
    seconds: Seconds


Seconds = float


class _SharedAnswer(TypedDict):
    # Devices that share each layer.
    degree: int

    # Share of the forward pass's FLOPs that is divided; every device does the rest.
    split_flops: float

    # Exchanges of a micro-batch in the whole model.
    exchanges: int

    # Seconds that compute waits for them per micro-batch in both passes, over the whole model.
    exchange_seconds: float

    # Optimality gap of the choice of layouts, by the times of the choice.
    gap: float


class SharedAnswer(_SharedAnswer, total=False):
    """Layers that devices share."""

    # Groups of these devices, if each group has a part of the samples or positions.
    context_parallel: Union[int, None]

    # The same, if each group has a part of the experts as well.
    expert_parallel: Union[int, None]

    # The dimension along which images are in bands, one per device; absent if weights and values are cut into equal
    # slices.
    bands: Union[int, None]

    # Samples, or positions of their sequences, are divided; each device has all weights.
    whole_weights: bool

    # Each device has a part of the samples or positions, a part of the experts, and all other weights.
    by_expert: bool

    # Weights that only the first device of each group has and uses.
    on_first: list[str]

    # The split of each operator, if each has its own.
    operators: list[OperatorLayout]

    # The proof of one device's program.
    proved: Proved

    # Seconds of a micro-batch on one device alone, if no split of operators is as fast.
    alone_seconds: Union[float, None]

    # Other numbers of devices that were tried, with the seconds of a micro-batch; absent if there is no plan.
    tried: list[SharedTried]


class _SharedTried(TypedDict):
    # Devices that share each layer.
    degree: int


class SharedTried(_SharedTried, total=False):
    """A tried number of devices per layer."""

    # Each has a part of the samples or positions and of the experts.
    by_expert: bool

    # Groups of these devices, if each group, not each device, has such a part, and shares its layers.
    groups: Union[int, None]

    # Seconds of a micro-batch, over all devices.
    seconds_each: Union[float, None]

    # The micro-batches of the step that it is of.
    micro_batches: Union[int, None]

    # Lower bound of these seconds, where it showed that no plan could be the fastest: then none was looked for.
    at_least: Union[float, None]


class SimulatedDevice(TypedDict):
    """One device of a simulated plan."""

    # Device name.
    name: str

    # Time of its forward and backward passes.
    busy_seconds: Seconds

    # The parts of the step's time on this device.
    time_parts: TimeParts

    # Peak memory.
    peak_memory_bytes: Bytes

    # The device's memory.
    memory_limit_bytes: Bytes

    # The first time of the peak.
    peak_at_seconds: Seconds

    # The parts of the peak, largest first.
    parts: list[MemoryPart]

    # Peak number of micro-batches whose activations it holds.
    peak_activations: int


class _SimulatedOrder(TypedDict):
    # Version of this answer.
    schema_version: int

    # From the first operation's start to the last one's end, in units of the costs.
    makespan: int

    # Longest time from a rank's first operation to its last.
    longest_span: int

    # Computing time of each rank.
    busy: list[int]

    # Peak number of activations on each rank.
    peak_activations: list[int]

    # The same if activations were freed with the input gradient.
    peak_until_input_gradient: list[int]

    # Share of rank time that is idle.
    bubble: float

    # Pipeline ranks.
    ranks: int

    # Stages over all copies of the model.
    stages: int

    # Operations of all ranks.
    operations: int

    # Warnings of the linter.
    warnings: list[str]


class SimulatedOrder(_SimulatedOrder, total=False):
    """Answer of `simulate --csv`."""

    # Weight versions of each stage, and the staleness of its gradients, if there is no flush.
    versions: list[StageVersions]


class _SimulatedPlan(TypedDict):
    # Version of this answer.
    schema_version: int

    # The schedule.
    schedule: str

    # Micro-batches per step.
    micro_batches: int

    # One training step: all micro-batches, gradient sums, optimizer.
    step_seconds: Seconds

    # Longest time from a device's first operation to its last.
    longest_span_seconds: Seconds

    # The period of consecutive steps.
    period_seconds: Seconds

    # The period per micro-batch.
    micro_batch_seconds: Seconds

    # Share of device time without a forward or backward pass.
    bubble: float

    # By device, in the order of the cluster.
    devices: list[SimulatedDevice]

    # The parts of the step, which sum to it.
    split: StepSplit

    # The critical path of the step, in order of time.
    critical_path: list[CriticalStep]

    # Savings by 10 % more speed of a device or bandwidth of a link, largest first.
    savings: list[Saving]

    # Devices that run out of memory.
    out_of_memory: list[OutOfMemory]

    # Omissions and assumptions of the model for this plan.
    notes: list[str]


class SimulatedPlan(_SimulatedPlan, total=False):
    """Answer of `simulate PLAN`."""

    # By stage, if there is no flush.
    versions: list[StageVersions]


SpanKind = Union[Literal['forward'], Literal['input-gradient'], Literal['weight-gradient'], Literal['backward'], Literal['pair'], Literal['transfer'], Literal['collective'], Literal['copy'], Literal['optimizer']]


class _SplitAnswer(TypedDict):
    # Version of this answer.
    schema_version: int

    # Name of the model's file.
    model: str

    # The chosen plan.
    plan: PlanAnswer

    # Its simulated step.
    simulated: SimulatedPlan

    # Rule-of-thumb cuts.
    by_hand: list[ByHand]


class SplitAnswer(_SplitAnswer, total=False):
    """Answer of `split`; the parts are the answers of `plan` and `simulate`."""

    # A step with the same micro-batches on one device; absent if the model does not fit one, or devices share layers.
    one_device_step_seconds: Union[float, None]

    # Throughput, by the first size of the first input; absent if that is unknown.
    samples_per_second: Union[float, None]

    # The best plan of each family and rule-of-thumb cuts, simulated with the same micro-batches, best first.
    compared: list[ComparedPlan]

    # Every strategy, likewise.
    strategies: list[ComparedPlan]

    # Why the plan is better than the next best.
    why: list[str]

    # Numbers of micro-batches that were tried, if none was requested.
    micro_batches_tried: list[MicroBatchesTried]


class _StageAnswer(TypedDict):
    # Blocks by path.
    blocks: list[str]

    # Devices by name.
    devices: list[str]

    # Replicas.
    replicas: int

    # Seconds per micro-batch, over all replicas.
    seconds: float

    # The part of them that is compute.
    compute_seconds: float

    # Seconds of gradient sums of replicas.
    sync_seconds: float

    # Seconds of transfers.
    transfer_seconds: float

    # Peak bytes per device.
    memory_bytes: int

    # `compute`, `host` if calling the operators takes longer than computing them, `sync`, `transfer` or `memory`.
    bound_by: str


class StageAnswer(_StageAnswer, total=False):
    """One stage."""

    # Devices that share each layer; absent if each device has layers of its own.
    shared_by: Union[int, None]

    # The parts of the peak on its fullest device, largest first, if the step is simulated.
    memory_parts: list[MemoryPart]

    # Bytes of its devices' memory that tensors may use, and the total memory, of the smallest.
    memory_usable: Union[Bytes, None]

    # See `memory_usable`.
    memory_limit: Union[Bytes, None]

    # Bytes of one micro-batch that are sent to the next stage; gradients are sent back.
    sends: Union[Bytes, None]

    # Blocks that are recomputed in the backward pass.
    recompute: list[str]

    # The unit of recomputation.
    recompute_unit: RecomputeUnit

    # Those of them that keep the results of products with weights, convolutions and fused attention.
    recompute_light: list[str]

    # Blocks whose activations are moved to host memory.
    offload: list[str]


class StageVersions(TypedDict):
    """A stage of a pipeline without a flush."""

    # Most weight versions on a device at once, including the newest.
    kept: int

    # Most updates between the weights that a gradient is computed with and those that it updates.
    staleness: int


class StepSplit(TypedDict):
    """The parts of a step, which sum to it."""

    # Average computing time of a device.
    compute: Seconds

    # The busiest device's time above the average.
    imbalance: Seconds

    # Waiting that the order causes even with free communication.
    bubble: Seconds

    # The effect of latency.
    latency: Seconds

    # The effect of limited bandwidth.
    bandwidth: Seconds

    # The effect of host overhead.
    host: Seconds

    # The effect of the optimizer's step.
    optimizer: Seconds


class _StrategyLeftOut(TypedDict):
    # Its name in this comparison.
    name: str

    # A description in one line.
    about: str

    # Why there is none.
    reason: str


class StrategyLeftOut(_StrategyLeftOut, total=False):
    """A strategy without a plan."""

    # Memory that each device lacks, if that is the reason and a plan would fit with it.
    missing_bytes: Union[Bytes, None]


class _StrategyRow(TypedDict):
    # Its name in this comparison: `data-parallel zero1`, `p3`, `auto`.
    name: str

    # A description in one line.
    about: str

    # The flags with which `plan` gives the same numbers, in addition to those of this comparison; after `simulate`, the
    # flags with which `simulate` gives them for that plan.
    flags: str

    # Whether it is the plan of `plan` without a strategy.
    is_plan: bool

    # The planner's strategy.
    strategy: str

    # Whether it was chosen as the best instead of requested.
    is_chosen: bool

    # Stages of the model.
    stages: int

    # Stages per device: `stages` counts all.
    chunks: int

    # Devices that it uses.
    devices: int

    # Micro-batches per step.
    micro_batches: int

    # Seconds of a step; without a flush, or if steps overlap, the period.
    step_seconds: float

    # Seconds per micro-batch.
    micro_batch_seconds: float

    # How much longer each sample takes than with the first of all, as a share.
    slower: float

    # Peak bytes of the device that is nearest to its limit.
    memory_bytes: Bytes

    # Bytes of that device that tensors may use.
    memory_limit: Bytes

    # Whether gradients are computed with the newest weights: pipelines without a flush use stale ones.
    trains_as_one_device: bool


class StrategyRow(_StrategyRow, total=False):
    """A strategy with a plan."""

    # Sharding level, if there are replicas that shard.
    sharding: Union[str, None]

    # Devices that share each layer, if they do.
    shared_by: Union[int, None]

    # Its schedule; absent if operators are split and there are no stages.
    schedule: Union[str, None]

    # Samples per micro-batch, if not the trace's.
    micro_batch_size: Union[int, None]

    # Samples per step, if the model's inputs tell them.
    samples: Union[int, None]

    # Samples per second, if the model's inputs tell them.
    samples_per_second: Union[float, None]

    # Tokens per second, if the model takes rows of them.
    tokens_per_second: Union[float, None]

    # Model FLOPs utilisation of the used devices.
    mfu: Union[float, None]

    # Share of the used devices' time in which they compute nothing; absent if operators are split.
    idle: Union[float, None]

    # Bytes that devices send each other in a step, summed; absent if operators are split, or if the step is too large
    # to simulate here.
    sent_bytes: Union[Bytes, None]

    # The parts of it that `train.py` cannot run; empty if it runs as planned.
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
    """The difference of one tensor."""

    # The first stage that holds the parameter.
    stage: Union[int, None]


class TiedPlace(TypedDict):
    """One holder of a tied parameter."""

    # The stage.
    stage: int

    # Its name in the original model.
    name: str


class TimeParts(TypedDict):
    """The parts of a device's step time, which sum to the step."""

    # Forward passes.
    forward: Seconds

    # Backward passes, whole or in parts.
    backward: Seconds

    # Recomputed forward passes.
    recompute: Seconds

    # Collectives that computation waits for.
    collective: Seconds

    # Copies and sends that computation waits for.
    copy: Seconds

    # Host overhead of launching operations.
    host: Seconds

    # Optimizer step.
    optimizer: Seconds

    # Idle time.
    idle: Seconds


class _TimesFrom(TypedDict):
    # The cost model: its data, or the data sheet.
    cost_model: str

    # Share of the predicted seconds by source: `measured`, `curve`, `scaled-curve` (a gradient by the curve of the
    # forward pass), `overhead` (a call without work), `host` (calls to an accelerator that take longer than the called
    # operator), `roofline` (a data sheet).
    shares: dict[str, float]


class TimesFrom(_TimesFrom, total=False):
    """The source of the times of a model's operators."""

    # Share of the predicted seconds from curves outside their fitted sizes, if any.
    outside: float

    # Other types of devices, with how many times as long every operator takes there: their whole model's time over that
    # of the first type.
    others: dict[str, float]


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

    # Statements that the trace has fixed although they depend on data, and other findings of tracing.
    trace_notes: list[str]


class UncheckedForm(TypedDict):
    """A format that was not compared."""

    # `torchscript` or `python`.
    form: str

    # The reason.
    reason: str


class _Verified(TypedDict):
    # Version of this answer.
    schema_version: int

    # True if every difference of every format is within its tolerance.
    ok: bool

    # The device.
    device: str

    # Training steps compared.
    steps: int

    # Largest absolute difference of an output.
    outputs_max_difference: float

    # Largest difference of a gradient, relative to the largest value of its tensor, or to a thousandth of the model's
    # largest gradient if that is more.
    gradients_max_difference: float

    # Largest difference of a loss, relative to the loss if that is more than 1.
    losses_max_difference: float

    # Number of parameters whose gradients were compared.
    gradients_compared: int

    # How many of these were exactly zero on both sides in every step: they prove little.
    gradients_zero: int

    # The worst tensors, outputs and gradients together.
    worst: list[TensorDifference]

    # Losses of each step: whole model, stages.
    losses: list[list[float]]

    # The compared formats.
    forms: list[VerifiedForm]

    # The formats in the folder that were not compared.
    unchecked: list[UncheckedForm]


class Verified(_Verified, total=False):
    """Answer of `verify`: the differences between the stages and the whole model, the worst of all formats."""

    # True when both sides ran in float64.
    float64: bool

    # The proof of one device's program, if devices share layers and the sources match the plan.
    proved: Union[Proved, None]

    # Why nothing was proven although devices share layers.
    unproved: Union[str, None]

    # The place of the first difference, if there is one and it was found.
    first_difference: Union[FirstDifference, None]


class _VerifiedExchange(TypedDict):
    # `forward` or `backward`.
    phase: str

    # `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all` or `point-to-point`.
    collective: str

    # Number of calls.
    calls: int

    # Bytes of the whole values; for point-to-point the sum of all messages.
    bytes: int


class VerifiedExchange(_VerifiedExchange, total=False):
    """The traffic of one kind of collective in a step."""

    # The plan's bytes; absent if the folder was written by a version that did not record them.
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
    """One format of the stages, compared with the whole model."""

    # Results of several processes, if stages are shared by several devices.
    shards: Union[VerifiedShards, None]


class _VerifiedShards(TypedDict):
    # Processes.
    ranks: int

    # Replicated outputs, gradients and buffers that were compared with the first process's.
    replicated_compared: int

    # Largest difference of these, relative to the tensor's largest value; 0 if they are bitwise equal.
    replicated_max_difference: float

    # Bytes exchanged in a step, by kind.
    exchanges: list[VerifiedExchange]


class VerifiedShards(_VerifiedShards, total=False):
    """Stages shared by several devices, run by one process each."""

    # The one that differs most.
    replicated_worst: Union[str, None]


class WhatIf(TypedDict):
    """A change of the cluster."""

    # The change, described.
    change: str

    # Seconds per micro-batch with it.
    seconds: float

    # Share by which each micro-batch is faster.
    gains: float
