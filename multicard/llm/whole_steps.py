"""Report rows that do not fill a whole step, and rows that two ranks train on.

Both engines leave out of each epoch the rows that do not fill a step, as torchtune's recipes do.
All ranks take the same number of rows. If the rows do not divide evenly, two ranks train on some of
them. Imports no torch.
"""

from typing import NamedTuple

from multicard.config.base import GLOBAL
from multicard.config.llm import LlmConfig
from multicard.messages import Message

NOTICE_FROM = 0.01  # A smaller share of the rows is not worth a notice.


class EpochRows(NamedTuple):
    """Rows of an epoch that are not trained on exactly once.

    Attributes:
        left_out: Number of rows that do not fill a step.
        repeated: Number of rows that two ranks train on.
    """

    left_out: int
    repeated: int


class StepSize(NamedTuple):
    """The rows in a rank's batch, and the batches in a step."""

    batch: int
    batches: int

    @property
    def rows(self) -> int:
        return self.batch * self.batches


def count_epoch_rows(rows: int, ranks: int, step: StepSize) -> EpochRows:
    """Return how many rows of an epoch are left out, or trained on twice.

    `DistributedSampler` fills up the ranks' last rows with the first ones. Then only whole steps
    are trained.
    """
    rank_rows = -(-rows // ranks)
    trained_rows = rank_rows // step.batch // step.batches * step.rows
    if trained_rows < rank_rows:
        return EpochRows(rows - ranks * trained_rows, 0)
    return EpochRows(0, ranks * rank_rows - rows)


def notices(config: LlmConfig, rows: int) -> list[Message]:
    """Return the notices about the last rows of each epoch.

    There are none if `max_steps` ends the epoch before these rows.
    """
    step = StepSize(config.batch_size, config.gradient_accumulation_steps)
    epoch_rows = count_epoch_rows(rows, config.world_size, step)
    steps = (rows - epoch_rows.left_out) // config.rows_of_a_step
    if config.max_steps is not None and config.max_steps < steps:
        return []
    if epoch_rows.left_out > NOTICE_FROM * rows:
        return [_left_out_notice(config, rows, epoch_rows.left_out, step)]
    if epoch_rows.repeated > NOTICE_FROM * rows:
        return [
            Message(
                "llm.rows-repeated",
                f"{epoch_rows.repeated} of {rows} rows are trained on twice in each epoch: the"
                f" {config.world_size} ranks take the same number of rows, and {rows} rows do not"
                " divide evenly",
                key="gpus",
                rows=rows,
                repeated=epoch_rows.repeated,
                ranks=config.world_size,
            )
        ]
    return []


def _left_out_notice(config: LlmConfig, rows: int, left_out: int, step: StepSize) -> Message:
    remedy = _remedy(config, rows, step)
    hint = f"; `{remedy}` leaves out at most 1 %" if remedy else ""
    return Message(
        "llm.rows-of-no-step",
        f"{left_out} of {rows} rows are not trained on in each epoch: they do not fill a step "
        f"(batch_size x gpus x gradient_accumulation_steps = {config.rows_of_a_step}){hint}",
        key="batch_size",
        rows=rows,
        left_out=left_out,
        needed=config.rows_of_a_step,
        remedy=remedy,
    )


def _remedy(config: LlmConfig, rows: int, step: StepSize) -> str | None:
    """Return overrides for the nearest step size that trains on (almost) all rows.

    The size may be half to twice the present one. The batch does not grow, because it may not fit
    in memory. Returns None if there is no such step size.
    """
    sets_global_batch = config.global_batch_size is not None and config.batch_size_asked == GLOBAL
    candidates = list[StepSize]()
    for batch in range(1, step.batch + 1):
        for batches in range(1, 2 * step.rows // batch + 1):
            size = StepSize(batch, batches)
            if sets_global_batch and batches != step.batches:
                continue
            is_near = step.rows <= 2 * size.rows and size.rows <= 2 * step.rows
            if (
                is_near
                and count_epoch_rows(rows, config.world_size, size).left_out <= NOTICE_FROM * rows
            ):
                candidates.append(size)
    if not candidates:
        return None
    best = min(
        candidates,
        key=lambda size: (_distance(size.rows, step.rows), size.batch != step.batch, -size.batch),
    )
    global_batch_size = config.world_size * best.rows
    if sets_global_batch:
        return f"global_batch_size={global_batch_size}"
    overrides = list[str]()
    if config.global_batch_size is not None:
        overrides = [f"global_batch_size={global_batch_size}"]
    if best.batch != step.batch or overrides:
        overrides.append(f"batch_size={best.batch}")
    if best.batches != step.batches or config.global_batch_size is not None:
        overrides.append(f"gradient_accumulation_steps={best.batches}")
    return " ".join(overrides)


def _distance(rows: int, reference: int) -> float:
    """Return by what factor a step is larger or smaller than another."""
    return max(rows / reference, reference / rows)
