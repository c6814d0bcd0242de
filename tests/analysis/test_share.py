"""`export` and `import`: what rows may hold, what is refused,
and where the rows of others are used.
"""

import getpass
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis.__main__ import main
from analysis.figures.chart_data import SHARED
from analysis.figures.trade_off_chart import trade_off
from analysis.runs import load
from multicard.estimate import shared_rows
from multicard.estimate.estimates import estimate
from multicard.estimate.history import history_folders
from multicard.estimate.target import TargetMachine
from multicard.records import run_folder
from tests.analysis.conftest import Said
from tests.helpers import past_runs, records
from tests.helpers.messages import says

ROOT = Path(__file__).parents[2]
SECRETS = {
    "host": "secret-node17",
    "user": "secret-jane",
    "job": "secret-4711",
    "path": "/home/secret-jane/data",
}


def strings(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        yield from (text for pair in content.items() for part in pair for text in strings(part))
    elif isinstance(content, list):
        yield from (text for part in content for text in strings(part))
    elif isinstance(content, str):
        yield content


def secretive(**changes: Any) -> dict[str, Any]:
    """A record that has something private wherever it can hold a text."""
    record = records.vision(total_s=50.0, **changes)
    config = record["config"]
    config |= {
        "name": SECRETS["user"],
        "price": {"gpu_hour": 77.5},
        "secret": SECRETS["path"],
        "backend": SECRETS["path"],
    }
    config["dataset"] |= {"root": SECRETS["path"], "secret_key": 1}
    config["tracker"] |= {"entity": SECRETS["user"], "tags": [SECRETS["user"]]}
    segment = records.segment() | {"hosts": [SECRETS["host"]], "job": SECRETS["job"]}
    return record | {
        "name": SECRETS["user"],
        "job": SECRETS["job"],
        "segments": [segment],
        "dirty": True,
    }


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "multirun"


def exported(folder: Path, *words: str) -> dict[str, Any]:
    assert main(["export", str(folder), "--anonymous", "--out", "rows.json", *words]) == 0
    return json.loads(Path("rows.json").read_text())


def test_no_string_of_an_export_says_whose_it_is(root: Path, capsys: pytest.CaptureFixture[str]):
    machine = records.environment() | {"host": SECRETS["host"], "platform": SECRETS["host"]}
    machine["packages"] |= {
        "torch": f"2.11.0+{SECRETS['user']}",
        SECRETS["user"]: "1.0",
        "numpy": "2.4.6",
    }
    records.write(root / "a" / "0", secretive(), machine=machine)
    content = exported(root)
    private = [
        *SECRETS.values(),
        "secret",
        socket.gethostname(),
        str(Path.home()),
        str(root.parent),
    ]
    private += [records.COMMIT, "fff61eda", "9b990dc14fcc", "77.5", "2026-11"]
    texts = [*strings(content), *capsys.readouterr().out.split()]
    assert not [
        (text, secret)
        for text in texts[:-1]
        for secret in private
        if secret.lower() in text.lower()
    ]
    assert getpass.getuser() not in [*strings(content)]
    (row,) = content["rows"]
    assert (
        row["commit"] is None
        and row["versions"]["numpy"] == "2.4.6"
        and "torch" not in row["versions"]
    )
    assert row["hardware"] == "NVIDIA H200" and row["settings"]["precision.name"] == "fp32"
    assert "cost" not in row["figures"] and "dataset.secret_key" not in row["settings"]


def test_names_of_models_are_those_that_a_library_has():
    names = ("resnet50", "timm/resnet18", "resnet18.secret", "timm/secret", "secret")
    assert [shared_rows.is_public("vision", "model.name", name) for name in names] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_figures_have_their_runs_mean_and_spread(root: Path):
    for seed, total_s in enumerate((10.0, 12.0, 14.0)):
        peak = {"max": 100 + seed, "kind": "cuda_allocated"}
        record = records.vision(seed=seed, total_s=total_s, peak_memory_bytes=peak)
        records.write(root / "a" / str(seed), record)
    records.write(root / "a" / "failed", records.vision(status="failed", total_s=1.0))
    (row,) = exported(root)["rows"]
    assert row["figures"]["total_s"] == {"n": 3, "mean": 12.0, "sd": 2.0}
    assert row["figures"]["peak_memory_bytes"]["mean"] == 102 and row["commit"] == records.COMMIT


def test_what_has_no_public_name_is_not_exported(root: Path, refused: Said):
    records.write(root / "a" / "0", records.vision(model="our_secret_net"))
    assert says(refused("export", root, "--anonymous"), "export.nothing", runs=1)
    assert not Path("measured.json").exists()
    for weights, code in (("mine.safetensors", 1), ("pretrained", 0)):
        run = records.vision()
        run["config"]["model"]["weights"] = weights
        records.write(root / "a" / "0", run)
        assert main(["export", str(root), "--anonymous"]) == code
    (row,) = json.loads(Path("measured.json").read_text())["rows"]
    assert row["settings"]["model.weights"] == "pretrained"


def broken(**changes: Any) -> Any:
    row = {"kind": "vision", "hardware": "NVIDIA H200", "cores": 4, "commit": None, "versions": {}}
    row["settings"] = {"gpus": 1, "model.name": "mobilenet_v2", "dataset.name": "mnist"}
    row |= {"figures": {"total_s": {"n": 1, "mean": 3.0, "sd": None}}} | changes
    return {"version": 1, "licence": "CC0-1.0", "rows": [row]}


NEEDED = broken()["rows"][0]["settings"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b" " * (shared_rows.MOST_BYTES + 1),
        broken(hardware="<script>alert(1)</script>"),
        broken(figures={"total_s": {"n": 1, "mean": "fast"}}),
        broken(figures={"total_s": {"n": 0, "mean": 1.0}}),
        broken(figures={"cost": {"n": 1, "mean": 1.0}}),
        broken(settings={}),
        broken(settings=NEEDED | {"dataset.root": "/etc/passwd"}),
        broken(settings=NEEDED | {"unknown": 1}),
        broken(versions={"torch": "../../x"}),
        broken(path="/etc"),
        broken() | {"version": 2},
        broken() | {"rows": []},
    ],
)
def test_a_broken_file_is_refused_in_a_line(root: Path, refused: Said, content: Any):
    Path("in.json").write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    assert (
        says(refused("import", "in.json"), "import.refused", file="in.json") and not root.exists()
    )


