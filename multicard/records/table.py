"""The table at the end of a command: one row a run."""

from collections.abc import Callable
from typing import Any

from multicard.config.base import Scale
from multicard.config.placement import OVERSUBSCRIBED
from multicard.measure import formulas
from multicard.records import comparable, steps, text_table
from multicard.records.text_table import in_bytes

Columns = dict[str, Callable[[dict[str, Any], list[dict[str, Any]]], str]]

COMPARED = ("x 1 GPU", "x fp64")  # left out where no run has its counterpart
MARK = "*"


def show(records: list[dict[str, Any]]) -> None:
    """Print the table of these runs of one kind."""
    print("\n" + "\n".join(lines(records, text_table.terminal_width())))


def lines(records: list[dict[str, Any]], width: int | None = None) -> list[str]:
    """The axes that differ, status and figures of each run, then notes, and where the records are.

    Args:
        width: of the table in cells; None: any.
    """
    kind = records[0]["kind"]
    axes, columns = comparable.varied(records, ALWAYS[kind]), COLUMNS[kind]
    rows = [_figures(result, records, columns) for result in records]
    figures = [heading for heading in columns if heading not in COMPARED or any(row[heading] != "-" for row in rows)]
    cells = [
        [*(comparable.cell(result, axis) for axis in axes), row["status"], *(row[heading] for heading in figures)]
        for result, row in zip(records, rows, strict=True)
    ]
    align = "l" * (len(axes) + 1) + "r" * len(figures)
    printed = text_table.text([*axes, "status", *figures], cells, width, align)
    for result in records:
        if result["status"] == "diverged" and len(records) > 1:
            cell = " ".join(f"{axis}={comparable.cell(result, axis)}" for axis in axes)
            printed.append(f"{cell}: diverged: {result['cause']['message']}")
    if any(result.get("oversubscribed") for result in records):
        printed.append(f"{MARK} {OVERSUBSCRIBED} (oversubscribe=true)")
    if any(result["axes"].get("scale") == Scale.smoke for result in records):
        printed.append("scale=smoke: shrunk, to try the code: not figures of what the papers measured")
    rate, skipped = RATES[kind]
    if any(result["status"] == "ok" and row[rate] == "-" for result, row in zip(records, rows, strict=True)):
        remedy = f"train longer, or set a smaller {skipped}"
        printed.append(f"{rate} is missing where a run has no more steps than {skipped} leaves out: {remedy}")
    if any(row.get("x 1 GPU", "").endswith(comparable.DOUBTFUL) for row in rows):
        printed.append(f"{comparable.DOUBTFUL} {comparable.DOUBTFUL_MEANING}")
    return [*printed, *comparable.notes(records), f"Records: {folders(records)}"]


def folders(records: list[dict[str, Any]]) -> str:
    """Where the records are: the folder itself for a single one."""
    paths = [result["folder"] for result in records]
    return f"{paths[0]}/" if len(paths) == 1 else f"{paths[0].rpartition('/')[0]}/*/result.json"


def _figures(result: dict[str, Any], records: list[dict[str, Any]], columns: Columns) -> dict[str, str]:
    """The row of a run: its status with marks, and each of `columns`, "-" where it did not end ok."""
    ended = {"status": result["status"] + MARK * bool(result.get("oversubscribed")) + comparable.marks(result)}
    if result["status"] != "ok":
        return ended | dict.fromkeys(columns, "-")
    return ended | {heading: figure(result, records) for heading, figure in columns.items()}


def _on_one_gpu(result: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any] | None:
    several = any(_ranks(other) != 1 for other in records)
    return comparable.reference(result, records, gpus=1, nodes=1) if several else None


def _ranks(result: dict[str, Any]) -> int:
    """Ranks on all nodes."""
    return result["axes"]["gpus"] * result["axes"].get("nodes", 1)


def _against_one(result: dict[str, Any], records: list[dict[str, Any]]) -> str:
    one = _on_one_gpu(result, records)
    if one is None:
        return "-"
    share = formulas.parallel_efficiency(one["total_s"], result["total_s"], _ranks(result))
    return _speedup(formulas.speedup(one["total_s"], result["total_s"]), share)


def _tokens_against_one(result: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """By tokens/s: with max_steps, n GPUs take as many steps as one and n times the rows."""
    one = _on_one_gpu(result, records)
    rates = [other["tokens_per_s"]["non_padding"] for other in (one, result) if other is not None]
    if len(rates) < 2 or None in rates:
        return "-"
    one_s, mine_s = (1 / rate for rate in rates)  # a token
    share = formulas.parallel_efficiency(one_s, mine_s, _ranks(result))
    return _speedup(formulas.speedup(one_s, mine_s), share)


def _speedup(speedup: float, share: float) -> str:
    doubtful = share > formulas.DOUBTFUL_EFFICIENCY
    return f"{speedup:.2f} ({share:.0%}){comparable.DOUBTFUL if doubtful else ''}"


def _against_fp64(result: dict[str, Any], records: list[dict[str, Any]]) -> str:
    fp64 = comparable.reference(result, records, precision="fp64")
    return "-" if fp64 is None else f"{formulas.speedup(fp64['total_s'], result['total_s']):.2f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _communicated(result: dict[str, Any]) -> int | None:
    received = result["communication_bytes"]
    return received and sum(received[kind] for kind in ("all_gather", "reduce_scatter", "all_reduce"))


# Heading to what it shows of an `ok` record, beside the others of the command.
TOTAL: Columns = {"total s": lambda result, _: f"{result['total_s']:.1f}"}
MEMORY: Columns = {"peak memory": lambda result, _: in_bytes(result["peak_memory_bytes"]["max"])}
COLUMNS: dict[str, Columns] = {
    "vision": {
        **TOTAL,
        "images/s": lambda result, _: _number(result["images_per_s"], ",.0f"),
        "x 1 GPU": _against_one,
        "x fp64": _against_fp64,
        "accuracy": lambda result, _: f"{result['test_accuracy']:.2%}",
        **MEMORY,
        "to device": lambda result, _: in_bytes(result["transfer_bytes"]["h2d"]),
    },
    "llm": {
        **TOTAL,
        "s/iteration": lambda result, _: _number(steps.mean_s(result), ".4f"),
        "tokens/s": lambda result, _: _number(result["tokens_per_s"]["non_padding"], ",.0f"),
        "x 1 GPU": _tokens_against_one,
        "loss": lambda result, _: _number(result["loss"]["first"], ".3f"),
        "to": lambda result, _: _number(result["loss"]["mean_of_last_tenth"], ".3f"),
        **MEMORY,
        "collectives": lambda result, _: in_bytes(_communicated(result)),
    },
}
RATES = {"vision": ("images/s", "warmup_steps"), "llm": ("tokens/s", "skip_steps")}  # and the steps left out of each
ALWAYS = {"vision": ("precision", "gpus"), "llm": ("method", "template", "gpus")}
