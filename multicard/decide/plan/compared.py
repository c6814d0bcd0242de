"""A plan beside what became of it, job by job: as a table, and for other programs."""

import math
from typing import Any

from multicard.decide.plan.carry_out import CarryingOut
from multicard.decide.plan.show import WIDTH, ranges
from multicard.measure.timing import in_hours
from multicard.records import text_table

HEADINGS = ("job", "GPUs", "on", "planned start", "planned end", "start", "end", "took by plan", "status")
TIMES = ("planned_start_s", "planned_end_s", "start_s", "end_s")


def lines(carried: CarryingOut) -> list[str]:
    """The table, in the order of real starts, and both makespans."""
    content = as_dict(carried)
    rows = [
        [
            job["name"],
            str(job["gpus"] or ""),
            ranges(job["gpu_ids"]),
            *("" if job[key] is None else in_hours(job[key]) for key in TIMES),
            "" if job["ratio"] is None else f"{job['ratio']:.0%}",
            job["status"],
        ]
        for job in content["jobs"]
    ]
    shown = ["planned, and what became of it:", *text_table.text(HEADINGS, rows, WIDTH), ""]
    makespan_s, planned_s = content["makespan_s"], content["planned_makespan_s"]
    if makespan_s is not None and planned_s:
        shown.append(
            f"makespan: {in_hours(makespan_s)}, planned {in_hours(planned_s)} ({makespan_s / planned_s - 1:+.1%})"
        )
    if content["idle_s"] >= 1:
        shown.append(f"of it, {in_hours(content['idle_s'])} at most between commands: another carried the plan on")
    return shown


def failures(carried: CarryingOut) -> list[str]:
    """What has not ended well, and why."""
    lost = [each for each in carried.progress if each.status != "ok"]
    return [
        f"{each.task.name}: {each.status or 'not run'}" + (f": {each.cause}" if each.cause else "") for each in lost
    ]


def as_dict(carried: CarryingOut) -> dict[str, Any]:
    names = {task.name for task in carried.tasks}
    planned = {name: placed for name, placed in carried.state.planned().items() if name in names}
    jobs = []
    for each in sorted(carried.progress, key=lambda each: math.inf if each.start_s is None else each.start_s):
        wanted = planned.get(each.task.name, {})
        planned_s = wanted.get("end_s", 0.0) - wanted.get("start_s", 0.0)
        lasted_s = None if each.start_s is None or each.end_s is None else each.end_s - each.start_s
        jobs.append({
            "name": each.task.name,
            "job": each.task.job,
            "status": each.status or "not run",
            "cause": each.cause,
            "gpus": None if each.option is None else each.option.gpus,
            "gpu_ids": [*each.gpu_ids],
            **{f"planned_{key}": wanted.get(key) for key in ("gpus", "gpu_ids", "start_s", "end_s")},
            "start_s": each.start_s,
            "end_s": each.end_s,
            "ratio": lasted_s / planned_s if lasted_s is not None and planned_s else None,
        })  # fmt: skip
    return {
        "makespan_s": max((job["end_s"] for job in jobs if job["end_s"] is not None), default=None),
        "planned_makespan_s": max((placed["end_s"] for placed in planned.values()), default=None),
        "idle_s": carried.state.idle_s(),
        "jobs": jobs,
    }
