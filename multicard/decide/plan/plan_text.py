"""The plan as text for a terminal, and as data for other programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from multicard.config.job import count
from multicard.decide.plan.jobs_file import SLOWDOWN
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import GpusOption, PlanTask, Schedule
from multicard.estimate.observations import explain_marks
from multicard.machine.environment import spans
from multicard.measure.timing import in_hours
from multicard.messages import Message
from multicard.records import text_table
from multicard.records.output import Output
from multicard.records.schema_parts import PredictedInterval
from multicard.records.text_table import TextTable, cut

WIDTH = 120
LEAST_COLUMNS = 20  # The chart has at least this many columns.
HEADINGS = (
    "job",
    "GPUs",
    "on",
    "start",
    "end",
    "planned",
    "likely (90%)",
    "efficiency",
    "basis",
    "deadline",
    "late",
)


def plan_lines(plan: Plan, slowdown: PredictedInterval, content: Mapping[str, Any]) -> list[str]:
    """Return the plan as lines for a terminal; `content` is the result of `as_dict`."""
    width = width_of_table()
    noun = content["noun"]
    marks = explain_marks(job["basis"].partition(" ")[2] for job in content["jobs"])
    notes = text_table.folded([*marks, *_comparisons(plan), _slowdown_line(slowdown, noun)], width)
    bars = chart(plan.tasks, plan.schedule, plan.gpus, width, noun)
    return [*_table(content).lines(width), "", *bars, "", *notes]


def _slowdown_line(slowdown: PredictedInterval, noun: str) -> Message:
    """Return the line on the slowdown of jobs that run beside others."""
    ends = [slowdown.low, slowdown.high]
    runs = f"slowdown: {slowdown.value:.3g} for runs that leave {noun}s for others"
    if slowdown != SLOWDOWN:
        return Message("plan.slowdown", runs, key="slowdown", value=slowdown.value, ends=ends)
    why = "because they share cores, memory bandwidth and PCIe"
    sentence = (
        f"{runs} is assumed ({slowdown.low:g} to {slowdown.high:g}) {why}; set slowdown in the file"
    )
    return Message(
        "plan.slowdown-assumed", sentence, key="slowdown", value=slowdown.value, ends=ends
    )


def width_of_table() -> int:
    return min(text_table.terminal_width() or WIDTH, WIDTH)


def output(plan: Plan, content: dict[str, Any], lines: Sequence[str]) -> Output:
    """Return the plan for `emit`. For programs, each job is a row."""
    rows = []
    for job in content["jobs"]:
        seconds = {
            "seconds": job["seconds"]["value"],
            "seconds_low": job["seconds"]["low"],
            "seconds_high": job["seconds"]["high"],
        }
        as_busy = job["seconds_as_busy"] or {}
        seconds |= {f"seconds_as_busy_{end}": as_busy.get(end) for end in ("low", "high")}
        seconds["seconds_as_busy"] = as_busy.get("value")
        rows.append(
            job | seconds | {"gpu_ids": spans(job["gpu_ids"]), "after": ",".join(job["after"])}
        )
    table = _table(content)._replace(below=_comparisons(plan))
    return Output(lambda width: lines, lambda: [table], rows, content=lambda _: content)


def _table(content: Mapping[str, Any]) -> TextTable:
    columns = [
        column
        for column in zip(HEADINGS, *map(_row, content["jobs"]), strict=True)
        if any(column[1:])
    ]
    headings, *rows = zip(*columns, strict=True)
    sentence = f"plan of {count(len(rows), 'run')} on {content['node']}:"
    return TextTable(
        headings, rows, [Message("plan.title", sentence, runs=len(rows), node=content["node"])]
    )


def _row(job: Mapping[str, Any]) -> list[str]:
    """Return a row of the table, from a job of `as_dict`."""
    low, high = (in_hours(job["seconds"][end]) for end in ("low", "high"))
    likely_text = low if low == high else f"{low} to {high}"
    start_s = job["start_s"]
    end_s = job["end_s"]
    job_efficiency = job["efficiency"]
    deadline_s = job["deadline_s"]
    times = [in_hours(seconds) for seconds in (start_s, end_s, end_s - start_s)]
    deadline = "" if deadline_s is None else in_hours(abs(deadline_s))
    if deadline_s is not None and deadline_s < 0:
        deadline += " ago"
    late_text = in_hours(job["late_s"]) if job["late_s"] else ""
    share = "" if job_efficiency is None else f"{job_efficiency:.0%}"
    return [
        job["name"],
        str(job["gpus"]),
        spans(job["gpu_ids"]),
        *times,
        likely_text,
        share,
        job["basis"],
        deadline,
        late_text,
    ]


def efficiency(task: PlanTask, option: GpusOption) -> float | None:
    """Return the speed of each GPU relative to the task's fewest GPUs, or None for one option."""
    fewest = min(task.options, key=lambda other: other.gpus)
    return (
        None
        if len(task.options) == 1
        else fewest.gpus * fewest.alone.value / (option.gpus * option.alone.value)
    )


def _comparisons(plan: Plan) -> list[str]:
    """Return lines on makespan, bound, simple plans, and delays."""
    notes: list[str] = [_makespan_line(plan), _bound_line(plan)]
    simple = (
        ("in turn", "one after the other on all", plan.in_turn),
        ("fewest GPUs each", "each on as few as it may have", plan.one_gpu_each),
    )
    notes += [_simple_plan_line(plan, name, words, other) for name, words, other in simple]
    delay_of_place = plan.schedule.late_s(plan.tasks)
    if delay_of_place:
        names = [plan.tasks[place].name for place in delay_of_place]
        delays = ", ".join(
            f"{plan.tasks[place].name} by {in_hours(delay)}"
            for place, delay in delay_of_place.items()
        )
        sentence = f"missed deadlines: {delays}; {in_hours(sum(delay_of_place.values()))} in all"
        notes.append(
            Message(
                "plan.late",
                sentence,
                tasks=names,
                seconds=[*delay_of_place.values()],
                total_s=sum(delay_of_place.values()),
            )
        )
    return notes


