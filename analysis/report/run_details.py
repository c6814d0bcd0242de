"""What the report shows of each run beside its columns, from its record and environment, each read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.report import rerun_commands
from analysis.runs.load import Run
from multicard.measure.timing import PHASES

PROFILE_GROUPS = ("derived", "api", "copy", "collective")  # of a profile's rows; kernels are too many


@dataclass(frozen=True)
class RunDetails:
    """Details of a run.

    command: measures it again; None where this version does not know one of its keys.
    recipe: torchtune's as it was asked for, not as it was chosen.
    phases_s: seconds of a step by phase. first_loss, last_loss: training losses of the first and last epoch, of tuning
    of the first step and the last tenth. bound, diagnosis: what holds it back, in a word and a sentence.
    profile_rows: of all ranks together; profile_steps: over all ranks.
    """

    run: Run
    command: str | None
    recipe: str | None
    phases_s: dict[str, float]
    first_loss: float | None
    last_loss: float | None
    bound: str | None
    diagnosis: str | None
    profile_rows: list[dict[str, Any]]
    profile_steps: int | None
    environment: dict[str, Any] = field(repr=False)


def read(runs: Sequence[Run]) -> list[RunDetails]:
    """The details of runs, in their order."""
    return [_read(run) for run in runs]


def _read(run: Run) -> RunDetails:
    try:
        record = run.record()
    except (OSError, ValueError):  # removed, or measured again, since it was listed
        record = {}
    config, diagnosis, profile = (mapping(record.get(key)) for key in ("config", "diagnosis", "profile"))
    phases = mapping(record.get("phases_s"))
    rows = [row for row in profile.get("rows") or () if isinstance(row, dict) and row.get("group") in PROFILE_GROUPS]
    steps = profile.get("steps")
    return RunDetails(
        run,
        rerun_commands.rerun(run["kind"], config) if config else None,
        _text(config.get("recipe")),
        {name: phases[name] for name in PHASES if isinstance(phases.get(name), int | float)},
        *_losses(run, record),
        _text(diagnosis.get("bound")),
        _text(diagnosis.get("sentence")),
        [row for row in rows if row.get("rank") is None] or rows,
        steps if isinstance(steps, int) and steps > 0 else None,
        run.environment(),
    )


def _losses(run: Run, record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The first and the last training loss."""
    if run["kind"] == "llm":
        return run["loss_first"], run["loss_last_tenth"]
    epochs = [epoch for epoch in record.get("epochs") or () if isinstance(epoch, dict)]
    losses = [loss for epoch in epochs if isinstance(loss := epoch.get("train_loss"), int | float)]
    return (losses[0], losses[-1]) if losses else (None, None)


def mapping(value: Any) -> dict[str, Any]:
    """An object of a record; empty where something else stands in its place."""
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
