"""Says in sentences what the hooks saw of a script on a rank, and what they could not see."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from multicard.config.job import count
from multicard.measure.timing import in_hours
from multicard.messages import Message
from multicard.script.passes import StepData
from multicard.script.step_times import StepTimes

NOTABLE = 0.02  # A share of the run's time that is worth a sentence.
USUAL = 0.75  # If so many steps have the same number of batches, the sentence names that number.


@dataclass
class Seen:
    """What a rank's hooks saw.

    Attributes:
        step_names: the calls that ended the steps.
        stopped_after: the step after which the script was stopped as configured.
        others: number of optimizers whose steps do not count.
        skipped: steps that a GradScaler skipped.
        trained_alone: there is no process group, though there are several ranks.
        loads: batches of a DataLoader were trained on.
        waits_known: no other thread drew those batches.
        evaluations_known: no other thread drew batches of an evaluation.
        went_on_from: names of files that an earlier run left.
    """

    steps: int
    step_names: Sequence[str]
    stopped_after: int | None
    others: int
    skipped: int
    evaluations: int
    trained_alone: bool
    loads: bool
    waits_known: bool
    evaluations_known: bool
    tells_loss: bool
    went_on_from: Sequence[str] = ()


def sentences(seen: Seen, data: StepData, times: StepTimes) -> list[Message]:
    """Say what was counted, and what is not known."""
    return [*_counted(seen, data, times), *_not_known(seen, data)]


def _counted(seen: Seen, data: StepData, times: StepTimes) -> Iterator[Message]:
    if seen.steps:
        names = [*seen.step_names]
        yield Message(
            "script.steps-of", f"steps are calls of {', later of '.join(names)}", names=names
        )
    if seen.went_on_from:
        files = ", ".join(seen.went_on_from)
        yield Message(
            "script.went-on",
            f"went on from files of an earlier run ({files}), and trained the rest",
            files=[*seen.went_on_from],
        )
    if seen.stopped_after is not None:
        yield Message(
            "script.stopped", f"stopped after step {seen.steps}, as asked", step=seen.steps
        )
    if seen.others:
        others = seen.others
        yield Message(
            "script.further-optimisers",
            f"{count(others, 'further optimiser')} took steps, which do not count",
            optimisers=others,
        )
    if seen.skipped:
        yield Message(
            "script.scaler-skipped",
            f"a GradScaler skipped {count(seen.skipped, 'step')}, which count as steps here",
            steps=seen.skipped,
        )
    # The median of batches a step, or the larger of two: a pass may end in a step of fewer.
    known = data.batches[data.batches > 0]
    batches = int(np.percentile(known, 50, method="higher")) if len(known) else 0
    if batches > 1:
        is_usual = (known == batches).mean() > USUAL
        yield (
            accumulated(batches, batches)
            if is_usual
            else accumulated(int(known.min()), int(known.max()))
        )
    if seen.evaluations:
        yield Message(
            "script.evaluations",
            f"{count(seen.evaluations, 'evaluation')} between or after steps",
            evaluations=seen.evaluations,
        )
    if times.between_s > NOTABLE * times.total_s:
        seconds = round(times.between_s, 3)
        yield Message(
            "script.between-passes",
            f"{in_hours(seconds) if seconds >= 60 else f'{seconds:.3g} s'} between passes over the"
            " data belong to no step, as time to evaluate or save",
            seconds=seconds,
        )


def accumulated(least: int, most: int) -> Message:
    """Say how many batches make a step."""
    batches = str(least) if least == most else f"{least} to {most}"
    said = f"gradients of {batches} batches make a step"
    return Message("script.accumulated", said, least=least, most=most)


def _not_known(seen: Seen, data: StepData) -> Iterator[Message]:
    if seen.trained_alone:
        yield Message(
            "script.no-process-group",
            "no process group: each rank trained by itself, on whatever data it read",
        )
    if not seen.loads:
        yield Message(
            "script.no-loader", "no DataLoader: how long steps waited for data is not known"
        )
    if not seen.waits_known:
        yield Message(
            "script.waits-unknown",
            "another thread reads the loader: how long steps waited for data is not known",
        )
    if not seen.evaluations_known:
        yield Message(
            "script.evaluations-unknown",
            "another thread reads the data of an evaluation: how long it took is not known",
        )
    unknown = int(data.unknown.sum())
    if unknown:
        steps = "" if unknown == len(data.unknown) else f" of {count(unknown, 'step')}"
        yield Message(
            "script.samples-unknown",
            f"the number of samples{steps} is not known: the script can give it by"
            " multicard.step(samples=...)",
            steps=unknown,
        )
        if data.skips:
            yield Message(
                "script.batches-skipped",
                "some batches of a loader reached no loss: they were not trained on",
            )
    if not seen.tells_loss:
        yield Message(
            "script.no-loss", "no loss is known: the script can give it by multicard.log(loss=...)"
        )
