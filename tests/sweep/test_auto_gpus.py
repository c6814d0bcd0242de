"""`gpus=auto`: each cell's number of GPUs, by predictions."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from multicard.config.base import RunConfig
from multicard.estimate.estimates import Predictor
from multicard.machine import shares
from multicard.machine.shares import Pool
from multicard.records.schema_parts import Interval, Prediction
from tests.conftest import SMALL, Called, typed
from tests.helpers import records

SECONDS = {"fp32": {1: 1000.0, 2: 500.0, 4: 250.0}, "bf16": {1: 480.0, 2: 470.0, 4: 490.0}}  # by precision


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of four cores, of which some precisions' times are known."""

    def predict_all(_: Predictor, configs: Sequence[RunConfig], *__: bool | None) -> list[Prediction]:
        seconds = [SECONDS.get(config.precision.name, {}).get(config.gpus) for config in configs]
        return [Prediction("scaled", total_s=None if s is None else Interval(s, s, s)) for s in seconds]

    monkeypatch.setenv(shares.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(shares, "machine", lambda: Pool([], [*range(4)]))
    monkeypatch.setattr(Predictor, "predict_all", predict_all)


@pytest.fixture
def shown(called: Called, tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """What a dry run of a sweep prints, and the numbers of its cells in the table."""

    def show(*words: str) -> tuple[str, list[str]]:
        code, printed = called("-m", *SMALL, "gpus=auto", *words, "dry_run=true", f"hydra.sweep.dir={tmp_path / 'x'}")
        assert code == 0, printed
        return printed, re.findall(r"gpus=(\w+)", printed.partition(" which")[2])

    return show


Shown = Callable[..., tuple[str, list[str]]]


def test_cells_that_are_alone_get_the_number_that_is_fastest(shown: Shown):
    printed, numbers = shown("precision=fp32,bf16,fp64", "seed=1,2")
    assert numbers == ["4", "2", "4"] * 2
    assert "[1/6] [4/6] gpus=auto: 4 (the least predicted time, 0:04:10; 1: 0:16:40, 2: 0:08:20)\n" in printed
    assert "[3/6] [6/6] gpus=auto: 4 (no time is predicted, so all there are)\n" in printed
    assert "to choose by times, probe first: the same with gpus=1,2,4 probe=true\n" in printed


def test_a_cell_keeps_the_number_with_which_it_was_measured_and_so_do_its_other_seeds(shown: Shown, tmp_path: Path):
    digits = typed(*SMALL, "gpus=1", "precision=fp32", "seed=2").identity()
    record = records.vision(data=None, gpus=1, seed=2) | {"identity": digits}
    records.put_whole(tmp_path / "x" / f"any-{digits}", record)
    printed, numbers = shown("precision=fp32,bf16", "seed=1,2")
    assert "[1/4] [3/4] gpus=auto: 1 (measured so before)\n" in printed
    assert numbers == ["1", "2", "2"]  # of those that are left to be measured
    assert shown("precision=fp32,bf16", "seed=2", "rerun=true")[1] == ["4", "2"]


def test_a_single_run_is_a_sweep_of_one_cell(called: Called, tmp_path: Path):
    words = [*SMALL, "gpus=auto", "precision=bf16", f"hydra.sweep.dir={tmp_path / 'x'}"]
    code, printed = called(*words, "dry_run=true")
    assert code == 0 and printed.startswith("[1/1] gpus=auto: 2 (the least predicted time, 0:07:50; 1: 0:08:00, 4: ")
    assert typed(*SMALL, "gpus=2", "precision=bf16").identity() in printed
