"""Records are brought to W&B once each, by a small server that stands in for it,
and the dashboard that reads them.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb

from analysis import dashboard
from analysis.__main__ import main
from analysis.commands import sync
from multicard.records import run_folder
from multicard.records.figures import ALL, BYTES, FIGURES, Figure
from multicard.records.schema_parts import Gpu
from multicard.run import controller as run
from multicard.tracking import history, keys, run_record, upload
from multicard.tracking.history import RunClock
from multicard.vision.workload import WORKLOAD
from tests.analysis.conftest import Said
from tests.conftest import SMALL, as_dict, composed, warm_up
from tests.helpers import messages, records
from tests.helpers.messages import Told, find, says, told
from tests.helpers.wandb_stand_in import SUMMARY, Server


def written(sweep: Path) -> list[Path]:
    """A sweep of a vision run, one that ran out of memory, and a tuning run,
    measured without W&B.
    """
    made = [
        records.vision(gpus=1),
        records.vision(
            gpus=2, status="oom", cause={"kind": "oom", "message": "CUDA out of memory"}
        ),
        records.llm(),
    ]
    return [
        records.write(
            sweep / f"gpus={number}-0000000{number}", record, records.steps([1.0] * 4, per_epoch=2)
        )
        for number, record in enumerate(made)
    ]


def ids(folders: list[Path]) -> list[str]:
    return [
        run_record.run_id(run_folder.decode((folder / "result.json").read_bytes()))
        for folder in folders
    ]


def test_every_record_is_uploaded_once(tmp_path: Path, wandb_server: Server, capsys, said: Said):
    folders = written(tmp_path / "sweep")
    assert main(["sync", str(tmp_path), "--project", "trial"]) == 0
    printed = capsys.readouterr()
    assert (
        told(printed.out) == [Told("sync.uploaded", None, {"n": 3, "had": 0})] and not printed.err
    )
    assert not wandb_server.unknown and set(ids(folders)) == set(wandb_server.runs)

    vision, memory, tuning = (wandb_server.runs[name] for name in ids(folders))
    assert (vision.exit_code, memory.exit_code, tuning.exit_code) == (0, 0, 0)
    assert vision.variables["project"] == "trial" and vision.variables["groupName"] == "sweep"
    assert (vision.variables["jobType"], tuning.variables["jobType"]) == ("vision", "llm")
    assert (
        memory.variables["tags"] == ["oom"]
        and memory.summary["cause.message"] == "CUDA out of memory"
    )
    steps = [row for row in vision.history if keys.STEP in row]
    assert [row[keys.STEP] for row in steps] == [0, 1, 2, 3] and len(vision.history) == 6
    assert [row["_step"] for row in vision.history] == list(range(6))
    assert [row["_runtime"] for row in vision.history if "epoch/train_s" in row] == [50.9, 100.9]
    assert vision.summary["_wandb"]["runtime"] == 100.9 and vision.summary["total_s"] == 100.0
    assert len(wandb_server.artifacts) >= 3

    calls = len(wandb_server.calls)
    assert says(said("sync", tmp_path, "--project", "trial"), "sync.uploaded", n=0, had=3)
    assert len(wandb_server.calls) == calls
    # another project, another place
    assert says(said("sync", tmp_path), "sync.uploaded", n=3, had=0)
    assert len(wandb_server.runs) == 3
    assert {stored.variables["project"] for stored in wandb_server.runs.values()} == {"multicard"}


def test_what_has_no_configuration_goes_where_most_of_its_sweep_goes(
    tmp_path: Path, wandb_server: Server
):
    for gpus in (8, 2):
        record = records.vision(gpus=gpus)
        record["config"]["tracker"] |= {"project": "my-node"}
        records.write(
            tmp_path / "sweep" / f"gpus={gpus}-0000000{gpus}", record, records.steps([1.0] * 4)
        )
    known = ("schema_version", "kind", "name", "axes", "started_at", "repetition")
    refused = {name: record[name] for name in known} | {"status": "refused"}
    records.write(
        tmp_path / "sweep" / "gpus=16-refused",
        refused | {"cause": {"kind": "refused", "message": "gpus=16"}},
    )
    assert main(["sync", str(tmp_path)]) == 0
    assert [stored.variables["project"] for stored in wandb_server.runs.values()] == ["my-node"] * 3


def test_what_fails_is_tried_again_and_named(
    tmp_path: Path, wandb_server: Server, monkeypatch, capsys, said: Said
):
    first, second, _ = written(tmp_path / "sweep")
    whole, tries = upload.record, list[Path]()

    def flaky(folder: Path, *told: Any) -> None:
        tries.append(folder)
        if folder == first or (folder == second and tries.count(second) == 1):
            raise RuntimeError("CommError: no answer\nand more")
        whole(folder, *told)

    monkeypatch.setattr(sync, "WAIT_S", 0.0)
    monkeypatch.setattr(upload, "record", flaky)
    assert main(["sync", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert told(printed) == [
        Told("sync.not-uploaded", None, {"folder": str(first), "why": "CommError: no answer"}),
        Told("sync.uploaded", None, {"n": 2, "had": 0}),
        Told("sync.failed", None, {"n": 1, "tries": 3}),
    ]
    assert tries.count(first) == 3 and tries.count(second) == 2
    assert ids([second])[0] in wandb_server.runs and ids([first])[0] not in wandb_server.runs

    monkeypatch.setattr(upload, "record", whole)
    assert says(said("sync", tmp_path), "sync.uploaded", n=1, had=2)


def test_an_upload_that_was_cut_off_goes_on_where_it_ended(
    tmp_path: Path, wandb_server: Server, monkeypatch: pytest.MonkeyPatch
):
    folder, *_ = written(tmp_path / "sweep")

    def samples(
        _: Path, __: Gpu | None, timeline: RunClock
    ) -> list[tuple[float, dict[str, float]]]:
        return [(timeline.started_at + second, {"gpu.0.gpu": 50.0}) for second in range(3)]

    monkeypatch.setattr(history, "samples", samples)
    assert main(["sync", str(folder)]) == 0
    stored = wandb_server.runs[ids([folder])[0]]
    whole = list(stored.history)
    (folder / upload.NOTE).unlink()
    # of an upload that had ended: sent once
    assert main(["sync", str(folder)]) == 0 and len(stored.samples) == 3
    del stored.history[3:], stored.lines[SUMMARY]  # which comes last
    (folder / upload.NOTE).unlink()
    assert main(["sync", str(folder)]) == 0
    assert [row["_step"] for row in stored.history] == list(range(6))
    assert [row["_runtime"] for row in stored.history] == [row["_runtime"] for row in whole]


def test_without_a_server_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Said
):
    written(tmp_path / "sweep")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    wandb.teardown()
    assert says(refused("sync", tmp_path), "sync.no-server", url="http://127.0.0.1:9")
    wandb.teardown()


@pytest.mark.usefixtures("processes")
def test_a_run_that_is_followed_online_is_the_one_that_its_record_names(
    tmp_path: Path, wandb_server: Server
):
    warm_up()
    cfg = composed(*SMALL, "tracker.mode=online", "tracker.project=trial", "epochs=2")
    result = as_dict(run.measure(WORKLOAD, cfg, tmp_path / "sweep" / "1", keep_refused=True))
    assert result["status"] == "ok" and "tracker_error" not in result, result
    ((name, stored),) = wandb_server.runs.items()
    assert name == run_record.run_id(records.as_record(result)) and stored.exit_code == 0
    steps = run_folder.read_steps(Path(result["folder"])).num_rows
    assert [row["_step"] for row in stored.history] == list(range(steps + 2))
    rows = [row for row in stored.history if "epoch/test_accuracy" in row]
    assert [row["epoch/train_loss"] for row in rows] == [
        epoch["train_loss"] for epoch in result["epochs"]
    ]
    assert stored.summary["test_accuracy"] == result["test_accuracy"]
    assert main(["sync", str(tmp_path), "--project", "trial"]) == 0
    assert list(wandb_server.runs) == [name]


@pytest.fixture(scope="module")
def built() -> dashboard.View:
    return dashboard.workspace()


def test_lines_over_steps_and_epochs_are_left_to_w_and_b(built: dashboard.View):
    assert built["spec"]["section"]["settings"]["shouldAutoGeneratePanels"] is True


def test_a_new_figure_appears_by_itself_and_one_that_nothing_logs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    spilled = Figure("spilled_bytes", "spilled bytes", "transfer_bytes.spilled", unit=BYTES)
    monkeypatch.setitem(FIGURES, "spilled_bytes", spilled)
    with messages.refused("dashboard.no-figure", column="spilled_bytes"):
        dashboard.workspace()
    logged = replace(spilled, keys=dict.fromkeys(ALL, ("transfer_bytes.spilled",)))
    monkeypatch.setitem(FIGURES, "spilled_bytes", logged)
    assert '"chartTitle": "Spilled bytes (bytes)"' in json.dumps(dashboard.workspace())


def test_sending_twice_replaces_the_same_workspace(
    wandb_server: Server, built: dashboard.View, capfd
):
    assert main(["dashboard", "--project", "multicard", "--entity", "someone"]) == 0
    (made,) = capfd.readouterr().out.splitlines()
    address = find(made, "dashboard.made").facts["address"]
    assert not wandb_server.unknown and address.startswith(
        f"{wandb_server.url}/someone/multicard?nw="
    )
    assert main(["dashboard"]) == 0  # the account's default entity, and the runs' own project
    (again,) = capfd.readouterr().out.splitlines()
    assert says(again, "dashboard.replaced", address=address)
    (sent,) = wandb_server.views.values()
    # what a dry run writes
    assert {name: sent[name] for name in built} | {"spec": json.loads(sent["spec"])} == built


def test_what_the_server_refuses_is_one_line(
    wandb_server: Server,
    built: dashboard.View,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    def refused(*words: str) -> str:
        assert main(["dashboard", *words]) == 1
        lines = [
            line for line in capfd.readouterr().err.splitlines() if not line.startswith("wandb: ")
        ]
        assert len(lines) == 1
        return lines[0]

    assert says(
        refused("--project", "elsewhere"), "dashboard.no-project", project="someone/elsewhere"
    )
    assert says(refused("--entity", "others"), "dashboard.no-project", project="others/multicard")
    wandb_server.refused_views.add(built["name"])
    assert "quota exceeded" in refused() and not wandb_server.views
    with monkeypatch.context() as without_login:
        without_login.delenv("WANDB_API_KEY")
        without_login.setenv("HOME", str(tmp_path))
        without_login.setenv("NETRC", str(tmp_path / "none"))
        wandb.teardown()
        line = refused()
        assert says(line, "dashboard.no-login", url=wandb_server.url) and says(
            line, "dashboard.without"
        )
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    wandb.teardown()
    gone = refused()
    assert says(gone, "dashboard.no-server", url="http://127.0.0.1:9") and says(
        gone, "dashboard.without"
    )
