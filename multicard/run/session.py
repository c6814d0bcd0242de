"""The records of this command, and its table at the end."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multicard.records import probe_table, run_folder, table
from multicard.records.probes import is_probe
from multicard.run.workload import Workload

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


@dataclass
class Session:
    """The state of this command. A launcher sets `label` ("[2/6] ") before each cell."""

    workload: Workload | None = None
    overrides: "Sequence[Override]" = ()  # the keys that the command sets
    records: list[dict[str, Any]] = field(default_factory=list)
    label: str = ""
    begun: bool = False  # the start-up of the first run alone counts from the command
    foreseen_s: float = 0.0  # what predictions took before it, which is no part of its start-up
    abandoned: bool = False  # something is left undone, so the command fails
    would_refuse: bool = False  # as a dry run found


SESSION = Session()


def close() -> int:
    """Print the table of what this command measured and return its exit code."""
    single_refusal = [record["status"] for record in SESSION.records] == ["refused"] and not SESSION.label
    if SESSION.records and not single_refusal:
        probing = all(is_probe(record.get("config", {}), record["folder"]) for record in SESSION.records)
        (probe_table if probing else table).show(SESSION.records)
        show_profiles(SESSION.records)
    bad = any(record["status"] in run_folder.BAD or "tracker_error" in record for record in SESSION.records)
    return 1 if bad or SESSION.abandoned or SESSION.would_refuse else 0


def show_profiles(records: list[dict[str, Any]]) -> None:
    """Print the metrics of a single profiled run; for several, the command that shows them."""
    profiled = [record for record in records if record.get("profile") is not None]
    for record in profiled:
        if "error" in record["profile"]:
            say(f"profile: {record['profile']['error']} ({record['folder']})", error=True)
    profiles = [record["profile"] for record in profiled if "rows" in record["profile"]]
    if len(records) == 1 and profiles:
        from multicard.observe.profiles import text
        from multicard.observe.profiles.profile_data import Profile

        say("\n".join(["", *text.profile_lines(Profile.from_dict(profiles[0]), top=10)]))
    elif profiles:
        say("Profiles: python -m multicard profile FOLDER/profile, with --against OTHER/profile to compare two")


def say(line: str, error: bool = False) -> None:
    print(line, file=sys.stderr if error else sys.stdout, flush=True)
