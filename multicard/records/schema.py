"""The schema of a record: every key of result.json and environment.json,
every column of steps.parquet.

Records are checked against it when they are written and decoded by it when they are read
(`validate`). A key that an older record lacks reads as None; one whose default is UNSET is in some
records alone. docs/reference/record.md is made of it (`schema_page`).
"""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from multicard.config import prices
from multicard.config.schema import nested_without_older
from multicard.records.arithmetic import Arithmetic
from multicard.records.schema_parts import (
    Cause,
    Communication,
    Count,
    DataContent,
    Diagnosis,
    Divergence,
    Duration,
    Float,
    Gpu,
    HeldOut,
    Ignored,
    Int,
    Limit,
    Load,
    Memory,
    Number,
    Prediction,
    ProbeEnd,
    ProfileTable,
    SavedModel,
    Scalar,
    Segment,
    Share,
    Statistics,
    TextRows,
    Transfers,
)

SCHEMA_VERSION = 1


class VisionEpoch(Struct):
    """One epoch of training on images. Times are the slowest rank's, in seconds."""

    epoch: Annotated[Count, "from 0"] = None
    steps: Annotated[Count, "fewer than probe.steps_per_epoch where a probe ended"] = None
    train_s: Number = None
    first_batch_s: Annotated[Number, "until the first batch was there"] = None
    gap_s: Annotated[
        Number, "from the last evaluation to the first batch; null in an attempt's first epoch"
    ] = None
    evaluate_s: Number = None
    evaluate_first_batch_s: Annotated[
        Number, "until the first batch of the evaluation was there"
    ] = None
    ended_s: Annotated[Number, "since the start of training"] = None
    train_loss: Annotated[Number, "mean over the samples trained"] = None
    test_loss: Number = None
    test_accuracy: Annotated[Share, "share of test samples classified correctly, 0 to 1"] = None
    test_right: Count = None
    test_samples: Count = None
    samples: Annotated[Count, "distinct samples of the epoch"] = None
    samples_trained: Annotated[Count, "each time that one was trained on"] = None
    images_per_s: Annotated[Number, "distinct samples by train_s"] = None


class Epoch(Struct):
    """One epoch of tuning, or all steps of a script. Times are the slowest rank's, in seconds."""

    epoch: Annotated[Count, "from 0"] = None
    steps: Annotated[Count, "optimiser steps"] = None
    train_s: Number = None
    ended_s: Annotated[Number, "since the start of training"] = None
    train_loss: Annotated[
        Number, "mean of rank 0's steps; of a script's, of the ranks that told one"
    ] = None
    samples: Annotated[
        Count, "rows, sequences of packed rows, or a script's samples, of all ranks"
    ] = None


class TokenCounts(Struct):
    all: Annotated[Count, "padding too"] = None
    non_padding: Annotated[Count, "without padding"] = None
    loss_bearing: Annotated[Count, "that the loss is computed on"] = None


class TokenRates(Struct):
    """Tokens per second."""

    all: Annotated[Number, "padding too"] = None
    non_padding: Annotated[Number, "without padding"] = None
    loss_bearing: Number = None


class Loss(Struct):
    """The loss over all ranks, as rank 0 logs it."""

    first: Number = None
    last: Number = None
    mean_of_last_tenth: Annotated[Number, "of the steps"] = None


class Rewards(Struct):
    """DPO's implicit rewards, means of the last tenth of the steps."""

    chosen: Number = None
    rejected: Number = None
    accuracy: Annotated[Share, "share of pairs in the right order, 0 to 1"] = None
    margin: Annotated[Number, "chosen - rejected"] = None


