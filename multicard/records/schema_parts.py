"""The parts of a record that `schema` puts together: memory, bytes, energy, profile, diagnosis."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

from multicard.messages import Message

MOST = 10**18  # beyond any figure: sums and powers of what is larger are no numbers
# seeds have 63 bits
Scalar = str | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | bool | None
Int = Annotated[int, Meta(ge=-MOST, le=MOST)]
Float = Annotated[float, Meta(ge=-MOST, le=MOST)]
Count = Int | None
Number = Float | None
Share = Annotated[float, Meta(ge=0, le=1)] | None
Duration = Annotated[float, Meta(ge=1e-9, le=MOST)] | None  # of which others are multiples


def described(hint: Any) -> tuple[list[Any], str]:
    """The types of a key, those of a union one by one, and what its annotation says of it."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        types, text = described(inner)
        return types, next((note for note in notes if isinstance(note, str)), text)
    if get_origin(hint) in (Union, UnionType):
        kinds = []
        for part in get_args(hint):
            kinds.extend(described(part)[0])
        return kinds, ""
    return [hint], ""


class Cause(Struct, frozen=True):
    """Why a run did not end ok. A `Message` as its `message` brings its code,
    its key and its facts.
    """

    kind: Annotated[
        str,
        "refused, launch, oom, exception, signal, exit, node, disk, tracker, record, slurm,"
        " interrupt, timeout, preempted, requeued or diverged",
    ] = ""
    message: Annotated[str, "one line"] = ""
    code: Annotated[
        str | None, "what the message says, as programs read it; null of libraries' errors"
    ] = None
    key: Annotated[str | None, "the key of the configuration that has to change"] = None
    facts: Annotated[dict[str, Any], "values in the message"] = {}
    rank: Annotated[Count, "the first rank to fail"] = None
    host: Annotated[str | None, "its node"] = None
    ran_out: Annotated[
        str | None, "memory of the gpu or of the host; null of other causes and in older records"
    ] = None
    memory_bytes: Annotated[Count, "bytes that the rank held when memory ran out"] = None
    log: Annotated[str | None, "the rank's log, relative to the run folder"] = None
    log_tail: Annotated[tuple[str, ...], "its last lines"] = ()

    def __post_init__(self) -> None:
        if isinstance(self.message, Message):
            for name, value in self.message.parts.items():
                if name != "sentence":
                    force_setattr(self, name, value)
            # plain text, which is written as it is
            force_setattr(self, "message", str(self.message))


class SavedModel(Struct):
    """What a run kept of what it trained, by its `save` key."""

    form: Annotated[str, "as asked for: model, adapter or int4"] = ""
    folder: Annotated[
        str | None, "relative to the run folder; null where it could not be written"
    ] = None
    bytes: Annotated[Count, "of the weights"] = None
    save_s: Annotated[Number, "seconds of writing, after the training"] = None
    problem: Annotated[str | None, "why it could not be written, in a line"] = None


class Limit(Struct):
    """A fact that forbids to say something of the run (`records.limits`)."""

    code: Annotated[str, "of the fact, as loaded or trained-apart"]
    says: Annotated[str, "the fact in a sentence"] = ""
    forbids: Annotated[
        list[str], "rate, speed_up, learning, prediction or verdict; empty: nothing"
    ] = []


class Divergence(Struct):
    """Where the losses begin that are not finite up to the end."""

    epoch: Annotated[Count, "from 0"] = None
    step: Annotated[Count, "of the epoch, from 0"] = None
    rank: Annotated[Count, "null where only the loss of all ranks together is known (tuning)"] = (
        None
    )


class TextRows(Struct):
    """Rows of text before they are packed, and what `max_seq_len` did to them."""

    read: Annotated[Count, "all of the data set, or of its sample"] = None
    cut: Annotated[Count, "cut, for being longer than max_seq_len; a pair counts once"] = None
    left_out: Annotated[
        Count,
        "of those cut: no label remained, none in one answer of a pair, or both answers became the"
        " same",
    ] = None
    broken: Annotated[
        Count, "not read: dataset.skip_broken leaves them out; null without that key"
    ] = None
    equal: Annotated[Count, "pairs not read: both answers are the same; null of other rows"] = None
    last_alone: Annotated[
        Count,
        "of several answers only the last is learnt, as the chat template rewrites an answer once"
        " others follow",
    ] = None
    sequences: Annotated[Count, "into which the others are packed; null of rows as they are"] = None


