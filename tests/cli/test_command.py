"""The command line, as a user types it: sweeps, interruptions, bad input.
Each runs in processes of its own.
"""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hydra_plugins.multicard_launchers._batches import SweepBatches
from multicard import messages
from multicard.machine import environment
from multicard.messages import say
from multicard.ranks.failures import Failure, Interrupted
from multicard.records import run_folder
from multicard.tracking import upload
from tests.conftest import ROOT, SMALL, Called, command, in_checkout
from tests.helpers import cells
from tests.helpers.messages import codes, find, says

HEADLINES = {  # of a recommendation: what the measured seconds of a machine decide between
    "answer.run",
    "answer.as-good",
    "answer.keep",
    "answer.only-one",
    "answer.one-run-each",
    "answer.not-known",
    "answer.none",
    "answer.none-but-fastest",
}


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]


def in_folder(folder: Path, *words: str) -> list[str]:
    flags = [word for word in words if word.startswith("-")]  # Hydra wants them first
    keys = [word for word in words if not word.startswith("-")]
    return [*flags, *SMALL, f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}", *keys]


RECORDS = str(ROOT / "tests" / "fixtures" / "records_v1")
SHADOWS = ("analysis", "papers", "conf", "train_vision", "tune_llm")


@pytest.mark.core
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("flag", ["-B", "-OO"])
def test_commands_work_beside_packages_of_the_user_and_without_docstrings(
    flag: str, tmp_path: Path
):
    """Packages of the same names in the working folder and on PYTHONPATH,
    where Python looks first.
    """
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    code = (
        "import sys; from multicard.__main__ import main; sys.argv[0] = 'multicard';"
        " sys.exit(main())"
    )
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    printed = {
        "list --help": "usage: multicard list",
        "vision --help": "gpus=1",
        "--help": "best [FOLDER",
    }
    for words, said in printed.items():
        line = [sys.executable, flag, "-c", code, *words.split()]
        done = subprocess.run(
            line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode != 7 and "Traceback" not in done.stderr, done.stderr
        assert said in done.stdout, done.stdout + done.stderr
    (tmp_path / "analysis.py").write_text("OWN = 3")  # which is still the user's after `load`
    script = f"""import multicard, sys
runs = multicard.load({RECORDS!r})
import analysis
sys.exit(analysis.OWN if len(runs) else 1)"""
    done = subprocess.run(
        [sys.executable, flag, "-c", script], cwd=tmp_path, env=variables, check=False
    )
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("started", "folder", "installed", "expected"),
    [
        ("/bin/multicard", "elsewhere", True, "multicard"),
        ("/x/multicard/__main__.py", "elsewhere", False, "python -m multicard"),
        ("train_vision.py", "checkout", True, "python -m analysis"),
        ("/x/train_vision.py", "elsewhere", True, "multicard"),
        ("/x/train_vision.py", "elsewhere", False, "PYTHONPATH=CHECKOUT python -m multicard"),
    ],
)
def test_a_hint_is_a_command_that_works_where_it_is_read(
    started: str,
    folder: str,
    installed: bool,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(ROOT if folder == "checkout" else tmp_path)
    monkeypatch.setattr(sys, "argv", [started])
    monkeypatch.setattr(messages, "in_checkout", in_checkout)
    monkeypatch.setattr(messages.shutil, "which", lambda _: started if installed else None)
    assert messages.typed("-m analysis") == expected.replace("CHECKOUT", str(ROOT))
    if not installed and started.endswith("vision.py"):
        assert messages.typed("train_vision.py") == f"python {ROOT / 'train_vision.py'}"


def test_a_full_disk_at_the_start_of_a_sweep_is_a_line(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(*_: Any, **__: Any) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_text", write)
        code, printed = called(*in_folder(tmp_path / "a", "-m", "gpus=1", "seed=1,2"))
    assert (
        code == 1
        and find(printed, "folder.unwritable", key="hydra.sweep.dir").facts["reason"]
        == full.strerror
    )
    with monkeypatch.context() as patch:  # of what is written later, wherever it is
        patch.setattr(SweepBatches, "launch", write)
        code, printed = called(*in_folder(tmp_path / "b", "-m", "gpus=1", "seed=1,2"))
    assert code == 1 and find(printed, "disk.full").facts["reason"] == full.strerror
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_sweep_leaves_records_and_a_table_and_is_gone_on_with(tmp_path: Path, called: Called):
    small = ("dataset.train_limit=64", "model.width=0.35")
    words = in_folder(tmp_path / "s", "-m", "precision=fp64,fp32,fp16", "gpus=1,2", *small)
    first = command(*words)
    assert first.returncode == 0, first.stderr
    measured = records(tmp_path / "s")
    axes = {(r["axes"]["precision"], r["axes"]["gpus"]) for r in measured if r["status"] == "ok"}
    assert axes == {(p, g) for p in ("fp64", "fp32", "fp16") for g in (1, 2)}
    printed = first.stdout.splitlines()
    assert printed[0].startswith("6 ") and {"mobilenet_v2", "digits", f"{tmp_path}/s/"} <= {
        *printed[0].split()
    }
    ended = [
        line
        for line in printed
        if re.match(r"\[./6\] precision=fp\d\d gpus=.   ok\S* +[\d.]+ s +[\d.,]+ images/s", line)
    ]
    assert len(ended) == 6
    rows = [line for line in printed if line.startswith("fp")]
    assert [row.split()[:2] for row in rows] == [
        [p, str(g)] for p in ("fp64", "fp32", "fp16") for g in (1, 2)
    ]
    assert printed[-1].startswith(f"python -m analysis report {tmp_path}/s/")
    assert f"Records: {tmp_path}/s/" in printed
    assert HEADLINES & {*codes(first.stdout)}  # noise decides which

    code, planned = called(*words, "gpus=1,2,0", "dry_run=true")
    assert code == 1 and find(planned, "sweep.counts", measured=6, queued=0, refused=3)

    code, again = called(*words, "lr=0.05")  # the same cells, typed otherwise
    assert code == 0 and again.count("measured before: ok") == 6
    assert records(tmp_path / "s") == measured
    assert [line for line in again.splitlines() if line.startswith("fp")] == rows  # the same table


@pytest.mark.core
@pytest.mark.usefixtures("processes")
def test_a_single_run_and_its_rerun(tmp_path: Path, called: Called):
    words = in_folder(tmp_path / "one", "seed=3")
    assert called(*words)[0] == 0
    (before,) = records(tmp_path / "one")
    assert "measured before: ok" in called(*words, "dry_run=true")[1]
    assert "measured before: ok" in called(*words)[1]
    assert records(tmp_path / "one") == [before]
    # the same from another machine, whose clock is wrong
    (tmp_path / "one").rename(tmp_path / "there")
    shutil.copytree(tmp_path / "there", tmp_path / "one", copy_function=shutil.copyfile)
    for number, path in enumerate((tmp_path / "one").rglob("*")):
        os.utime(path, [(0, 0), (1 << 32, 1 << 32)][number % 2])
    assert "measured before: ok" in called(*words)[1] and records(tmp_path / "one") == [before]
    assert called(*words, "rerun=true")[0] == 0
    (after,) = records(tmp_path / "one")
    assert after["identity"] == before["identity"] and after["total_s"] != before["total_s"]


@pytest.mark.usefixtures("processes")
def test_the_installed_command_trains_from_any_folder(tmp_path: Path):
    script = tmp_path / "multicard"  # as pip writes it
    script.write_text(
        "import sys\nfrom multicard.__main__ import main\nif __name__ == '__main__':\n   "
        " sys.exit(main())\n"
    )

    words = [sys.executable, str(script), "vision", *SMALL, "gpus=2", "name=a"]
    subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    assert [record["status"] for record in records(tmp_path / "multirun" / "a")] == ["ok"]


@pytest.mark.core
@pytest.mark.usefixtures("processes")
def test_a_bad_cell_does_not_stop_the_rest(tmp_path: Path, called: Called):
    code, printed = called(*in_folder(tmp_path / "s", "-m", "gpus=0,1", "order=typed"))
    assert code == 1
    assert sorted(r["status"] for r in records(tmp_path / "s")) == ["ok", "refused"]
    assert "[1/2] gpus=0" in printed and find(printed, "config.least", key="gpus", value=0)
    # which refuses nothing any more
    assert called(*in_folder(tmp_path / "s", "-m", "gpus=1"))[0] == 0
    assert [r["status"] for r in records(tmp_path / "s")] == ["ok"]


def test_a_dry_run_starts_nothing(called: Called, tmp_path: Path):
    code, printed = called(*in_folder(tmp_path / "run"), "dry_run=true")
    said = find(printed, "sweep.dry-run-alone").facts
    assert code == 0 and said["folder"].startswith(str(tmp_path / "run"))
    assert "mobilenet_v2 on digits 32 px" in said["what"] and "batch 16 a rank" in said["what"]
    assert "00000000" not in printed and not (tmp_path / "run").exists()
    code, printed = called(*in_folder(tmp_path / "run", "-m", "seed=3"), "dry_run=true")
    (row,) = (line for line in printed.splitlines() if line.split()[:2] == ["1", "-"])
    assert code == 0 and "mobilenet_v2 on digits 32 px" in row and "dry_run" not in row


def test_a_dry_run_says_that_ranks_share_cores(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "cores", lambda: 2)
    line = in_folder(tmp_path / "run", "gpus=4")
    for words in (line, ["-m", *line]):
        code, printed = called(*words, "device=cpu", "dry_run=true")
        assert code == 0 and find(printed, "run.crowded", key="gpus", ranks=4, cores=2)
    _, printed = called(*line, "gpus=2", "device=cpu", "dry_run=true")
    assert not says(printed, "run.crowded")


def test_a_dry_run_in_which_all_cells_are_refused_counts_them(called: Called, tmp_path: Path):
    line = in_folder(tmp_path / "run", "-m", "seed=1,2", "dataset=images", "dry_run=true")
    code, printed = called(*line)
    assert code == 1 and find(printed, "sweep.dry-run", cells=0, refused=2)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_signal_while_wandb_gets_a_run_leaves_its_record_and_ends_the_sweep(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The table says what the record says, and the command exits with 1."""

    def close(*_: Any) -> None:
        raise Interrupted(Failure("interrupt", "SIGTERM"))

    monkeypatch.setattr(upload.Mirror, "open", lambda _: None)
    monkeypatch.setattr(upload.Mirror, "close", close)
    code, printed = called(*in_folder(tmp_path, "-m", "seed=1,2", "tracker.mode=offline"))
    assert code == 1 and find(printed, "sweep.left").facts["left"] == 1
    assert [record["status"] for record in records(tmp_path)] == ["ok"]
    (line,) = (
        line for line in printed.splitlines() if line.startswith("[1/2]") and "images/s" in line
    )
    assert "ok" in line and "interrupted" not in line


def test_a_reader_that_goes_away_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        say("nobody reads this")
        say("nor this")


def test_a_line_that_cannot_be_written_now_is_written_with_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class FullAtFirst(io.FileIO):
        def write(self, content: Any) -> int:
            self.write = super().write
            raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(io.BufferedWriter(FullAtFirst(tmp_path / "log", "w")))
    )
    say("first")
    say("second")
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("entry", "words", "key"),
    [
        ("train_vision.py", ["--help"], None),
        pytest.param(
            "train_vision.py",
            ["strategy.sync_batchnorm=true", "device=cpu"],
            "strategy.sync_batchnorm",
            marks=pytest.mark.core,
        ),
        ("tune_llm.py", ["dataset=digits"], "dataset"),
        pytest.param("tune_llm.py", ["method=qlora", "gpus=4"], "method", marks=pytest.mark.core),
    ],
)
def test_answers_that_need_no_torch_do_not_wait_for_it(
    entry: str, words: list[str], key: str | None, tmp_path: Path
):
    line = [sys.executable, "-X", "importtime", entry, f"hydra.run.dir={tmp_path / 'run'}", *words]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    imported = {
        line.split("|")[2].strip() for line in done.stderr.splitlines() if line.count("|") == 2
    }
    assert "hydra" in imported
    assert not imported & {
        "torch",
        "torchvision",
        "torchtune",
        "datasets",
        "wandb",
        "pyarrow",
        "sklearn",
    }
    said = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if "refused" in line and line.count("|") != 2
    ]
    assert len(said) == (key is not None) and all(str(key) in line for line in said)
    assert done.returncode == bool(key) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("entry", "words", "shown", "absent"),
    [
        ("train_vision.py", "-m optimizer=adam,sgd gpus=3,4", "strategy=ddp_ds fp32_ieee table2, gpus=3 "
         "optimizer.betas=[0.9,0.999]", "schema method tokenizer template llama3 optimizer.momentum"),
        ("tune_llm.py", "method=qat", "method=qat template=null peak_memory method.groupsize=256",
         "schema strategy layout mobilenet_v2 digits table2 method.lora_rank fp64"),
    ],
)  # fmt: skip
def test_help_shows_what_the_entry_accepts_and_of_a_sweep_the_first_cell(
    entry: str, words: str, shown: str, absent: str, called: Called
):
    code, printed = called(*words.split(), "--help", entry=entry)
    assert code == 0 and f"python {entry}" in printed
    assert [word for word in shown.split() if word not in printed] == []
    assert [word for word in absent.split() if re.search(rf"\b{re.escape(word)}", printed)] == []
    assert max(map(len, printed.splitlines())) <= 120
    keys = [
        line.split("=")[0].strip() for line in printed.splitlines() if re.match(r"  [\w.]+=", line)
    ]
    assert len(keys) == len(set(keys)) > 40


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("key", "words"), [("hydra.run.dir", []), ("hydra.sweep.dir", ["-m"])])
def test_a_folder_that_cannot_be_made_is_refused(
    key: str, words: list[str], called: Called, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    code, printed = called(*in_folder(tmp_path / "file" / "x", *words))
    assert code == 1
    assert printed.count("\n") == 1
    find(printed, "folder.cannot-be-made", key=key, value=str(tmp_path / "file" / "x"))


@pytest.mark.usefixtures("processes")
def test_a_folder_whose_path_is_no_text_is_refused(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    monkeypatch.chdir(place)
    code, printed = called(*in_folder(Path("run")))
    assert code == 1 and find(
        printed, "folder.no-text", key="hydra.run.dir", value=str(place / "run")
    )
    monkeypatch.setattr(messages, "BY_CODE", False)
    assert rf"hydra.run.dir={tmp_path}/caf\xe9/run: " in called(*in_folder(Path("run")))[1]


def test_a_sweep_without_a_name_is_resumed_by_the_name_of_its_folder(
    monkeypatch: pytest.MonkeyPatch,
):
    sweep = cells.sweep(cells.cell(folder=Path("multirun/2026-01-01_00-00-00/seed=1-12345678")))
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "train_vision.py", "-m", "seed=1,2", "dataset.root=my images"]
    )
    line = "python train_vision.py -m seed=1,2 'dataset.root=my images'"
    assert sweep.resume_command() == f"{line} name=2026-01-01_00-00-00"
    monkeypatch.setattr(sys, "orig_argv", [*sys.orig_argv, "name=mine"])
    assert sweep.resume_command() == f"{line} name=mine"
    monkeypatch.setattr(
        sys, "orig_argv", ["/venv/bin/python", "/venv/bin/multicard", "vision", "-m", "name=mine"]
    )
    assert sweep.resume_command() == "multicard vision -m name=mine"
