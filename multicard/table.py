"""The table at the end of a command: one row a run."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from multicard import compare, measure

ALWAYS = ("precision", "gpus")
FIGURES = ("status", "total s", "images/s", "x 1 GPU", "x fp64", "accuracy", "peak memory", "to device")
COMPARED = ("x 1 GPU", "x fp64")  # left out where no run of the table can be compared so
MARK = "*"
WIDTH = 140  # where the output is no terminal


def show(records: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print what was measured: the axes that differ, status, times, efficiency, accuracy, memory, bytes."""
    console = console or Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    axes = compare.varied(records, ALWAYS)
    rows = [_figures(result, records) for result in records]
    shown = [heading for heading in FIGURES if heading not in COMPARED or any(row[heading] != "-" for row in rows)]
    for heading in (*axes, "status"):
        table.add_column(heading)
    for heading in shown[1:]:
        table.add_column(heading, justify="right")
    for result, row in zip(records, rows, strict=True):
        table.add_row(*(compare.cell(result, axis) for axis in axes), *(row[heading] for heading in shown))
    console.print()
    console.print(table)
    if any(result.get("oversubscribed") for result in records):
        console.print(f"{MARK} ranks shared a GPU (oversubscribe=true): not a figure of this machine")
    for note in compare.notes(records):
        console.print(note, soft_wrap=True, highlight=False)
    console.print(f"Records: {folders(records)}", soft_wrap=True, highlight=False)


def folders(records: list[dict[str, Any]]) -> str:
    """Where the records are: the folder itself for a single one."""
    paths = [result["folder"] for result in records]
    return f"{paths[0]}/" if len(paths) == 1 else f"{paths[0].rpartition('/')[0]}/*/result.json"


def _figures(result: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, str]:
    """What the row of a run shows under each of `FIGURES`."""
    status = result["status"] + (MARK if result.get("oversubscribed") else "")
    if result["status"] != "ok":
        return dict.fromkeys(FIGURES, "-") | {"status": status}
    total_s, gpus = result["total_s"], result["axes"]["gpus"]
    several = any(other["axes"]["gpus"] != 1 for other in records)
    one = compare.reference(result, records, "gpus", 1) if several else None
    fp64 = compare.reference(result, records, "precision", "fp64")
    against_one = "-"
    if one is not None:
        share = measure.parallel_efficiency(one["total_s"], total_s, gpus)
        against_one = f"{measure.speedup(one['total_s'], total_s):.2f} ({share:.0%})"
    rate = result["images_per_s"]
    return {
        "status": status,
        "total s": f"{total_s:.1f}",
        "images/s": "-" if rate is None else f"{rate:,.0f}",
        "x 1 GPU": against_one,
        "x fp64": "-" if fp64 is None else f"{measure.speedup(fp64['total_s'], total_s):.2f}",
        "accuracy": f"{result['test_accuracy']:.2%}",
        "peak memory": in_bytes(result["peak_memory_bytes"]["max"]),
        "to device": in_bytes(result["transfer_bytes"]["h2d"]),
    }


def in_bytes(count: float | None) -> str:
    """Bytes for a person to read, in powers of 1000."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
