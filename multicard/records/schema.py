"""The schema of a record: every key of result.json and environment.json, every column of steps.parquet.

Records are checked against it when they are written and decoded by it when they are read (`validate`). A key that an
older record lacks reads as None; one whose default is UNSET is in some records alone. docs/record.md is made of it
(`schema_page`).
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

SCHEMA_VERSION = 1

Scalar = str | int | float | bool | None


def doc(text: str) -> Meta:
    return Meta(description=text)


class Cause(Struct):
    """Why a run did not end ok."""

    kind: Annotated[
        str | None,
        doc("refused, oom, exception, signal, exit, node, disk, tracker, slurm, interrupt, timeout or preempted"),
    ] = None
    message: Annotated[str | None, doc("one line")] = None
    rank: Annotated[int | None, doc("the first rank to fail")] = None
    host: Annotated[str | None, doc("its node")] = None
    memory_bytes: Annotated[int | None, doc("bytes that the rank held when memory ran out")] = None
    log: Annotated[str | None, doc("the rank's log, relative to the run folder")] = None
    log_tail: Annotated[list[str], doc("its last lines")] = []


class Segment(Struct):
    """One start of a run. A run that was stopped and requeued has several; warm-up is counted in each."""

    started_at: Annotated[str | None, doc("UTC, ISO 8601")] = None
    ended_at: Annotated[str | None, doc("UTC, ISO 8601; null where nobody was left to write it")] = None
    end: Annotated[str | None, doc("ok, or the kind of `cause`; null where it was cut off")] = None
    job: Annotated[str | None, doc("SLURM's job id")] = None
    hosts: Annotated[list[str] | None, doc("nodes")] = None
    commit: Annotated[str | None, doc("of the code that ran")] = None
    first_step: Annotated[int, doc("the run's step that it began with, from 0")] = 0
    steps: Annotated[int | None, doc("steps trained in it; 0 where its work was not saved")] = None
    trained_s: Annotated[float | None, doc("seconds of training and evaluation")] = None


class Statistics(Struct):
    """Seconds of a step, which lasts until its slowest rank is done, over all steps after the warm-up."""

    mean: float | None = None
    median: float | None = None
    p95: Annotated[float | None, doc("95th percentile, linearly interpolated")] = None
    p99: float | None = None
    std: Annotated[float | None, doc("standard deviation (n - 1)")] = None
    count: Annotated[int | None, doc("steps measured")] = None
    warmup_count: Annotated[int | None, doc("steps left out as warm-up")] = None


class Memory(Struct):
    """Peak memory of a rank, bytes."""

    max: Annotated[int | None, doc("of the rank that held most")] = None
    per_rank: list[int | None] = []
    kind: Annotated[str | None, doc("cuda_allocated (torch's allocator) or rss (resident set of a CPU rank)")] = None
    setup: Annotated[int | UnsetType | None, doc("tuning: while the model was built")] = UNSET
    train: Annotated[int | UnsetType | None, doc("tuning: while it was trained")] = UNSET


class Parts(Struct):
    train: int | None = None
    evaluate: int | None = None


class Transfers(Struct):
    """Bytes between host and devices, summed over ranks."""

    h2d: Annotated[int | None, doc("host to device: batches of training and evaluation, and what was moved ahead")] = (
        None
    )
    h2d_images: Annotated[Parts | UnsetType, doc("training on images: bytes of images")] = UNSET
    h2d_labels: Annotated[Parts | UnsetType, doc("training on images: bytes of labels, in the same parts")] = UNSET
    h2d_setup: Annotated[Parts | UnsetType, doc("training on images: data sets moved before training")] = UNSET
    d2h: Annotated[int | None, doc("device to host: not counted")] = None
    d2d: Annotated[int | None, doc("device to device: not counted")] = None
    source: Annotated[str | None, doc("counted, and on CPU ranks what would cross to a device")] = None


class Communication(Struct):
    """Bytes that a rank receives in collectives while it trains (ring algorithms)."""

    all_gather: int | UnsetType = UNSET
    reduce_scatter: int | UnsetType = UNSET
    all_reduce: int | UnsetType = UNSET
    broadcast: int | UnsetType = UNSET
    per: Annotated[str | None, doc("rank")] = None
    source: Annotated[str | None, doc("computed from sizes and steps, or counted")] = None


class GpuPart(Struct):
    """What the sampler of one node saw during one start."""

    start: int | None = None
    node: int | None = None
    host: str | None = None
    covers: Annotated[str | None, doc("training or sampled")] = None
    spans_s: Annotated[list[list[float]], doc("from, to on the clock of gpu.parquet's time_s, seconds")] = []


class GpuDevice(Struct):
    """Energy and state of one GPU while it worked for the run; null where NVML gives none."""

    host: str | None = None
    uuid: str | None = None
    index: Annotated[int | None, doc("NVML's index")] = None
    name: str | UnsetType | None = UNSET
    samples: int | None = None
    energy_joules: float | None = None
    energy_source: Annotated[str | None, doc("counter (NVML's), or power_samples (integrated)")] = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    sm_clock_mean_mhz: float | None = None
    sm_clock_min_mhz: float | None = None
    memory_clock_mean_mhz: float | None = None
    temperature_max_c: float | None = None
    utilisation_mean: Annotated[float | None, doc("share of time with a kernel at work, 0 to 1")] = None
    throttle: Annotated[dict[str, float] | None, doc("share of samples by NVML's reason for lower clocks")] = None


class Disturber(Struct):
    """A foreign process on one of the run's GPUs while it was measured."""

    host: str | None = None
    gpu: Annotated[str | None, doc("the GPU's UUID")] = None
    pid: int | None = None
    name: str | None = None
    memory_bytes: Annotated[int | UnsetType | None, doc("the most it held")] = UNSET


