"""The dashboard reads what runs log, loads back through W&B's own reader, and is made once however often it is sent."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import wandb

from analysis import experiments
from analysis.__main__ import main
from analysis.dashboard import command, draw, lookup, specification, workspace
from analysis.experiments import EFFICIENCY
from analysis.runs import load
from multicard.records.figures import BOTH, BYTES, FIGURES, Figure
from multicard.tracking import keys
from papers import printed
from tests.conftest import ROOT
from tests.helpers import records, wandb_file, wandb_views
from tests.helpers.wandb_stand_in import Server
from tests.tracking.test_runs import OFFLINE

Measured = Callable[..., dict[str, Any]]
# What runs on CPU ranks do not log, nor runs without a profile, that ended ok without torch.compile, nor all but DPO
OF_GPUS = {("history", lookup.SYSTEM + name) for name in wandb_views.GPUS} | {("summary", "gpu.energy_joules")}
OF_PROFILES = {
    ("table", keys.PROFILE_TABLE),
    ("config", "configuration.profile.window"),
    *(("summary", f"transfer_bytes.{way}") for way in ("d2d", "d2h")),
}
OF_OTHERS = {("summary", "compile_s"), ("summary", "cause.message")}
OF_DPO = {("history", name) for name in keys.BY_STEP if "reward" in name} | {("summary", "rewards.accuracy")}
NAMES = ("all", "workspace", *experiments.names())


@pytest.fixture(scope="module")
def views() -> list[dict[str, Any]]:
    return [view.as_json for view in specification.build("all", "", "multicard")]


def test_every_key_of_a_panel_is_logged_by_its_kind_of_run(views: list[dict[str, Any]]):
    assert [view["type"] for view in views] == ["project-view", *["runs"] * len(experiments.names())]
    for view, name in zip(views, NAMES[1:], strict=True):
        needed = set() if name == "workspace" else {experiments.load(name).kind}
        shown = wandb_views.panels(view)
        assert shown, name
        for panel in shown:
            for key in wandb_views.read_by_panel(panel):
                kinds = set(wandb_views.kinds(key))
                assert kinds and needed <= kinds, (name, panel["config"].get("chartTitle"), key)
        for run_set in wandb_views.run_sets(view):
            for key in wandb_views.read_by_run_set(run_set):
                assert needed <= set(wandb_views.kinds(key)) and wandb_views.kinds(key), (name, key)
    assert not wandb_views.kinds(("history", "train/nothing")) and not wandb_views.kinds(("summary", "nothing"))


def test_a_key_that_a_run_does_not_log_is_found(views: list[dict[str, Any]]):
    named = [*keys.AXES, *(f"{keys.CONFIGURATION}.{key}" for key in ("profile.name", "profile.window"))]
    content: dict[str, Any] = {
        "history": [dict.fromkeys([keys.STEP, keys.EPOCH, *keys.BY_STEP, *keys.BY_EPOCH])],
        "system": [(0.0, dict.fromkeys(wandb_views.SYSTEM))],
        "summary": dict.fromkeys(lookup.SUMMARY) | {keys.PROFILE_TABLE: {"_type": "table-file"}},
        "config": dict.fromkeys(named),
    }
    for kind in keys.BOTH:
        assert wandb_views.reads(views, kind) <= wandb_views.logged(content)
    content["history"][0].pop("train/loss")
    content["summary"].pop("total_s")
    missing = wandb_views.reads(views, "vision") - wandb_views.logged(content)
    assert missing == {("history", "train/loss"), ("summary", "total_s")}


@pytest.mark.slow
def test_a_training_run_logs_what_panels_read(measured: Measured, views: list[dict[str, Any]]):
    result = measured("gpus=2", "epochs=2", "target_accuracy=0.01", *OFFLINE)
    assert result["status"] == "ok", result["cause"]
    content = wandb_file.read(Path(result["folder"]))
    missing = wandb_views.reads(views, "vision") - wandb_views.logged(content)
    assert missing == OF_GPUS | OF_PROFILES | OF_OTHERS | {("summary", "joules_per_image")}


@pytest.mark.slow
def test_a_tuning_run_logs_what_panels_read(tuned: Measured, views: list[dict[str, Any]]):
    result = tuned("gpus=2", "dataset.rows=40", *OFFLINE)
    assert result["status"] == "ok", result["cause"]
    content = wandb_file.read(Path(result["folder"]))
    missing = wandb_views.reads(views, "llm") - wandb_views.logged(content)
    of_gpus = OF_GPUS | {("summary", "joules_per_token"), ("summary", "mfu")}
    assert missing == of_gpus | OF_PROFILES | OF_OTHERS | OF_DPO


def read_back(view: dict[str, Any]) -> dict[str, Any]:
    """A view without the little that wandb-workspaces 0.4.13 does not read: a report's width, a table's layout."""
    copy = deepcopy(view)
    if copy["type"] == "runs":
        copy["spec"].pop("width")
    for panel in wandb_views.panels(copy):
        if panel["viewType"] == "Weave":
            panel.pop("layout")
    return copy


def test_the_specification_loads_back_as_it_was(views: list[dict[str, Any]]):
    for view in views:
        model = wandb_views.load(view)._to_model()
        again = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
        assert read_back({**view, "spec": again}) == read_back(view), view["displayName"]
        assert model.display_name == view["displayName"] and len(view["displayName"]) <= 128


def test_the_specification_is_the_same_each_time(views: list[dict[str, Any]]):
    again = [view.as_json for view in specification.build("all", "another", "project")]
    assert again == views  # of the project that it is in
    assert len({view["name"] for view in views}) == len(views)
    ids = [panel["__id__"] for view in views for panel in wandb_views.panels(view)]
    assert len(set(ids)) == len(ids)


def test_every_figure_of_the_tables_is_in_the_workspace_and_every_measure_in_its_report(views: list[dict[str, Any]]):
    read = {key for panel in wandb_views.panels(views[0]) for key in wandb_views.read_by_panel(panel)}
    for column in FIGURES:
        if column not in workspace.COUNTS:
            assert {("summary", key) for key in lookup.summary_keys(column)} <= read, column
    for view, name in zip(views[1:], experiments.names(), strict=True):
        experiment = experiments.load(name)
        read = {key for panel in wandb_views.panels(view) for key in wandb_views.read_by_panel(panel)}
        for column in experiment.view.measures:
            if column != EFFICIENCY:  # of two runs
                expected = {("summary", key) for key in lookup.summary_keys(column, [experiment.kind])}
                assert expected <= read, (name, column)


def test_a_new_figure_appears_by_itself_and_one_that_nothing_logs_is_refused(monkeypatch: pytest.MonkeyPatch):
    spilled = Figure("spilled_bytes", "spilled bytes", "transfer_bytes.spilled", unit=BYTES)
    monkeypatch.setitem(FIGURES, "spilled_bytes", spilled)
    with pytest.raises(ValueError, match=r"spilled_bytes: W&B has no such figure.*figures\.py"):
        specification.build("workspace", "", "multicard")
    logged = replace(spilled, keys=dict.fromkeys(BOTH, ("transfer_bytes.spilled",)))
    monkeypatch.setitem(FIGURES, "spilled_bytes", logged)
    (view,) = specification.build("workspace", "", "multicard")
    memory = next(section for section in specification.sections_of(view) if section["name"] == workspace.MEMORY)
    assert "Spilled bytes (bytes)" in [panel["config"]["chartTitle"] for panel in memory["panels"]]


def test_a_report_has_what_the_papers_print_and_a_run_set_for_each_value(views: list[dict[str, Any]]):
    by_name = dict(zip(NAMES[1:], views, strict=True))
    for name in experiments.names():
        texts = [block["content"] for block in by_name[name]["spec"]["blocks"] if block["type"] == "markdown-block"]
        whole = "\n".join(texts).replace(",", "")
        for figure in printed.figures(name):
            assert f"{(100 if figure.unit == 'share' else 1) * figure.low:.10g}" in whole, (name, figure)
        assert experiments.load(name).command in whole
    own, shrunk = wandb_views.grids(by_name["table2"])
    assert [run_set["name"] for run_set in own["runSets"]] == ["precision=fp64", "precision=fp32", "precision=fp16"]
    filters = own["runSets"][0]["filters"]["filters"]
    chosen = {item["key"]["name"]: item["value"] for item in filters if item["op"] == "="}
    expected = {"jobType": "vision", "status": "ok", "scale": "full", "dataset": "mnist", "precision": "fp64"}
    assert {**chosen, **expected} == chosen and chosen["image_size"] == 500 and chosen["pin_memory"] is False
    assert shrunk["runSets"][0]["grouping"] == [{"section": "config", "name": "precision.value"}]
    data_sets = [run_set["name"] for run_set in wandb_views.grids(by_name["datasets"])[0]["runSets"]]
    assert data_sets == [f"dataset={name}" for name in ("alpaca_cleaned", "grammar", "samsum", "slimorca")]
    loaders = wandb_views.grids(by_name["loaders"])
    assert [len(grid["runSets"]) for grid in loaders] == [2, 2, 1]  # a grid for each image size, and the shrunk runs


def test_a_dry_run_and_a_drawing_ask_no_server(
    wandb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("WANDB_API_KEY")
    file, picture = tmp_path / "views.json", tmp_path / "views.svg"
    assert main(["dashboard", "--project", "trial", "--dry-run", str(file), "--draw", str(picture)]) == 0
    printed_text = capfd.readouterr()
    assert not wandb_server.calls and printed_text.err == ""
    content = json.loads(file.read_text())
    assert content["project"] == "trial" and len(content["views"]) == 1 + len(experiments.names())
    sections = [section["name"] for section in wandb_views.sections(content["views"][0])]
    assert sections == list(workspace.SECTIONS)
    assert f"a workspace of {len(sections)} sections and " in printed_text.out.splitlines()[0]
    root = ElementTree.parse(picture).getroot()
    written = "".join(root.itertext())
    assert all(name in written for name in sections) and "prefers-color-scheme:dark" in written


def test_a_part_is_drawn_alone():
    (view,) = specification.build("table2", "", "multicard")
    root = ElementTree.fromstring(draw.picture([view]))
    text = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert text == [view.title] and "Table 2" in view.title


def test_sending_twice_replaces_the_same_views(wandb_server: Server, capfd: pytest.CaptureFixture[str]):
    assert main(["dashboard", "--project", "multicard", "--entity", "someone"]) == 0
    made = capfd.readouterr().out.splitlines()
    assert not wandb_server.unknown and len(made) == len(wandb_server.views) == 1 + len(experiments.names())
    assert all(line.startswith(f"made {wandb_server.url}/someone/multicard") for line in made)
    assert main(["dashboard", "--project", "multicard"]) == 0  # the account's default entity
    again = capfd.readouterr().out.splitlines()
    assert [line.replace("replaced", "made", 1) for line in again] == made and not {*again} & {*made}
    assert len(wandb_server.views) == len(made)


def test_what_is_sent_is_what_a_dry_run_writes(wandb_server: Server, views: list[dict[str, Any]]):
    assert main(["dashboard"]) == 0
    names = {"type", "name", "displayName", "description"}
    for sent, view in zip(wandb_server.views.values(), views, strict=True):
        assert {name: sent[name] for name in names} == {name: view[name] for name in names}
        spec = json.loads(sent["spec"])
        if view["type"] == "runs":
            projects = [run_set.pop("project") for run_set in wandb_views.run_sets({**view, "spec": spec})]
            assert all(project["id"] == "internal" for project in projects)
        assert spec == view["spec"]


def test_a_part_leaves_the_other_views_alone(wandb_server: Server):
    assert main(["dashboard", "table2"]) == 0
    (view,) = wandb_server.views.values()
    assert view["displayName"] == "The papers' Table 2: time of training by precision and GPUs"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tableau"], "no dashboard tableau; there are all, workspace, table2, "),
        (["--project", "a/b"], "--project: 'a/b' is no project: W&B takes names"),
        (["--project", ""], "--project: '' is no project"),
        (["--entity", "a b?"], "--entity: 'a b?' is no user or team"),
        (["--dry-run", "no/o.json"], "there is no folder no"),
        (["tableau", "--dry-run", "o.json"], "no dashboard tableau"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["dashboard", *words])
    except SystemExit as ended:
        code = ended.code
    error = capsys.readouterr().err
    assert code == 1 and text in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_without_a_login_it_ends_in_one_line(tmp_path: Path, wandb_server: Server):
    env = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"}
    line = [sys.executable, "-m", "analysis", "dashboard"]
    env |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env=env)
    assert done.returncode == 1 and done.stdout == ""
    (error,) = done.stderr.splitlines()
    assert error.startswith(f"refused: no login at {wandb_server.url}: `wandb login`") and "--dry-run FILE" in error


def test_what_the_server_refuses_is_one_line(
    wandb_server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def refused(*words: str) -> str:
        assert main(["dashboard", *words]) == 1
        lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("wandb: ")]
        assert len(lines) == 1
        return lines[0]

    missing = refused("--project", "elsewhere")
    assert missing.startswith("refused: no project someone/elsewhere that this account can see: check --entity")
    assert refused("--entity", "others").startswith("refused: no project others/multicard that")
    wandb_server.refused_views.add(specification.build("workspace", "", "multicard")[0].name)
    assert "quota exceeded" in refused() and not wandb_server.views
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    wandb.teardown()
    gone = refused()
    assert gone.startswith("refused: cannot reach http://127.0.0.1:9 (") and "--dry-run FILE" in gone


def test_the_report_names_the_dashboard_of_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    records.write(tmp_path / "r", records.vision())
    assert main(["report", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith(command(load.read([tmp_path]).runs)) and "dashboard --project " in line
    assert command([]) == "python -m analysis dashboard --project multicard"
