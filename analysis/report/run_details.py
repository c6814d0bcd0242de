"""What a report needs of each run beside its columns: its record and its environment, each read once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from analysis.report import rerun_commands
from analysis.runs.load import Run
from multicard.measure.timing import PHASES

SUMMED = ("derived", "api", "copy", "collective")  # groups of a profile's rows that are told; kernels are too many


@dataclass(frozen=True)
class Read:
    """Of one run.

    phases_s: seconds of a step by phase. profile: rows of its profile, over all ranks. command: what measures it again.
    recipe: as it was asked for, not as it came to be.
    """

    run: Run
    command: str | None
    recipe: str | None
    phases_s: dict[str, float]
    bound: str | None
    diagnosis: str | None
    profile: list[dict[str, Any]]
    profiled_steps: int | None
    environment: dict[str, Any] = field(repr=False)


def read(runs: Sequence[Run]) -> list[Read]:
    """All of them, in their order."""
    return [_read(run) for run in runs]


def _read(run: Run) -> Read:
    try:
        record = run.record()
    except (OSError, msgspec.DecodeError):  # gone, or measured again, since it was listed
        record = {}
    config, diagnosis, profile = (mapping(record.get(key)) for key in ("config", "diagnosis", "profile"))
    phases = mapping(record.get("phases_s"))
    rows = [row for row in profile.get("rows") or () if isinstance(row, dict) and row.get("group") in SUMMED]
    summed = [row for row in rows if row.get("rank") is None]
    steps = profile.get("steps")
    return Read(
        run,
        rerun_commands.again(run["kind"], config) if config else None,
        _text(config.get("recipe")),
        {name: phases[name] for name in PHASES if isinstance(phases.get(name), int | float)},
        _text(diagnosis.get("bound")),
        _text(diagnosis.get("sentence")),
        summed or rows,
        steps if isinstance(steps, int) and steps > 0 else None,
        run.environment(),
    )


def mapping(found: Any) -> dict[str, Any]:
    """An object of a record, empty where something else stands there."""
    return found if isinstance(found, dict) else {}


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) else None
