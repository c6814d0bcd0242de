"""Summarise a tuning run for result.json, from the ranks' reports and steps."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from multicard.config.llm import AXES, LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.placement import Placement
from multicard.llm import methods, step_work
from multicard.machine import gpu_models
from multicard.machine.gpu_models import peak_flops_per_s
from multicard.measure import formulas
from multicard.records.arithmetic import Arithmetic
from multicard.records.rank_files import LlmReport, ModelSizes, of_ended_epochs, peak_memory
from multicard.records.schema import Epoch, LlmRecord, Loss, Rewards, TokenCounts, TokenRates
from multicard.records.schema_data import Evaluation, HeldOut
from multicard.records.schema_parts import Communication, Divergence, Segment, Transfers
from multicard.records.steps import Counted
from multicard.run.workload import settings

FIELDS_FROM_RANK_0 = (
    "text_rows",
    "parameters",
    "trainable_parameters",
    "nf4_tensors",
    "fake_quantised_linears",
    "warmup_steps",
    "threads",
    "saved",
    "attention_used",
    "eight_bit_share",
    "late_graphs",
)
TOKEN_COLUMNS = {"all": "tokens", "non_padding": "non_padding", "loss_bearing": "loss_bearing"}


def axes(config: Any, device: str) -> dict[str, Any]:
    """Return the settings by which runs are compared.

    For a refused run, `config` may be the composed configuration, which is not typed.
    """
    values = settings(config, AXES)
    if isinstance(config, LlmConfig):
        values |= {"recipe": config.recipe_name, "template": config.template_name}
    return values | {"device": device}


def summarise(
    record: LlmRecord,
    config: LlmConfig,
    placement: Placement,
    ranks: Sequence[LlmReport],
    steps: Any,
) -> None:
    """Fill in the figures of a run, complete or cut short.

    Args:
        record: The record to fill in. Its `gpu` is already set.
        ranks: The ranks' reports, in the order of the ranks.
        steps: The steps of all ranks (an Arrow table), or None if no epoch ended.
    """
    ended_epochs, table = of_ended_epochs(steps, ranks)
    record.epochs = epochs = [_epoch(index, ranks, table) for index in range(ended_epochs)]
    record.total_s = epochs[-1].ended_s if epochs else None
    # A stopped tuning run starts anew, so it is always measured in one piece.
    record.segments = [
        Segment(steps=sum(epoch.steps or 0 for epoch in epochs), trained_s=record.total_s)
    ]
    record.held_out = held_out(ranks, ended_epochs)
    evaluations = [] if record.held_out is None else record.held_out.evaluations
    if evaluations:
        record.evaluate_s = sum(evaluation.evaluate_s or 0.0 for evaluation in evaluations)
    record.time_to_target_s = _time_to_target_s(evaluations, config.target_loss)
    _fill_in_rates(record, table)
    if record.training_joules is not None and record.tokens and record.tokens.non_padding:
        record.joules_per_token = record.training_joules / record.tokens.non_padding
    pairs = methods.chosen(config).pairs
    record.loss = Loss()
    record.rewards = Rewards() if pairs else UNSET
    if table and len(table["loss"]):
        # Rank 0 logs the loss over all ranks.
        logged = {name: column[table["rank"] == 0] for name, column in table.items()}
        losses = logged["loss"]
        record.loss = Loss(float(losses[0]), float(losses[-1]), _last_tenth(losses))
        record.non_finite_losses, record.divergence = _non_finite_losses(logged, len(ranks), pairs)
        record.divergence = record.divergence or _diverged_when_held_out(evaluations, record.epochs)
        record.rewards = _rewards(logged) if pairs else UNSET
    record.peak_memory_bytes = peak_memory(ranks, placement.device)
    record.peak_memory_bytes.setup = (
        max((rank.setup_peak_memory_bytes or 0 for rank in ranks), default=0) or None
    )
    record.peak_memory_bytes.train = (
        max((rank.train_peak_memory_bytes or 0 for rank in ranks), default=0) or None
    )
    source = "counted" if placement.device == "cuda" else "counted: what would cross to a device"
    record.transfer_bytes = Transfers(
        h2d=int(table["h2d_bytes"].sum()) if table else 0, source=source
    )
    record.communication_bytes = _communication(ranks)
    if ranks:
        for name in FIELDS_FROM_RANK_0:
            setattr(record, name, getattr(ranks[0], name))
    record.flops_per_token, record.mfu = _flops_and_mfu(record, config, ranks, table)
    record.mfu_non_padding = _mfu_non_padding(record, config, ranks, table)
    record.arithmetic = _arithmetic(record, config, ranks, table)


def held_out(ranks: Sequence[LlmReport], ended_epochs: int) -> HeldOut | None:
    """Merge the ranks' evaluations of the epochs that all ranks have ended.

    Times are the slowest rank's. Losses are over all ranks, so each rank reports the same.

    Returns:
        The merged evaluations, or None if no rows were held out.
    """
    if not ranks or any(rank.held_out is None for rank in ranks):
        return None
    evaluations_by_rank = [rank.held_out.evaluations for rank in ranks if rank.held_out is not None]
    merged_evaluations = list[Evaluation]()
    # Not strict: a rank may already have evaluations of its next epoch.
    for rank_evaluations in zip(*evaluations_by_rank, strict=False):
        if (rank_evaluations[0].epoch or 0) < ended_epochs:
            longest_s = max(evaluation.evaluate_s or 0.0 for evaluation in rank_evaluations)
            ended_s = max(evaluation.ended_s or 0.0 for evaluation in rank_evaluations)
            merged_evaluations.append(
                msgspec.structs.replace(rank_evaluations[0], evaluate_s=longest_s, ended_s=ended_s)
            )
    contents = [rank.held_out for rank in ranks if rank.held_out is not None]
    problems = [content.int4_problem for content in contents if content.int4_problem]
    problem = problems[0] if problems else None
    in_int4 = None if problem else contents[0].in_int4
    return msgspec.structs.replace(
        contents[0], evaluations=merged_evaluations, in_int4=in_int4, int4_problem=problem
    )


def _time_to_target_s(evaluations: Sequence[Evaluation], target: float | None) -> float | None:
    """Return when the held-out loss first reached the target.

    Returns None if there is no target, or if the loss never reached it.
    """
    for evaluation in evaluations:
        if target is not None and evaluation.loss is not None and evaluation.loss <= target:
            return evaluation.ended_s
    return None


def _diverged_when_held_out(
    evaluations: Sequence[Evaluation], epochs: Sequence[Epoch]
) -> Divergence | None:
    """Return the first step after which the held-out loss was not finite (null in the record).

    Returns None if the last held-out loss is finite. The losses of the steps may be finite even
    if the held-out loss is not.
    """
    if not evaluations or evaluations[-1].loss is not None:
        return None
    first_diverged = next(evaluation for evaluation in evaluations if evaluation.loss is None)
    epoch_index = first_diverged.epoch or 0
    steps_before = sum(epoch.steps or 0 for epoch in epochs[:epoch_index])
    return Divergence(epoch_index, max(0, (first_diverged.step or 0) - steps_before - 1), None)


def _epoch(index: int, ranks: Sequence[LlmReport], table: dict[str, np.ndarray]) -> Epoch:
    """Summarise one epoch over all ranks. Times are the slowest rank's."""
    by_rank = [rank.epochs[index] for rank in ranks]
    rows = table["epoch"] == index
    return Epoch(
        epoch=index,
        steps=by_rank[0].steps,
        train_s=max(epoch.train_s for epoch in by_rank),
        ended_s=max(epoch.ended_s for epoch in by_rank),
        train_loss=float(table["loss"][rows & (table["rank"] == 0)].mean()) if rows.any() else None,
        samples=int(table["samples"][rows].sum()),
    )


