"""What was expected: predictions of runs and plans of jobs, and what became of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.commands import predictions
from analysis.figures import timelines
from analysis.report.blocks import Block, Fold, Paragraph, PlainTable, Plot, Section, sentences
from analysis.runs.load import Run
from multicard.records import run_folder

COMMAND = "As text, CSV and JSON: python -m analysis predictions."
PLAN_FILES = ("plan.json", "*/plan.json", ".plan/plan.json", "*/.plan/plan.json")  # below a folder of the report
PLAN_KEYS = {"makespan_s", "in_turn_s", "jobs"}  # of every plan


def predictions_section(runs: Sequence[Run]) -> Section:
    """Errors and coverage, the poorest predictions folded away; empty where no run has a prediction."""
    compared = predictions.compare(runs)
    blocks: list[Block] = []
    notes = [sentences([line]) for line in compared.notes]
    errors, verdicts, poorest = predictions.tables(compared)
    if errors.rows:
        about = [*(sentences([line]) for line in predictions.NOTES), *notes, COMMAND]
        folded = Fold("The poorest predictions", [PlainTable("", poorest.headings, poorest.rows)])
        blocks += [PlainTable("", errors.headings, errors.rows, about), folded]
    elif compared.verdicts or {*compared.left_out} - {predictions.UNPREDICTED}:
        blocks.append(Paragraph(" ".join(notes), quiet=True))
    if verdicts.rows:
        title = "Memory: what was predicted, and how the runs ended"
        blocks.append(PlainTable(title, verdicts.headings, verdicts.rows))
    question = "How well was each run foretold before it started?"
    return Section("predictions", "Predicted against measured", question, blocks)


def read_plans(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The plans below folders, as `python -m multicard plan --json` and `--run` leave them; others are passed over."""
    paths = {path.resolve() for folder in folders for pattern in PLAN_FILES for path in folder.glob(pattern)}
    plans = (run_folder.read_json(path) for path in sorted(paths))
    return [plan for plan in plans if plan is not None and PLAN_KEYS <= plan.keys()]


def plans_section(plans: Sequence[Mapping[str, Any]]) -> Section:
    """A chart of each plan, whose data have the times and the end of each job; empty where there is none."""
    figures = (timelines.plan_chart(f"plan_{number}", plan) for number, plan in enumerate(plans, 1))
    plots = [Plot(figure) for figure in figures if figure is not None]
    return Section("plans", "Plans", "What runs where, and when, and did it come out so?", plots)
