"""`list`: the runs found, as a table, CSV or JSON."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import formatting
from analysis.runs import grouping
from analysis.runs.caveats import legend
from analysis.runs.load import Found, Run, Skipped
from analysis.runs.sql import column_names, known
from multicard.records import text_table
from multicard.records.table import ALWAYS
from multicard.records.text_table import clean

SHOWN = 5  # skipped records that are named one by one


def lines(found: Found, runs: Sequence[Run], chosen: Sequence[str] | None, limit: int | None) -> list[str]:
    """What `list` prints of `runs`, some of those `found`.

    Args:
        chosen: the columns to show instead of those that tell the runs apart, and their main figures.
        limit: the width in cells that a table may take; None for any.
    """
    said = _table(runs, chosen, limit) if runs else []
    total = len(found.runs)
    counted = f"{len(runs)} of {total} runs" if len(runs) < total else f"{total} run{'s' * (total > 1)}"
    return [*said, counted + _failures(runs), *legend(run["marks"] for run in runs), *skipped(found.skipped)]


def skipped(records: Sequence[Skipped]) -> list[str]:
    """A line for each record that could not be used, and one for those beyond the first few."""
    named = [f"skipped {clean(str(one.folder))}: {clean(one.why)}" for one in records[:SHOWN]]
    rest = [f"skipped {len(records) - SHOWN} more (--json FILE names all)"] if len(records) > SHOWN else []
    return named + rest


def _failures(runs: Sequence[Run]) -> str:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run["status"]] = counts.get(run["status"], 0) + 1
    others = ", ".join(f"{count} {clean(status)}" for status, count in counts.items() if status != "ok")
    return f", of these {others}: their figures are left out" if others else ""


def _table(runs: Sequence[Run], chosen: Sequence[str] | None, limit: int | None) -> list[str]:
    if chosen is not None:
        names = column_names(runs)
        picked = [known(name, names, "--columns") for name in chosen]
        return text_table.text(picked, [[formatting.value(name, run[name]) for name in picked] for run in runs], limit)
    kinds = list(dict.fromkeys(run["kind"] for run in runs))
    axes = list(dict.fromkeys(name for kind in kinds for name in differing([r for r in runs if r["kind"] == kind])))
    rows = [_row(run, axes) for run in runs]
    headings = list(rows[0])
    same = {name for name in ABOUT if len(rows) > 1 and len({row[name] for row in rows}) == 1}
    empty = {name for name in headings if name not in axes and {row[name] for row in rows} <= {"-", ""}}
    kept = [name for name in headings if name not in same | empty]
    told = ", ".join(f"{name} {rows[0][name]}" for name in ABOUT if name in same - empty)
    table = text_table.text(kept, [[row[name] for name in kept] for row in rows], limit)
    return ([f"all: {told}"] if told else []) + table


ABOUT = ("name", "kind", "commit", "machine")  # said once, above the table, where it is the same for all


def _row(run: Run, axes: Sequence[str]) -> dict[str, str]:
    measured = run["status"] == "ok"

    def figure(column: str) -> str:
        return formatting.value(column, run[column]) if measured else "-"

    return {
        "name": formatting.value("", run["name"]),
        "kind": clean(run["kind"]),
        **{name: formatting.value("", run[name]) for name in axes},
        "status": clean(run["status"]),
        "total s": figure("total_s"),
        "images/s": figure("images_per_s"),
        "tokens/s": figure("tokens_per_s"),
        "accuracy": figure("test_accuracy"),
        "loss": figure("loss_last_tenth"),
        "peak memory": figure("peak_memory_bytes"),
        "commit": grouping.commit(run),
        "machine": grouping.machine(run),
        "marks": run["marks"],
    }


def differing(runs: Sequence[Run]) -> list[str]:
    """The axes and keys that tell runs of one kind apart, and those that are always shown of it."""
    keys = [*grouping.settings(runs), grouping.REPEATED]
    always = [name for name in ALWAYS.get(runs[0]["kind"], ()) if any(run[name] is not None for run in runs)]
    told = grouping.apart([run.columns for run in runs], keys)
    return [*always, *(name for name in told if name not in always)]


def write_csv(path: Path, runs: Sequence[Run], chosen: Sequence[str] | None) -> None:
    """Every run with all its columns, or those chosen, as they are in the records: units are in the names."""
    names = _names(runs, chosen)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([run[name] for name in names] for run in runs)


def write_json(path: Path, found: Found, runs: Sequence[Run], chosen: Sequence[str] | None) -> None:
    """The same, with the records that were skipped."""
    names = _names(runs, chosen)
    content: dict[str, Any] = {
        "runs": [{name: run[name] for name in names} for run in runs],
        "skipped": [{"folder": str(one.folder), "why": one.why} for one in found.skipped],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _names(runs: Sequence[Run], chosen: Sequence[str] | None) -> list[str]:
    names = column_names(runs)
    return names if chosen is None else [known(name, names, "--columns") for name in chosen]