class Record(Struct, kw_only=True):
    """The keys that all runs have.

    A refused run, or one whose controller is gone, has only the keys up to `repetition`; figures of
    a run that did not end ok are of the epochs that it finished.
    """

    kind: ClassVar[str]
    steps_key: ClassVar[str]  # key of the statistics of its steps
    rate: ClassVar[str]  # figure of its throughput
    skips: ClassVar[str]  # key of the steps that statistics leave out
    always: ClassVar[tuple[str, ...]] = ("gpus",)  # axes that tables show though they do not differ
    # figures by which runs are compared, the first known; (): total_s
    work_rates: ClassVar[tuple[str, ...]] = ()

    schema_version: Annotated[Int, "1"]
    name: Annotated[str | None, "of the sweep, or the run's parent folder"] = None
    job: Annotated[str | None, "SLURM's job id"] = None
    status: Annotated[str, "ok, oom, diverged, failed, timeout, preempted, interrupted or refused"]
    cause: Annotated[Cause | None, "null where the run ended ok"] = None
    started_at: Annotated[str | None, "UTC, ISO 8601"] = None
    axes: Annotated[dict[str, Scalar], "the settings that sweeps vary, as used"]
    repetition: Annotated[Count, "which measurement of the same cell, from 1 (`repeat`)"] = None
    identity: Annotated[
        str | None, "8 hex digits of what is measured; equal means the same work"
    ] = None
    config: Annotated[dict[str, Any], "the resolved configuration"] = {}
    ended_at: Annotated[str | None, "UTC, ISO 8601"] = None
    startup_s: Annotated[
        Number, "seconds from the command, or the previous run's end, to training"
    ] = None
    total_s: Annotated[Duration, "seconds of training, evaluation included, over all attempts"] = (
        None
    )
    compile_s: Annotated[Number, "seconds of torch.compile, before training"] = None
    cuda_graphs: Annotated[
        bool | None, "compile=reduce-overhead or max-autotune: all code runs as CUDA graphs"
    ] = None
    cuda_graphs_recorded: Annotated[
        Count, "CUDA graphs of rank 0 at the end; null as cuda_graphs"
    ] = None
    non_finite_losses: Annotated[
        Count, "NaN and infinite losses of all ranks and steps; null: not counted"
    ] = None
    divergence: Annotated[Divergence | None, "null where the last losses are finite"] = None
    peak_memory_bytes: Memory | None = None
    transfer_bytes: Transfers | None = None
    communication_bytes: Annotated[Communication | None, "null where it is not known"] = None
    parameters: Annotated[Count, "of the model"] = None
    trainable_parameters: Annotated[Count, "of these, those that are trained"] = None
    threads: Annotated[Count, "per rank"] = None
    segments: Annotated[list[Segment], "one entry per attempt"] = []
    oversubscribed: Annotated[bool | None, "ranks shared a GPU"] = None
    gpu: Annotated[Gpu | None, "null on CPU ranks"] = None
    profile: Annotated[ProfileTable | None, "of profile=kineto or nsys"] = None
    diagnosis: Annotated[Diagnosis | None, "of diagnose=true"] = None
    probe: Annotated[ProbeEnd | None, "of probe=true alone, whose runs are no results"] = None
    prediction: Annotated[Prediction | None, "null where none was made"] = None
    data: Annotated[DataContent | None, "what it was trained on"] = None
    ignored: Annotated[
        list[Ignored], "parts of the data that were not read, each with its count"
    ] = []
    cores: Annotated[Count, "of its first node that the run could use"] = None
    load: Annotated[Load | None, "of other processes on its first node"] = None
    beside: Annotated[
        Count, "other runs of the sweep that were measured on one of its nodes at the same time"
    ] = None
    limits: Annotated[
        list[Limit],
        "what forbids to say something of it; of older records it follows from the rest",
    ] = []
    hardware: Annotated[str | None, "names of the GPUs, or the CPU's model"] = None
    commit: Annotated[str | None, "of the checkout; null outside of one"] = None
    dirty: Annotated[bool | None, "tracked files differed from the commit"] = None
    changes: Annotated[str | None, "8 hex digits of the difference"] = None

    def __post_init__(self) -> None:
        self.config = nested_without_older(self.config)

    @property
    def is_probe(self) -> bool:
        probe = self.config.get("probe")  # an early version had none
        return isinstance(probe, dict) and bool(probe.get("enabled"))

    @property
    def steps(self) -> Statistics | None:
        """Times of a training run's or a script's steps, or a tuning run's iterations."""
        return getattr(self, self.steps_key)

    @property
    def hosts(self) -> str | None:
        """The nodes of all segments: "node1,node2"."""
        nodes = set(chain.from_iterable(segment.hosts or () for segment in self.segments))
        return ",".join(sorted(nodes)) or None

    @property
    def training_joules(self) -> float | None:
        """while they trained; null where what was sampled covers more"""
        return (
            self.gpu.energy_joules
            if self.gpu is not None and self.gpu.covers == "training"
            else None
        )

    @property
    def received_bytes(self) -> int | None:
        """by a rank, in collectives"""
        moved = self.communication_bytes
        if moved is None:
            return None
        known = [count for count in astuple(moved) if isinstance(count, int)]
        return sum(known) if known else None

    @property
    def samples_trained(self) -> int | None:
        return _sum(epoch.samples for epoch in getattr(self, "epochs", ()))

    @property
    def ranks(self) -> int:
        """on all nodes"""
        return int(self.axes.get("gpus") or 1) * int(self.axes.get("nodes") or 1)

    @property
    def steps_of_ranks(self) -> int | None:
        """of the optimiser, the warm-up's too: of a rank, times the ranks"""
        steps = _sum(epoch.steps for epoch in getattr(self, "epochs", ()))
        return None if steps is None else steps * self.ranks

    @property
    def cost(self) -> float | None:
        """price of a GPU hour x GPUs x hours of total_s, without start-up; null without a price,
        and on CPU ranks
        """
        on_gpus = self.axes.get("device") == "cuda" and not self.oversubscribed
        price = prices.gpu_hour(self.config, self.hardware) if on_gpus else None
        return (
            None
            if price is None or self.total_s is None
            else price * self.ranks * self.total_s / 3600
        )

    @property
    def cost_per_epoch(self) -> float | None:
        """cost by finished epochs"""
        return self._cost_by(len(getattr(self, "epochs", ())))

    @property
    def cost_per_million_tokens(self) -> float | None:
        """cost by non-padding tokens trained on"""
        tokens: TokenCounts | None = getattr(self, "tokens", None)
        return self._cost_by((tokens.non_padding or 0) / 1e6 if tokens else None)

    def _cost_by(self, amount: float | None) -> float | None:
        return self.cost / amount if self.cost is not None and amount else None


