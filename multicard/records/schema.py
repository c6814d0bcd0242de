"""The schema of a record: every key of result.json.

A record is validated against these structs when it is written, and decoded with them when it is
read (`validate`). A key that an older record lacks reads as None. A key whose default is UNSET
appears only in the records that it applies to. `schema_page` makes docs/reference/record.md from
this file and those next to it, which have environment.json and the columns of steps.parquet.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from multicard.config import prices
from multicard.config.schema import nested_without_older
from multicard.records.arithmetic import Arithmetic
from multicard.records.schema_data import DataContent, HeldOut, Ignored, TextRows
from multicard.records.schema_parts import (
    Communication,
    Diagnosis,
    Divergence,
    Failure,
    Gpu,
    Limit,
    Load,
    Memory,
    Prediction,
    ProbeEnd,
    ProfileTable,
    SavedModel,
    Segment,
    Statistics,
    Transfers,
)
from multicard.records.schema_types import Count, Duration, Float, Int, Number, Scalar, Share

SCHEMA_VERSION = 1


class VisionEpoch(Struct):
    """One epoch of training on images. Times are the slowest rank's, in seconds."""

    epoch: Annotated[Count, "from 0"] = None
    steps: Annotated[Count, "fewer than probe.steps_per_epoch if a probe ended within it"] = None
    train_s: Number = None
    first_batch_s: Annotated[Number, "until the first batch arrived"] = None
    gap_s: Annotated[
        Number, "from the last evaluation to the first batch; null in an attempt's first epoch"
    ] = None
    evaluate_s: Number = None
    evaluate_first_batch_s: Annotated[Number, "until the first batch of the evaluation arrived"] = (
        None
    )
    ended_s: Annotated[Number, "time from the start of training to the end of the epoch"] = None
    train_loss: Annotated[Number, "mean over the samples that were trained on"] = None
    test_loss: Number = None
    test_accuracy: Annotated[Share, "share of test samples classified correctly, 0 to 1"] = None
    test_right: Count = None
    test_samples: Count = None
    samples: Annotated[Count, "distinct samples that were trained on"] = None
    samples_trained: Annotated[Count, "samples that were trained on, counting repeats"] = None
    images_per_s: Annotated[Number, "samples / train_s"] = None


class Epoch(Struct):
    """One epoch of tuning, or all steps of a script. Times are the slowest rank's, in seconds."""

    epoch: Annotated[Count, "from 0"] = None
    steps: Annotated[Count, "optimiser steps"] = None
    train_s: Number = None
    ended_s: Annotated[Number, "time from the start of training to the end of the epoch"] = None
    train_loss: Annotated[
        Number, "mean of rank 0's steps; for a script, of the ranks that reported a loss"
    ] = None
    samples: Annotated[
        Count, "over all ranks: rows, sequences if rows are packed, or a script's samples"
    ] = None


class TokenCounts(Struct):
    all: Annotated[Count, "including padding"] = None
    non_padding: Annotated[Count, "without padding"] = None
    loss_bearing: Annotated[Count, "tokens that the loss is computed on"] = None


class TokenRates(Struct):
    """Tokens per second."""

    all: Annotated[Number, "including padding"] = None
    non_padding: Annotated[Number, "without padding"] = None
    loss_bearing: Number = None


class Loss(Struct):
    """The loss over all ranks, as rank 0 logs it."""

    first: Number = None
    last: Number = None
    mean_of_last_tenth: Annotated[Number, "mean of the last tenth of the steps"] = None


class Rewards(Struct):
    """DPO's implicit rewards, each the mean of the last tenth of the steps."""

    chosen: Number = None
    rejected: Number = None
    accuracy: Annotated[Share, "share of pairs that are ranked correctly, 0 to 1"] = None
    margin: Annotated[Number, "chosen - rejected"] = None