class Gpu(Struct):
    """NVML's samples of the run's GPUs; the samples themselves are in gpu.parquet."""

    energy_joules: Annotated[float | None, doc("all GPUs together; null where one is not known")] = None
    covers: Annotated[str | None, doc("training (what total_s covers), or sampled (as long as ranks ran)")] = None
    sampling_s: Annotated[float | None, doc("seconds between two samples")] = None
    parts: Annotated[list[GpuPart], doc("one for each start and node")] = []
    devices: list[GpuDevice] = []
    disturbed_by: list[Disturber] = []
    problem: Annotated[str | None, doc("why figures are missing")] = None


class ProfileDerived(Struct):
    """What follows from a rank's events; null where they cannot tell."""

    gpu_busy_share: Annotated[float | None, doc("of window x devices")] = None
    compute_s: Annotated[float | None, doc("with a kernel at work that is none of NCCL's")] = None
    communication_s: Annotated[float | None, doc("with an NCCL kernel (CPU: gloo) at work")] = None
    exposed_communication_s: Annotated[float | None, doc("communication that no other kernel hid")] = None
    overlap_share: Annotated[float | None, doc("share of the communication hidden behind computing")] = None
    launch_gap_s: Annotated[float | None, doc("idle between a device's first and last operation")] = None
    blocked_s: Annotated[float | None, doc("host threads inside blocking CUDA calls, summed over threads")] = None


class ProfileRank(Struct):
    rank: int
    where: Annotated[str, doc("the profiler's file")]
    window_s: Annotated[float, doc("seconds from the first profiled step's start to the last one's end")]
    steps: Annotated[int | None, doc("profiled steps; null without step markers")]
    devices: list[int]
    derived: ProfileDerived


class ProfileRow(Struct):
    """One metric of one rank, or summed over all (rank null)."""

    rank: int | None
    group: Annotated[str, doc("derived, phase, api, copy, collective, kernel or annotation")]
    metric: str
    calls: Annotated[int | None, doc("null for what is no count of events")]
    total_s: float
    share: Annotated[float, doc("of the rank's window; above 1 where threads or devices add up")]
    bytes: int | None = None
    detail: str = ""
    mean_s: float | None = None


class ProfileCost(Struct):
    """What profiling cost: mean seconds of a step inside the profiled window and outside of it."""

    inside: float | None = None
    outside: float | None = None
    ratio: float | None = None


class ProfileCopies(Struct):
    """Bytes from host to device in the window, over all ranks."""

    counted_bytes: Annotated[int | None, doc("by the training loop")] = None
    profiled_bytes: Annotated[int | None, doc("by the profiler; null where it saw no device")] = None
    disagreement: Annotated[float | None, doc("(profiled - counted) / counted")] = None
    whole_run_bytes: Annotated[int | None, doc("profiled bytes scaled to all steps of the run")] = None
    source: str | None = None


