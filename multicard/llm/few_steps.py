"""Says before a run that it is too short to be judged, and which length is enough.

Imports no torch.
"""

import math

from multicard.config.base import Scale
from multicard.config.job import count
from multicard.config.llm import LlmConfig
from multicard.llm.whole_steps import StepSize, count_epoch_rows
from multicard.measure.repeated_runs import LEAST_MEASURED
from multicard.messages import Message


def notices(config: LlmConfig, rows: int) -> list[Message]:
    """Return a notice if a run measures fewer steps than a recommendation needs.

    There is none for short runs by design: of `scale=smoke`, probes and races.
    """
    is_short_by_design = config.probe.enabled or config.race.figure is not None
    if is_short_by_design or config.scale is Scale.smoke:
        return []
    step = StepSize(config.batch_size, config.gradient_accumulation_steps)
    left_out = count_epoch_rows(rows, config.world_size, step).left_out
    steps_of_epoch = (rows - left_out) // config.rows_of_a_step
    if config.max_steps is not None:
        steps_of_epoch = min(steps_of_epoch, config.max_steps)
    steps = steps_of_epoch * config.epochs
    needed = config.skip_steps + LEAST_MEASURED
    if not steps_of_epoch or steps >= needed:
        return []
    epochs = math.ceil(needed / steps_of_epoch)
    measured = max(0, steps - config.skip_steps)
    return [
        Message(
            "llm.few-steps",
            f"{count(steps, 'step')}, of which {measured} are measured (skip_steps="
            f"{config.skip_steps}), are too few to judge a run; `epochs={epochs}` measures enough",
            key="epochs",
            steps=steps,
            measured=measured,
            epochs=epochs,
        )
    ]
