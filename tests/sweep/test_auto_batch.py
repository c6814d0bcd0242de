"""`batch_size=auto`: each cell's batch, by predicted memory, confirmed by probes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from multicard.config.base import RunConfig
from multicard.decide.plan.jobs_file import read
from multicard.estimate.estimates import Predictor
from multicard.machine import environment
from multicard.records import run_folder
from multicard.records.schema_parts import Interval, Prediction
from multicard.sweep import auto_batch
from multicard.sweep.cells import Cell
from multicard.sweep.command import Command
from tests.conftest import SMALL, typed

Called = Callable[..., tuple[int, str]]
WORDS = [word for word in SMALL if not word.startswith("batch_size=")]
SAMPLE = 100_000_000  # bytes of one sample, as predicted here


@pytest.fixture(autouse=True)
def known_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores and 6.5 GB left, and memory in proportion to the batch."""

    def predict_all(_: Predictor, configs: Sequence[RunConfig], *__: bool | None) -> list[Prediction]:
        sizes = [getattr(config, "batch_size", 0) * SAMPLE for config in configs]
        return [Prediction("unknown", memory_bytes=Interval(size, size, size), memory_basis="steps") for size in sizes]

    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(auto_batch, "available_memory_bytes", lambda: 6_500_000_000)
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
    auto_batch.available_memory_bytes = lambda: 640_000_000
    printed = called(*words, "batch_size=auto", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'x'}")[1]
    assert "batch_size=auto: 1 (not even 2 fits: 800 MB, at most 800 MB of 640 MB)" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["global_batch_size=8"], "batch_size=auto: global_batch_size=8 says what a step has; leave one of them out"),
        (["gpus=auto"], "batch_size=auto: is for given GPUs, and gpus=auto for a given batch; leave one of them out"),
        (["race=images_per_s"], "batch_size=auto: a race compares sizes that are given; give the size, as batch_"),
        (["profile=kineto"], "batch_size=auto: is confirmed by a probe; leave out profile=kineto"),
    ],
)
def test_what_cannot_be_with_it_is_refused(words: list[str], message: str, called: Called, tmp_path: Path):
    code, printed = called("-m", *WORDS, "batch_size=auto", *words, f"hydra.sweep.dir={tmp_path / 'x'}")
    assert code == 1 and message in printed and "Traceback" not in printed
    assert called("-m", *WORDS, "batch_size=auto,8")[1].count("auto stands alone, as batch_size=auto") == 1


def test_a_plan_is_of_given_sizes(tmp_path: Path):
    (jobs := tmp_path / "jobs.yaml").write_text("jobs:\n  a: {run: train_vision.py batch_size=auto}\n")
    with pytest.raises(ValueError, match="batch_size=auto: a plan is of given sizes"):
        read(jobs)


def test_it_is_no_part_of_a_runs_identity():
    assert typed("batch_size_auto=true").identity() == typed().identity()


def test_memory_that_runs_out_lowers_it_and_a_later_command_takes_it(
    called: Called, tmp_path: Path, processes: None, monkeypatch: pytest.MonkeyPatch
):
    measure = auto_batch.run

    def run(command: Command, cell: Cell) -> None:
        measure(command, cell)
        assert cell.result is not None
        if cell.cfg.batch_size > 50:
            cell.result.record.status = "oom"

    monkeypatch.setattr(auto_batch, "run", run)
    words = [*WORDS, "model.width=0.35", "batch_size=auto", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*words)
    assert code == 0, printed
    assert (
        "batch_size=auto: 48 (predicted 5.4 GB, at most 5.4 GB of 6.5 GB, memory ran out at 56, confirmed by" in printed
    )
    (made,) = [path.parent for path in tmp_path.glob("batch_size=48,*/result.json")]
    run = run_folder.read(made)
    assert run is not None and run.record.axes["batch_size"] == 48 and run.record.config["batch_size_auto"] is True
    printed = called(*words)[1]
    assert "batch_size=auto: 48 (measured so before)" in printed and printed.count("measured before: ok") == 1
