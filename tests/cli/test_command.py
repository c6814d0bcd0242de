"""The command line, as a user types it: sweeps, interruptions, bad input. Each runs in processes of its own."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from multicard.records import run_folder
from tests.conftest import PATIENCE_S, ROOT, SMALL, assert_gone, awaited, command
from tests.helpers import cells

Called = Callable[..., tuple[int, str]]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]


def in_folder(folder: Path, *words: str) -> list[str]:
    flags = [word for word in words if word.startswith("-")]  # Hydra wants them first
    keys = [word for word in words if not word.startswith("-")]
    return [*flags, *SMALL, f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}", *keys]


@pytest.mark.slow
def test_a_sweep_leaves_records_and_a_table_and_is_gone_on_with(tmp_path: Path, called: Called):
    small = ("dataset.train_limit=64", "model.width=0.35")
    words = in_folder(tmp_path / "s", "-m", "precision=fp64,fp32,fp16", "gpus=1,2", *small)
    first = command(*words)
    assert first.returncode == 0, first.stderr
    measured = records(tmp_path / "s")
    axes = {(r["axes"]["precision"], r["axes"]["gpus"]) for r in measured if r["status"] == "ok"}
    assert axes == {(p, g) for p in ("fp64", "fp32", "fp16") for g in (1, 2)}
    rows = [line for line in first.stdout.splitlines() if line.startswith("fp")]
    table = [[*setting, status.rstrip("&>")] for *setting, status in (row.split()[:3] for row in rows)]  # less marks
    assert table == [[p, str(g), "ok"] for p in ("fp64", "fp32", "fp16") for g in (1, 2)]
    assert "[6/6] " in first.stdout and f"Records: {tmp_path / 's'}" in first.stdout
    assert "  1 of 6 cells ended in 0:0" in first.stdout and first.stdout.count(" left\n") == 5

    code, planned = called(*words, "gpus=1,2,0", "dry_run=true")
    assert code == 1 and "measured before: 6; in the queue: 0; refused: 3" in planned

    code, again = called(*words, "lr=0.05")  # the same cells, typed otherwise
    assert code == 0 and again.count("measured before (ok)") == 6
    assert records(tmp_path / "s") == measured
    assert [line for line in again.splitlines() if line.startswith("fp")] == rows  # the same table


def test_a_single_run_and_its_rerun(tmp_path: Path, called: Called):
    words = in_folder(tmp_path / "one", "seed=3")
    assert called(*words)[0] == 0
    (before,) = records(tmp_path / "one")
    assert "measured before (ok)" in called(*words, "dry_run=true")[1]
    assert "measured before (ok)" in called(*words)[1]
    assert records(tmp_path / "one") == [before]
    assert called(*words, "rerun=true")[0] == 0
    (after,) = records(tmp_path / "one")
    assert after["identity"] == before["identity"] and after["total_s"] != before["total_s"]


def test_a_refusal_leaves_a_measurement_alone(tmp_path: Path, called: Called):
    words = in_folder(tmp_path / "s", "-m", "gpus=1")
    assert called(*words)[0] == 0
    before = records(tmp_path / "s")
    (folder,) = (path.parent for path in (tmp_path / "s").glob("*/result.json"))
    (folder / "result.json").rename(folder / "aside.json")
    (folder / ".running.json").write_text('{"host": "another", "pid": 1}')
    code, refused = called(*words)
    assert code == 1 and "is measuring" in refused
    assert (folder / "aside.json").exists() and not (folder / "result.json").exists()
    (folder / ".running.json").unlink()
    (folder / "aside.json").rename(folder / "result.json")
    assert called(*words)[0] == 0 and records(tmp_path / "s") == before


def test_a_bad_cell_does_not_stop_the_rest(tmp_path: Path, called: Called):
    code, printed = called(*in_folder(tmp_path / "s", "-m", "gpus=0,1"))
    assert code == 1
    assert sorted(r["status"] for r in records(tmp_path / "s")) == ["ok", "refused"]
    assert "[1/2] refused: gpus=0: must be 1 or more" in printed


BAD = [
    (["gpus=0"], "gpus=0"),
    (["device=cuda"], "device=cuda"),
    (["strategy=dp"], "strategy=dp"),
    (["dataset.image_size=16"], "dataset.image_size=16"),
    (["dataset=mnist", "dataset.root=/nowhere"], "dataset.root=/nowhere"),
    (["dataset=images"], "dataset.root"),
    (["dataset=images", "dataset.root=/nowhere", "dataset.cache=disk"], "dataset.cache"),
    (["compile=true", "strategy=dp", "device=cpu"], "strategy=dp"),
    (["nodes=2"], "nodes=2"),
    (["+epoch=3"], "epoch: no such key here; nearest: epochs"),
]


def test_a_name_that_is_no_folder_makes_none(called: Called, tmp_path: Path):
    code, printed = called("name=a/b", f"hydra.run.dir={tmp_path}/runs/a/b")
    assert code == 1 and printed.startswith("refused: name='a/b'") and printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "key"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_a_refused_run_says_why_in_a_line_and_leaves_nothing(
    words: list[str], key: str, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, printed = called(f"hydra.run.dir={tmp_path / 'run'}", *words)
    assert code == 1
    (line,) = printed.splitlines()
    assert line.startswith(f"refused: {key}")
    assert not (tmp_path / "run").exists()


DRY = [
    (["dataset=mnist", "dataset.root=/nowhere"], 1, "refused: dataset.root=/nowhere"),
    (["dataset.image_size=0"], 1, "refused: dataset.image_size=0"),
    ([], 0, "dry_run=true: nothing is started. To be measured in this process: "),
]


@pytest.mark.parametrize(("words", "code", "says"), DRY, ids=["root", "size", "ok"])
def test_a_dry_run_makes_the_checks_of_a_run(words: list[str], code: int, says: str, called: Called, tmp_path: Path):
    ended, printed = called(*in_folder(tmp_path / "run", *words), "dry_run=true")
    assert ended == code and printed.startswith(says)
    assert "00000000" not in printed and not (tmp_path / "run").exists()


MISTYPED = [
    (["precison=fp32"], "precison: no such key here; nearest: precision"),
    (["dataset.downlod=true"], "dataset.downlod: no such key here; nearest: dataset.download"),
    (
        ["dataset.download=true"],
        "dataset.download: not a key of the option chosen for dataset; ",
    ),  # digits downloads nothing
    (["zzzz=1"], "zzzz: no such key here; --help shows all keys"),
    (["precision=fp8"], "precision=fp8: no such option; choose one of bf16, fp16, fp32, fp32_ieee, fp64, half, tf32"),
    (["device=tpu"], "device=tpu: invalid value 'tpu', expected one of [auto, cuda, cpu]"),
    (["gpus=two"], "gpus=two: must be a whole number"),
    (["-m", "gpus=1,two"], "gpus=two: must be a whole number"),
    (["method=lora"], "method: belongs to tune_llm.py"),
    (["max_steps=3"], "max_steps: belongs to tune_llm.py"),
    (["tokenizer.vocab_size=300"], "tokenizer.vocab_size: belongs to tune_llm.py"),
    (["dataset=samsum"], "dataset=samsum: belongs to tune_llm.py; train_vision.py has digits, mnist, images"),
    (
        ["-m", "model=mobilenet_v2,llama3_8b"],
        "model=llama3_8b: belongs to tune_llm.py; train_vision.py has mobilenet_v2",
    ),
    (["dataset=mnits"], "dataset=mnits: no such option; choose one of digits, mnist, images"),
]


@pytest.mark.parametrize(("words", "says"), MISTYPED, ids=[" ".join(words) for words, _ in MISTYPED])
def test_what_cannot_be_composed_is_refused_in_a_line(words: list[str], says: str, tmp_path: Path, called: Called):
    code, printed = called(*words, f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'run'}")
    assert code == 1
    (line,) = printed.splitlines()
    assert line.startswith(f"refused: {says}")
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("words", [["--help"], ["--cfg", "job"], ["gpus=0"], ["strategy=dp", "device=cpu"]])
def test_answers_that_need_no_torch_do_not_wait_for_it(words: list[str], tmp_path: Path):
    line = [sys.executable, "-X", "importtime", "train_vision.py", f"hydra.run.dir={tmp_path / 'run'}", *words]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    imported = {line.split("|")[2].strip() for line in done.stderr.splitlines() if line.count("|") == 2}
    assert "hydra" in imported
    assert not imported & {"torch", "torchvision", "wandb", "pyarrow", "sklearn"}


@pytest.mark.parametrize(
    ("entry", "words", "there", "absent"),
    [
        (
            "train_vision.py",
            ["optimizer=adam"],
            (
                "strategy=ddp_ds",
                "fp32_ieee",
                "one of digits, mnist, images",
                "table2, table3",
                "optimizer.betas=[0.9,0.999]",
            ),
            ("schema", "method", "tokenizer", "template", "llama3", "optimizer.momentum"),
        ),
        (
            "tune_llm.py",
            ["method=qat"],
            ("method=qat", "one of fp32, bf16", "template=null", "peak_memory", "method.groupsize=256"),
            ("schema", "strategy", "layout", "preset", "mobilenet_v2", "digits", "table2", "method.lora_rank", "fp64"),
        ),
    ],
)
def test_help_shows_what_the_entry_accepts(
    entry: str, words: list[str], there: tuple[str, ...], absent: tuple[str, ...], called: Called
):
    code, printed = called(*words, "--help", entry=entry)
    assert code == 0 and f"python {entry}" in printed
    assert [word for word in there if word not in printed] == []
    assert [word for word in absent if re.search(rf"\b{re.escape(word)}", printed)] == []
    assert max(map(len, printed.splitlines())) <= 120
    keys = [line.split("=")[0].strip() for line in printed.splitlines() if re.match(r"  [\w.]+=", line)]
    assert len(keys) == len(set(keys)) > 40


@pytest.mark.parametrize(("key", "words"), [("hydra.run.dir", []), ("hydra.sweep.dir", ["-m"])])
def test_a_folder_that_cannot_be_made_is_refused(key: str, words: list[str], tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = command(*in_folder(tmp_path / "file" / "x", *words))
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"refused: {key}={tmp_path / 'file' / 'x'}") and "another folder" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "says"),
    [(500, "refused: hydra.run.dir: cannot write to"), (2000, "  failed: hydra.run.dir: could not record the run in")],
    ids=["from the start", "in mid-run"],
)
def test_a_full_disk_is_one_line(limit: int, says: str, tmp_path: Path):
    # no file may grow past the limit: writing fails as it does on a full disk
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # noqa: E731
    unwritten = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python 3.11 keeps bytecode that it wrote in part
    done = command(*in_folder(tmp_path / "run"), preexec_fn=full, env=unwritten)
    assert done.returncode == 1
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "File too large" in line]
    assert len(lines) == 1 and lines[0].startswith(says)
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.rglob("result.json")) and not list(tmp_path.rglob(".*.json*"))


class Started:
    """`train_vision.py` in a session of its own, so that nothing it leaves behind goes unseen."""

    def __init__(self, folder: Path, *words: str) -> None:
        line = [sys.executable, str(ROOT / "train_vision.py"), *in_folder(folder, *words)]
        pipe = subprocess.PIPE
        self.folder = folder
        self.process = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, start_new_session=True)

    def wait_for_rank(self, rank: int) -> int:
        """The pid of a rank that has begun to train."""

        def begun() -> int | None:
            assert self.process.poll() is None, self.process.communicate()
            ranks = (run_folder.read_json(path) for path in self.folder.glob(f"*/ranks/r{rank:02d}.json"))
            return next((each["pid"] for each in ranks if each and each["started_s"] is not None), None)

        return awaited(begun)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


LONG = ("epochs=500", "num_workers=1")


@pytest.mark.slow
def test_a_killed_rank_is_recorded_and_the_next_cell_measured(tmp_path: Path):
    started = Started(tmp_path / "s", "-m", "gpus=2", "epochs=500,1", "num_workers=1")
    pid = started.wait_for_rank(1)
    family = started.family()
    os.kill(pid, signal.SIGKILL)
    output, errors = started.process.communicate(timeout=PATIENCE_S)
    assert started.process.returncode == 1, errors
    by_epochs = {r["axes"]["epochs"]: r for r in records(tmp_path / "s")}
    assert by_epochs[1]["status"] == "ok"
    failed = by_epochs[500]
    assert failed["status"] == "failed"
    assert failed["cause"]["message"] == "rank 1 was killed by SIGKILL"
    assert (failed["cause"]["rank"], failed["cause"]["log"]) == (1, "logs/r01.log")
    assert "rank 1 was killed by SIGKILL" in output and "logs/r01.log" in output
    assert_gone(family)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "launcher"),
    [(signal.SIGINT, "local"), (signal.SIGTERM, "local"), (signal.SIGINT, "submitit_local")],
)
def test_an_interrupted_sweep_is_recorded_and_says_how_to_resume(number: signal.Signals, launcher: str, tmp_path: Path):
    words = ("gpus=2", "epochs=500,1", "num_workers=1", f"hydra/launcher={launcher}")
    started = Started(tmp_path / "s", "-m", *words)
    started.wait_for_rank(1)
    family = started.family()
    if number == signal.SIGINT:
        os.killpg(os.getpgid(started.process.pid), number)  # as a terminal does
    else:
        started.process.send_signal(number)
    _, errors = started.process.communicate(timeout=PATIENCE_S)
    assert started.process.returncode == 1
    assert "Traceback" not in errors
    (record,) = records(tmp_path / "s")
    assert record["status"] == "interrupted" and record["cause"]["message"] == f"interrupted by {number.name}"
    assert_gone(family)
    lines = errors.splitlines()
    assert "interrupted: 2 of 2 cells are left:" in lines
    assert re.search(r"^  \[2/2\] .*epochs=1,.*-\w{8}$", errors, re.MULTILINE)
    (resume,) = (line.removeprefix("To resume: ") for line in lines if line.startswith("To resume: "))
    planned = subprocess.run(
        [*shlex.split(resume), "dry_run=true"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "nothing is started. 2 cells, to be measured" in planned.stdout


def test_a_sweep_without_a_name_is_resumed_by_the_name_of_its_folder(monkeypatch: pytest.MonkeyPatch):
    sweep = cells.sweep(cells.cell(folder=Path("multirun/2026-01-01_00-00-00/seed=1-12345678")))
    monkeypatch.setattr(sys, "orig_argv", ["python", "train_vision.py", "-m", "seed=1,2", "dataset.root=my images"])
    line = "python train_vision.py -m seed=1,2 'dataset.root=my images'"
    assert sweep.resume_command() == f"{line} name=2026-01-01_00-00-00"
    monkeypatch.setattr(sys, "orig_argv", [*sys.orig_argv, "name=mine"])
    assert sweep.resume_command() == f"{line} name=mine"


@pytest.mark.slow
def test_an_interruption_while_it_starts_is_recorded_too(tmp_path: Path):
    started = Started(tmp_path / "s", "epochs=500", "dataset.train_limit=null")  # an epoch that takes seconds
    awaited(lambda: list((tmp_path / "s").glob("*/logs/r00.log")))  # its rank has yet to build its model
    family = started.family()
    os.killpg(started.process.pid, signal.SIGINT)
    _, errors = started.process.communicate(timeout=PATIENCE_S)
    assert started.process.returncode == 1 and "Traceback" not in errors
    (record,) = records(tmp_path / "s")
    assert record["status"] == "interrupted" and record["epochs"] == []
    assert record["cause"]["message"] == "interrupted by SIGINT"
    assert_gone(family)


@pytest.mark.slow
def test_ranks_die_with_their_controller(tmp_path: Path):
    started = Started(tmp_path / "s", "gpus=2", *LONG)
    started.wait_for_rank(1)
    family = started.family()
    assert len(family) > 2
    started.process.kill()
    started.process.communicate(timeout=PATIENCE_S)
    assert_gone(family)