class Evaluation(Struct):
    """One evaluation of the held-out rows, over all ranks; each row counts once."""

    epoch: Annotated[Count, "from 0"] = None
    step: Annotated[Count, "optimiser steps that the run had taken, over all epochs"] = None
    evaluate_s: Annotated[Number, "seconds, the slowest rank's"] = None
    ended_s: Annotated[Number, "since the start of training, evaluations included"] = None
    loss: Annotated[Number, "mean over all labelled tokens in nats; of pairs, mean DPO loss"] = None
    ranked_right: Annotated[
        Share, "share of pairs whose chosen answer has the higher reward; else null"
    ] = None
    margin: Annotated[
        Number, "mean of the chosen answer's reward minus the rejected one's; else null"
    ] = None


class InInt4Loss(Struct):
    """The held-out rows with int4 weights and int8 activations,
    as torchao converts the model after training.
    """

    loss: Annotated[
        Number, "mean over all labelled tokens in nats; null where it is not finite"
    ] = None
    groupsize: Annotated[Count, "weights that share a scale"] = None
    evaluate_s: Annotated[Number, "seconds, which no time of the run has"] = None


class HeldOut(Struct):
    """Rows that were not trained on, and how well the model predicts them."""

    rows: Annotated[Count, "rows or pairs that are evaluated"] = None
    tokens: Annotated[Count, "labelled tokens of these rows"] = None
    also_trained: Annotated[
        Count, "of the rows, those that are equal to a row that is trained on"
    ] = None
    evaluations: Annotated[
        list[Evaluation], "one entry after each epoch, and each `eval_steps`"
    ] = []
    in_int4: Annotated[InInt4Loss | None, "after the last, of method=qat and full; else null"] = (
        None
    )
    int4_problem: Annotated[
        str | None, "why a rank could not score the rows in int4, in a line"
    ] = None


class Ignored(Struct):
    """What is there beside the data that was read, and was not read itself."""

    what: Annotated[
        str,
        "files by their ending, a folder, a column or a key of messages, as .heic, notes/, id or"
        " messages.name",
    ]
    count: Annotated[Int, "of files, or of rows that have it"]


class Segment(Struct):
    """One attempt at a run: a start of its job. A run that was requeued has several;
    warm-up is counted in each.
    """

    started_at: Annotated[str | None, "UTC, ISO 8601"] = None
    ended_at: Annotated[str | None, "UTC, ISO 8601; null where nobody was left to write it"] = None
    end: Annotated[str | None, "ok, or cause.kind; null where it was cut off"] = None
    job: Annotated[str | None, "SLURM's job id"] = None
    hosts: Annotated[list[str] | None, "nodes"] = None
    commit: Annotated[str | None, "of the code that ran"] = None
    first_step: Annotated[Int, "the run's step that it began with, from 0"] = 0
    steps: Annotated[Count, "steps trained in it; 0 where its work was not saved"] = None
    trained_s: Annotated[Number, "seconds of training and evaluation"] = None


class Attempt(Segment):
    """A segment with what the controller notes of it in
    segments.json until the record is written.
    """

    saved_step: Annotated[
        Count, "step of the newest checkpoint, unless the attempt resumed from it"
    ] = None
    data: "DataContent | None" = None
    started_s: Annotated[Number, "begin of its start-up, on the machine's clock"] = None
    failure: Cause | None = None
    load: "Load | None" = None
    beside: Count = None
    prediction: "Prediction | None" = None


class RepeatedImages(Struct):
    """Images that are in the data more than once, by their file or their bytes,
    of those that the run meets.
    """

    in_both: Annotated[Int, "images that are tested on and trained on too"]
    two_labels: Annotated[Int, "images that have another label elsewhere"]
    tested: Annotated[Int, "images that are tested on"]
    compared: Annotated[
        Int, "images that were compared with all others; fewer than all where that is too much"
    ]
    images: Annotated[Int, "all"]

    @property
    def share_in_both(self) -> float:
        """Of the images that are tested on, those that are trained on too."""
        return self.in_both / self.tested if self.tested else 0.0


