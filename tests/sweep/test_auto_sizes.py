"""`batch_size=auto` and `max_seq_len=auto`: each cell's size, by predicted memory, confirmed by probes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.decide.plan.jobs_file import read
from multicard.estimate.estimates import Predictor
from multicard.machine import environment
from multicard.records import run_folder
from multicard.records.schema_parts import Interval, Prediction
from multicard.sweep import auto
from multicard.sweep.cells import Cell
from multicard.sweep.command import Command
from tests.conftest import SMALL, Called, typed

WORDS = [word for word in SMALL if not word.startswith("batch_size=")]
TUNES = ["tracker.mode=disabled", "dataset.rows=40", "tokenizer.vocab_size=300", "max_steps=2", "skip_steps=0"]
SAMPLE, TOKEN = 100_000_000, 10_000_000  # bytes of one, as predicted here


@pytest.fixture(autouse=True)
def known_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores and 6.5 GB left, and memory in proportion to the batch, or the sequence."""

    def predict_all(_: Predictor, configs: Sequence[RunConfig], *__: bool | None) -> list[Prediction]:
        lengths = [(config.max_seq_len or 0) * TOKEN if isinstance(config, LlmConfig) else 0 for config in configs]
        sizes = [
            length or getattr(config, "batch_size", 0) * SAMPLE for length, config in zip(lengths, configs, strict=True)
        ]
        return [Prediction("unknown", memory_bytes=Interval(size, size, size), memory_basis="steps") for size in sizes]

    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(auto, "available_memory_bytes", lambda: 6_500_000_000)
    monkeypatch.setattr(Predictor, "predict_all", predict_all)


def test_each_cell_has_the_largest_size_that_fits(called: Called, tmp_path: Path):
    sweep = ["-m", *WORDS, "gpus=1,2", "batch_size=auto", f"hydra.sweep.dir={tmp_path / 'x'}"]
    for starts_nothing in ("dry_run=true", "predict=true"):
        code, printed = called(*sweep, starts_nothing)
        assert code == 0, printed
        assert "[1/2] batch_size=auto: 56 (predicted 6.2 GB, at most 6.2 GB of 6.5 GB)\n" in printed
        assert "[2/2] batch_size=auto: 24 (predicted 3 GB, at most 3 GB of 3.25 GB)\n" in printed
    assert not any((tmp_path / "x").glob("*/result.json"))


def test_the_samples_of_a_rank_bound_it_and_too_little_memory_is_said(called: Called, tmp_path: Path):
    words = [word for word in WORDS if "train_limit" not in word]
    code, printed = called(*words, "dataset.train_limit=44", "batch_size=auto", "dry_run=true",
                           f"hydra.sweep.dir={tmp_path / 'x'}")  # fmt: skip
    assert code == 0 and "batch_size=auto: 44 (" in printed
    auto.available_memory_bytes = lambda: 640_000_000
    printed = called(*words, "batch_size=auto", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'x'}")[1]
    assert "batch_size=auto: 1 (not even 2 fits: 800 MB, at most 800 MB of 640 MB)" in printed


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["packed=true"], "max_seq_len=auto: 512 (predicted 5.72 GB, at most 5.72 GB of 6.5 GB)"),
        (
            ["packed=true", "model.max_seq_len=300"],
            "max_seq_len=auto: 300 (predicted 3.6 GB, at most 3.6 GB of 6.5 GB)",
        ),
        (["dataset=chat", "dataset.data_files={0}/short.jsonl"], "max_seq_len=auto: 128 (predicted 1.88 GB, at most"),
        (
            ["packed=true", "gpus=9", "device=cpu"],
            "max_seq_len=auto: cannot be told (not even 128 fits: 1.88 GB, at most",
        ),
        (
            ["dataset=chat", "dataset.data_files=none.jsonl"],
            "max_seq_len=auto: cannot be told (the data cannot be read",
        ),
        (
            ["batch_size=auto"],
            "max_seq_len=auto batch_size=auto: one key alone can be auto; give the value of the others",
        ),
        (["profile=kineto"], "max_seq_len=auto: is confirmed by a probe; leave out profile=kineto, or give the length"),
    ],
)
def test_the_longest_sequence_that_fits_and_makes_sense(words: list[str], line: str, called: Called, tmp_path: Path):
    rows = [word for word in TUNES if "dataset=chat" not in words or "rows" not in word]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "short.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 4)
    words = [word.format(tmp_path) for word in [*words, "hydra.sweep.dir={0}/x"]]
    code, printed = called(*rows, "max_seq_len=auto", "dry_run=true", *words, entry="tune_llm.py")
    assert line in printed and "Traceback" not in printed and not (tmp_path / "x").exists()
    assert code == ("(predicted" not in line)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["global_batch_size=8"],
            "batch_size=auto: global_batch_size=8 says what a step has; leave it out, or give the size",
        ),
        (["gpus=auto"], "batch_size=auto gpus=auto: one key alone can be auto; give the value of the others"),
        (["race=images_per_s"], "batch_size=auto: a race compares sizes that are given; give the size, as batch_"),
        (["profile=kineto"], "batch_size=auto: is confirmed by a probe; leave out profile=kineto"),
    ],
)
def test_what_cannot_be_with_it_is_refused(words: list[str], message: str, called: Called, tmp_path: Path):
    code, printed = called("-m", *WORDS, "batch_size=auto", *words, f"hydra.sweep.dir={tmp_path / 'x'}")
    assert code == 1 and message in printed and "Traceback" not in printed
    assert called("-m", *WORDS, "batch_size=auto,8")[1].count("auto stands alone, as batch_size=auto") == 1