class Record(Struct, kw_only=True):
    """The keys that all runs have.

    A refused run, or one whose controller died, has only the keys up to `repetition`. If a run did
    not end ok, its figures cover the epochs that it finished.
    """

    kind: ClassVar[str]
    steps_key: ClassVar[str]  # The key that holds the statistics of the steps.
    rate: ClassVar[str]  # The figure that gives the throughput.
    skips: ClassVar[str]  # The key that says how many steps the statistics leave out.
    # Axes that tables show even if all runs have the same value.
    always: ClassVar[tuple[str, ...]] = ("gpus",)
    # Figures by which runs are compared; the first known one counts. Empty stands for total_s.
    work_rates: ClassVar[tuple[str, ...]] = ()

    schema_version: Annotated[Int, "1"]
    name: Annotated[str | None, "name of the sweep, or of the run's parent folder"] = None
    job: Annotated[str | None, "SLURM's job id"] = None
    status: Annotated[str, "ok, oom, diverged, failed, timeout, preempted, interrupted or refused"]
    cause: Annotated[Failure | None, "null if the run ended ok"] = None
    started_at: Annotated[str | None, "UTC, ISO 8601"] = None
    axes: Annotated[dict[str, Scalar], "values of the settings that sweeps vary, as used"]
    repetition: Annotated[Count, "number of this measurement of its cell, from 1 (`repeat`)"] = None
    identity: Annotated[
        str | None, "8 hex digits that identify the measured work; equal means the same work"
    ] = None
    config: Annotated[dict[str, Any], "the resolved configuration"] = {}
    ended_at: Annotated[str | None, "UTC, ISO 8601"] = None
    startup_s: Annotated[
        Number, "seconds from the command, or from the previous run's end, to training"
    ] = None
    total_s: Annotated[Duration, "seconds of training, evaluation included, over all attempts"] = (
        None
    )
    compile_s: Annotated[Number, "seconds of torch.compile, before training"] = None
    cuda_graphs: Annotated[
        bool | None,
        "with compile=reduce-overhead or max-autotune: whether all code runs as CUDA graphs",
    ] = None
    cuda_graphs_recorded: Annotated[
        Count, "CUDA graphs that rank 0 held at the end; null if cuda_graphs is null"
    ] = None
    non_finite_losses: Annotated[
        Count, "number of NaN and infinite losses over all ranks and steps; null: not counted"
    ] = None
    divergence: Annotated[Divergence | None, "null if the last losses are finite"] = None
    peak_memory_bytes: Memory | None = None
    transfer_bytes: Transfers | None = None
    communication_bytes: Annotated[Communication | None, "null if it is not known"] = None
    parameters: Annotated[Count, "number of the model's parameters"] = None
    trainable_parameters: Annotated[Count, "number of parameters that are trained"] = None
    threads: Annotated[Count, "per rank"] = None
    segments: Annotated[list[Segment], "one entry per attempt"] = []
    oversubscribed: Annotated[bool | None, "true if ranks shared a GPU"] = None
    gpu: Annotated[Gpu | None, "null on CPU ranks"] = None
    profile: Annotated[ProfileTable | None, "with profile=kineto or nsys"] = None
    diagnosis: Annotated[Diagnosis | None, "with diagnose=true"] = None
    probe: Annotated[
        ProbeEnd | None, "with probe=true only; such a run does not count as a result"
    ] = None
    prediction: Annotated[Prediction | None, "null if no prediction was made"] = None
    data: Annotated[DataContent | None, "the data that the run was trained on"] = None
    ignored: Annotated[
        list[Ignored], "parts of the data that were not read, each with its count"
    ] = []
    cores: Annotated[Count, "number of cores of its first node that the run could use"] = None
    load: Annotated[Load | None, "load of other processes on its first node"] = None
    beside: Annotated[
        Count,
        "number of other runs of the sweep that were measured on one of its nodes at the same time",
    ] = None
    limits: Annotated[
        list[Limit],
        "facts that forbid certain statements about the run; derived if an older record has none",
    ] = []
    hardware: Annotated[str | None, "names of the GPUs, or the CPU's model"] = None
    commit: Annotated[str | None, "git commit of the checkout; null outside a checkout"] = None
    dirty: Annotated[bool | None, "true if tracked files differed from the commit"] = None
    changes: Annotated[str | None, "8 hex digits that identify this difference"] = None

    def __post_init__(self) -> None:
        self.config = nested_without_older(self.config)

    @property
    def is_probe(self) -> bool:
        probe = self.config.get("probe")  # The earliest records have no such key.
        return isinstance(probe, dict) and bool(probe.get("enabled"))

    @property
    def steps(self) -> Statistics | None:
        """The statistics of the times of the steps, which LLM runs call iterations."""
        return getattr(self, self.steps_key)

    @property
    def hosts(self) -> str | None:
        """The names of the nodes of all segments, as in "node1,node2"."""
        nodes = set(chain.from_iterable(segment.hosts or () for segment in self.segments))
        return ",".join(sorted(nodes)) or None

    @property
    def training_joules(self) -> float | None:
        """while the ranks trained; null if the samples cover more than the training"""
        return (
            self.gpu.energy_joules
            if self.gpu is not None and self.gpu.covers == "training"
            else None
        )

    @property
    def received_bytes(self) -> int | None:
        """by one rank, in collectives"""
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
        """The number of ranks on all nodes."""
        return int(self.axes.get("gpus") or 1) * int(self.axes.get("nodes") or 1)

    @property
    def steps_of_ranks(self) -> int | None:
        """optimiser steps of one rank, including the warm-up, times the number of ranks"""
        steps = _sum(epoch.steps for epoch in getattr(self, "epochs", ()))
        return None if steps is None else steps * self.ranks

    @property
    def cost(self) -> float | None:
        """price of a GPU hour x GPUs x hours of total_s, without start-up; null without a price
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
        """cost / finished epochs"""
        return self._cost_by(len(getattr(self, "epochs", ())))

    @property
    def cost_per_million_tokens(self) -> float | None:
        """cost / millions of non-padding tokens that were trained on"""
        tokens: TokenCounts | None = getattr(self, "tokens", None)
        return self._cost_by((tokens.non_padding or 0) / 1e6 if tokens else None)

    def _cost_by(self, amount: float | None) -> float | None:
        return self.cost / amount if self.cost is not None and amount else None


class VisionRecord(Record, kw_only=True, tag_field="kind", tag="vision"):
    """The keys that a run of train_vision.py has in addition to the common ones."""

    kind: ClassVar[str] = "vision"
    steps_key: ClassVar[str] = "step_s"
    rate: ClassVar[str] = "images_per_s"
    skips: ClassVar[str] = "warmup_steps"
    # no roles: these axes are columns of every table of vision records.
    always: ClassVar[tuple[str, ...]] = ("precision", "gpus")

    train_s: Annotated[Number, "seconds of training alone, summed over epochs"] = None
    evaluate_s: Annotated[Number, "seconds of evaluation, summed over epochs"] = None
    epochs: Annotated[list[VisionEpoch], "one entry per finished epoch"] = []
    step_s: Statistics | None = None
    images_per_s: Annotated[
        Number, "after the warm-up; a sample counts once per epoch, even if it is repeated"
    ] = None
    trained_images_per_s: Annotated[
        Number, "after the warm-up; a sample counts each time it is trained on"
    ] = None
    phases_s: Annotated[
        dict[str, Float] | None, "mean seconds of each phase, per step and rank"
    ] = None
    joules_per_image: Annotated[Number, "energy of all GPUs / images that were trained on"] = None
    test_accuracy: Annotated[Share, "after the last epoch, 0 to 1"] = None
    chance_accuracy: Annotated[
        Share, "accuracy of always answering the most frequent class of the test images"
    ] = None
    time_to_target_s: Annotated[
        Number, "seconds until target_accuracy was reached; null: never"
    ] = None
    input: Annotated[
        dict[str, Any] | None, "facts about the loader and its cache that the config does not have"
    ] = None
    num_workers: Annotated[Count, "loader workers per rank, as used"] = None
    saved: Annotated[
        SavedModel | None, "the model that `save` kept; null if none was asked for"
    ] = None

    @property
    def samples_trained(self) -> int | None:
        """over all epochs, counting repeats; records of early versions count distinct samples"""
        return _sum(epoch.samples_trained for epoch in self.epochs) or super().samples_trained

    @property
    def cost_per_thousand_images(self) -> float | None:
        """cost / thousands of images that were trained on; evaluation is part of the cost"""
        return self._cost_by((self.samples_trained or 0) / 1000)

    @property
    def evaluated_images_per_s(self) -> float | None:
        """test images of all epochs / seconds of evaluation"""
        images = _sum(epoch.test_samples for epoch in self.epochs)
        return images / self.evaluate_s if images and self.evaluate_s else None

    @property
    def test_samples(self) -> int | None:
        """in the last epoch"""
        return self.epochs[-1].test_samples if self.epochs else None


class LlmRecord(Record, kw_only=True, tag_field="kind", tag="llm"):
    """The keys that a run of tune_llm.py has in addition to the common ones."""

    kind: ClassVar[str] = "llm"
    steps_key: ClassVar[str] = "iteration_s"
    rate: ClassVar[str] = "tokens_per_s"
    skips: ClassVar[str] = "skip_steps"
    # no roles: these axes are columns of every table of LLM records.
    always: ClassVar[tuple[str, ...]] = ("method", "template", "gpus")
    work_rates: ClassVar[tuple[str, ...]] = ("tokens_per_s",)

    epochs: Annotated[list[Epoch], "one entry per finished epoch"] = []
    iteration_s: Annotated[Statistics | None, "times of the optimiser steps; keys as in step_s"] = (
        None
    )
    data_s: Annotated[Number, "mean seconds of waiting for a batch, per iteration and rank"] = None
    tokens: Annotated[TokenCounts | None, "trained on by all ranks"] = None
    tokens_per_s: Annotated[TokenRates | None, "after the warm-up, all ranks"] = None
    joules_per_token: Annotated[Number, "energy of all GPUs / non-padding tokens"] = None
    loss: Loss | None = None
    text_rows: TextRows | None = None
    rewards: Annotated[Rewards | UnsetType | None, "method=dpo only"] = UNSET
    nf4_tensors: Annotated[Count, "number of weights that are stored in NF4 (qlora)"] = None
    fake_quantised_linears: Annotated[
        Count, "number of linear layers with fake quantisation (qat)"
    ] = None
    attention_used: Annotated[
        str | None, "the attention implementation, by transformers' name; null with torchtune"
    ] = None
    eight_bit_share: Annotated[
        Share,
        "share of rank 0's trained values whose optimiser states have 8 bits; null with"
        " optimizer=adamw",
    ] = None
    late_graphs: Annotated[
        Count, "number of graphs that rank 0 compiled within its steps; null without compilation"
    ] = None
    flops_per_token: Annotated[
        Number, "forward and backward FLOPs per token, averaged over all tokens including padding"
    ] = None
    mfu: Annotated[
        Number, "model FLOPs of all tokens, including padding, / the devices' peak, 0 to 1"
    ] = None
    mfu_non_padding: Annotated[
        Number, "model FLOPs of non-padding tokens / the devices' peak; null in older records"
    ] = None
    arithmetic: Annotated[
        Arithmetic | None,
        "how much of a step the GPU's published rates explain; null if they are not known",
    ] = None
    warmup_steps: Annotated[Count, "warm-up steps of the learning rate, as used"] = None
    evaluate_s: Annotated[
        Number, "seconds of evaluation of held-out rows; null if none were held out"
    ] = None
    held_out: Annotated[HeldOut | None, "null if no rows were held out"] = None
    time_to_target_s: Annotated[Number, "seconds until target_loss was reached; null: never"] = None
    saved: Annotated[
        SavedModel | None, "the adapter or model that `save` kept; null if none was asked for"
    ] = None

    @property
    def held_out_loss(self) -> float | None:
        """in the last evaluation, in nats per labelled token; for pairs, the mean DPO loss"""
        evaluations = self.held_out.evaluations if self.held_out is not None else []
        return evaluations[-1].loss if evaluations else None

    @property
    def padding_share(self) -> float | None:
        """padding tokens / all tokens that were trained on, 0 to 1"""
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
        """rows trained on / rows available, per epoch; below 1: the last rows did not fill a
        step; above 1: two ranks trained on the same rows
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
        """for a million tokens, or a thousand samples of a script, at the rate after the warm-up;
        a script without known samples: a thousand tokens
        """
        rate = self.tokens_per_s and self.tokens_per_s.non_padding
        return 1e6 / rate if rate else None