class DataContent(Struct):
    """The content of the data, wherever it lies: names, sizes and bytes; of over 64 MiB or 1,024
    files, the bytes of evenly spaced pieces (`multicard/records/content.py`).
    """

    fingerprint: Annotated[str, "12 hex digits of all parts; equal means the same data"]
    parts: Annotated[
        dict[str, str], "digits of dataset, decoding (photographs), tokenizer and weights"
    ]
    bytes: Annotated[Int, "of all parts"]
    hashed_bytes: Annotated[Int, "of them, those that the digits cover"]
    changed: Annotated[
        str | None, "the parts that differed when the ranks had ended: they may have read both"
    ] = None
    repeated: Annotated[
        RepeatedImages | None, "of dataset=images; null where they were not compared"
    ] = None


class Load(Struct):
    """Load of other processes from before the ranks started until they had ended,
    in busy cores on average.
    """

    seconds: Number = None
    others_cores: Annotated[Number, "of the run's cores, busy for other processes"] = None
    stolen_cores: Annotated[Number, "of the run's cores, which a hypervisor gave to others"] = None


class Statistics(Struct):
    """Seconds of a step, over all steps after the warm-up but those in which a process stood still.

    By the slowest rank's clock, step k takes T_k - T_(k-1), where T_k is the longest that any rank
    took from the start of the epoch to the end of step k: the steps add up to the epoch. Older
    records have each step's longest over the ranks, which add up to more; the analysis derives
    theirs anew from steps.parquet.
    """

    mean: Number = None
    median: Number = None
    p95: Annotated[Number, "95th percentile, linearly interpolated"] = None
    p99: Number = None
    std: Annotated[Number, "standard deviation (n - 1)"] = None
    count: Annotated[Count, "steps measured"] = None
    warmup_count: Annotated[Count, "steps left out as warm-up"] = None
    stalled_count: Annotated[Count, "steps left out as stalled; null in older records"] = None
    slow_steps: Annotated[
        list[Int],
        "of the run, from 0: over three times the median, for their tokens too, where one in"
        " twenty is",
    ] = []
    definition: Annotated[str | UnsetType, "slowest rank's clock; absent in older records"] = UNSET

    @property
    def taken(self) -> int | None:
        """The number of all steps, with those left out; None where it is not known."""
        return (
            None
            if self.count is None
            else self.count + (self.warmup_count or 0) + (self.stalled_count or 0)
        )


class Memory(Struct):
    """Peak memory of a rank, bytes."""

    max: Annotated[Count, "of the rank that held most"] = None
    per_rank: list[Count] = []
    kind: Annotated[
        str | None, "cuda_allocated (torch's allocator, and CUDA graphs) or rss (of a CPU rank)"
    ] = None
    per_gpu: Annotated[list[Int] | UnsetType, "strategy=dp: of each GPU of its one rank"] = UNSET
    setup: Annotated[Count | UnsetType, "tuning: while the model was built"] = UNSET
    train: Annotated[Count | UnsetType, "tuning: while it was trained"] = UNSET


class Parts(Struct, frozen=True):
    train: Count = None
    evaluate: Count = None


class Transfers(Struct):
    """Bytes between host and devices, summed over ranks."""

    h2d: Annotated[
        Count, "host to device: batches of training and evaluation, and data sets moved before"
    ] = None
    h2d_images: Annotated[Parts | UnsetType, "training on images: bytes of images"] = UNSET
    h2d_labels: Annotated[
        Parts | UnsetType, "training on images: bytes of labels, split like h2d_images"
    ] = UNSET
    h2d_setup: Annotated[
        Parts | UnsetType, "training on images: bytes of data sets moved before training"
    ] = UNSET
    d2h: Annotated[
        Count, "device to host: of a run profiled on GPUs, scaled from its profiled steps"
    ] = None
    d2d: Annotated[Count, "within a device, scaled like d2h"] = None
    source: Annotated[
        str | None, "counted, on CPU ranks what would cross to a device; d2h and d2d profiled"
    ] = None


class Communication(Struct):
    """Bytes that a rank receives in collectives while it trains (ring algorithms); of
    `strategy=dp`, bytes that cross between the GPUs of its one rank.
    """

    all_gather: Int | UnsetType = UNSET
    reduce_scatter: Int | UnsetType = UNSET
    all_reduce: Int | UnsetType = UNSET
    broadcast: Int | UnsetType = UNSET
    scatter: Annotated[
        Int | UnsetType, "strategy=dp: images, and gradients of outputs, to further GPUs"
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
        list[list[Float]], "from, to on the clock of gpu.parquet's time_s, seconds"
    ] = []


