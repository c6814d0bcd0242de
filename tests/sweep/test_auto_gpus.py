"""`gpus=auto`: each cell's number of GPUs, by predictions."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from multicard.config.base import RunConfig
from multicard.estimate.estimates import Predictor
from multicard.machine import shares
from multicard.machine.shares import Pool
from multicard.records.schema_parts import PredictedInterval, Prediction
from tests.conftest import SMALL, Called, typed
from tests.helpers import records
from tests.helpers.messages import Told, codes, find, says, told

# by precision
SECONDS = {"fp32": {1: 1000.0, 2: 500.0, 4: 250.0}, "bf16": {1: 480.0, 2: 470.0, 4: 490.0}}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of four cores, of which some precisions' times are known."""

    def predict_all(
        _: Predictor, configs: Sequence[RunConfig], *__: bool | None
    ) -> list[Prediction]:
        seconds = [SECONDS.get(config.precision.name, {}).get(config.gpus) for config in configs]
        return [
            Prediction("scaled", total_s=None if s is None else PredictedInterval(s, s, s))
            for s in seconds
        ]

    monkeypatch.setenv(shares.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(shares, "machine", lambda: Pool([], [*range(4)]))
    monkeypatch.setattr(Predictor, "predict_all", predict_all)


@pytest.fixture
def shown(called: Called, tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """What a dry run of a sweep prints, and the numbers of its cells in the table."""

    def show(*words: str) -> tuple[str, list[str]]:
        words = (*words, "order=typed")
        code, printed = called(
            "-m", *SMALL, "gpus=auto", *words, "dry_run=true", f"hydra.sweep.dir={tmp_path / 'x'}"
        )
        assert code == 0, printed
        return printed, re.findall(r"gpus=(\w+)", printed.partition(" which")[2])

    return show


def chosen(printed: str, cells: str) -> Told:
    """What is said of the number of these cells."""
    return find(printed, "auto.chosen", key="gpus", cells=cells)


Shown = Callable[..., tuple[str, list[str]]]


def test_cells_that_are_alone_get_the_number_that_is_fastest(shown: Shown):
    printed, numbers = shown("precision=fp32,bf16,fp64", "seed=1,2")
    assert numbers == ["4", "2", "4"] * 2
    first, second, third = (
        chosen(printed, place) for place in ("[1/6] [4/6]", "[2/6] [5/6]", "[3/6] [6/6]")
    )
    assert (first.facts["value"], second.facts["value"], third.facts["value"]) == (4, 2, 4)
    seconds = {str(gpus): value for gpus, value in SECONDS["fp32"].items()}
    assert says(first.facts["reasons"], "auto.least-time", seconds=seconds)
    assert codes(third.facts["reasons"]) == ["auto.no-time"]
    assert says(printed, "auto.probe-first", gpus=[1, 2, 4])


def test_a_cell_keeps_the_number_with_which_it_was_measured_and_so_do_its_other_seeds(
    shown: Shown, tmp_path: Path
):
    digits = typed(*SMALL, "gpus=1", "precision=fp32", "seed=2").identity()
    record = records.vision(data=None, gpus=1, seed=2) | {"identity": digits}
    records.put_whole(tmp_path / "x" / f"any-{digits}", record)
    printed, numbers = shown("precision=fp32,bf16", "seed=1,2")
    kept = chosen(printed, "[1/4] [3/4]")
    assert kept.facts["value"] == 1 and codes(kept.facts["reasons"]) == ["auto.measured-before"]
    assert numbers == ["1", "2", "2"]  # of those that are left to be measured
    assert shown("precision=fp32,bf16", "seed=2", "rerun=true")[1] == ["4", "2"]


def test_a_roofline_chooses_no_number(shown: Shown, monkeypatch: pytest.MonkeyPatch):
    """Its times are no measurement: probes have to tell."""

    def predict_all(
        _: Predictor, configs: Sequence[RunConfig], *__: bool | None
    ) -> list[Prediction]:
        return [
            Prediction("roofline", total_s=PredictedInterval(config.gpus, 1, 9))
            for config in configs
        ]

    monkeypatch.setattr(Predictor, "predict_all", predict_all)
    printed, _ = shown("precision=fp32")
    only = chosen(printed, "[1/1]")
    assert only.facts["value"] == 4 and codes(only.facts["reasons"]) == ["auto.no-time"]
    assert says(printed, "auto.probe-first", gpus=[1, 2, 4])


def test_a_single_run_is_a_sweep_of_one_cell(called: Called, tmp_path: Path):
    words = [*SMALL, "gpus=auto", "precision=bf16", f"hydra.sweep.dir={tmp_path / 'x'}"]
    code, printed = called(*words, "dry_run=true")
    only = chosen(printed, "[1/1]")
    assert code == 0 and only.facts["value"] == 2 and told(printed)[0] == only
    assert says(
        only.facts["reasons"], "auto.least-time", seconds={"1": 480.0, "2": 470.0, "4": 490.0}
    )
    assert typed(*SMALL, "gpus=2", "precision=bf16").identity() in printed