def test_a_size_is_not_one_because_no_memory_is_predicted(called: Called, tmp_path: Path, monkeypatch):
    unknown = Prediction("unknown", memory_basis="not simulated")
    monkeypatch.setattr(Predictor, "predict_all", lambda _, configs, *__: [unknown for _ in configs])
    code, printed = called(*WORDS, "batch_size=auto", f"hydra.sweep.dir={tmp_path / 'x'}")
    assert code == 1 and not (tmp_path / "x").exists()
    assert "batch_size=auto: cannot be told (not simulated); give the size, as batch_size=32" in printed


def test_a_plan_is_of_given_sizes(tmp_path: Path):
    (jobs := tmp_path / "jobs.yaml").write_text("jobs:\n  a: {run: train_vision.py batch_size=auto}\n")
    with pytest.raises(ValueError, match="batch_size=auto: a plan is of given sizes"):
        read(jobs)


def test_it_is_no_part_of_a_runs_identity():
    assert typed("auto=batch_size").identity() == typed().identity()


@pytest.mark.parametrize(
    ("entry", "words", "key", "out", "left", "needs"),
    [
        ("train_vision.py", [*WORDS, "model.width=0.35"], "batch_size", 56, 48, "5.4 GB"),
        ("tune_llm.py", [*TUNES, "packed=true", "batch_size=1"], "max_seq_len", 512, 256, "3.16 GB"),
    ],
)
@pytest.mark.usefixtures("processes")
def test_memory_that_runs_out_lowers_it_and_a_later_command_takes_it(
    entry: str, words: list[str], key: str, out: int, left: int, needs: str, called: Called, tmp_path: Path, monkeypatch
):
    measure = auto.run

    def run(command: Command, cell: Cell) -> None:
        measure(command, cell)
        assert cell.result is not None
        if cell.cfg[key] == out:
            cell.result.record.status = "oom"

    monkeypatch.setattr(auto, "run", run)
    words = [*words, f"{key}=auto", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*words, entry=entry)
    assert code == 0, printed
    told = f"{key}=auto: {left} (predicted {needs}, at most {needs} of 6.5 GB, memory ran out at {out}, confirmed by"
    assert told in printed
    (made,) = [path.parent for path in tmp_path.glob(f"*{key}={left},*/result.json")]
    run = run_folder.read(made)
    assert run is not None and run.record.config[key] == left and run.record.config["auto"] == key
    printed = called(*words, entry=entry)[1]
    assert f"{key}=auto: {left} (measured so before)" in printed and printed.count("measured before: ok") == 1