class GpuDevice(Struct):
    """Energy and state of one GPU while it worked for the run; null where NVML gives none."""

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
    utilisation_mean: Annotated[Number, "share of time with a kernel at work, 0 to 1"] = None
    throttle: Annotated[
        dict[str, Float] | None, "share of samples by NVML's reason for lower clocks"
    ] = None
    missing: Annotated[
        dict[str, str] | UnsetType, "NVML's reason, by column of gpu.parquet or processes"
    ] = UNSET


class Disturber(Struct):
    """A foreign process on one of the run's GPUs while it was measured."""

    host: str | None = None
    gpu: Annotated[str | None, "the GPU's UUID"] = None
    pid: Count = None
    name: str | None = None
    memory_bytes: Annotated[Count | UnsetType, "the most it held"] = UNSET


class Gpu(Struct):
    """NVML's samples of the run's GPUs; the samples themselves are in gpu.parquet."""

    energy_joules: Annotated[Number, "all GPUs together; null where one is not known"] = None
    covers: Annotated[
        str | None, "training (what total_s covers), or sampled (as long as ranks ran)"
    ] = None
    sampling_s: Annotated[Number, "seconds between two samples"] = None
    parts: Annotated[list[GpuPart], "one for each attempt and node"] = []
    devices: list[GpuDevice] = []
    disturbed_by: list[Disturber] = []
    problem: Annotated[str | None, "why figures are missing"] = None


class ProfileDerived(Struct):
    """Figures derived from a rank's events; null where they cannot tell."""

    gpu_busy_share: Annotated[Number, "of window x devices"] = None
    compute_s: Annotated[Number, "with a kernel at work that is none of NCCL's"] = None
    communication_s: Annotated[Number, "with an NCCL kernel (CPU: gloo) at work"] = None
    exposed_communication_s: Annotated[Number, "communication that no other kernel hid"] = None
    overlap_share: Annotated[Number, "share of the communication hidden behind computing"] = None
    launch_gap_s: Annotated[Number, "idle between a device's first and last operation"] = None
    blocked_s: Annotated[Number, "host threads inside blocking CUDA calls, summed over threads"] = (
        None
    )


class ProfileRank(Struct):
    rank: Int
    where: Annotated[str, "the profiler's file that its events are from"]
    window_s: Annotated[
        Float, "seconds of the profiled steps on the host, or on the device where that takes longer"
    ]
    steps: Annotated[Count, "profiled steps; null without step markers"]
    devices: list[Int]
    derived: ProfileDerived


class ProfileRow(Struct):
    """One metric of one rank, or summed over all (rank null)."""

    rank: Count
    group: Annotated[str, "derived, phase, api, copy, collective, kernel or annotation"]
    metric: str
    calls: Annotated[Count, "null for what is no count of events"]
    total_s: Float
    share: Annotated[Float, "of the rank's window; above 1 where threads or devices add up"]
    bytes: Count = None
    detail: str = ""
    mean_s: Number = None

    def __post_init__(self) -> None:
        if self.calls:
            self.mean_s = self.total_s / self.calls


class ProfileCost(Struct):
    """Cost of profiling: mean seconds of a step inside the profiled window and outside of it."""

    inside: Number = None
    outside: Number = None
    ratio: Number = None


class ProfileCopies(Struct):
    """Bytes from host to device in the window, over all ranks."""

    counted_bytes: Annotated[Count, "by the training loop"] = None
    profiled_bytes: Annotated[Count, "by the profiler; null where it saw no device"] = None
    disagreement: Annotated[Number, "(profiled - counted) / counted"] = None
    whole_run_bytes: Annotated[
        Count, "scaled to all steps; null where a window from the start ended early"
    ] = None
    source: str | None = None