class ScriptRecord(Record, kw_only=True, tag_field="kind", tag="script"):
    """The keys that a run of measure_script.py has in addition to the common ones.

    A step lasts from the end of the previous step to its own end, or as `multicard.step` marks it.
    `total_s` lasts from the script's first request for a batch to the end of the last step. It
    starts with the first step if the script requested no batch, and includes evaluations between
    steps.
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
        list[int], "steps, from 0, that follow an evaluation or whose start is unknown"
    ] = []
    evaluate_s: Annotated[
        Number,
        "seconds of evaluation: batches without gradients, or of other data; null: not known",
    ] = None
    data_s: Annotated[
        Number, "mean seconds of waiting for batches, per step and rank; null: not known"
    ] = None
    samples_per_s: Annotated[
        Number, "after the warm-up, all ranks; null if no batch could be counted"
    ] = None
    tokens: Annotated[
        TokenCounts | None, "non_padding: as the script reported them to multicard.step"
    ] = None
    tokens_per_s: Annotated[TokenRates | None, "reported tokens, after the warm-up"] = None
    batches_per_step: Annotated[
        Number, "median over the steps; above 1 if gradients are accumulated"
    ] = None
    loss: Annotated[Loss | None, "mean over the ranks that reported a loss; null: none did"] = None
    test_accuracy: Annotated[
        Share, "the last value that rank 0 passed to multicard.log(accuracy=...)"
    ] = None
    logged: Annotated[
        dict[str, Float], "the last value of each other name that rank 0 passed to multicard.log"
    ] = {}
    seen: Annotated[
        list[str], "what the hooks observed of the script, and what they could not observe"
    ] = []
    seen_codes: Annotated[list[str], "a code for each entry of `seen`, for programs"] = []
    trained: Annotated[
        str | None, "how the ranks trained: together, apart, divided or unknown; null: one rank"
    ] = None
    apart_by: Annotated[
        str | None, "evidence that the ranks trained apart: group, values or steps; else null"
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