class Profile(Struct):
    """The profiled steps; `error` alone where the profiler left nothing that can be read."""

    source: Annotated[str | UnsetType, doc("kineto or nsys")] = UNSET
    ranks: list[ProfileRank] | UnsetType = UNSET
    rows: Annotated[list[ProfileRow] | UnsetType, doc("20 kernels and annotations a rank at most")] = UNSET
    not_recorded: Annotated[list[str] | UnsetType, doc("CUDA calls that this profiler leaves out by design")] = UNSET
    files: Annotated[list[str] | UnsetType, doc("relative to the run folder")] = UNSET
    first_step: int | UnsetType = UNSET
    steps: Annotated[int | UnsetType, doc("profiled steps a rank")] = UNSET
    step_s: ProfileCost | UnsetType = UNSET
    h2d: ProfileCopies | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Diagnosis(Struct):
    """What bounds the run, from blocks of steps after it, each kind without one cost (ablations)."""

    bound: Annotated[str | None, doc("input, copy, communication, launch or compute")] = None
    sentence: Annotated[str | None, doc("the same in words, with the option to try next")] = None
    saves_s: Annotated[dict[str, float | None], doc("seconds a step that would be saved if a cost were free")] = {}
    step_s: Annotated[dict[str, float], doc("median seconds a step of each ablation")] = {}
    spread: Annotated[float | None, doc("of the whole step's rounds: (largest - smallest) / median")] = None
    rounds_s: Annotated[
        dict[str, list[float]], doc("seconds a step of each ablation and round, of the slowest rank")
    ] = {}


class VisionEpoch(Struct):
    """One epoch of training on images. Times are the slowest rank's, in seconds."""

    epoch: Annotated[int | None, doc("from 0")] = None
    train_s: float | None = None
    first_batch_s: Annotated[float | None, doc("until the first batch was there")] = None
    gap_s: Annotated[float | None, doc("from the end of the last epoch's training to the first batch")] = None
    evaluate_s: float | None = None
    ended_s: Annotated[float | None, doc("since the start of training")] = None
    train_loss: Annotated[float | None, doc("mean over the samples trained")] = None
    test_loss: float | None = None
    test_accuracy: Annotated[float | None, doc("share of test samples classified correctly, 0 to 1")] = None
    test_right: int | None = None
    test_samples: int | None = None
    samples: Annotated[int | None, doc("distinct samples of the epoch")] = None
    samples_trained: Annotated[int | None, doc("each time that one was trained on")] = None
    images_per_s: Annotated[float | None, doc("distinct samples by train_s")] = None


class LlmEpoch(Struct):
    """One epoch of tuning. Times are the slowest rank's, in seconds."""

    epoch: Annotated[int | None, doc("from 0")] = None
    steps: Annotated[int | None, doc("optimiser steps")] = None
    train_s: float | None = None
    ended_s: Annotated[float | None, doc("since the start of training")] = None
    train_loss: Annotated[float | None, doc("mean of rank 0's steps")] = None
    samples: Annotated[int | None, doc("rows, of all ranks")] = None


class Tokens(Struct):
    all: int | None = None
    non_padding: int | None = None
    loss_bearing: Annotated[int | None, doc("that the loss is computed on")] = None


class TokenRates(Struct):
    """Tokens a second."""

    all: float | None = None
    non_padding: float | None = None
    loss_bearing: float | None = None


class Loss(Struct):
    """Of all ranks, as rank 0 logs it."""

    first: float | None = None
    last: float | None = None
    mean_of_last_tenth: Annotated[float | None, doc("of the steps")] = None


class Rewards(Struct):
    """DPO's implicit rewards, means of the last tenth of the steps."""

    chosen: float | None = None
    rejected: float | None = None
    accuracy: Annotated[float | None, doc("share of pairs in the right order, 0 to 1")] = None
    margin: Annotated[float | None, doc("chosen - rejected")] = None


