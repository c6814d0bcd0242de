"""A schedule as a chart: a row a GPU, time to the right. For a terminal, and as SVG."""

from collections.abc import Sequence
from html import escape

from multicard.decide.plan.schedule import Placed, Schedule, Task
from multicard.measure.timing import in_hours
from multicard.records.text_table import cut

LEAST_COLUMNS = 20  # of a terminal's chart
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f", "#ff9da7", "#bab0ac")
ROW, BAR, LEFT, WIDTH, TOP = 30, 24, 80, 880, 40  # pixels of the SVG
LETTER = 7.2  # pixels of a letter, about


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
    jobs = list(dict.fromkeys(task.job for task in tasks))
    late = schedule.late_s(tasks)
    scale = (WIDTH - LEFT - 20) / (schedule.makespan_s or 1.0)
    height = TOP + gpus * ROW + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    parts += _axis(schedule.makespan_s, scale, gpus)
    for gpu in range(gpus):
        y = TOP + gpu * ROW + BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{y:g}" text-anchor="end">{noun} {gpu}</text>')
    for place, (task, placed) in enumerate(zip(tasks, schedule.placed, strict=True)):
        colour = COLOURS[jobs.index(task.job) % len(COLOURS)]
        parts += [_rectangle(task.name, placed, gpu, scale, colour, place in late) for gpu in placed.gpu_ids]
    return "\n".join([*parts, "</svg>", ""])


def _axis(makespan_s: float, scale: float, gpus: int) -> list[str]:
    parts = []
    for quarter in range(5):
        x, bottom = LEFT + makespan_s * scale * quarter / 4, TOP + gpus * ROW
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        time = in_hours(makespan_s * quarter / 4)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{time}</text>')
    return parts


def _rectangle(name: str, placed: Placed, gpu: int, scale: float, colour: str, is_late: bool) -> str:
    x, width = LEFT + placed.start_s * scale, max((placed.end_s - placed.start_s) * scale - 1, 1)
    y, border = TOP + gpu * ROW, "#c00" if is_late else "white"
    times = f"{in_hours(placed.start_s)} to {in_hours(placed.end_s)}"
    label = cut(name, int(width / LETTER)) if width > 3 * LETTER else ""
    return (
        f'<g><title>{escape(name)}: {times}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" '
        f'fill="{colour}" stroke="{border}"/><text x="{x + 5:.1f}" y="{y + BAR / 2 + 4:g}" fill="white">'
        f"{escape(label)}</text></g>"
    )