def test_imported_rows_are_predictions_and_grey_marks_but_no_runs(root: Path, said: Said):
    run = past_runs.vision(mean_s=0.25, device="cuda", hardware="NVIDIA H200")
    records.write(root.parent / "theirs" / "0", run | {"total_s": 80.0})
    exported(root.parent / "theirs")
    said("import", "rows.json")
    assert says(said("import", "rows.json"), "import.known", rows=1)
    (file,) = (root / "published").iterdir()
    assert main(["list"]) == 1 and history_folders(root / "own" / "0") == []

    target = TargetMachine("h200", gpu="NVIDIA H200")
    (told,) = estimate([past_runs.config(run)], root / "own" / "0", [target])
    step_s = told.prediction.step_s
    assert told.prediction.basis == "published" and file.stem in told.prediction.about
    assert (
        step_s is not None
        and step_s.low < 0.25 < step_s.high
        and step_s.value == pytest.approx(0.25)
    )
    (other,) = estimate(
        [past_runs.config(run)], root / "own" / "0", [TargetMachine("l4", gpu="NVIDIA L4")]
    )
    assert other.prediction.basis == "unknown"

    for precision, total_s in (("fp32", 100.0), ("bf16", 60.0)):
        own = past_runs.vision(device="cuda", precision=precision) | {"total_s": total_s}
        records.write(root / "own" / precision, own)
    (figure,) = trade_off(load.read_runs([root]).runs)
    grey = [row for row in figure.rows if row["of"] == SHARED]
    assert {row["total_s"] for row in grey} == {80.0} and all(
        "NVIDIA H200" in row["series"] for row in grey
    )
    assert any("NVIDIA H200" in note for note in figure.below)
    file.write_text("{")
    (figure,) = trade_off(load.read_runs([root]).runs)
    assert not any(row["of"] == SHARED for row in figure.rows)


def test_a_row_says_how_its_gpus_are_linked_and_their_driver(root: Path):
    gpus = [
        {"uuid": str(number), "name": "NVIDIA H100", "driver": "580.65.06"} for number in range(2)
    ]
    links = [
        {"link": "NV18"},
        {"link": "NV18"},
        {"link": "SYS"},
        {"link": "a private name"},
        {"link": None},
    ]
    folder = root / "sweep" / "run"
    records.write(folder, records.vision(total_s=50.0))
    run_folder.write_json(folder / "environment.json", {"gpus": gpus, "topology": {"links": links}})
    (row,) = exported(root / "sweep")["rows"]
    assert (row["links"], row["versions"]["driver"]) == (["NV18", "SYS"], "580.65.06")


def test_the_projects_rows_and_its_schema_are_those_of_the_code():
    files = [*(ROOT / "multirun" / "published").glob("*.json")]
    assert files and all(shared_rows.decode(file.read_bytes()).rows for file in files)
    schema = json.loads((ROOT / "docs" / "published.schema.json").read_text())
    assert schema == msgspec.json.schema(shared_rows.SharedFile)
