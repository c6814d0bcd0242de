"""Plans of jobs in the report: which files it takes, what the chart shows, planned beside real."""

import json
from pathlib import Path
from typing import Any

from analysis import report
from analysis.figures import plans
from analysis.report import page, plans_section
from analysis.report.blocks import Fold, PlainTable, Plot
from analysis.runs import load
from multicard.decide.plan.command import main
from tests.analysis.test_figure_files import vega_lite
from tests.helpers import records

JOBS = """
node: {gpus: 2}
slowdown: 1.0
jobs:
  wide: {seconds: {2: 100}}
  narrow: {seconds: {1: 60}, repeat: 2, after: [wide]}
"""


def planned(folder: Path) -> dict[str, Any]:
    """A plan as the command leaves it in a sweep's folder."""
    (folder / "jobs.yaml").write_text(JOBS)
    path = folder / "plan.json"
    assert main([str(folder / "jobs.yaml"), "--seconds", "1", "--json", str(path)]) == 0
    return json.loads(path.read_text())


def carried_out(plan: dict[str, Any]) -> dict[str, Any]:
    """The same as `--run` leaves it: all took twice as long, and the last did not end well."""
    jobs = [
        job | {f"planned_{key}": job[key] for key in ("gpus", "gpu_ids", "start_s", "end_s")}
        | {"start_s": 2 * job["start_s"], "end_s": 2 * job["end_s"], "status": "ok"}
        for job in plan["jobs"]
    ]  # fmt: skip
    jobs[-1] |= {"status": "failed", "end_s": None}
    return plan | {"carried_out": {"makespan_s": 320.0, "planned_makespan_s": 160.0, "jobs": jobs}}


def bars(rows: list[dict[str, Any]], kind: str) -> list[tuple[str, str, float, float]]:
    return [(row["job"], row["gpu"], row["start_s"], row["end_s"]) for row in rows if row["kind"] == kind]


def test_a_chart_has_each_job_on_each_of_its_gpus_as_planned_and_as_it_ran(tmp_path: Path):
    plan = planned(tmp_path)
    figure = plans.chart("plan", plan)
    assert figure is not None
    assert bars(figure.rows, "planned") == [
        ("wide", "GPU 0", 0, 100), ("narrow#1", "GPU 0", 100, 160),
        ("wide", "GPU 1", 0, 100), ("narrow#2", "GPU 1", 100, 160),
    ]  # fmt: skip
    assert not bars(figure.rows, "real") and "Pale" not in figure.caption
    done = plans.chart("plan", carried_out(plan))
    assert done is not None and "Pale: as it was planned" in done.caption
    assert bars(done.rows, "planned") == bars(figure.rows, "planned")
    assert bars(done.rows, "real") == [
        ("wide", "GPU 0", 0, 200), ("narrow#1", "GPU 0", 200, 320), ("wide", "GPU 1", 0, 200),
    ]  # fmt: skip
    assert vega_lite().is_valid(done.spec)
    assert plans.chart("plan", plan | {"jobs": []}) is None


def test_the_report_has_the_plans_of_its_folders_and_passes_other_files_over(tmp_path: Path):
    sweep = tmp_path / "night"
    records.write(sweep / "cell", records.vision())
    (sweep / ".plan").mkdir()
    (sweep / ".plan" / "plan.json").write_text(json.dumps(carried_out(planned(tmp_path))))
    (tmp_path / "plan.json").write_text("[1, 2")
    read = plans_section.read([tmp_path, sweep])
    assert len(read) == 1
    plot, fold = plans_section.section(read).blocks
    assert isinstance(plot, Plot) and isinstance(fold, Fold)
    (table,) = fold.blocks
    assert isinstance(table, PlainTable)
    assert list(table.rows[0]) == ["wide", "2", "0:00:00", "0:01:40", "0:00:00", "0:03:20", "ok"]
    assert list(table.rows[2])[-2:] == ["-", "failed"]
    assert "Makespan 0:02:40 planned; 0:05:20 in fact" in table.notes[0]
    html = page.html(report.build(load.read([sweep]), "Runs", mix=False, plans=read))
    assert 'id="plans"' in html and not plans_section.section([]).blocks
