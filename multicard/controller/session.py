"""What this command has measured so far, and its table at the end."""

import sys
from dataclasses import dataclass, field
from typing import Any

from multicard.controller.workload import Workload
from multicard.records import run_folder, table


@dataclass
class Session:
    """What this command has measured so far: a launcher of this process sets `label` before each cell ("[2/6] ")."""

    workload: Workload | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    label: str = ""
    begun: bool = False  # a run was begun: the next one's start-up does not count from the command
    abandoned: bool = False  # jobs are in the queue that are not waited for


SESSION = Session()


def close() -> int:
    """Print the table of what this command measured and return its exit code."""
    alone_and_refused = [result["status"] for result in SESSION.records] == ["refused"] and not SESSION.label
    if SESSION.records and not alone_and_refused:
        table.show(SESSION.records)
        show_profiles(SESSION.records)
    bad = any(result["status"] in run_folder.BAD or "tracker_error" in result for result in SESSION.records)
    return 1 if bad or SESSION.abandoned else 0


def show_profiles(records: list[dict[str, Any]]) -> None:
    """Print the table of metrics of a single profiled run; of several, how to see them."""
    profiles = {result["folder"]: found for result in records if (found := result.get("profile")) is not None}
    for folder, found in profiles.items():
        if "error" in found:
            say(f"profile: {found['error']} ({folder})", error=True)
    rows = [found for found in profiles.values() if "rows" in found]
    if len(records) == 1 and rows:
        from multicard.profiling import text
        from multicard.profiling.profile_data import Profile

        say("\n".join(["", *text.profile_lines(Profile.from_dict(rows[0]), top=10)]))
    elif rows:
        say("Profiles: python -m multicard.profiling FOLDER/profile, with --against OTHER/profile to compare two")


def say(line: str, error: bool = False) -> None:
    print(line, file=sys.stderr if error else sys.stdout, flush=True)