class ProfileTable(Struct):
    """The profiled steps; `error` alone where the profiler left nothing that can be read."""

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
    steps: Annotated[Int | UnsetType, "profiled steps per rank; from the start, of rank 0"] = UNSET
    window: Annotated[
        str | UnsetType, "start: the training itself was profiled; absent: steps after it"
    ] = UNSET
    ended: Annotated[
        str | UnsetType, "what ended a window from the start: seconds, steps, budget or run"
    ] = UNSET
    step_s: Annotated[ProfileCost | UnsetType, "of steps after the training"] = UNSET
    h2d: ProfileCopies | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Diagnosis(Struct):
    """The limit of the run, from blocks of steps after it,
    each kind without one cost (ablations).
    """

    bound: Annotated[
        str | None, "input, copy, communication, launch or compute; null: undecided"
    ] = None
    sentence: Annotated[str | None, "the same in words, with the option to try next"] = None
    finding: Annotated[str | None, "the largest cost and its share of a step, in words"] = None
    advice: Annotated[
        str | None, "the option to try next, as it is typed if it is one key; null: undecided"
    ] = None
    saves_s: Annotated[
        dict[str, Float | None], "seconds per step that would be saved if a cost were free"
    ] = {}
    saves_spread_s: Annotated[
        dict[str, Float], "range over the rounds of what each cost saves in one"
    ] = {}
    step_s: Annotated[dict[str, Float], "median seconds per step of each ablation"] = {}
    spread: Annotated[Number, "of the whole step's rounds: (largest - smallest) / median"] = None
    rounds_s: Annotated[
        dict[str, list[Float]], "seconds per step of each ablation and round, of the slowest rank"
    ] = {}


class PredictedInterval(Struct):
    """A predicted figure, with its 90 % interval."""

    value: Float
    low: Float
    high: Float


class AsBusy(Struct):
    """Times if others stay as busy as during the runs that a prediction rests on: given where
    others kept the cores busy during all of these runs, and about as busy just before the run
    started.
    """

    busy: Annotated[Float, "share of the run's cores that others had during those runs"]
    step_s: PredictedInterval
    total_s: Annotated[PredictedInterval | None, "as the record's total_s"] = None


class Prediction(Struct):
    """Prediction for the run, made before it started; null where nothing was known."""

    basis: Annotated[
        str,
        "measured (this cell), probed, scaled (from similar cells), published (a prior), "
        "roofline (not measured: by the GPU's published rates) or unknown",
    ]
    runs: Annotated[Int, "records that the times rest on"] = 0
    about: Annotated[str, "what it rests on, in words; of unknown: why"] = ""
    step_s: PredictedInterval | None = None
    total_s: Annotated[PredictedInterval | None, "as the record's total_s"] = None
    energy_joules: Annotated[PredictedInterval | None, "of all GPUs while they train"] = None
    memory_bytes: Annotated[
        PredictedInterval | None,
        "that the GPU must have, of the rank that takes most; of CPU ranks that of tensors alone",
    ] = None
    active_bytes: Annotated[Count, "of it, those of the run's tensors alone"] = None
    allocated_bytes: Annotated[PredictedInterval | None, "as the record's peak_memory_bytes"] = None
    memory_basis: Annotated[str, "what the memory rests on, in words"] = ""
    fits: Annotated[str | None, "yes, tight or no; null where the GPU's memory is not known"] = None
    gpu_memory_bytes: Annotated[Count, "by which it fits"] = None
    marks: Annotated[
        str, "of the runs that the times rest on, as tables have them; ? where they beat linear"
    ] = ""
    as_busy: Annotated[AsBusy | None, "null where that is not known, and in older records"] = None


class ProbeEnd(Struct):
    """How a run with probe=true ended, and its mean step.

    The mean leaves out the first step of each epoch, which waits for the first batch
    (`epochs.first_batch_s`), and the warm-up. All other keys of the record are of what the probe
    itself did: `total_s`, `train_s`, `evaluate_s`, `tokens` and the energy are not those of a whole
    run. Its last epoch may have fewer steps than `steps_per_epoch`; it is evaluated all the same.
    `compile_s` and `startup_s` are as of any run. A cell of a race evaluates one batch a rank
    (`epochs.test_samples`), its `compile_s` and `startup_s` are beside other cells that start, and
    its energy is not known, as others train while it pauses.
    """

    ended_by: Annotated[
        str,
        "error (its mean step was known), seconds, run (all its epochs), or race (a cell of one)",
    ]
    steps: Annotated[Int, "that the mean is of"]
    warmup_steps: Annotated[
        Int, "that were found to be warm-up (MSER-5), after the run's first step"
    ]
    step_s: Annotated[Float, "mean of the steps, seconds"]
    half_width: Annotated[Number, "of its 95 % interval, relative; null: too few steps, or a drift"]
    steps_per_epoch: Annotated[Count, "that the whole run takes each epoch"] = None