class Record(Struct, kw_only=True):
    """The keys that all runs have.

    A refused run, or one whose controller is gone, has the keys up to `axes` alone; figures of a run that did not end
    ok are of the epochs that it finished.
    """

    kind: ClassVar[str]

    schema_version: Annotated[int, doc("1")]
    name: Annotated[str | None, doc("of the sweep, or the run's parent folder")] = None
    job: Annotated[str | None, doc("SLURM's job id")] = None
    status: Annotated[str, doc("ok, oom, failed, timeout, preempted, interrupted or refused")]
    cause: Annotated[Cause | None, doc("null where the run ended ok")] = None
    started_at: Annotated[str | None, doc("UTC, ISO 8601")] = None
    axes: Annotated[dict[str, Scalar], doc("the settings that sweeps vary, as they were in force")]
    identity: Annotated[str | None, doc("8 hex digits of what is measured; equal means the same work")] = None
    config: Annotated[dict[str, Any], doc("the resolved configuration")] = {}
    ended_at: Annotated[str | None, doc("UTC, ISO 8601")] = None
    startup_s: Annotated[float | None, doc("seconds from the command, or the last run's end, to training")] = None
    total_s: Annotated[float | None, doc("seconds of training, evaluation included, over all segments")] = None
    peak_memory_bytes: Memory | None = None
    transfer_bytes: Transfers | None = None
    communication_bytes: Annotated[Communication | None, doc("null where it is not known")] = None
    parameters: Annotated[int | None, doc("of the model")] = None
    threads: Annotated[int | None, doc("of a rank")] = None
    segments: list[Segment] = []
    oversubscribed: Annotated[bool | None, doc("ranks shared a GPU")] = None
    gpu: Annotated[Gpu | None, doc("null on CPU ranks")] = None
    profile: Annotated[Profile | None, doc("of profile=kineto or nsys")] = None
    diagnosis: Annotated[Diagnosis | None, doc("of diagnose=true")] = None
    hardware: Annotated[str | None, doc("names of the GPUs, or the CPU's model")] = None
    commit: Annotated[str | None, doc("of the checkout; null outside of one")] = None
    dirty: Annotated[bool | None, doc("tracked files differed from the commit")] = None
    changes: Annotated[str | None, doc("8 hex digits of the difference")] = None

    @property
    def steps(self) -> Statistics | None:
        """Of a training run's steps, or a tuning run's iterations."""
        return None

    @property
    def hosts(self) -> str | None:
        """The nodes of all segments: "node1,node2"."""
        return ",".join(sorted({host for segment in self.segments for host in segment.hosts or ()})) or None

    @property
    def training_joules(self) -> float | None:
        """The energy of all GPUs while they trained; None where what was sampled covers more."""
        return self.gpu.energy_joules if self.gpu is not None and self.gpu.covers == "training" else None

    @property
    def received_bytes(self) -> int | None:
        """In collectives, a rank."""
        moved = self.communication_bytes
        if moved is None:
            return None
        counts = [moved.all_gather, moved.reduce_scatter, moved.all_reduce, moved.broadcast]
        known = [count for count in counts if isinstance(count, int)]
        return sum(known) if known else None

    @property
    def samples_trained(self) -> int | None:
        return None


class VisionRecord(Record, kw_only=True, tag_field="kind", tag="vision"):
    """The keys of a training run, beside those of all runs."""

    kind: ClassVar[str] = "vision"

    train_s: Annotated[float | None, doc("seconds of training alone, summed over epochs")] = None
    evaluate_s: Annotated[float | None, doc("seconds of evaluation, summed over epochs")] = None
    epochs: list[VisionEpoch] = []
    step_s: Statistics | None = None
    images_per_s: Annotated[
        float | None, doc("after the warm-up; a sample counts once an epoch, however often it was trained on")
    ] = None
    trained_images_per_s: Annotated[float | None, doc("the same, where a sample counts each time")] = None
    phases_s: Annotated[dict[str, float] | None, doc("mean seconds of each phase a step and rank")] = None
    joules_per_image: Annotated[float | None, doc("energy of all GPUs by images trained on")] = None
    test_accuracy: Annotated[float | None, doc("of the last epoch, 0 to 1")] = None
    time_to_target_s: Annotated[float | None, doc("seconds until target_accuracy was reached; null: never")] = None
    compile_s: Annotated[float | None, doc("seconds of torch.compile")] = None
    input: Annotated[dict[str, Any] | None, doc("facts of the loader and its cache, beside the configuration")] = None
    num_workers: Annotated[int | None, doc("loader workers a rank, in force")] = None

    @property
    def steps(self) -> Statistics | None:
        return self.step_s

    @property
    def samples_trained(self) -> int | None:
        """Of all epochs, each time that one was trained on; records of early versions have distinct samples alone."""
        return _sum(epoch.samples_trained for epoch in self.epochs) or _sum(epoch.samples for epoch in self.epochs)

    @property
    def test_samples(self) -> int | None:
        return self.epochs[-1].test_samples if self.epochs else None


