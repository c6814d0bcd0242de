"""What became of a plan that was carried out, as data and as lines."""

import math
from collections.abc import Mapping
from typing import Any

from multicard.decide.plan import plan_text
from multicard.decide.plan.carry_out import CarriedPlan
from multicard.decide.plan.task_progress import TaskProgress
from multicard.machine.environment import spans
from multicard.measure.timing import in_hours
from multicard.messages import Message
from multicard.records import text_table

PLANNED_KEYS = ("gpus", "gpu_ids", "start_s", "end_s")
RESULT_HEADINGS = (
    "job",
    "GPUs",
    "on",
    "planned start",
    "planned end",
    "start",
    "end",
    "took by plan",
    "status",
)


def result(carried: CarriedPlan) -> dict[str, Any]:
    """Return the plan and its outcome, in the order of real starts, for other programs."""
    jobs = []
    for progress in sorted(carried.progress, key=_start_s):
        first = carried.first.get(progress.task.name, {})
        planned_s = first.get("end_s", 0.0) - first.get("start_s", 0.0)
        lasted_s = (
            None
            if progress.start_s is None or progress.end_s is None
            else progress.end_s - progress.start_s
        )
        jobs.append(
            {
                "name": progress.task.name,
                "job": progress.task.job,
                "status": progress.status or "not run",
                "cause": progress.cause,
                "gpus": progress.gpus or None,
                "gpu_ids": [*progress.gpu_ids],
                **{f"planned_{key}": first.get(key) for key in PLANNED_KEYS},
                "start_s": progress.start_s,
                "end_s": progress.end_s,
                "ratio": lasted_s / planned_s if lasted_s is not None and planned_s else None,
            }
        )

    def latest_s(key: str) -> float | None:
        return max((job[key] for job in jobs if job[key] is not None), default=None)

    return {
        "makespan_s": latest_s("end_s"),
        "planned_makespan_s": latest_s("planned_end_s"),
        "jobs": jobs,
    }


def failures(carried: CarriedPlan) -> list[Message]:
    """Return a line for each task that did not end well, with the reason."""
    return [_failure(progress) for progress in carried.progress if progress.status != "ok"]


def _failure(progress: TaskProgress) -> Message:
    status = progress.status or "not run"
    name = progress.task.name
    sentence = f"{name}: {status}: {progress.cause}" if progress.cause else f"{name}: {status}"
    return Message("plan.failed", sentence, task=name, status=status, cause=progress.cause)


def _start_s(progress: TaskProgress) -> float:
    return math.inf if progress.start_s is None else progress.start_s


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the table of a plan and its outcome (`result`), as lines."""
    rows = []
    for job in result["jobs"]:
        seconds = [job[key] for key in ("planned_start_s", "planned_end_s", "start_s", "end_s")]
        times = ["" if time_s is None else in_hours(time_s) for time_s in seconds]
        ratio = "" if job["ratio"] is None else f"{job['ratio']:.0%}"
        rows.append(
            [
                job["name"],
                str(job["gpus"] or ""),
                spans(job["gpu_ids"]),
                *times,
                ratio,
                job["status"],
            ]
        )
    title = Message("plan.carried-out", "the plan and its outcome:")
    lines = [title, *text_table.text(RESULT_HEADINGS, rows, plan_text.width_of_table())]
    makespan_s = result["makespan_s"]
    planned_s = result["planned_makespan_s"]
    if makespan_s is not None and planned_s:
        difference = f"{makespan_s / planned_s - 1:+.1%}"
        sentence = f"makespan: {in_hours(makespan_s)}, planned {in_hours(planned_s)} ({difference})"
        lines += [
            "",
            Message("plan.took-in-all", sentence, seconds=makespan_s, planned_s=planned_s),
        ]
    return lines
