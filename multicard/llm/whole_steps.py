"""Rows that fill no whole step: they are left out of each epoch, as torchtune's recipes drop them,
in both engines.

Ranks take as many rows each; where these do not divide, some
rows are trained on by two ranks. No torch.
"""

from typing import NamedTuple

from multicard.config.base import GLOBAL
from multicard.config.llm import LlmConfig
from multicard.messages import Message

SAID_FROM = 0.01  # share of the rows


class EpochRows(NamedTuple):
    """An epoch's rows. left_out: those of no whole step.
    repeated: those that two ranks train on.
    """

    left_out: int
    repeated: int


class StepSize(NamedTuple):
    """A rank's rows in a batch, and the batches of a step."""

    batch: int
    batches: int

    @property
    def rows(self) -> int:
        return self.batch * self.batches


def epoch_of(rows: int, ranks: int, step: StepSize) -> EpochRows:
    """What of so many rows is left out, or trained on twice: `DistributedSampler` fills the ranks'
    last round with the first rows, and only whole steps are trained.
    """
    of_rank = -(-rows // ranks)
    rest = of_rank // step.batch // step.batches * step.rows
    if rest < of_rank:
        return EpochRows(rows - ranks * rest, 0)
    return EpochRows(0, ranks * of_rank - rows)


def notices(config: LlmConfig, rows: int) -> list[Message]:
    """What a person should know of the last rows of each epoch;
    nothing where `max_steps` ends it before.
    """
    step = StepSize(config.batch_size, config.gradient_accumulation_steps)
    found = epoch_of(rows, config.world_size, step)
    steps = (rows - found.left_out) // config.rows_of_a_step
    if config.max_steps is not None and config.max_steps < steps:
        return []
    if found.left_out > SAID_FROM * rows:
        return [_left_out(config, rows, found.left_out, step)]
    if found.repeated > SAID_FROM * rows:
        return [
            Message(
                "llm.rows-repeated",
                f"{found.repeated} of {rows} rows are trained on twice in each epoch: the"
                f" {config.world_size} ranks take as many rows each, and the rows do not divide",
                key="gpus",
                rows=rows,
                repeated=found.repeated,
                ranks=config.world_size,
            )
        ]
    return []


def _left_out(config: LlmConfig, rows: int, left_out: int, step: StepSize) -> Message:
    remedy = _remedy(config, rows, step)
    hint = f"; `{remedy}` trains on all but 1 % or fewer" if remedy else ""
    return Message(
        "llm.rows-of-no-step",
        f"{left_out} of {rows} rows are not trained on in each epoch: they fill no whole step "
        f"(batch_size x gpus x gradient_accumulation_steps = {config.rows_of_a_step}){hint}",
        key="batch_size",
        rows=rows,
        left_out=left_out,
        needed=config.rows_of_a_step,
        remedy=remedy,
    )


def _remedy(config: LlmConfig, rows: int, step: StepSize) -> str | None:
    """The overrides of the nearest step that trains on the rows, of half to twice its size;
    None if there is none.

    A batch is not made larger, as memory bounds it.
    """
    is_of_global = config.global_batch_size is not None and config.batch_size_asked == GLOBAL
    found = list[StepSize]()
    for batch in range(1, step.batch + 1):
        for batches in range(1, 2 * step.rows // batch + 1):
            size = StepSize(batch, batches)
            if is_of_global and batches != step.batches:
                continue
            is_near = step.rows <= 2 * size.rows and size.rows <= 2 * step.rows
            if is_near and epoch_of(rows, config.world_size, size).left_out <= SAID_FROM * rows:
                found.append(size)
    if not found:
        return None
    best = min(
        found,
        key=lambda size: (_distance(size.rows, step.rows), size.batch != step.batch, -size.batch),
    )
    whole = config.world_size * best.rows
    if is_of_global:
        return f"global_batch_size={whole}"
    words = list[str]()
    if config.global_batch_size is not None:
        words = [f"global_batch_size={whole}"]
    if best.batch != step.batch or words:
        words.append(f"batch_size={best.batch}")
    if best.batches != step.batches or config.global_batch_size is not None:
        words.append(f"gradient_accumulation_steps={best.batches}")
    return " ".join(words)


def _distance(rows: int, wanted: int) -> float:
    """How many times larger or smaller a step is than another."""
    return max(rows / wanted, wanted / rows)