def _fill_in_rates(record: LlmRecord, table: dict[str, np.ndarray]) -> None:
    """Fill in the iteration times, the tokens, and the tokens/s after the warm-up."""
    record.tokens = TokenCounts()
    record.tokens_per_s = TokenRates()
    counted_steps = Counted(record, table)
    record.iteration_s = counted_steps.statistics()
    if not table:
        return
    record.data_s = counted_steps.mean("data_s")  # The mean over the ranks.
    for name, column in TOKEN_COLUMNS.items():
        setattr(record.tokens, name, int(table[column].sum()))
        setattr(record.tokens_per_s, name, counted_steps.per_s(column))


def _last_tenth(values: np.ndarray) -> float:
    """Return the mean over the last tenth of the steps."""
    return float(values[-max(1, len(values) // 10) :].mean())


def _non_finite_losses(
    logged: dict[str, np.ndarray], ranks: int, pairs: bool
) -> tuple[int, Divergence | None]:
    """Count the losses that are not finite, and return where the first one is.

    DPO's rewards are judged too: the loss is 0 if the margin between them is infinite. If there
    are several ranks, only their common loss is known, and the rank is None.
    """
    columns = ("loss", "rewards_chosen", "rewards_rejected") if pairs else ("loss",)
    count, first_place = formulas.count_non_finite(
        logged, np.all([np.isfinite(logged[column]) for column in columns], axis=0)
    )
    if first_place is None:
        return count, None
    epoch, step, rank = first_place
    return count, Divergence(epoch, step, None if ranks > 1 else rank)


def _rewards(logged: dict[str, np.ndarray]) -> Rewards:
    """Return DPO's implicit rewards, and the share of pairs that the model ranks correctly.

    All are means over the last tenth of the steps. torchtune's single-device recipe logs the last
    batch of each step; the distributed one logs the mean over the ranks.
    """
    chosen = _last_tenth(logged["rewards_chosen"])
    rejected = _last_tenth(logged["rewards_rejected"])
    return Rewards(
        chosen, rejected, _last_tenth(logged["rewards_accuracies"]), margin=chosen - rejected
    )


def _communication(ranks: Sequence[LlmReport]) -> Communication | None:
    """Return the bytes that a rank receives in collectives while it trains.

    The highest rank counts. Returns None if no rank has finished.
    """
    received_bytes = [
        rank.communication_bytes for rank in ranks if rank.communication_bytes is not None
    ]
    if not received_bytes:
        return None
    highest = {kind: max(count[kind] for count in received_bytes) for kind in received_bytes[0]}
    return Communication(**highest, per="rank", source="counted")


def _flops_and_mfu(
    record: LlmRecord, config: LlmConfig, ranks: Sequence[LlmReport], table: dict[str, np.ndarray]
) -> tuple[float | None, float | None]:
    """Return the FLOPs for a token, and the MFU: their share of the devices' peak.

    All tokens count, padding too.
    """
    if not table or not table["tokens"].sum():
        return None, None
    flops = _flops_per_token(config, ranks, table["attended"], table["tokens"])
    return flops, _share_of_peak(
        flops, record.tokens_per_s and record.tokens_per_s.all, config, ranks
    )


def _mfu_non_padding(
    record: LlmRecord, config: LlmConfig, ranks: Sequence[LlmReport], table: dict[str, np.ndarray]
) -> float | None:
    """Return the MFU of the non-padding tokens, as if their rows had no padding."""
    if not table or "attended_non_padding" not in table or not table["non_padding"].sum():
        return None
    flops = _flops_per_token(config, ranks, table["attended_non_padding"], table["non_padding"])
    return _share_of_peak(
        flops, record.tokens_per_s and record.tokens_per_s.non_padding, config, ranks
    )


def _arithmetic(
    record: LlmRecord, config: LlmConfig, ranks: Sequence[LlmReport], table: dict[str, np.ndarray]
) -> Arithmetic | None:
    """Return which shares of the median step its matrix products and memory traffic would take.

    They are computed at the GPU's published rates. Attention counts in full. Returns None if the
    rates or the model's sizes are not known.
    """
    steps = record.iteration_s
    rate = record.tokens_per_s and record.tokens_per_s.all
    if not table or not rate or steps is None or not steps.mean or not steps.median:
        return None
    sizes = _sizes(config, ranks[0])
    peak = peak_flops_per_s(ranks[0].device, config.formats.products)
    if sizes is None or peak is None:
        return None
    gpu = gpu_models.known(ranks[0].device)
    tokens = rate * steps.mean / len(ranks)
    length = float(table["attended"].sum() / table["tokens"].sum())
    flops = tokens * step_work.executed_flops(config, sizes, length, is_causal=False)
    moved_bytes = step_work.read_bytes(config, sizes) + step_work.update_bytes(config, sizes)
    return Arithmetic(
        share=flops / peak / steps.median,
        moved_share=None if gpu is None else moved_bytes / gpu.memory_bytes_per_s / steps.median,
        tokens=tokens,
    )


def _share_of_peak(
    flops: float | None, tokens_per_s: float | None, config: LlmConfig, ranks: Sequence[LlmReport]
) -> float | None:
    peak = peak_flops_per_s(ranks[0].device, config.formats.products)
    if flops is None or tokens_per_s is None or peak is None:
        return None
    return flops * tokens_per_s / (len(ranks) * peak)


def _flops_per_token(
    config: LlmConfig, ranks: Sequence[LlmReport], attended: np.ndarray, tokens: np.ndarray
) -> float | None:
    """Return the FLOPs for a token in a row of mean length.

    Returns None if the model's matrix products are not counted.

    Args:
        attended: For each step, the sum over its tokens of the length of the token's row.
    """
    sizes = _sizes(config, ranks[0])
    if sizes is None:
        return None
    length = float(attended.sum() / tokens.sum())
    return step_work.model_flops(sizes, length, methods.chosen(config).reference_passes)


def _sizes(config: LlmConfig, rank: LlmReport) -> ModelSizes | None:
    """Return the sizes of the tuned model, or None if its matrix products are not counted."""
    if not isinstance(config.model, HfConfig):
        return step_work.sizes_of_decoder(config, rank.vocabulary)
    return rank.sizes