class VisionRecord(Record, kw_only=True, tag_field="kind", tag="vision"):
    """The keys of a training run, beside those of all runs."""

    kind: ClassVar[str] = "vision"
    steps_key: ClassVar[str] = "step_s"
    rate: ClassVar[str] = "images_per_s"
    skips: ClassVar[str] = "warmup_steps"
    # no roles: columns of every table of these records
    always: ClassVar[tuple[str, ...]] = ("precision", "gpus")

    train_s: Annotated[Number, "seconds of training alone, summed over epochs"] = None
    evaluate_s: Annotated[Number, "seconds of evaluation, summed over epochs"] = None
    epochs: Annotated[list[VisionEpoch], "one entry per finished epoch"] = []
    step_s: Statistics | None = None
    images_per_s: Annotated[Number, "after the warm-up; a sample counts once per epoch"] = None
    trained_images_per_s: Annotated[Number, "after the warm-up; a sample counts each time"] = None
    phases_s: Annotated[
        dict[str, Float] | None, "mean seconds of each phase, per step and rank"
    ] = None
    joules_per_image: Annotated[Number, "energy of all GPUs by images trained on"] = None
    test_accuracy: Annotated[Share, "of the last epoch, 0 to 1"] = None
    chance_accuracy: Annotated[
        Share, "of always answering the most frequent class of the test images"
    ] = None
    time_to_target_s: Annotated[
        Number, "seconds until target_accuracy was reached; null: never"
    ] = None
    input: Annotated[
        dict[str, Any] | None, "facts of the loader and its cache, beside the configuration"
    ] = None
    num_workers: Annotated[Count, "loader workers per rank, as used"] = None
    saved: Annotated[
        SavedModel | None, "the model that `save` kept; null where it was not asked for"
    ] = None

    @property
    def samples_trained(self) -> int | None:
        """of all epochs, each time that one was trained on;
        distinct ones in records of early versions
        """
        return _sum(epoch.samples_trained for epoch in self.epochs) or super().samples_trained

    @property
    def cost_per_thousand_images(self) -> float | None:
        """cost by images trained on, evaluation included"""
        return self._cost_by((self.samples_trained or 0) / 1000)

    @property
    def evaluated_images_per_s(self) -> float | None:
        """test images of all epochs by the time of their evaluations"""
        images = _sum(epoch.test_samples for epoch in self.epochs)
        return images / self.evaluate_s if images and self.evaluate_s else None

    @property
    def test_samples(self) -> int | None:
        """of the last epoch"""
        return self.epochs[-1].test_samples if self.epochs else None


