"""The dashboard reads what runs log, and is made once however often it is sent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import wandb

from analysis import dashboard
from analysis.__main__ import main
from multicard.records.figures import ALL, BYTES, FIGURES, Figure
from tests.helpers.wandb_stand_in import Server


@pytest.fixture(scope="module")
def built() -> dashboard.View:
    return dashboard.workspace()


def test_lines_over_steps_and_epochs_are_left_to_w_and_b(built: dashboard.View):
    assert built["spec"]["section"]["settings"]["shouldAutoGeneratePanels"] is True


def test_a_new_figure_appears_by_itself_and_one_that_nothing_logs_is_refused(monkeypatch: pytest.MonkeyPatch):
    spilled = Figure("spilled_bytes", "spilled bytes", "transfer_bytes.spilled", unit=BYTES)
    monkeypatch.setitem(FIGURES, "spilled_bytes", spilled)
    with pytest.raises(ValueError, match=r"spilled_bytes: W&B has no such figure.*figures\.py"):
        dashboard.workspace()
    logged = replace(spilled, keys=dict.fromkeys(ALL, ("transfer_bytes.spilled",)))
    monkeypatch.setitem(FIGURES, "spilled_bytes", logged)
    assert '"chartTitle": "Spilled bytes (bytes)"' in json.dumps(dashboard.workspace())


def test_sending_twice_replaces_the_same_workspace(wandb_server: Server, built: dashboard.View, capfd):
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
    built: dashboard.View,
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
