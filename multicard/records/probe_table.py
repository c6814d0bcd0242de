"""The table at the end of a command that measured probes."""

from collections.abc import Callable
from typing import Any

from multicard.records import comparable, text_table
from multicard.records.table import ALWAYS, folders
from multicard.records.text_table import in_bytes

NOTE = "Probes are no results: they feed predictions (predict=true), and stand in no other table."


def _known(record: dict[str, Any]) -> str:
    half_width = record["probe"]["half_width"]
    return "not known" if half_width is None else f"{half_width:.1%}"


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "step s": lambda record: f"{record['probe']['step_s']:.4g}",
    "±": _known,
    "steps": lambda record: str(record["probe"]["steps"]),
    "warm-up": lambda record: str(record["probe"]["warmup_steps"]),
    "ended by": lambda record: record["probe"]["ended_by"],
    "total s": lambda record: f"{record['total_s']:.1f}",
    "peak memory": lambda record: in_bytes(record["peak_memory_bytes"]["max"]),
}


def show(records: list[dict[str, Any]]) -> None:
    """Print the table of these probes of one kind."""
    print("\n" + "\n".join(lines(records, text_table.terminal_width())))


def lines(records: list[dict[str, Any]], width: int | None = None) -> list[str]:
    """The axes that differ, status and figures of each probe.

    Args:
        width: of the table in cells; None: any.
    """
    axes = comparable.varied(records, ALWAYS[records[0]["kind"]])
    rows = [
        [
            *(comparable.cell(record, axis) for axis in axes),
            record["status"] + comparable.marks(record),
            *(column(record) if record.get("probe") else "-" for column in COLUMNS.values()),
        ]
        for record in records
    ]
    printed = text_table.text([*axes, "status", *COLUMNS], rows, width, "l" * (len(axes) + 1) + "r" * len(COLUMNS))
    return [*printed, *comparable.notes(records), NOTE, f"Records: {folders(records)}"]
