"""The journal of a plan that is carried out: `multirun/NAME/.plan/events.jsonl`, by which the same command resumes."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from multicard.measure.timing import since_epoch_s
from multicard.records.journal import Journal
from multicard.records.schema import AnyRecord

FOLDER = ".plan"  # of the sweep


class PlanJournal(Journal):
    """Events of the commands that carried out the plan of this name: what was planned first, starts and ends of tasks,
    in seconds since the first command began. What is done is in the records of the runs.

    Args:
        sweep: folder of the plan's runs.

    Raises:
        ValueError: another command carries out the plan of this name now.
    """

    def __init__(self, sweep: Path) -> None:
        super().__init__(sweep / FOLDER / "events.jsonl", f"--name {sweep.name}")
        self.began: float | None = next((event["began"] for event in self.entries if "began" in event), None)

    def begin(self) -> None:
        """Note that this command starts tasks from now on."""
        now = since_epoch_s()
        self.began = now if self.began is None else self.began
        self.add(began=now)

    def now_s(self) -> float:
        """Seconds since the first command began; 0 before."""
        return 0.0 if self.began is None else since_epoch_s() - self.began

    def planned(self) -> dict[str, Mapping[str, Any]]:
        """The first plan of each task: gpus, gpu_ids, start_s, end_s."""
        plans = [event["planned"] for event in reversed(self.entries) if "planned" in event]
        return {name: placed for plan in plans for name, placed in plan.items()}

    def last(self, task: str) -> Mapping[str, Any]:
        """The last start or end of a task; empty where there is none."""
        events = reversed(self.entries)
        return next((event for event in events if task in (event.get("started"), event.get("ended"))), {})

    def span_s(self, record: AnyRecord) -> tuple[float, float] | None:
        """Start and end of a run by its record, to a second; None where it does not say, or ended before the plan."""
        moments = (record.segments or [record])[0].started_at, record.ended_at
        if self.began is None or None in moments:
            return None
        start_s, end_s = (datetime.fromisoformat(str(moment)).timestamp() - self.began for moment in moments)
        return (max(start_s, 0.0), end_s) if end_s > 0 else None
