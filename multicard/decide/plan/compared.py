"""A plan beside what became of it, job by job: as a table, and for other programs."""

from typing import Any

from multicard.decide.plan.carry_out import CarryingOut, Progress
from multicard.decide.plan.show import WIDTH, ranges
from multicard.measure.timing import in_hours
from multicard.records import text_table

NOT_RUN = "not run"
HEADINGS = ("job", "GPUs", "on", "planned start", "planned end", "start", "end", "took by plan", "status")


def lines(carried: CarryingOut) -> list[str]:
    """The table, in the order of real starts, and both makespans."""
    jobs = as_dict(carried)
    rows = [
        [
            job["name"],
            str(job["gpus"] or ""),
            ranges(job["gpu_ids"]),
            *(_time(job[key]) for key in ("planned_start_s", "planned_end_s", "start_s", "end_s")),
            "" if job["ratio"] is None else f"{job['ratio']:.0%}",
            job["status"],
        ]
        for job in jobs["jobs"]
    ]
    shown = ["planned, and what became of it:", *text_table.text(HEADINGS, rows, WIDTH), ""]
    if jobs["makespan_s"] is not None and jobs["planned_makespan_s"]:
        ratio = jobs["makespan_s"] / jobs["planned_makespan_s"]
        planned = in_hours(jobs["planned_makespan_s"])
        shown.append(f"makespan: {in_hours(jobs['makespan_s'])}, planned {planned} ({ratio - 1:+.1%})")
    if jobs["idle_s"] >= 1:
        shown.append(f"of it, {in_hours(jobs['idle_s'])} at most between commands: the plan was carried on by another")
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
    far = float("inf")
    for each in sorted(carried.progress, key=lambda each: far if each.start_s is None else each.start_s):
        wanted = planned.get(each.task.name, {})
        lasting, planned_s = _lasting(each), wanted.get("end_s", 0.0) - wanted.get("start_s", 0.0)
        jobs.append({
            "name": each.task.name,
            "job": each.task.job,
            "status": each.status or NOT_RUN,
            "cause": each.cause,
            "gpus": None if each.option is None else each.option.gpus,
            "gpu_ids": [*each.gpu_ids],
            "planned_gpus": wanted.get("gpus"),
            "planned_gpu_ids": wanted.get("gpu_ids"),
            "planned_start_s": wanted.get("start_s"),
            "planned_end_s": wanted.get("end_s"),
            "start_s": each.start_s,
            "end_s": each.end_s,
            "ratio": lasting / planned_s if lasting is not None and planned_s else None,
        })  # fmt: skip
    ends = [job["end_s"] for job in jobs if job["end_s"] is not None]
    return {
        "makespan_s": max(ends, default=None),
        "planned_makespan_s": max((placed["end_s"] for placed in planned.values()), default=None),
        "idle_s": carried.state.idle_s(),
        "jobs": jobs,
    }


def _lasting(each: Progress) -> float | None:
    return None if each.start_s is None or each.end_s is None else each.end_s - each.start_s


def _time(seconds: float | None) -> str:
    return "" if seconds is None else in_hours(seconds)
