"""`best FOLDER --train`: from the answer to a model that is trained in full and kept,
and lines that load it.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from analysis import conclusion, report, training_command
from analysis.__main__ import main
from analysis.answers import answers
from analysis.report.blocks import Recommendation
from analysis.runs import load
from tests.analysis.conftest import Said
from tests.analysis.test_report import swept
from tests.conftest import Called
from tests.helpers import records
from tests.helpers.messages import find, says


def sweep(
    folder: Path,
    overrides: str | None = "gpus=1,2 name=first dataset.train_limit=200",
    **changes: Any,
) -> Path:
    """Runs on one and two GPUs, of which the second is told to be faster,
    with the command that Hydra leaves.
    """
    own = folder / "multirun" / "first"
    for gpus, total_s in ((1, 100.0), (2, 60.0)):
        for seed in range(2):
            record = records.vision(gpus=gpus, seed=seed, total_s=total_s + seed, **changes)
            records.write(own / f"{gpus}-{seed}", record | records.accurate(0.99))
    if overrides is not None:
        swept(own, overrides)
    return own


@pytest.mark.parametrize(
    ("command", "words", "shortening"),
    [
        ("python train_vision.py gpus=2 dataset.train_limit=200 name=x", ["gpus=2"], ["dataset.train_limit=200"]),
        ("multicard tune method=lora max_steps=4 dataset.rows=40", ["method=lora"], ["max_steps=4", "dataset.rows=40"]),
        ("multicard vision dataset.split=0.2 diagnose=true", ["dataset.split=0.2"], []),
        ("multicard vision scale=smoke profile=kineto profile.window=start gpus=2", ["gpus=2"], ["scale=smoke"]),
        ("multicard script script=t.py steps=20 args.steps=30", ["script=t.py", "args.steps=30"], ["steps=20"]),
        ("multicard vision gpus=2 tracker.mode=disabled", ["gpus=2", "tracker.mode=disabled"], []),
        ("multicard tune save=none hydra/launcher=submitit_slurm repeat=3 epochs=2", ["epochs=2"], []),
    ],
)  # fmt: skip
def test_a_setting_is_trained_on_all_of_the_work(
    command: str, words: list[str], shortening: list[str]
):
    assert training_command.in_full(command, "first") == (
        [*words, "name=first-trained"],
        shortening,
    )


def test_the_command_is_one_everywhere(tmp_path: Path, said: Said):
    folder = sweep(tmp_path)
    (answer,) = answers(load.read_runs([folder]).runs)
    assert answer.training is not None
    command = answer.training.command
    assert command is not None and shlex.split(command)[-3:] == ["best", f"{folder}/", "--train"]
    assert find(said("best", folder), "answer.train", command=command)
    end = conclusion([run.folder for run in load.read_runs([folder]).runs])
    assert [line for line in map(str, end.lines) if line.startswith(command)]
    page = report.build(load.read_runs([folder]), "a title", mix=False)
    (card,) = [block for block in page.blocks() if isinstance(block, Recommendation)]
    assert command in [typed for _, _, typed in card.facts]


def test_sweeps_are_named_one_by_one_or_by_the_folder_of_all(tmp_path: Path):
    for seed, name in enumerate("abcd"):
        records.write(tmp_path / name / "run", records.vision(seed=seed, total_s=100.0 + seed))
    runs = sorted(load.read_runs([tmp_path]).runs, key=lambda run: run.folder)
    assert shlex.split(training_command.train_command(runs[:2]))[-3:] == [
        f"{tmp_path}/a/",
        f"{tmp_path}/b/",
        "--train",
    ]
    assert shlex.split(training_command.train_command(runs))[-2:] == [f"{tmp_path}/", "--train"]


def test_what_cannot_be_recommended_is_not_trained(tmp_path: Path, refused: Said):
    (tmp_path / "failing").mkdir()
    failing = sweep(tmp_path / "failing", chance_accuracy=0.99)
    assert says(refused("best", failing, "--train"), "train.not-recommended")
    assert not says(
        "\n".join(map(str, conclusion([failing / "1-0", failing / "2-0"]).lines)), "answer.train"
    )
    (tmp_path / "bare").mkdir()
    assert says(refused("best", sweep(tmp_path / "bare", None), "--train"), "train.no-command")


def test_of_several_works_one_is_to_be_chosen(tmp_path: Path, refused: Said):
    folder = sweep(tmp_path, "gpus=1,2 epochs=1,3 name=first")
    for gpus in (1, 2):
        records.write(
            folder / f"other-{gpus}",
            records.vision(gpus=gpus, total_s=50.0 / gpus, dataset="mnist"),
        )
    assert find(refused("best", folder, "--train"), "train.several", key="--train", works=2)


@pytest.mark.parametrize("flag", [("--goal", "memory"), ("--json", "x.json")])
def test_it_is_no_option_of_another_question(tmp_path: Path, refused: Said, flag: tuple[str, str]):
    assert find(
        refused("best", sweep(tmp_path), "--train", *flag), "train.other-flags", key=flag[0]
    )


def lines_of(printed: str) -> list[str]:
    """The lines that load the model, as they were printed."""
    return [
        line.strip()
        for line in printed[printed.index("train.load") :].splitlines()[1:]
        if line.startswith("  ")
    ]


def run_apart(lines: list[str], folder: Path) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = "\n".join([*lines, "import sys", "print('multicard' in sys.modules)"])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_classifier_is_trained_and_classifies_by_the_printed_lines(
    tmp_path: Path,
    called: Called,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    words = [
        "device=cpu",
        "layout=nchw,nhwc",
        "dataset.image_size=32",
        "model.width=0.35",
        "batch_size=16",
        "name=im",
    ]
    code, _ = called(
        "-m",
        *words,
        "dataset.train_limit=800",
        "epochs=3",
        "lr=0.05",
        f"hydra.sweep.dir={tmp_path}/multirun/im",
    )
    assert code == 0
    capfd.readouterr()
    assert main(["best", "multirun/im", "--train"]) == 0
    printed = capfd.readouterr().out
    assert find(printed, "train.in-full", words=["dataset.train_limit=800"])
    assert find(printed, "save.kept", form="model")
    Image.fromarray(np.zeros((40, 50), dtype=np.uint8)).save(tmp_path / "zero.png")
    lines = [line.replace("IMAGE", str(tmp_path / "zero.png")) for line in lines_of(printed)]
    said, imported = run_apart(lines, tmp_path)
    assert said in map(str, range(10)) and imported == "False"
    assert main(["best", "multirun/im", "--train"]) == 0  # trained before: said again
    assert lines_of(capfd.readouterr().out) == lines_of(printed)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_method_with_adapters_keeps_these(
    tmp_path: Path,
    called: Called,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    words = [
        "device=cpu",
        "batch_size=1,2",
        "dataset.rows=40",
        "max_steps=8",
        "skip_steps=1",
        "lr=3e-3",
        "name=t",
    ]
    code, _ = called("-m", *words, f"hydra.sweep.dir={tmp_path}/multirun/t", entry="tune_llm")
    assert code == 0
    capfd.readouterr()
    assert main(["best", "multirun/t", "--train"]) == 0
    printed = capfd.readouterr().out
    assert find(printed, "save.kept", form="adapter")
    lines = [
        *lines_of(printed),
        "print(model(**tokenizer('Hello', return_tensors='pt')).logits.isfinite().all().item())",
    ]
    assert run_apart(lines, tmp_path) == ["True", "False"]


SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
options = parser.parse_args()
data = torch.utils.data.TensorDataset(torch.rand(160, 4), torch.rand(160, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_of_a_script_its_own_command_is_printed(
    tmp_path: Path,
    called: Called,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    words = ["script=train.py", "device=cpu", "args.lr=0.1,0.01", "steps=20", "name=mine"]
    code, _ = called(
        "-m", *words, f"hydra.sweep.dir={tmp_path}/multirun/mine", entry="measure_script"
    )
    assert code == 0
    capfd.readouterr()
    assert main(["best", "multirun/mine", "--train"]) == 0
    command = find(capfd.readouterr().out, "train.script").facts["command"]
    starts, _, rate = command.rpartition(" ")
    assert starts == "torchrun --nproc-per-node 1 train.py --lr" and rate in ("0.1", "0.01")
    assert not Path("multirun/mine-trained").exists()