def _makespan_line(plan: Plan) -> Message:
    likely = plan.likely
    makespan_s = plan.schedule.makespan_s
    sentence = f"makespan: {in_hours(makespan_s)} planned"
    if likely.low < likely.high:
        sentence += (
            f"; likely {in_hours(likely.value)} ({in_hours(likely.low)} to {in_hours(likely.high)})"
        )
    facts: dict[str, Any] = {"likely": [likely.value, likely.low, likely.high]}
    likely_as_busy = plan.likely_as_busy
    if likely_as_busy is not None:
        sentence += (
            f"; if others stay as busy, {in_hours(likely_as_busy.low)} to"
            f" {in_hours(likely_as_busy.high)}"
        )
        facts["as_busy"] = [likely_as_busy.value, likely_as_busy.low, likely_as_busy.high]
    return Message("plan.makespan", sentence, seconds=makespan_s, **facts)


def _bound_line(plan: Plan) -> Message:
    has_deadlines = any(task.deadline_s is not None for task in plan.tasks)
    keeps = has_deadlines and not plan.schedule.late_s(plan.tasks)
    limit = "no plan that keeps the deadlines" if keeps else "no plan"
    sentence = f"bound: {limit} ends before {in_hours(plan.bound_s)}: gap {plan.gap:.1%}"
    return Message(
        "plan.bound", sentence, keeps_deadlines=keeps, seconds=plan.bound_s, gap=plan.gap
    )


def _simple_plan_line(plan: Plan, name: str, words: str, other: Schedule) -> Message:
    """Return the line that compares the plan with a simple one."""
    saved = 1 - plan.schedule.makespan_s / other.makespan_s if other.makespan_s else 0.0
    if abs(saved) < 0.005:
        compared = "as the plan"
    else:
        compared = f"the plan takes {abs(saved):.0%} {'less' if saved > 0 else 'more'}"
    sentence = f"{words}: {in_hours(other.makespan_s)}; {compared}"
    return Message(
        "plan.against-simple", sentence, simple=name, seconds=other.makespan_s, saved=saved
    )


def chart(
    tasks: Sequence[PlanTask], schedule: Schedule, gpus: int, width: int, noun: str = "GPU"
) -> list[str]:
    """Return a Gantt chart with at most `width` characters a line.

    Each GPU is a row, each column a time, and "[name==]" a task.
    """
    labels = [f"{noun} {gpu} " for gpu in range(gpus)]
    indent = max(map(len, labels))
    columns = max(width - indent, LEAST_COLUMNS)
    scale = columns / (schedule.makespan_s or 1.0)
    rows = []
    for gpu, label in enumerate(labels):
        row = [" "] * columns
        for task, placed in zip(tasks, schedule.placed, strict=True):
            if gpu in placed.gpu_ids:
                first = round(placed.start_s * scale)
                last = round(placed.end_s * scale)
                name = cut(task.name, last - first - 2) if last - first > 2 else ""
                row[first:last] = (
                    f"[{name.ljust(last - first - 2, '=')}]"
                    if last - first > 1
                    else "|" * (last - first)
                )
        rows.append((label.ljust(indent) + "".join(row)).rstrip())
    begin, middle, end = (in_hours(schedule.makespan_s * share) for share in (0, 0.5, 1))
    axis = begin + middle.rjust(columns // 2 + len(middle) // 2 - len(begin))
    return [*rows, " " * indent + axis + end.rjust(columns - len(axis))]


def as_dict(
    plan: Plan, node: str, slowdown: PredictedInterval, noun: str = "GPU"
) -> dict[str, Any]:
    """Return the plan as a dictionary for other programs, and for `plan_lines`."""
    late = plan.schedule.late_s(plan.tasks)
    jobs = []
    for place in plan.schedule.order():
        task = plan.tasks[place]
        placed = plan.schedule.placed[place]
        jobs.append({
            "name": task.name,
            "job": task.job,
            "gpus": placed.option.gpus,
            "gpu_ids": list(placed.gpu_ids),
            "start_s": placed.start_s,
            "end_s": placed.end_s,
            "seconds": msgspec.to_builtins(placed.option.interval),
            "seconds_as_busy": msgspec.to_builtins(placed.option.as_busy),
            "basis": placed.option.basis,
            "efficiency": efficiency(task, placed.option),
            "after": [plan.tasks[other].name for other in task.after],
            "deadline_s": task.deadline_s,
            "late_s": late.get(place, 0.0),
        })  # fmt: skip
    return {
        "node": node,
        "noun": noun,
        "gpus": plan.gpus,
        "slowdown": msgspec.to_builtins(slowdown),
        "makespan_s": plan.schedule.makespan_s,
        "bound_s": plan.bound_s,
        "expected_makespan_s": msgspec.to_builtins(plan.likely),
        "expected_makespan_as_busy_s": msgspec.to_builtins(plan.likely_as_busy),
        "in_turn_s": plan.in_turn.makespan_s,
        "fewest_gpus_each_s": plan.one_gpu_each.makespan_s,
        "late_s": sum(late.values()),
        "jobs": jobs,
    }