class LlmRecord(Record, kw_only=True, tag_field="kind", tag="llm"):
    """The keys of a tuning run, beside those of all runs."""

    kind: ClassVar[str] = "llm"

    epochs: list[LlmEpoch] = []
    iteration_s: Annotated[Statistics | None, doc("of an optimiser step; keys as in step_s")] = None
    data_s: Annotated[float | None, doc("mean seconds of waiting for a batch, an iteration and rank")] = None
    tokens: Annotated[Tokens | None, doc("trained on, all ranks")] = None
    tokens_per_s: Annotated[TokenRates | None, doc("after the warm-up, all ranks")] = None
    joules_per_token: Annotated[float | None, doc("energy of all GPUs by non-padding tokens")] = None
    loss: Loss | None = None
    rewards: Annotated[Rewards | UnsetType | None, doc("method=dpo only")] = UNSET
    trainable_parameters: int | None = None
    nf4_tensors: Annotated[int | None, doc("weights held in NF4 (qlora)")] = None
    fake_quantised_linears: Annotated[int | None, doc("linear layers with fake quantisation (qat)")] = None
    flops_per_token: Annotated[float | None, doc("forward and backward, of all tokens")] = None
    mfu: Annotated[float | None, doc("model FLOPs as a share of the devices' peak, 0 to 1")] = None
    warmup_steps: Annotated[int | None, doc("of the learning rate, in force")] = None

    @property
    def steps(self) -> Statistics | None:
        return self.iteration_s

    @property
    def samples_trained(self) -> int | None:
        return _sum(epoch.samples for epoch in self.epochs)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


AnyRecord = VisionRecord | LlmRecord


class Git(Struct):
    commit: str | None = None
    dirty: Annotated[bool | None, doc("tracked files differ from the commit")] = None
    changes: Annotated[str | None, doc("8 hex digits of the difference")] = None


class Cpu(Struct):
    model: str | None = None
    cores: Annotated[int | None, doc("that the run may use")] = None
    cores_online: int | None = None
    memory_bytes: int | None = None


class EnvironmentGpu(Struct):
    """A visible GPU; null where NVML gives no figure."""

    uuid: str
    name: str | None = None
    memory_bytes: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    driver: str | None = None


class RankPlace(Struct):
    """Where a rank ran."""

    rank: int
    host: str
    device: Annotated[str, doc("the GPU's name, or cpu")]
    threads: int | None
    cpus: Annotated[str | None, doc('cores that it was bound to: "0-7,16-23"')]


class Environment(Struct, kw_only=True):
    """What the run ran on. `numa` and what follows it are known once the ranks have started."""

    recorded_at: Annotated[str | None, doc("UTC, ISO 8601")] = None
    host: Annotated[str | None, doc("of the controller")] = None
    git: Annotated[Git | None, doc("null outside of a checkout")] = None
    python: str | None = None
    packages: Annotated[dict[str, str | None], doc("versions; null where not installed")] = {}
    platform: str | None = None
    cpu: Cpu | None = None
    gpus: list[EnvironmentGpu] = []
    topology: Annotated[dict[str, Any] | None, doc("sockets, NUMA nodes, PCIe and NVLink between the GPUs")] = None
    cuda_visible_devices: str | None = None
    slurm: Annotated[dict[str, str], doc("the variables SLURM_JOB...")] = {}
    numa: Annotated[str | UnsetType | None, doc("node: ranks were bound to their GPU's NUMA node")] = UNSET
    malloc: Annotated[str | UnsetType, doc("the allocator's tuning in force")] = UNSET
    flags: Annotated[dict[str, Scalar] | UnsetType | None, doc("TF32, cuDNN and types in force")] = UNSET
    ranks: list[RankPlace] | UnsetType = UNSET


class CommonSteps(Struct):
    """One row a step and rank."""

    epoch: Annotated[int, doc("from 0")]
    rank: int
    step: Annotated[int, doc("of the epoch, from 0")]
    step_s: Annotated[float, doc("seconds of the whole step on this rank")]
    data_s: Annotated[float, doc("waiting for the batch (CUDA: the GPU's idle time until the host had it)")]
    loss: Annotated[float, doc("NaN where the rank knows none")]
    samples: Annotated[int, doc("trained on")]


class VisionSteps(CommonSteps):
    """Columns of a training run, beside those of all."""

    h2d_s: Annotated[float, doc("copying the batch to the device")]
    forward_s: float
    backward_s: Annotated[float, doc("with the exchange of gradients")]
    optimizer_s: float
    loaded: Annotated[int, doc("samples that the rank loaded; some strategies drop a part")]
    h2d_images_bytes: int
    h2d_labels_bytes: int


class LlmSteps(CommonSteps):
    """Columns of a tuning run, beside those of all. Reward columns are NaN unless method=dpo."""

    tokens: int
    non_padding: int
    loss_bearing: int
    attended: Annotated[int, doc("sum over tokens of their row's length: the work of attention")]
    h2d_bytes: int
    lr: Annotated[float, doc("learning rate")]
    rewards_chosen: float
    rewards_rejected: float
    rewards_accuracies: float


STEPS: dict[str, type[CommonSteps]] = {"vision": VisionSteps, "llm": LlmSteps}
