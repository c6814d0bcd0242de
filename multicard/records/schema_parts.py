"""The nested structs of a record: how it ended, amounts, energy, profile, diagnosis, prediction.

`schema` assembles them into records. A `Count` or `Number` may be None: null in JSON, for what is
not known. A field that is UNSET is left out of the JSON, because it does not concern the run.
"""

from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from multicard.messages import Message
from multicard.records.schema_data import DataContent
from multicard.records.schema_types import Count, Float, Int, Number


class Failure(Struct, frozen=True):
    """Why a run did not end ok. A `Message` passed as `message` also sets the code, the key and the
    facts.
    """

    kind: Annotated[
        str,
        "refused, launch, oom, exception, signal, exit, node, disk, tracker, record, slurm,"
        " interrupt, timeout, preempted, requeued or diverged",
    ] = ""
    message: Annotated[str, "one line"] = ""
    code: Annotated[
        str | None, "identifies the message, for programs; null if a library raised the error"
    ] = None
    key: Annotated[str | None, "the key of the configuration that has to change"] = None
    facts: Annotated[dict[str, Any], "values that the message mentions"] = {}
    rank: Annotated[Count, "the first rank that failed"] = None
    host: Annotated[str | None, "the node of this rank"] = None
    ran_out: Annotated[
        str | None,
        "which memory ran out: gpu or host; null for other causes and in older records",
    ] = None
    memory_bytes: Annotated[Count, "bytes that the rank held when memory ran out"] = None
    log: Annotated[str | None, "the rank's log, relative to the run folder"] = None
    log_tail: Annotated[tuple[str, ...], "the last lines of this log"] = ()

    def __post_init__(self) -> None:
        if isinstance(self.message, Message):
            for name, value in self.message.parts.items():
                if name != "sentence":
                    force_setattr(self, name, value)
            # A plain string is encoded without the hook that a Message needs.
            force_setattr(self, "message", str(self.message))


class SavedModel(Struct):
    """The model or adapter that a run saved, as its `save` key asks for."""

    form: Annotated[str, "as asked for: model, adapter or int4"] = ""
    folder: Annotated[str | None, "relative to the run folder; null if it could not be written"] = (
        None
    )
    bytes: Annotated[Count, "size of the weights"] = None
    save_s: Annotated[Number, "seconds of writing, after the training"] = None
    problem: Annotated[str | None, "why it could not be written, in one line"] = None


class Limit(Struct):
    """A fact that forbids certain statements about the run (`records.limits`)."""

    code: Annotated[str, "identifies the fact, as in loaded or trained-apart"]
    says: Annotated[str, "the fact in a sentence"] = ""
    forbids: Annotated[
        list[str], "rate, speed_up, learning, prediction or verdict; empty: nothing is forbidden"
    ] = []


class Divergence(Struct):
    """The step from which on all losses are non-finite, to the end of the run."""

    epoch: Annotated[Count, "from 0"] = None
    step: Annotated[Count, "number within the epoch, from 0"] = None
    rank: Annotated[Count, "null if only the loss of all ranks together is known (tuning)"] = None


class Segment(Struct):
    """What the record says of one attempt at a run: one start of its job.

    A requeued run has several attempts, each with a warm-up.
    """

    started_at: Annotated[str | None, "UTC, ISO 8601"] = None
    ended_at: Annotated[str | None, "UTC, ISO 8601; null if no process survived to write it"] = None
    end: Annotated[str | None, "ok, or cause.kind; null if the attempt was killed"] = None
    job: Annotated[str | None, "SLURM's job id"] = None
    hosts: Annotated[list[str] | None, "names of the nodes"] = None
    commit: Annotated[str | None, "git commit of the code that ran"] = None
    first_step: Annotated[Int, "the step of the run with which it began, from 0"] = 0
    steps: Annotated[Count, "steps that it trained; 0 if its work was not saved"] = None
    trained_s: Annotated[Number, "seconds of training and evaluation"] = None