class LlmRecord(Record, kw_only=True, tag_field="kind", tag="llm"):
    """The keys of a tuning run, beside those of all runs."""

    kind: ClassVar[str] = "llm"
    steps_key: ClassVar[str] = "iteration_s"
    rate: ClassVar[str] = "tokens_per_s"
    skips: ClassVar[str] = "skip_steps"
    # no roles: columns of every table of these records
    always: ClassVar[tuple[str, ...]] = ("method", "template", "gpus")
    work_rates: ClassVar[tuple[str, ...]] = ("tokens_per_s",)

    epochs: Annotated[list[Epoch], "one entry per finished epoch"] = []
    iteration_s: Annotated[Statistics | None, "of an optimiser step; keys as in step_s"] = None
    data_s: Annotated[Number, "mean seconds of waiting for a batch, per iteration and rank"] = None
    tokens: Annotated[TokenCounts | None, "trained on, all ranks"] = None
    tokens_per_s: Annotated[TokenRates | None, "after the warm-up, all ranks"] = None
    joules_per_token: Annotated[Number, "energy of all GPUs by non-padding tokens"] = None
    loss: Loss | None = None
    text_rows: TextRows | None = None
    rewards: Annotated[Rewards | UnsetType | None, "method=dpo only"] = UNSET
    nf4_tensors: Annotated[Count, "weights held in NF4 (qlora)"] = None
    fake_quantised_linears: Annotated[Count, "linear layers with fake quantisation (qat)"] = None
    attention_used: Annotated[
        str | None, "what computed it, by transformers' name; null with torchtune"
    ] = None
    eight_bit_share: Annotated[
        Share,
        "of rank 0's trained values, those whose optimiser states have 8 bits; null with"
        " optimizer=adamw",
    ] = None
    late_graphs: Annotated[
        Count, "graphs that rank 0 compiled within its steps; null where none are compiled"
    ] = None
    flops_per_token: Annotated[Number, "forward and backward, of all tokens, padding too"] = None
    mfu: Annotated[
        Number, "model FLOPs of all tokens, padding too, as a share of the devices' peak, 0 to 1"
    ] = None
    mfu_non_padding: Annotated[
        Number, "the same of tokens that are no padding; null in older records"
    ] = None
    arithmetic: Annotated[
        Arithmetic | None,
        "what of a step the GPU's published rates explain; null where they are not known",
    ] = None
    warmup_steps: Annotated[Count, "of the learning rate, as used"] = None
    evaluate_s: Annotated[
        Number, "seconds of evaluation of held-out rows; null where none were held out"
    ] = None
    held_out: Annotated[HeldOut | None, "null where no rows were held out"] = None
    time_to_target_s: Annotated[Number, "seconds until target_loss was reached; null: never"] = None
    saved: Annotated[
        SavedModel | None, "the adapter or model that `save` kept; null where it was not asked for"
    ] = None

    @property
    def held_out_loss(self) -> float | None:
        """the last evaluation's, in nats a labelled token; of pairs, the mean DPO loss"""
        evaluations = self.held_out.evaluations if self.held_out is not None else []
        return evaluations[-1].loss if evaluations else None

    @property
    def padding_share(self) -> float | None:
        """of all tokens that were trained on, those that are padding, 0 to 1"""
        tokens = self.tokens or TokenCounts()
        return (
            1 - tokens.non_padding / tokens.all
            if tokens.all and tokens.non_padding is not None
            else None
        )

    @property
    def held_out_rows(self) -> int | None:
        return self.held_out.rows if self.held_out is not None else None

    @property
    def rows_share(self) -> float | None:
        """of those there in each epoch: below 1, some fill no whole step; above 1,
        two ranks train on some
        """
        rows = self.text_rows or TextRows()
        there = (
            (rows.read or 0) - (rows.left_out or 0) if rows.sequences is None else rows.sequences
        )
        return (
            (self.samples_trained or 0) / (there * len(self.epochs))
            if there and self.epochs
            else None
        )

    @property
    def pace_s(self) -> float | None:
        """of a million tokens, of a script of a thousand samples, or tokens where no samples are
        known, at the rate after the warm-up
        """
        rate = self.tokens_per_s and self.tokens_per_s.non_padding
        return 1e6 / rate if rate else None


