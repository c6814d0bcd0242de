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
            table = PlainTable("Jobs", HEADINGS, _jobs(plan), [_makespan(plan)])
            blocks += [Plot.of(figure, []), Fold("The jobs of the plan", [table])]
    return Section("plans", "Plans", "What runs where, and when, and did it come out so?", blocks)


def _jobs(plan: Mapping[str, Any]) -> list[list[str]]:
    carried = plan.get("carried_out")
    planned, real = ("planned_", "") if carried else ("", "real_")  # prefixes of their keys
    times = [f"{prefix}{end}_s" for prefix in (planned, real) for end in ("start", "end")]
    return [
        [
            job["name"],
            str(job.get("gpus") or job.get("planned_gpus") or "-"),
            *("-" if job.get(key) is None else in_hours(job[key]) for key in times),
            job.get("status", "-"),
        ]
        for job in (carried or plan)["jobs"]
    ]


def _makespan(plan: Mapping[str, Any]) -> str:
    """The makespan, and what it is compared with."""
    carried = plan.get("carried_out") or {}
    parts = [f"Makespan {in_hours(carried.get('planned_makespan_s') or plan['makespan_s'])} planned"]
    if carried.get("makespan_s"):
        parts.append(f"{in_hours(carried['makespan_s'])} in fact")
    return f"{'; '.join(parts)}; one after the other on all, {in_hours(plan['in_turn_s'])} were expected."
