"""Fills in the summary of a run of a script, from the files of its ranks."""

import shlex
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from multicard.config.keys import flat
from multicard.config.placement import Placement
from multicard.config.script import AXES, STYLE, ScriptConfig
from multicard.measure import formulas
from multicard.messages import UNCODED, Message
from multicard.records.rank_files import ScriptReport, of_ended_epochs, peak_memory
from multicard.records.schema import Epoch, Loss, ScriptRecord, TokenCounts, TokenRates
from multicard.records.schema_parts import Divergence, Segment
from multicard.records.steps import Counted
from multicard.records.trained_weights import Relation, apart_by, compared
from multicard.run.workload import settings
from multicard.script.seen import accumulated

# Facts about a rank that is sent its batches, or about the rank that draws those of all.
SAMPLES_UNKNOWN = "script.samples-unknown"
OF_DRAWS = ("script.no-loader", SAMPLES_UNKNOWN, "script.accumulated")


def axes(config: Any, device: str) -> dict[str, Any]:
    """Return the settings by which runs of a sweep differ.

    The script's arguments have the names by which they are typed.
    """
    args = {
        key: value for key, value in (getattr(config, "args", None) or {}).items() if key != STYLE
    }
    named_args = {
        f"args.{key}": value if not isinstance(value, list) else str(value)
        for key, value in flat(args).items()
    }
    words = {"words": shlex.join(getattr(config, "words", None) or [])}
    return settings(config, AXES) | words | named_args | {"device": device}


def summarise(
    record: ScriptRecord,
    config: ScriptConfig,
    placement: Placement,
    ranks: Sequence[ScriptReport],
    steps: Any,
) -> None:
    """Fill in the figures of a run, whole or cut short.

    Args:
        record: has its `gpu`.
        ranks: the reports of the ranks, by rank.
        steps: the steps of all ranks (an Arrow table), or None if there are none.
    """
    ended, table = of_ended_epochs(steps, ranks)
    codes = _seen(ranks)
    if _one_draws_for_all(ranks):
        codes = {sentence: code for sentence, code in codes.items() if code not in OF_DRAWS}
        codes |= _unknown_samples(ranks)
    part = _trained_part(ranks)
    if part is not None:
        codes[str(part)] = part.code
    record.left_out = sorted(set().union(*(rank.left_out for rank in ranks)))
    _relate(record, placement, ranks)
    _rate(record, ranks, table)
    if _one_draws_for_all(ranks) and (record.batches_per_step or 0) > 1:
        batches = round(record.batches_per_step or 0)
        message = accumulated(batches, batches)
        codes[str(message)] = message.code
    if ended:
        epochs = [rank.epochs[0] for rank in ranks]
        record.total_s = max(epoch.ended_s for epoch in epochs)
        evaluated = [rank.evaluate_s for rank in ranks if rank.evaluate_s is not None]
        record.evaluate_s = max(evaluated) if len(evaluated) == len(ranks) else None
        train_s = max(epoch.train_s for epoch in epochs)
        done = max(epoch.steps for epoch in epochs)
        is_known = not any(rank.samples_unknown for rank in ranks) and part is None
        samples = int(table["samples"].sum()) or None if is_known else None
        record.epochs = [Epoch(0, done, train_s, record.total_s, samples=samples)]
        record.test_accuracy = ranks[0].test_accuracy
        record.logged = ranks[0].logged
        _judge(record, table)
    if (message := _no_rate(record, table)) is not None:
        codes[str(message)] = message.code
    record.seen = list(codes)
    record.seen_codes = list(codes.values())
    record.segments = [
        Segment(steps=sum(epoch.steps or 0 for epoch in record.epochs), trained_s=record.total_s)
    ]
    record.peak_memory_bytes = peak_memory(ranks, placement.device)
    record.threads = ranks[0].threads if ranks else None


def _seen(ranks: Sequence[ScriptReport]) -> dict[str, str]:
    """Return the codes of what ranks saw, by sentence.

    Most ranks see the same. If they do not, the sentence of one rank stands for all, and says so.
    """
    found: dict[str, str] = {}
    by_code: dict[str, str] = {}
    for rank in ranks:
        for sentence, code in zip_longest(rank.seen, rank.seen_codes, fillvalue=UNCODED):
            first = by_code.setdefault(code, sentence)
            if code == UNCODED or sentence == first:
                found[sentence] = code
    differ = set[str]()
    first_with = dict[str, int]()
    for rank in ranks:
        for sentence, code in zip(rank.seen, rank.seen_codes, strict=False):
            if sentence != by_code[code]:
                differ.add(code)
        for code in rank.seen_codes:
            first_with.setdefault(code, rank.rank)
    return {
        (
            f"rank {first_with[code]}: {sentence} (other ranks differ)"
            if code in differ
            else sentence
        ): code
        for sentence, code in found.items()
    }


