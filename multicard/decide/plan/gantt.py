"""A schedule as a chart: a row a GPU, time to the right. For a terminal, and as SVG."""

from collections.abc import Sequence

from multicard.decide.plan.schedule import Schedule, Task
from multicard.measure.timing import in_hours
from multicard.records.text_table import cut

LEAST_COLUMNS = 20  # of a terminal's chart
WIDTH, LETTERS = 780, 100  # pixels of the SVG, and letters that fit into it


def text(tasks: Sequence[Task], schedule: Schedule, gpus: int, width: int, noun: str = "GPU") -> list[str]:
    """Lines of `width` cells at most: "[name==]" is a task on a GPU, in a column what runs at a time."""
    labels = [f"{noun} {gpu} " for gpu in range(gpus)]
    indent = max(map(len, labels))
    columns = max(width - indent, LEAST_COLUMNS)
    scale = columns / (schedule.makespan_s or 1.0)
    lines = []
    for gpu, label in enumerate(labels):
        row = [" "] * columns
        for task, placed in zip(tasks, schedule.placed, strict=True):
            if gpu in placed.gpu_ids:
                first, last = round(placed.start_s * scale), round(placed.end_s * scale)
                row[first:last] = _bar(task.name, last - first)
        lines.append((label.ljust(indent) + "".join(row)).rstrip())
    begin, middle, end = (in_hours(schedule.makespan_s * share) for share in (0, 0.5, 1))
    axis = begin + middle.rjust(columns // 2 + len(middle) // 2 - len(begin))
    return [*lines, " " * indent + axis + end.rjust(columns - len(axis))]


def _bar(name: str, width: int) -> str:
    """A task in so many cells."""
    if width < 2:
        return "|" * width
    return f"[{(cut(name, width - 2) if width > 2 else '').ljust(width - 2, '=')}]"


def svg(tasks: Sequence[Task], schedule: Schedule, gpus: int, title: str, noun: str = "GPU") -> str:
    """The chart as a file of its own. The runs of a job have one colour; what ends late has a red border."""
    import altair as alt
    import vl_convert

    late, end_s = schedule.late_s(tasks), schedule.makespan_s or 1.0
    rows = [
        {
            "job": task.job,
            "run": f"{task.name}: {in_hours(placed.start_s)} to {in_hours(placed.end_s)}",
            "label": cut(task.name, int((placed.end_s - placed.start_s) / end_s * LETTERS)),
            "gpu": f"{noun} {gpu}",
            "start": placed.start_s,
            "end": placed.end_s,
            "border": "#c00" if place in late else "white",
        }
        for place, (task, placed) in enumerate(zip(tasks, schedule.placed, strict=True))
        for gpu in placed.gpu_ids
    ]
    steps = [end_s * quarter / 4 for quarter in range(5)]
    axis = alt.Axis(values=steps, labelExpr=f"{[*map(in_hours, steps)]}[round(4 * datum.value / {end_s})]", title=None)
    x = alt.X("start:Q", axis=axis, scale=alt.Scale(domain=[0, end_s], nice=False))
    y = alt.Y("gpu:N", sort=[f"{noun} {gpu}" for gpu in range(gpus)], title=None)
    colour, border = alt.Color("job:N", legend=None), alt.Stroke("border:N", scale=None)
    bars = (
        alt.Chart()
        .mark_bar(cornerRadius=3)
        .encode(x=x, x2="end:Q", y=y, color=colour, stroke=border, description="run:N")
    )
    names = alt.Chart().mark_text(align="left", dx=5).encode(x=x, y=y, text="label:N")
    chart = alt.layer(bars, names, data=alt.Data(values=rows)).properties(title=title, width=WIDTH)
    return vl_convert.vegalite_to_svg(chart.to_dict())