class ScriptRecord(Record, kw_only=True, tag_field="kind", tag="script"):
    """The keys of a run of a script, beside those of all runs.

    A step lasts from the end of the one before to its own, or as `multicard.step` marks it.
    `total_s` lasts from the first batch that was asked for, or the first step where none was, to
    the end of the last step; evaluations between steps are part of it.
    """

    kind: ClassVar[str] = "script"
    steps_key: ClassVar[str] = "step_s"
    rate: ClassVar[str] = "samples_per_s"
    skips: ClassVar[str] = "warmup_steps"
    work_rates: ClassVar[tuple[str, ...]] = ("samples_per_s", "tokens_per_s")

    epochs: Annotated[list[Epoch], "one entry: all steps of the run"] = []
    step_s: Annotated[Statistics | None, "after the warm-up, without the steps in `left_out`"] = (
        None
    )
    left_out: Annotated[
        list[int], "steps, from 0, with an evaluation before them or an unknown start"
    ] = []
    evaluate_s: Annotated[
        Number,
        "seconds of evaluation: batches without gradients, or of other data; null: not known",
    ] = None
    data_s: Annotated[
        Number, "mean seconds of waiting for batches, per step and rank; null: not known"
    ] = None
    samples_per_s: Annotated[
        Number, "after the warm-up, all ranks; null where no batch could be counted"
    ] = None
    tokens: Annotated[
        TokenCounts | None, "non_padding: as the script told them by multicard.step"
    ] = None
    tokens_per_s: Annotated[TokenRates | None, "after the warm-up, of the tokens told"] = None
    batches_per_step: Annotated[
        Number, "median over steps: above 1 where gradients are accumulated"
    ] = None
    loss: Annotated[Loss | None, "mean over the ranks that told one; null: none was told"] = None
    test_accuracy: Annotated[Share, "the last that multicard.log(accuracy=...) told on rank 0"] = (
        None
    )
    logged: Annotated[
        dict[str, Float], "the last value of each other name that multicard.log told on rank 0"
    ] = {}
    seen: Annotated[list[str], "what the hooks saw of the script, and what they could not see"] = []
    seen_codes: Annotated[list[str], "the code of each of `seen`, by which programs know it"] = []
    trained: Annotated[
        str | None, "how ranks trained: together, apart, divided or unknown; null: one rank"
    ] = None
    apart_by: Annotated[
        str | None, "what shows that they trained apart: group, values or steps; else null"
    ] = None

    @property
    def pace_s(self) -> float | None:
        tokens_per_s = self.tokens_per_s and self.tokens_per_s.non_padding
        rate = self.samples_per_s or tokens_per_s
        return 1e3 / rate if rate else None


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


AnyRecord = VisionRecord | LlmRecord | ScriptRecord


class CommonSteps(Struct):
    """One row per step and rank."""

    epoch: Annotated[int, "from 0"]
    rank: int
    step: Annotated[int, "of the epoch, from 0"]
    step_s: Annotated[float, "seconds of the whole step on this rank"]
    data_s: Annotated[
        float, "waiting for the batch (CUDA: the GPU's idle time until the host had it)"
    ]
    loss: Annotated[float, "NaN where the rank knows none"]
    samples: Annotated[int, "trained on"]


class VisionSteps(CommonSteps):
    """Columns of a training run, beside those of all."""

    h2d_s: Annotated[
        float,
        "copying the batch to the device; beside the step, only what the GPU still waited for",
    ]
    forward_s: float
    backward_s: Annotated[float, "with the exchange of gradients"]
    optimizer_s: float
    loaded: Annotated[int, "samples that the rank loaded; some strategies drop a part"]
    h2d_images_bytes: int
    h2d_labels_bytes: int


class LlmSteps(CommonSteps):
    """Columns of a tuning run, beside those of all. Reward columns are NaN unless method=dpo."""

    tokens: int
    non_padding: int
    loss_bearing: int
    attended: Annotated[
        int, "sum over tokens of their row's length, packed or not: the work of attention"
    ]
    attended_non_padding: Annotated[int, "the same without padding; absent in older records"]
    h2d_bytes: Annotated[
        int, "of the batch; packed=true: with each token's row number, or the mask on an old GPU"
    ]
    lr: Annotated[float, "learning rate with which the step was taken"]
    grad_norm: Annotated[
        float, "of all gradients, before clipping; NaN: torchtune without clip_grad_norm"
    ]
    rewards_chosen: float
    rewards_rejected: float
    rewards_accuracies: float


class ScriptSteps(CommonSteps):
    """Columns of a run of a script, beside those of all. `epoch` is 0; without a DataLoader
    `data_s` is 0, and NaN where another thread than that of the training draws its batches.
    """

    tokens: Annotated[int, "as the script told them"]
    batches: Annotated[int, "handed out for the step"]
    loss_told: Annotated[int, "1 where the script told the loss, else 0"]


STEPS: dict[str, type[CommonSteps]] = {
    "vision": VisionSteps,
    "llm": LlmSteps,
    "script": ScriptSteps,
}
