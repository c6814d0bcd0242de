"""Attributes each batch to the step that trained on it, even if a loader reads ahead.

The hooks only see the order of three events: a loader hands out a batch, the script calls backward,
and a step of the optimizer ends. A batch has usually been trained on by the first call of backward
after it. A loader that reads ahead needs more: here a loader holds one batch back, because it wants
to know which batch is the last. Accelerate does this, and so do Hugging Face's Trainer, TRL and
diffusers. Prefetchers hold back one batch or several, and copy them while the model computes.

    batch 0, batch 1 | call 1, step 0 | batch 2 | call 2, step 1 | end of pass | call 3, step 2

Call 1 trains on batch 0, call 2 on batch 1, and call 3 on batch 2. Two facts show that this loader
reads ahead: no call comes between its first two batches, and a call follows the end of its pass.

The terms of this file:

- A call is a call of backward. Calls are numbered from 1.
- A place is the number of a batch among all batches that the script was handed out, from 0.
- A source is the object that batches are drawn from. A pass is one iteration over it.
- The depth of a pass is the number of batches that its loader reads ahead: 1 in the example.
- A gap is the time between two successive calls. Batches of one pass may share a gap.
- The reach of a pass says whether its batches reached a loss. `contributions.py` watches a few
  steps to find out.

The attribution has these parts:

1. Find the call that first trains on each batch: `streams.py` for batches that another thread
   draws, `read_ahead.py` for the others.
2. Find the step of that call, and drop the batches that nobody trained on (`_trained_batches`).
3. Drop batches whose gradients were cleared before a step (`_drop_cleared_batches`).
4. Add up the samples of each step, and mark the steps that the calls do not explain.

Nobody trained on a batch in these cases:

- No call followed before the pass ended.
- The script left the pass: it looked at a batch with `next(iter(loader))`, or broke out of its
  loop. No call comes after the last batch before the same loader is drawn from in another pass.
- An attempt failed. If batches do not fit into memory, a script may begin again with smaller ones.
  The batches of the failed attempt since its last step then do not count, even with a call.

The samples of a step are unknown in these cases:

- A call usually follows one batch, and here it followed two. The script skipped one or added its
  loss, and the calls look the same.
- A call usually follows two batches, and their reach is not known.
- The step has more batches and more calls than usual. Gradients may have been cleared before it.
- A loader is missing that accompanied another one until its own pass ended. The script may have
  kept the batches.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from multicard.script.doubts import has_more, lacks_a_source, share_a_gap, shares_call
from multicard.script.left_passes import (
    last_calls_of_left_passes,
    next_attempts_of_failed_passes,
)
from multicard.script.passes import UNKNOWN, Pass, Reach, StepData, StepEnd
from multicard.script.read_ahead import calls_before_next_batch, infer_first_calls
from multicard.script.streams import in_turn


@dataclass(eq=False)
class _TrainedBatches:
    """The batches of one pass that were trained on, with their steps and calls.

    Attributes:
        is_trained: a flag for each batch of the pass. The other arrays have one entry for each
            batch whose flag is set.
        steps: the step that trains on the batch, from 0.
        first_calls: the first call that trains on the batch.
        reads_ahead: `first_calls` were inferred, because the batches were handed out earlier.
    """

    data_pass: Pass
    is_trained: np.ndarray
    steps: np.ndarray
    first_calls: np.ndarray
    reads_ahead: bool


def attribute(
    passes: Sequence[Pass], ends: Sequence[StepEnd], total_calls: int = 0, is_stopped: bool = False
) -> StepData:
    """Return the samples, batches and calls of each step.

    Args:
        passes: the passes that training draws from, in the order of their first batches.
        ends: the ends of the steps, in order.
        total_calls: calls in the whole run, including those after the last step.
        is_stopped: the run was stopped before its end.
    """
    calls_before_end = np.array([end.backwards for end in ends], dtype=np.int64)
    calls = np.diff(calls_before_end, prepend=0)
    # If most steps show no call, the order of batches alone decides.
    has_calls = bool(2 * (calls > 0).sum() > len(ends))
    total_calls = max(total_calls, int(calls_before_end[-1]) if len(ends) else 0)
    thread_calls = in_turn(passes, total_calls, is_stopped)
    is_known = thread_calls is not None and (has_calls or not thread_calls)
    trained_batches = _trained_batches(passes, ends, has_calls, thread_calls or {}, total_calls)
    if has_calls:
        last_cleared_calls = _drop_cleared_batches(trained_batches, ends)
        calls_before_step = np.append(0, calls_before_end[:-1])
        calls = calls_before_end - np.maximum(last_cleared_calls, calls_before_step)
    data = _add_up_steps(trained_batches, calls)
    if has_calls:
        _mark_doubtful_steps(data, trained_batches)
    if passes:
        data.unknown |= (calls > 0) & (data.batches == 0)
    if not is_known:
        data.unknown[:] = True
        data.batches[:] = 0
    data.samples[data.unknown] = 0
    return data


def _trained_batches(
    passes: Sequence[Pass],
    ends: Sequence[StepEnd],
    has_calls: bool,
    thread_calls: Mapping[int, np.ndarray],
    total_calls: int,
) -> list[_TrainedBatches]:
    """Find the batches of each pass that are trained on.

    Args:
        has_calls: most steps have a call.
        thread_calls: the first calls for the batches of a pass that another thread draws from, by
            the number of the pass.
        total_calls: calls in the whole run.
    """
    calls_before_end = np.array([end.backwards for end in ends], dtype=np.int64)
    batches_before_end = np.array([end.handed_out for end in ends], dtype=np.int64)
    calls_before_next = calls_before_next_batch(
        passes, int(calls_before_end[-1]) if len(ends) else 0
    )
    inferred_calls_by_pass = infer_first_calls(passes, calls_before_next, thread_calls, total_calls)
    last_calls = last_calls_of_left_passes(passes) if has_calls else [None] * len(passes)
    retry_places = next_attempts_of_failed_passes(passes)
    trained_batches = []
    for number, data_pass in enumerate(passes):
        inferred_calls = inferred_calls_by_pass[number]
        last_call = last_calls[number]
        retry_place = retry_places[number]
        is_trained = np.frombuffer(bytes(data_pass.trains), dtype=np.uint8) > 0
        if inferred_calls is None:
            first_calls = np.array(data_pass.backwards) + 1
            steps = np.searchsorted(batches_before_end, np.array(data_pass.places), side="right")
        else:
            first_calls = inferred_calls
            steps = np.searchsorted(calls_before_end, inferred_calls, side="left")
            # A pass belongs to one loop: its last batches may follow the last known step.
            is_trained |= is_trained.any()
        if last_call is not None:
            is_trained &= first_calls <= last_call
        elif has_calls and inferred_calls is None and data_pass.ended is None:
            is_trained &= first_calls <= total_calls  # The run ended before a call followed.
        if retry_place is not None:
            is_trained &= steps < np.searchsorted(batches_before_end, retry_place, side="right")
        if has_calls and inferred_calls is None and data_pass.ended is not None:
            # Nobody trained on batches that no call follows.
            is_trained &= first_calls <= max(data_pass.ended.calls, calls_before_next[number])
        trained_batches.append(
            _TrainedBatches(
                data_pass,
                is_trained,
                steps[is_trained],
                first_calls[is_trained],
                reads_ahead=inferred_calls is not None,
            )
        )
    return trained_batches


def _drop_cleared_batches(
    trained_batches: Sequence[_TrainedBatches], ends: Sequence[StepEnd]
) -> np.ndarray:
    """Drop the batches whose gradients were cleared before their step, from `trained_batches`.

    The entries of `trained_batches` are changed in place. If the first calls of all batches of a
    step come before the clearing, its later calls are for the same batches, as with the
    discriminator and the generator of a GAN. The batches of such a step stay.

    Returns:
        For each step, the last call whose gradients it does not have, or 0 (steps,).
    """
    count = len(ends)
    # The last entry belongs to batches that are trained on after the last step.
    last_first_calls = np.zeros(count + 1, dtype=np.int64)
    for batches in trained_batches:
        np.maximum.at(last_first_calls, batches.steps, batches.first_calls)
    cleared_calls = np.array([*(end.cleared for end in ends), 0], dtype=np.int64)
    cleared_calls[last_first_calls <= cleared_calls] = 0
    for batches in trained_batches:
        is_kept = batches.first_calls > cleared_calls[batches.steps]
        dropped_numbers = np.flatnonzero(batches.is_trained)[~is_kept]
        batches.is_trained[dropped_numbers] = False
        batches.steps = batches.steps[is_kept]
        batches.first_calls = batches.first_calls[is_kept]
    return cleared_calls[:count]


def _add_up_steps(trained_batches: Sequence[_TrainedBatches], calls: np.ndarray) -> StepData:
    """Add up the samples and batches of each step."""
    count = len(calls)
    samples = np.zeros(count, dtype=np.int64)
    batch_counts = np.zeros(count, dtype=np.int64)
    unknown = np.zeros(count, dtype=bool)
    for batches in trained_batches:
        sizes = np.array(batches.data_pass.sizes)[batches.is_trained]
        for step, size in zip(batches.steps, sizes, strict=True):
            if step == count:
                continue  # The batch was read ahead when the run ended.
            batch_counts[step] += 1
            unknown[step] |= size == UNKNOWN
            samples[step] += max(0, size)
    return StepData(samples, batch_counts, unknown, calls)


def _mark_doubtful_steps(data: StepData, trained_batches: Sequence[_TrainedBatches]) -> None:
    """Mark the steps whose calls do not show which batches they trained on, in place."""
    count = len(data.calls)
    unknown = data.unknown
    unknown |= has_more(data.batches, data.calls)
    unknown |= lacks_a_source(
        [batches.data_pass for batches in trained_batches],
        [batches.steps for batches in trained_batches],
        count,
    )
    # A call that follows more batches of a source than usual may have skipped some.
    by_source = defaultdict[int, list[_TrainedBatches]](list)
    for batches in trained_batches:
        if not batches.data_pass.in_thread:
            by_source[id(batches.data_pass.source)].append(batches)
    for source_batches in by_source.values():
        first_calls = np.concatenate([batches.first_calls for batches in source_batches])
        steps = np.concatenate([batches.steps for batches in source_batches])
        doubtful_steps = steps[shares_call(first_calls)]
        unknown[doubtful_steps[doubtful_steps < count]] = True
    may_skip = np.zeros(count, dtype=bool)
    for batches in trained_batches:
        reach = batches.data_pass.reach
        if batches.data_pass.in_thread or reach is Reach.every:
            continue
        # Reach.some and Reach.none were watched: a batch reached no loss. A reach of None was not.
        data.skips |= reach in (Reach.some, Reach.none)
        if reach in (Reach.none, Reach.unsure):
            candidates = batches.steps  # Any step of the pass may have skipped its batch.
        else:
            in_shared_gap = share_a_gap(batches.data_pass, batches.reads_ahead)
            candidates = batches.steps[in_shared_gap[batches.is_trained]]
        candidates = candidates[candidates < count]
        if reach is None:  # A step with a call for each batch skipped none, as far as is known.
            candidates = candidates[data.calls[candidates] < data.batches[candidates]]
        may_skip[candidates] = True
    unknown |= may_skip
    data.batches[may_skip] = 0
