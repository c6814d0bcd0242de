"""A plan in words: its table, what it is compared with and why, and the same as JSON."""

import textwrap
from collections.abc import Sequence
from typing import Any

from multicard.decide.plan import gantt
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import Option, Task
from multicard.measure.timing import in_hours
from multicard.records import text_table
from multicard.records.schema_parts import Interval

WIDTH = 120
BADLY = 0.85  # efficiency below which a job is said to scale badly
NAMED = 5  # jobs at most of which that is said
HEADINGS = ("job", "GPUs", "on", "start", "end", "planned", "likely (90%)", "efficiency", "basis", "deadline")


def lines(plan: Plan, node: str, slowdown: Interval, source: str, noun: str = "GPU") -> list[str]:
    """The plan for a terminal.

    Args:
        source: of the slowdown, in words; empty where it is assumed.
    """
    width = min(text_table.terminal_width() or WIDTH, WIDTH)
    shown = [
        f"plan of {len(plan.tasks)} runs on {node}, goal={plan.goal}:",
        *text_table.text(*_table(plan), width),
        "",
        *gantt.text(plan.tasks, plan.schedule, plan.gpus, width, noun),
        "",
    ]
    notes = [*_figures(plan), *_late(plan), *_scaling(plan.tasks), _slowdown(slowdown, source)]
    return shown + [line for note in notes for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")]


def _table(plan: Plan) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and rows by start; columns that are empty are left out."""
    late, rows = plan.schedule.late_s(plan.tasks), []
    for place in plan.schedule.order():
        task, placed = plan.tasks[place], plan.schedule.placed[place]
        option, share = placed.option, efficiency(task, placed.option)
        deadline = "" if task.deadline_s is None else _deadline(task.deadline_s)
        rows.append([
            task.name,
            str(option.gpus),
            ranges(placed.gpu_ids),
            in_hours(placed.start_s),
            in_hours(placed.end_s),
            in_hours(placed.end_s - placed.start_s),
            _between(option.interval),
            "" if share is None else f"{share:.0%}",
            option.basis,
            deadline + (f" ({in_hours(late[place])} late)" if place in late else ""),
        ])  # fmt: skip
    filled = [column for column in range(len(HEADINGS)) if any(row[column] for row in rows)]
    headings = tuple(HEADINGS[column] for column in filled)
    return headings, [[row[column] for column in filled] for row in rows]


def _deadline(deadline_s: float) -> str:
    return in_hours(deadline_s) if deadline_s >= 0 else f"{in_hours(-deadline_s)} ago"


def _between(interval: Interval) -> str:
    if interval.low == interval.high:
        return in_hours(interval.value)
    return f"{in_hours(interval.low)} to {in_hours(interval.high)}"


def ranges(ids: Sequence[int]) -> str:
    """ "0-3", "0 2"."""
    if len(ids) > 1 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}-{ids[-1]}"
    return " ".join(map(str, ids))


def efficiency(task: Task, option: Option) -> float | None:
    """The speed of each GPU by that on the fewest that the task may have; None where there is one choice alone."""
    fewest = min(task.options, key=lambda other: other.gpus)
    if len(task.options) == 1:
        return None
    return fewest.gpus * fewest.interval.value / (option.gpus * option.interval.value)


def _figures(plan: Plan) -> list[str]:
    makespan_s, expected = plan.schedule.makespan_s, plan.expected
    notes = [f"makespan: {in_hours(makespan_s)} planned"]
    if any(placed.option.interval.low < placed.option.interval.high for placed in plan.schedule.placed):
        notes[0] += " (four of five runs end sooner than planned)"
    if expected.low < expected.high:
        notes[0] += f"; likely {in_hours(expected.value)} ({in_hours(expected.low)} to {in_hours(expected.high)})"
    limit = "no plan" if plan.goal is Goal.makespan else f"no plan as good for goal={plan.goal}"
    if any(task.deadline_s is not None for task in plan.tasks):
        limit = "no plan" if plan.schedule.late_s(plan.tasks) else "no plan that keeps the deadlines"
    notes.append(f"bound: {limit} ends before {in_hours(plan.bound_s)}: gap {plan.gap:.1%}")
    for name, other in (
        ("one after the other on all", plan.in_turn),
        ("each on as few as it may have", plan.one_gpu_each),
    ):
        saved = 1 - makespan_s / other.makespan_s if other.makespan_s else 0.0
        compared = f"the plan takes {abs(saved):.0%} {'less' if saved >= 0 else 'more'}"
        notes.append(f"{name}: {in_hours(other.makespan_s)}; {compared if abs(saved) >= 0.005 else 'as the plan'}")
    joules = plan.schedule.joules()
    if joules is not None:
        notes.append(f"energy: {text_table.in_joules(joules)} of the GPUs at work")
    return notes


def _late(plan: Plan) -> list[str]:
    late = plan.schedule.late_s(plan.tasks)
    if not late:
        return []
    delays = ", ".join(f"{plan.tasks[place].name} by {in_hours(delay)}" for place, delay in late.items())
    least = "the least there is" if "delay" in plan.proven else "the least that was found"
    return [f"deadlines that cannot be kept: {delays}; {in_hours(sum(late.values()))} in all, {least}"]


def _scaling(tasks: Sequence[Task]) -> list[str]:
    """Why jobs do not run one after the other on all GPUs: those that gain little from more of them."""
    worst: dict[str, tuple[float, str]] = {}
    for task in tasks:
        most = max(task.options, key=lambda option: option.gpus)
        fewest = min(task.options, key=lambda option: option.gpus)
        share = efficiency(task, most)
        if share is not None and share < BADLY:
            times = (
                f"{in_hours(fewest.interval.value)} on {fewest.gpus}, {in_hours(most.interval.value)} on {most.gpus}"
            )
            worst[task.job] = share, f"{task.job} {share:.0%} ({times})"
    named = [words for _, words in sorted(worst.values())[:NAMED]]
    more = f", and {len(worst) - NAMED} more" if len(worst) > NAMED else ""
    return [f"scale badly (speed of each GPU, by that on the fewest): {', '.join(named)}{more}"] if named else []


def _slowdown(slowdown: Interval, source: str) -> str:
    figure = f"slowdown: {slowdown.value:.3g} of runs while others run"
    if source:
        return f"{figure}, {source}"
    why = "runs side by side share cores, memory bandwidth and PCIe, and no pair was measured"
    remedy = "slowdown: in the file sets it, --probe measures it"
    return f"{figure} is assumed ({slowdown.low:g} to {slowdown.high:g}): {why}; {remedy}"


def as_dict(plan: Plan, node: str, slowdown: Interval, noun: str = "GPU") -> dict[str, Any]:
    """The plan for other programs."""
    late = plan.schedule.late_s(plan.tasks)
    jobs = []
    for place in plan.schedule.order():
        task, placed = plan.tasks[place], plan.schedule.placed[place]
        option = placed.option
        jobs.append({
            "name": task.name,
            "job": task.job,
            "gpus": option.gpus,
            "gpu_ids": list(placed.gpu_ids),
            "start_s": placed.start_s,
            "end_s": placed.end_s,
            "seconds": _as_dict(option.interval),
            "joules": option.joules,
            "basis": option.basis,
            "efficiency": efficiency(task, option),
            "after": [plan.tasks[other].name for other in task.after],
            "deadline_s": task.deadline_s,
            "late_s": late.get(place, 0.0),
        })  # fmt: skip
    return {
        "goal": str(plan.goal),
        "node": node,
        "noun": noun,
        "gpus": plan.gpus,
        "slowdown": _as_dict(slowdown),
        "makespan_s": plan.schedule.makespan_s,
        "bound_s": plan.bound_s,
        "expected_makespan_s": _as_dict(plan.expected),
        "in_turn_s": plan.in_turn.makespan_s,
        "fewest_gpus_each_s": plan.one_gpu_each.makespan_s,
        "late_s": sum(late.values()),
        "joules": plan.schedule.joules(),
        "jobs": jobs,
    }


def _as_dict(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