def _relate(record: ScriptRecord, placement: Placement, ranks: Sequence[ScriptReport]) -> None:
    """Fill in whether the ranks trained one model together, if all of them have ended."""
    if placement.world_size == 1 or not ranks:
        return
    missing = [None] * (placement.world_size - len(ranks))
    relation = compared([*(rank.weights for rank in ranks), *missing])
    steps = [rank.epochs[0].steps for rank in ranks if rank.epochs]
    is_stopped = bool(missing) or any(rank.stopped for rank in ranks)
    reason = apart_by(relation, all(rank.grouped for rank in ranks), steps, is_stopped)
    record.trained = (relation if reason is None else Relation.apart).value
    record.apart_by = None if reason is None else reason.value


def _rate(
    record: ScriptRecord, ranks: Sequence[ScriptReport], table: dict[str, np.ndarray]
) -> None:
    """Fill in the times of steps, and the rates over the steps that statistics count."""
    counted = Counted(record, table)
    record.step_s = counted.statistics()
    if not table:
        return
    record.batches_per_step = _batches_per_step(ranks, table)

    def rate(column: str) -> float | None:
        of_ranks = counted.by_rank(column)
        return (
            counted.per_s(column)
            if all(of_ranks) or (any(of_ranks) and _one_draws_for_all(ranks))
            else None
        )

    unknown = set()
    for rank in ranks:
        unknown.update(rank.samples_unknown)
    is_known = not any(counted.counts(number) for number in unknown)
    is_known = is_known and _trained_part(ranks) is None
    record.samples_per_s = rate("samples") if is_known else None
    if table["tokens"].any():
        record.tokens = TokenCounts()
        record.tokens_per_s = TokenRates(non_padding=rate("tokens"))
        record.tokens.non_padding = int(table["tokens"].sum())
    if any(rank.loads for rank in ranks) and all(rank.waits_known for rank in ranks):
        record.data_s = counted.mean("data_s")


def _one_draws_for_all(ranks: Sequence[ScriptReport]) -> bool:
    """Return True if a rank draws batches and sends others theirs.

    Accelerate's dispatcher of streams does so.
    """
    return any(rank.loads for rank in ranks) and any(
        not rank.loads and rank.grouped for rank in ranks
    )


def _unknown_samples(ranks: Sequence[ScriptReport]) -> dict[str, str]:
    """Return the sentence of a rank that draws, and does not know the samples of some steps.

    A rank to which batches are sent knows none, which says nothing of the record's samples.
    """
    found = dict[str, str]()
    for rank in ranks:
        if rank.samples_unknown and SAMPLES_UNKNOWN in rank.seen_codes:
            found[rank.seen[rank.seen_codes.index(SAMPLES_UNKNOWN)]] = SAMPLES_UNKNOWN
    return found


def _trained_part(ranks: Sequence[ScriptReport]) -> Message | None:
    """Return a message if ranks trained on a part of the samples that they drew: nobody knows on
    how many.

    None if a rank draws the batches of others.
    """
    parts = [rank.trained_part for rank in ranks if rank.trained_part is not None]
    if not parts or _one_draws_for_all(ranks):
        return None
    drawn, given = parts[0]
    return Message(
        "script.trained-part",
        f"a step drew {drawn} samples and gave the model {given}: how many are trained on is not"
        " known; the script can give the number by multicard.step(samples=...)",
        drawn=drawn,
        given=given,
    )


def _batches_per_step(ranks: Sequence[ScriptReport], table: dict[str, np.ndarray]) -> float:
    """Return the median of batches that a rank trains on in a step.

    A rank that draws for all of them may draw a batch for each, or a single one to divide. Calls of
    backward show which.
    """
    if not _one_draws_for_all(ranks):
        known = table["batches"][table["batches"] > 0]
        return float(np.median(known)) if len(known) else 0.0
    drawing = next(rank for rank in ranks if rank.loads)
    drawn = float(np.median(table["batches"][table["rank"] == drawing.rank]))
    if not drawing.calls_per_step:
        return drawn / len(ranks)
    return min(drawn, drawing.calls_per_step)


def _no_rate(record: ScriptRecord, table: dict[str, np.ndarray]) -> Message | None:
    """Return a message if no step counts; None if some do, or if there are no steps."""
    if not table or record.step_s is None or record.step_s.count:
        return None
    steps = record.epochs[0].steps if record.epochs else 0
    left_out = len(record.left_out)
    return Message(
        "script.no-step-counts",
        f"none of {steps} steps counts: the first are the warm-up, and {left_out} are left out; "
        "train for longer, or use `warmup_steps=1`",
        key="warmup_steps",
        steps=steps,
        left_out=left_out,
    )


def _judge(record: ScriptRecord, table: dict[str, np.ndarray]) -> None:
    """Fill in the loss, the mean over the ranks that reported one, and whether it is finite."""
    known = {name: column[table["loss_told"] > 0] for name, column in table.items()}
    if not len(known["loss"]):
        return
    numbers, place = np.unique(known["step"], return_inverse=True)
    losses = np.bincount(place, known["loss"]) / np.bincount(place)
    last_tenth = losses[-max(1, len(numbers) // 10) :]
    record.loss = Loss(*(_finite(value) for value in (losses[0], losses[-1], last_tenth.mean())))
    record.epochs[0].train_loss = _finite(losses.mean())
    record.non_finite_losses, first = formulas.count_non_finite(known, np.isfinite(known["loss"]))
    record.divergence = None if first is None else Divergence(*first)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