class Attempt(Segment):
    """A segment with the controller's notes, which stay in segments.json until the record exists.

    Attributes:
        data: What the data set held.
        load: The load of other processes.
        beside: Number of other runs on the machine.
        prediction: The prediction that was made before the attempt.
    """

    saved_step: Annotated[
        Count, "step of the newest checkpoint, unless the attempt resumed from it"
    ] = None
    data: "DataContent | None" = None
    started_s: Annotated[Number, "when its start-up began, on the machine's clock"] = None
    failure: Failure | None = None
    load: "Load | None" = None
    beside: Count = None
    prediction: "Prediction | None" = None


class Load(Struct):
    """The load of other processes, on average from before the ranks started to their end."""

    seconds: Number = None
    others_cores: Annotated[Number, "cores of the run that were busy for other processes"] = None
    stolen_cores: Annotated[
        Number, "cores of the run that a hypervisor gave to other virtual machines"
    ] = None


class Statistics(Struct):
    """Seconds per step, over all steps after the warm-up except those in which a process stalled.

    Let T_k be the longest time that any rank took from the start of the epoch to the end of step k.
    Step k takes T_k - T_(k-1), so the steps add up to the epoch. Older records have the longest
    time of each step over the ranks, which adds up to more. The analysis derives their statistics
    anew from steps.parquet.
    """

    mean: Number = None
    median: Number = None
    p95: Annotated[Number, "95th percentile, linearly interpolated"] = None
    p99: Number = None
    std: Annotated[Number, "standard deviation (n - 1)"] = None
    count: Annotated[Count, "steps that the statistics cover"] = None
    warmup_count: Annotated[Count, "steps that were left out as warm-up"] = None
    stalled_count: Annotated[
        Count, "steps that were left out as stalled; null in older records"
    ] = None
    slow_steps: Annotated[
        list[Int],
        "steps of the run, from 0, that took over three times the median, also per token;"
        " rare ones, fewer than one in twenty, are not listed",
    ] = []
    definition: Annotated[str | UnsetType, "slowest rank's clock; absent in older records"] = UNSET

    @property
    def taken(self) -> int | None:
        """The number of all steps, including those left out; None if it is not known."""
        return (
            None
            if self.count is None
            else self.count + (self.warmup_count or 0) + (self.stalled_count or 0)
        )


class Memory(Struct):
    """Peak memory of the ranks, in bytes."""

    max: Annotated[Count, "peak of the rank that held most"] = None
    per_rank: list[Count] = []
    kind: Annotated[
        str | None, "cuda_allocated (torch's allocator, and CUDA graphs) or rss (CPU ranks)"
    ] = None
    per_gpu: Annotated[list[Int] | UnsetType, "strategy=dp: peak of each GPU of its one rank"] = (
        UNSET
    )
    setup: Annotated[Count | UnsetType, "tuning: peak while the model was built"] = UNSET
    train: Annotated[Count | UnsetType, "tuning: peak while it was trained"] = UNSET


class Parts(Struct, frozen=True):
    """A number of bytes, divided by what they were moved for."""

    train: Count = None
    evaluate: Count = None


class Transfers(Struct):
    """Bytes between host and devices, summed over ranks."""

    h2d: Annotated[
        Count, "host to device: batches of training and evaluation, and data sets moved beforehand"
    ] = None
    h2d_images: Annotated[Parts | UnsetType, "training on images: bytes of images"] = UNSET
    h2d_labels: Annotated[
        Parts | UnsetType, "training on images: bytes of labels, split like h2d_images"
    ] = UNSET
    h2d_setup: Annotated[
        Parts | UnsetType, "training on images: bytes of data sets moved before training"
    ] = UNSET
    d2h: Annotated[
        Count, "device to host, scaled from the profiled steps; only for runs profiled on GPUs"
    ] = None
    d2d: Annotated[Count, "within a device, scaled like d2h"] = None
    source: Annotated[
        str | None,
        "counted (on CPU ranks: bytes that would cross to a device); d2h and d2d are profiled",
    ] = None


