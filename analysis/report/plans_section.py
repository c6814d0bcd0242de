"""Plans of jobs: what was planned, and what became of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.figures import plans
from analysis.report.blocks import Block, Fold, PlainTable, Plot, Section
from multicard.measure.timing import in_hours
from multicard.records import run_folder

FILES = ("plan.json", "*/plan.json", ".plan/plan.json", "*/.plan/plan.json")  # below a folder of the report
KEYS = {"makespan_s", "in_turn_s", "jobs"}  # of every plan
HEADINGS = ("job", "GPUs", "planned start", "planned end", "start", "end", "status")


def read(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The plans below folders, as `python -m multicard plan --json` and `--run` leave them; others are passed over."""
    paths = {path.resolve() for folder in folders for pattern in FILES for path in folder.glob(pattern)}
    read_plans = (run_folder.read_json(path) for path in sorted(paths))
    return [plan for plan in read_plans if plan is not None and KEYS <= plan.keys()]


def section(read_plans: Sequence[Mapping[str, Any]]) -> Section:
    """A chart and a table of each plan; empty where there is none."""
    blocks: list[Block] = []
    for number, plan in enumerate(read_plans, 1):
        figure = plans.chart("plan" if len(read_plans) == 1 else f"plan_{number}", plan)
        if figure is not None:
            blocks.append(Plot.of(figure, []))
            blocks.append(Fold("The jobs of the plan", [PlainTable("Jobs", HEADINGS, _jobs(plan), [_figures(plan)])]))
    return Section("plans", "Plans", "What runs where, and when, and did it come out so?", blocks)


def _jobs(plan: Mapping[str, Any]) -> list[list[str]]:
    carried = plan.get("carried_out")
    prefix = "planned_" if carried else ""
    return [
        [
            job["name"],
            str(job.get("gpus") or job.get("planned_gpus") or "-"),
            *(_time(job.get(f"{prefix}{end}_s")) for end in ("start", "end")),
            *(_time(job.get(f"{end}_s") if carried else None) for end in ("start", "end")),
            job.get("status", "-"),
        ]
        for job in (carried or plan)["jobs"]
    ]


def _figures(plan: Mapping[str, Any]) -> str:
    """The makespan, and what it is compared with."""
    carried = plan.get("carried_out") or {}
    words = [f"Makespan {in_hours(carried.get('planned_makespan_s') or plan['makespan_s'])} planned"]
    if carried.get("makespan_s"):
        words.append(f"{in_hours(carried['makespan_s'])} in fact")
    words.append(f"one after the other on all, {in_hours(plan['in_turn_s'])} were expected")
    return f"{'; '.join(words)}."


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else in_hours(seconds)
