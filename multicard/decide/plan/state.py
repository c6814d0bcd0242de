"""What a plan that is carried out knows, on disk as it comes to know it: the same command again goes on.

`multirun/NAME/.plan/events.jsonl` has a JSON object a line: what was planned at first, then starts and ends of tasks.
What is done stands in the records of the runs themselves.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from multicard.measure.timing import since_epoch_s
from multicard.records.journal import Journal
from multicard.records.schema import AnyRecord

FOLDER = ".plan"


class State(Journal):
    """Events of earlier commands with the same name, and of this one, with their time since the first began.

    Args:
        sweep: folder of the plan's runs.

    Raises:
        ValueError: another command carries out the plan of this name now.
    """

    def __init__(self, sweep: Path) -> None:
        super().__init__(sweep / FOLDER / "events.jsonl", f"--name {sweep.name}")
        begun = [event["began"] for event in self.entries if "began" in event]
        self.began: float | None = begun[0] if begun else None

    def begin(self) -> None:
        """Note that this command starts tasks from now on."""
        now = since_epoch_s()
        self.began = now if self.began is None else self.began
        self.add(began=now)

    def now_s(self) -> float:
        """Seconds since the first command began; 0 before."""
        return 0.0 if self.began is None else since_epoch_s() - self.began

    def planned(self) -> dict[str, Mapping[str, Any]]:
        """What was first planned of each task: gpus, gpu_ids, start_s, end_s."""
        planned: dict[str, Mapping[str, Any]] = {}
        for event in self.entries:
            for name, placed in event.get("planned", {}).items():
                planned.setdefault(name, placed)
        return planned

    def last(self, task: str) -> Mapping[str, Any]:
        """The last start or end of a task; empty where there is none."""
        return next(
            (event for event in reversed(self.entries) if task in (event.get("started"), event.get("ended"))), {}
        )

    def span_s(self, record: AnyRecord) -> tuple[float, float] | None:
        """Start and end of a run by its record, to a second; None where it does not say, or ended before all this."""
        moments = (record.segments or [record])[0].started_at, record.ended_at
        if self.began is None or None in moments:
            return None
        start_s, end_s = (datetime.fromisoformat(str(moment)).timestamp() - self.began for moment in moments)
        return (max(start_s, 0.0), end_s) if end_s > 0 else None

    def idle_s(self) -> float:
        """Seconds between commands: from an earlier one's last event to the next one's first."""
        began = self.began or 0.0
        moments = [event["began"] - began if "began" in event else event["at_s"] for event in self.entries]
        return sum(later - earlier for event, (earlier, later) in zip(self.entries[1:], pairwise(moments), strict=True)
                   if "began" in event)  # fmt: skip