class Communication(Struct):
    """Bytes that one rank receives in collectives during training, assuming ring algorithms. With
    `strategy=dp`, bytes that cross between the GPUs of its one rank.
    """

    all_gather: Int | UnsetType = UNSET
    reduce_scatter: Int | UnsetType = UNSET
    all_reduce: Int | UnsetType = UNSET
    broadcast: Int | UnsetType = UNSET
    scatter: Annotated[
        Int | UnsetType, "strategy=dp: images and gradients of outputs, to the other GPUs"
    ] = UNSET
    gather: Annotated[Int | UnsetType, "strategy=dp: outputs to the first GPU"] = UNSET
    reduce: Annotated[Int | UnsetType, "strategy=dp: gradients to the first GPU"] = UNSET
    per: Annotated[str | None, "rank"] = None
    source: Annotated[str | None, "computed from sizes and steps, or counted"] = None


class GpuPart(Struct):
    """Samples of one node during one attempt."""

    start: Annotated[Count, "the attempt's number, from 0"] = None
    node: Annotated[Count, "the node's number, from 0"] = None
    host: str | None = None
    covers: Annotated[str | None, "training or sampled"] = None
    spans_s: Annotated[
        list[list[Float]], "start and end of each span, in seconds as gpu.parquet's time_s"
    ] = []


class GpuDevice(Struct):
    """Energy and state of one GPU while it worked for the run; null if NVML provides none."""

    host: str | None = None
    uuid: str | None = None
    index: Annotated[Count, "NVML's index"] = None
    name: str | UnsetType | None = UNSET
    samples: Count = None
    energy_joules: Number = None
    energy_source: Annotated[
        str | None, "counter (NVML's), too short, or power_samples (older records)"
    ] = None
    power_mean_w: Number = None
    power_max_w: Number = None
    sm_clock_mean_mhz: Number = None
    sm_clock_min_mhz: Number = None
    memory_clock_mean_mhz: Number = None
    temperature_max_c: Number = None
    utilisation_mean: Annotated[Number, "share of the time in which a kernel ran, 0 to 1"] = None
    throttle: Annotated[
        dict[str, Float] | None, "share of samples by NVML's reason for lower clocks"
    ] = None
    missing: Annotated[
        dict[str, str] | UnsetType,
        "NVML's reason for a missing value, by column of gpu.parquet or processes",
    ] = UNSET


class Disturber(Struct):
    """A foreign process on one of the run's GPUs while it was measured."""

    host: str | None = None
    gpu: Annotated[str | None, "the GPU's UUID"] = None
    pid: Count = None
    name: str | None = None
    memory_bytes: Annotated[Count | UnsetType, "its highest memory use"] = UNSET


class Gpu(Struct):
    """NVML's samples of the run's GPUs; the samples themselves are in gpu.parquet."""

    energy_joules: Annotated[Number, "all GPUs together; null if any GPU's is not known"] = None
    covers: Annotated[
        str | None, "training (the time that total_s covers) or sampled (as long as ranks ran)"
    ] = None
    sampling_s: Annotated[Number, "seconds between two samples"] = None
    parts: Annotated[list[GpuPart], "one for each attempt and node"] = []
    devices: list[GpuDevice] = []
    disturbed_by: list[Disturber] = []
    problem: Annotated[str | None, "why values are missing"] = None


