"""The dashboard reads what runs log, and is made once however often it is sent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import wandb

from analysis.__main__ import main
from analysis.dashboard import views
from multicard.records.figures import ALL, BYTES, FIGURES, Figure
from tests.helpers import wandb_views
from tests.helpers.wandb_stand_in import Server


@pytest.fixture(scope="module")
def built() -> views.View:
    return views.workspace()


def test_every_key_that_is_read_is_logged_by_some_kind_of_run(built: views.View):
    read = {key for panel in wandb_views.panels(built) for key in wandb_views.read_by_panel(panel)}
    (run_set,) = built["spec"]["section"]["runSets"]
    filtered = wandb_views.read_by_run_set(run_set)
    assert read and filtered and all(wandb_views.kinds(key) for key in read | filtered)
    # of every figure that something is judged by
    judged = [name for name, figure in FIGURES.items() if views.section_of(figure) is not None]
    assert {("summary", key) for name in judged for key in views.summary_keys(name)} <= read
    assert not wandb_views.kinds(("history", "train/nothing")) and not wandb_views.kinds(("summary", "nothing"))


def test_the_specification_is_the_same_each_time(built: views.View):
    assert views.workspace() == built
    ids = [panel["__id__"] for panel in wandb_views.panels(built)]
    assert len(set(ids)) == len(ids)


def test_a_new_figure_appears_by_itself_and_one_that_nothing_logs_is_refused(monkeypatch: pytest.MonkeyPatch):
    spilled = Figure("spilled_bytes", "spilled bytes", "transfer_bytes.spilled", unit=BYTES)
    monkeypatch.setitem(FIGURES, "spilled_bytes", spilled)
    with pytest.raises(ValueError, match=r"spilled_bytes: W&B has no such figure.*figures\.py"):
        views.workspace()
    logged = replace(spilled, keys=dict.fromkeys(ALL, ("transfer_bytes.spilled",)))
    monkeypatch.setitem(FIGURES, "spilled_bytes", logged)
    (memory,) = [section for section in wandb_views.sections(views.workspace()) if section["name"] == views.MEMORY]
    assert "Spilled bytes (bytes)" in [panel["config"]["chartTitle"] for panel in memory["panels"]]


def test_a_dry_run_asks_no_server(
    wandb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("WANDB_API_KEY")
    file = tmp_path / "views.json"
    assert main(["dashboard", "--project", "trial", "--dry-run", str(file)]) == 0
    shown = capfd.readouterr()
    assert not wandb_server.calls and not shown.err and "a workspace of 7 sections" in shown.out
    content = json.loads(file.read_text())
    assert content["project"] == "trial"
    names = [section["name"] for section in wandb_views.sections(content["workspace"])]
    assert names == list(views.sections())


def test_sending_twice_replaces_the_same_workspace(
    wandb_server: Server, built: views.View, capfd: pytest.CaptureFixture[str]
):
    assert main(["dashboard", "--project", "multicard", "--entity", "someone"]) == 0
    (made,) = capfd.readouterr().out.splitlines()
    assert not wandb_server.unknown and made.startswith(f"made {wandb_server.url}/someone/multicard?nw=")
    assert main(["dashboard"]) == 0  # the account's default entity, and the runs' own project
    (again,) = capfd.readouterr().out.splitlines()
    assert again == made.replace("made", "replaced", 1)
    (sent,) = wandb_server.views.values()
    assert {name: sent[name] for name in built} | {"spec": json.loads(sent["spec"])} == built  # what a dry run writes


def test_what_the_server_refuses_is_one_line(
    wandb_server: Server,
    built: views.View,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    def refused(*words: str) -> str:
        assert main(["dashboard", *words]) == 1
        lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("wandb: ")]
        assert len(lines) == 1
        return lines[0]

    missing = refused("--project", "elsewhere")
    assert missing.startswith("refused: no project someone/elsewhere that this account can see: check --entity")
    assert refused("--entity", "others").startswith("refused: no project others/multicard that")
    wandb_server.refused_views.add(built["name"])
    assert "quota exceeded" in refused() and not wandb_server.views
    with monkeypatch.context() as without_login:
        without_login.delenv("WANDB_API_KEY")
        without_login.setenv("HOME", str(tmp_path))
        without_login.setenv("NETRC", str(tmp_path / "none"))
        wandb.teardown()
        assert refused().startswith(f"refused: no login at {wandb_server.url}: `wandb login` makes one; --dry-run FILE")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    wandb.teardown()
    gone = refused()
    assert gone.startswith("refused: cannot reach http://127.0.0.1:9 (") and "--dry-run FILE" in gone
