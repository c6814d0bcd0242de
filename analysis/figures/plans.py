"""A Gantt chart of a plan of jobs: a row for each GPU; what was planned, pale, above what became of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from analysis.figures.chart_data import Row
from analysis.figures.vega import LETTER_POINTS, Figure, calculated, figure, layered
from multicard.records.text_table import cut

WIDTH = 560  # points
BAR, GAP = 18, 5  # points: of a bar, and between rows
PLANNED, REAL = "planned", "real"
UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def chart(name: str, plan: Mapping[str, Any]) -> Figure | None:
    """The chart of a plan's file (`python -m multicard plan --json`); None where it has no job with a time.

    Args:
        name: of the figure's file.
    """
    if not (rows := _rows(plan)):
        return None
    longest_s = max(row["end_s"] for row in rows)
    second, unit = next((seconds, word) for least, seconds, word in UNITS if longest_s >= least)
    for row in rows:
        letters = int(WIDTH * (row["end_s"] - row["start_s"]) / longest_s / LETTER_POINTS) - 1
        row["label"] = cut(row["job"], letters) if letters >= 3 else ""
    kinds = [kind for kind in (PLANNED, REAL) if any(row["kind"] == kind for row in rows)]
    x = alt.X("start:Q", title=f"time ({unit})", scale=alt.Scale(domain=[0, longest_s / second], nice=False))
    y = alt.Y("gpu:N", title=None, sort=None, axis=alt.Axis(ticks=False))
    offset = alt.YOffset("kind:N", sort=kinds)
    tooltip = [alt.Tooltip(field) for field in ("job:N", "kind:N", "gpus:Q", "start:Q", "end:Q", "status:N")]
    colour = alt.Color("of:N", legend=None)
    pale = alt.Opacity("kind:N", scale=alt.Scale(domain=[PLANNED, REAL], range=[0.35, 0.65]), legend=None)
    bars = alt.Chart().mark_bar(cornerRadius=2)
    names = alt.Chart().mark_text(align="left", dx=3, baseline="middle", fontSize=10)
    layers = [
        bars.encode(x=x, x2="end:Q", y=y, yOffset=offset, color=colour, opacity=pale, tooltip=tooltip),
        names.encode(x=x, y=y, yOffset=offset, text="label:N"),
    ]
    transform = calculated(start=f"datum.start_s / {second}", end=f"datum.end_s / {second}")
    spec = layered(layers, transform, WIDTH, len({row["gpu"] for row in rows}) * (len(kinds) * BAR + GAP))
    below = ["Pale: as it was planned at first; full: what became of it"] if REAL in kinds else []
    title = f"Plan of {len({row['job'] for row in rows})} jobs on {plan.get('node', 'a node')}"
    return figure(name, spec, rows, title, [], below, "", WIDTH)


def _rows(plan: Mapping[str, Any]) -> Sequence[Row]:
    """A row for each job on each of its GPUs, as planned and as it ran."""
    carried, rows = plan.get("carried_out"), list[Row]()
    kinds = {REAL: "", PLANNED: "planned_"} if carried else {PLANNED: ""}  # and the prefix of their keys
    for job in (carried or plan).get("jobs", ()):
        for kind, prefix in kinds.items():
            start_s, end_s, ids = (job.get(f"{prefix}{key}") for key in ("start_s", "end_s", "gpu_ids"))
            if start_s is not None and end_s is not None:
                row = {"job": job["name"], "of": job["job"], "status": job.get("status", ""), "kind": kind}
                row |= {"gpus": len(ids or ()), "start_s": start_s, "end_s": end_s}
                rows += [{**row, "gpu": f"{plan.get('noun', 'GPU')} {gpu}"} for gpu in ids or ()]
    return sorted(rows, key=lambda row: (int(row["gpu"].split()[-1]), row["kind"], row["start_s"]))