class ProfileDerived(Struct):
    """Figures derived from a rank's events; null if the events do not determine them."""

    gpu_busy_share: Annotated[Number, "share of window x devices in which the GPU worked"] = None
    compute_s: Annotated[Number, "time in which a kernel other than NCCL's ran"] = None
    communication_s: Annotated[Number, "time in which an NCCL kernel (CPU: gloo) ran"] = None
    exposed_communication_s: Annotated[Number, "communication during which no other kernel ran"] = (
        None
    )
    overlap_share: Annotated[Number, "share of the communication hidden behind computing"] = None
    launch_gap_s: Annotated[Number, "idle time between a device's first and last operation"] = None
    blocked_s: Annotated[
        Number, "time of host threads in blocking CUDA calls, summed over threads"
    ] = None


class ProfileRank(Struct):
    rank: Int
    where: Annotated[str, "the profiler's file that the events come from"]
    window_s: Annotated[
        Float, "seconds of the profiled steps, on the host or the device, whichever is longer"
    ]
    steps: Annotated[Count, "number of profiled steps; null without step markers"]
    devices: list[Int]
    derived: ProfileDerived


class ProfileRow(Struct):
    """One metric of one rank, or summed over all ranks (rank null)."""

    rank: Count
    group: Annotated[str, "derived, phase, api, copy, collective, kernel or annotation"]
    metric: str
    calls: Annotated[Count, "number of events; null if the metric is not a sum of events"]
    total_s: Float
    share: Annotated[Float, "share of the rank's window; above 1 if threads or devices add up"]
    bytes: Count = None
    detail: str = ""
    mean_s: Number = None

    def __post_init__(self) -> None:
        if self.calls:
            self.mean_s = self.total_s / self.calls


class ProfileCost(Struct):
    """Cost of profiling: mean seconds of a step inside and outside the profiled window."""

    inside: Number = None
    outside: Number = None
    ratio: Number = None


class ProfileCopies(Struct):
    """Bytes from host to device in the window, over all ranks."""

    counted_bytes: Annotated[Count, "as the training loop counted them"] = None
    profiled_bytes: Annotated[Count, "as the profiler saw them; null if it saw no device"] = None
    disagreement: Annotated[Number, "(profiled - counted) / counted"] = None
    whole_run_bytes: Annotated[
        Count, "scaled to all steps; null if a window from the start ended early"
    ] = None
    source: str | None = None


class ProfileTable(Struct):
    """The profiled steps; only `error` if the profiler left nothing readable."""

    source: Annotated[str | UnsetType, "kineto or nsys"] = UNSET
    ranks: list[ProfileRank] | UnsetType = UNSET
    rows: Annotated[list[ProfileRow] | UnsetType, "at most 20 kernels and annotations per rank"] = (
        UNSET
    )
    not_recorded: Annotated[
        list[str] | UnsetType, "CUDA calls that this profiler leaves out by design"
    ] = UNSET
    files: Annotated[list[str] | UnsetType, "relative to the run folder"] = UNSET
    first_step: Int | UnsetType = UNSET
    steps: Annotated[
        Int | UnsetType, "profiled steps per rank; with window=start, those of rank 0"
    ] = UNSET
    window: Annotated[
        str | UnsetType, "start: the training itself was profiled; absent: steps after it"
    ] = UNSET
    ended: Annotated[
        str | UnsetType, "what ended a window from the start: seconds, steps, budget or run"
    ] = UNSET
    step_s: Annotated[ProfileCost | UnsetType, "for steps after the training"] = UNSET
    h2d: ProfileCopies | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Diagnosis(Struct):
    """The bottleneck of the run, found by ablations: after the run, blocks of steps are repeated
    with one cost removed at a time.
    """

    bound: Annotated[
        str | None, "input, copy, communication, launch or compute; null: undecided"
    ] = None
    sentence: Annotated[str | None, "the bottleneck in words, with the option to try next"] = None
    finding: Annotated[str | None, "the largest cost and its share of a step, in words"] = None
    advice: Annotated[
        str | None, "the option to try next, ready to type if it is one key; null: undecided"
    ] = None
    saves_s: Annotated[
        dict[str, Float | None], "seconds per step that would be saved if a cost were free"
    ] = {}
    saves_spread_s: Annotated[
        dict[str, Float], "range of these savings over the rounds, by cost"
    ] = {}
    step_s: Annotated[dict[str, Float], "median seconds per step of each ablation"] = {}
    spread: Annotated[
        Number, "spread of the unchanged step over the rounds: (largest - smallest) / median"
    ] = None
    rounds_s: Annotated[
        dict[str, list[Float]], "seconds per step on the slowest rank, by ablation and round"
    ] = {}


