"""A plan in words: its table, what it is compared with and why, and the same as JSON."""

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

from multicard.decide.plan import gantt
from multicard.decide.plan.jobs_file import SLOWDOWN, Goal
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import Option, Task
from multicard.measure.timing import in_hours
from multicard.records import text_table
from multicard.records.schema_parts import Interval

WIDTH = 120
BADLY = 0.85  # efficiency below which a job is said to scale badly
NAMED = 5  # jobs at most of which that is said
HEADINGS = ("job", "GPUs", "on", "start", "end", "planned", "likely (90%)", "efficiency", "basis", "deadline")
ASSUMED = " is assumed ({:g} to {:g}), as they share cores, memory bandwidth and PCIe; slowdown: in the file sets it"


def lines(plan: Plan, node: str, slowdown: Interval, noun: str = "GPU") -> list[str]:
    """The plan for a terminal."""
    width = min(text_table.terminal_width() or WIDTH, WIDTH)
    columns = [column for column in zip(HEADINGS, *_rows(plan), strict=True) if any(column[1:])]
    headings, *rows = zip(*columns, strict=True)
    shown = [
        f"plan of {len(plan.tasks)} runs on {node}, goal={plan.goal}:",
        *text_table.text(headings, rows, width),
        "",
        *gantt.text(plan.tasks, plan.schedule, plan.gpus, width, noun),
        "",
    ]
    slower = f"slowdown: {slowdown.value:.3g} of runs that leave {noun}s for others"
    slower += ASSUMED.format(slowdown.low, slowdown.high) if slowdown == SLOWDOWN else ""
    notes = [*_figures(plan), *_late(plan), *_scaling(plan.tasks), slower]
    return shown + [line for note in notes for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")]


def _rows(plan: Plan) -> list[list[str]]:
    """The rows by start."""
    late, rows = plan.schedule.late_s(plan.tasks), []
    for place in plan.schedule.order():
        task, placed = plan.tasks[place], plan.schedule.placed[place]
        option, share = placed.option, efficiency(task, placed.option)
        low, high = in_hours(option.interval.low), in_hours(option.interval.high)
        deadline = ""
        if task.deadline_s is not None:
            deadline = in_hours(task.deadline_s) if task.deadline_s >= 0 else f"{in_hours(-task.deadline_s)} ago"
        rows.append([
            task.name,
            str(option.gpus),
            ranges(placed.gpu_ids),
            in_hours(placed.start_s),
            in_hours(placed.end_s),
            in_hours(placed.end_s - placed.start_s),
            low if low == high else f"{low} to {high}",
            "" if share is None else f"{share:.0%}",
            option.basis,
            deadline + (f" ({in_hours(late[place])} late)" if place in late else ""),
        ])  # fmt: skip
    return rows


def ranges(ids: Sequence[int]) -> str:
    """ "0-3", "0 2"."""
    if len(ids) > 1 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}-{ids[-1]}"
    return " ".join(map(str, ids))


def efficiency(task: Task, option: Option) -> float | None:
    """The speed of each GPU by that on the fewest that the task may have; None where there is one choice alone."""
    fewest = min(task.options, key=lambda other: other.gpus)
    return None if len(task.options) == 1 else fewest.gpus * fewest.alone_s / (option.gpus * option.alone_s)


def _figures(plan: Plan) -> list[str]:
    makespan_s, likely, late = plan.schedule.makespan_s, plan.likely, plan.schedule.late_s(plan.tasks)
    notes = [f"makespan: {in_hours(makespan_s)} planned"]
    if likely.low < likely.high:
        notes[0] += f"; likely {in_hours(likely.value)} ({in_hours(likely.low)} to {in_hours(likely.high)})"
    keeps = not late and any(task.deadline_s is not None for task in plan.tasks) and plan.goal is Goal.makespan
    limit = "no plan that keeps the deadlines" if keeps else "no plan"
    notes.append(f"bound: {limit} ends before {in_hours(plan.bound_s)}: gap {plan.gap:.1%}")
    simple = (("one after the other on all", plan.in_turn), ("each on as few as it may have", plan.one_gpu_each))
    for name, other in simple:
        saved = 1 - makespan_s / other.makespan_s if other.makespan_s else 0.0
        compared = f"the plan takes {abs(saved):.0%} {'less' if saved >= 0 else 'more'}"
        notes.append(f"{name}: {in_hours(other.makespan_s)}; {compared if abs(saved) >= 0.005 else 'as the plan'}")
    return notes


def _late(plan: Plan) -> list[str]:
    late = plan.schedule.late_s(plan.tasks)
    if not late:
        return []
    delays = ", ".join(f"{plan.tasks[place].name} by {in_hours(delay)}" for place, delay in late.items())
    least = "the least there is" if plan.is_proven else "the least that was found"
    return [f"deadlines that cannot be kept: {delays}; {in_hours(sum(late.values()))} in all, {least}"]


def _scaling(tasks: Sequence[Task]) -> list[str]:
    """Why jobs do not run one after the other on all GPUs: those that gain little from more of them."""
    worst: dict[str, tuple[float, str]] = {}
    for task in tasks:
        most = max(task.options, key=lambda option: option.gpus)
        fewest = min(task.options, key=lambda option: option.gpus)
        share = efficiency(task, most)
        if share is not None and share < BADLY:
            times = f"{in_hours(fewest.alone_s)} on {fewest.gpus}, {in_hours(most.alone_s)} on {most.gpus}"
            worst[task.job] = share, f"{task.job} {share:.0%} ({times})"
    named = [words for _, words in sorted(worst.values())[:NAMED]]
    more = f", and {len(worst) - NAMED} more" if len(worst) > NAMED else ""
    return [f"scale badly (speed of each GPU, by that on the fewest): {', '.join(named)}{more}"] if named else []


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
            "seconds": msgspec.to_builtins(option.interval),
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
        "slowdown": msgspec.to_builtins(slowdown),
        "makespan_s": plan.schedule.makespan_s,
        "bound_s": plan.bound_s,
        "expected_makespan_s": msgspec.to_builtins(plan.likely),
        "in_turn_s": plan.in_turn.makespan_s,
        "fewest_gpus_each_s": plan.one_gpu_each.makespan_s,
        "late_s": sum(late.values()),
        "jobs": jobs,
    }
