"""Compares what multicard counts of a script with what `counting.py` counts in the same run.

`python -m tests.script.harness FOLDER` does so for the scripts that FOLDER/scripts.json lists,
which are not of this
project: objects with `name`, `script` (relative to the folder), and where they need them `words`
(of the script's command line), `overrides`, `cwd`, `commit`, `gpus` (list), `steps_only` (for one
without a loader) and `by_inputs` (see `counting.py`).
It prints a table and exits with 1 where a count differs.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.records import run_folder
from multicard.records.schema import ScriptRecord
from multicard.run import controller
from multicard.script.workload import WORKLOAD
from tests.conftest import composed
from tests.script.counting import BY_INPUTS

DRIVER = Path(__file__).with_name("counting.py")
Step = tuple[int, int]  # samples and batches


@dataclass
class Comparison:
    """Of a run of a script: its record, and the steps of each rank as both counted them."""

    record: ScriptRecord
    counted: list[list[Step]]
    by_hand: list[list[Step]]

    @property
    def agrees(self) -> bool:
        return self.record.status == "ok" and self.counted == self.by_hand

    def differences(self) -> Iterator[str]:
        """The first step of each rank of which the counts differ."""
        for rank, (own, theirs) in enumerate(zip(self.counted, self.by_hand, strict=True)):
            if len(own) != len(theirs):
                yield f"rank {rank}: {len(own)} steps, {len(theirs)} by hand"
            for number, (one, other) in enumerate(zip(own, theirs, strict=False)):
                if one != other:
                    yield f"rank {rank}, step {number}: {one}, {other} by hand"
                    break


def compare(
    script: Path,
    folder: Path,
    words: Sequence[str] = (),
    gpus: int = 1,
    overrides: Sequence[str] = (),
    by_inputs: bool = False,
) -> Comparison:
    """Run a script on CPU ranks.

    Args:
        folder: an empty one, for the run.
        words: of the script's command line.
        overrides: of multicard's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = [BY_INPUTS] if by_inputs else []
    quoted = ",".join(
        json.dumps(word) for word in (*options, str(folder.absolute()), str(script), *words)
    )
    own = [
        f"script={DRIVER}",
        f"words=[{quoted}]",
        "device=cpu",
        "tracker.mode=disabled",
        f"gpus={gpus}",
        *overrides,
    ]
    cfg = composed(*own, entry="measure_script")
    run = controller.measure(WORKLOAD, cfg, (folder / "run" / "cell").absolute(), keep_refused=True)
    assert isinstance(run.record, ScriptRecord)
    return Comparison(
        run.record, list(_counted(run.folder, gpus)), [_by_hand(folder, n) for n in range(gpus)]
    )


def _counted(folder: Path, gpus: int) -> Iterator[list[Step]]:
    table = run_folder.read_steps(folder)
    rows = [] if table is None else table.select(["rank", "samples", "batches"]).to_pylist()
    for rank in range(gpus):
        yield [(row["samples"], row["batches"]) for row in rows if row["rank"] == rank]


def _by_hand(folder: Path, rank: int) -> list[Step]:
    path = folder / f"rank{rank}.json"
    found = json.loads(path.read_text())["steps"] if path.exists() else []
    return [(samples, batches) for samples, batches in found]


def main(folder: Path) -> bool:
    """Compare the scripts of a folder; returns whether all counts agree."""
    agree = True
    print(
        "| script | commit | ranks | status | steps | samples | steps by hand | samples by hand |"
        " same |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for entry in json.loads((folder / "scripts.json").read_text()):
        for gpus in entry.get("gpus", (1, 2)):
            agree &= _compare_entry(folder, entry, gpus)
    return agree


def _compare_entry(folder: Path, entry: dict[str, Any], gpus: int) -> bool:
    script = (folder / entry["script"]).resolve()
    more = entry.get("overrides", ()), entry.get("by_inputs", False)
    before = Path.cwd()
    os.chdir(folder / entry.get("cwd", str(script.parent)))
    try:
        with tempfile.TemporaryDirectory() as place:
            found = compare(script, Path(place), entry.get("words", ()), gpus, *more)
    finally:
        os.chdir(before)
    agrees = found.agrees
    if entry.get("steps_only"):
        pairs = zip(found.counted, found.by_hand, strict=True)
        agrees = found.record.status == "ok" and all(
            len(own) == len(theirs) for own, theirs in pairs
        )
    cells = [entry["name"], entry.get("commit", ""), gpus, found.record.status]
    cells += [*totals(found.counted), *totals(found.by_hand), "yes" if agrees else "NO"]
    print("|", " | ".join(map(str, cells)), "|", flush=True)
    if not agrees:
        cause = found.record.cause
        for line in [*found.differences(), *([] if cause is None else [cause.message])]:
            print(f"  {line}", flush=True)
    return agrees


def totals(ranks: list[list[Step]]) -> tuple[str, str]:
    """Steps and samples, one number or those of each rank."""
    steps = [len(rank) for rank in ranks]
    samples = [sum(step[0] for step in rank) for rank in ranks]
    return "+".join(map(str, steps)), "+".join(map(str, samples))


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1])))