class PredictedInterval(Struct):
    """A predicted figure, with its 90 % interval."""

    value: Float
    low: Float
    high: Float


class AsBusy(Struct):
    """Predicted times if other programs stay as busy as during the runs that the prediction rests
    on. Given only if others kept the cores busy during all of these runs, and about as busy just
    before this run started.
    """

    busy: Annotated[Float, "share of the run's cores that others used during those runs"]
    step_s: PredictedInterval
    total_s: Annotated[PredictedInterval | None, "as the record's total_s"] = None


class Prediction(Struct):
    """A prediction that was made before the run started; null if nothing was known."""

    basis: Annotated[
        str,
        "measured (this cell), probed, scaled (from similar cells), published (a prior), "
        "roofline (not measured: from the GPU's published rates) or unknown",
    ]
    runs: Annotated[Int, "number of records that the times rest on"] = 0
    about: Annotated[str, "basis in words; if unknown, the reason"] = ""
    step_s: PredictedInterval | None = None
    total_s: Annotated[PredictedInterval | None, "as the record's total_s"] = None
    energy_joules: Annotated[PredictedInterval | None, "of all GPUs during training"] = None
    memory_bytes: Annotated[
        PredictedInterval | None,
        "memory that the GPU of the most demanding rank must have; on CPU ranks, tensors only",
    ] = None
    active_bytes: Annotated[Count, "part of it that the run's tensors take"] = None
    allocated_bytes: Annotated[PredictedInterval | None, "as the record's peak_memory_bytes"] = None
    memory_basis: Annotated[str, "basis of the memory figures in words"] = ""
    fits: Annotated[str | None, "yes, tight or no; null if the GPU's memory is not known"] = None
    gpu_memory_bytes: Annotated[Count, "memory of the GPU, on which `fits` depends"] = None
    marks: Annotated[
        str,
        "marks, as in tables, of the runs that the times rest on; ? if they scale better than"
        " linearly",
    ] = ""
    as_busy: Annotated[AsBusy | None, "null if it is not known, and in older records"] = None


class ProbeEnd(Struct):
    """How a run with probe=true ended, and its mean step.

    The mean leaves out the warm-up and the first step of each epoch, which waits for the first
    batch (`epochs.first_batch_s`). All other keys of the record describe the probe, not the run
    that it stands for: `total_s`, `train_s`, `evaluate_s`, `tokens` and the energy are those of a
    short run. The last epoch may have fewer steps than `steps_per_epoch`, and is evaluated
    nonetheless. `compile_s` and `startup_s` are as in any run.

    A cell of a race evaluates one batch per rank (`epochs.test_samples`). Its `compile_s` and
    `startup_s` are measured while other cells start too. Its energy is not known, because others
    train while it pauses.
    """

    ended_by: Annotated[
        str,
        "error (the mean step was known well enough), seconds (probe.seconds had passed), run (all"
        " epochs were done) or race (it was a cell of one)",
    ]
    steps: Annotated[Int, "number of steps in the mean"]
    warmup_steps: Annotated[
        Int, "steps after the run's first that were detected as warm-up (MSER-5)"
    ]
    step_s: Annotated[Float, "mean of the steps, seconds"]
    half_width: Annotated[
        Number,
        "relative half-width of its 95 % confidence interval; null: too few steps, or a drift",
    ]
    steps_per_epoch: Annotated[Count, "steps of a whole epoch of the run"] = None
