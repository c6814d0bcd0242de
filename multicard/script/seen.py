"""What was seen of a script on a rank, and what could not be, in sentences."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from multicard.config.job import count
from multicard.measure.timing import in_hours
from multicard.messages import Message
from multicard.script.attribution import StepData
from multicard.script.step_times import StepTimes

if TYPE_CHECKING:
    from multicard.script.recorder import Recorder

NOTABLE = 0.02  # of the run's time


def of(recorder: "Recorder", data: StepData, times: StepTimes, loss_told: bool) -> list[Message]:
    """What was counted, and what is not known."""
    return [*_counted(recorder, data, times), *_not_known(recorder, data, loss_told)]


def _counted(recorder: "Recorder", data: StepData, times: StepTimes) -> Iterator[Message]:
    if recorder.steps:
        names = ["multicard.step"] if recorder.is_marked else recorder.optimizers
        yield Message("script.steps-of", f"steps are those of {', then of '.join(names)}", names=names)
    if recorder.is_stopped and recorder.config.steps == recorder.steps:
        yield Message("script.stopped", f"stopped after step {recorder.steps}, as asked", step=recorder.steps)
    if recorder.others:
        others = len(recorder.others)
        yield Message(
            "script.further-optimisers",
            f"{count(others, 'further optimiser')} took steps, which do not count",
            optimisers=others,
        )
    if recorder.skipped:
        yield Message(
            "script.scaler-skipped",
            f"a GradScaler skipped {count(recorder.skipped, 'step')}, which count as steps here",
            steps=recorder.skipped,
        )
    # the median of batches a step; of two, the larger: a pass may end in a step of fewer
    batches = int(np.percentile(data.batches, 50, method="higher")) if len(data.batches) else 0
    if batches > 1:
        yield Message("script.accumulated", f"gradients of {batches} batches make a step", batches=batches)
    if recorder.evaluations:
        yield Message(
            "script.evaluations",
            f"{count(recorder.evaluations, 'evaluation')} between or after steps",
            evaluations=recorder.evaluations,
        )
    if times.between_s > NOTABLE * times.total_s:
        seconds = round(times.between_s, 3)
        yield Message(
            "script.between-passes",
            f"{in_hours(seconds) if seconds >= 60 else f'{seconds:.3g} s'} between passes over the data "
            "are in no step, as of evaluating or saving",
            seconds=seconds,
        )


def _not_known(recorder: "Recorder", data: StepData, loss_told: bool) -> Iterator[Message]:
    if recorder.rank.world_size > 1 and not recorder.is_grouped:
        yield Message(
            "script.no-process-group", "no process group: each rank trained by itself, on whatever data it read"
        )
    if not recorder.draws.ever:
        yield Message("script.no-loader", "no DataLoader: how long steps waited for data is not known")
    unknown = int(data.unknown.sum())
    if unknown:
        steps = "" if unknown == len(data.unknown) else f" of {count(unknown, 'step')}"
        yield Message(
            "script.samples-unknown",
            f"the number of samples{steps} is not known: the script can give it by multicard.step(samples=...)",
            steps=unknown,
        )
    if not loss_told:
        yield Message("script.no-loss", "no loss is known: the script can give it by multicard.log(loss=...)")
