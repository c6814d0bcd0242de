"""What earlier runs of a cell say of its memory."""

import json
from typing import Any

import pytest

from multicard.config.base import RunConfig, plain
from multicard.estimate import peaks
from multicard.estimate.history import DECODER, PastRun
from multicard.estimate.target import Target
from multicard.records.schema_parts import Interval, Prediction
from tests.conftest import typed_llm
from tests.helpers import past_runs, records
from tests.helpers.past_runs import config, probe

TAKEN = {"max": 5 * 10**9, "per_rank": [5 * 10**9], "kind": "cuda_allocated"}
PROBE = {"probe": probe()["probe"]}
OOM: dict[str, Any] = {"status": "oom", "peak_memory_bytes": None}


def verdict(wanted: RunConfig, *every: dict[str, Any]) -> tuple[str | None, str]:
    """Of a cell whose memory cannot be computed, by these records."""
    prediction = Prediction("unknown")
    past = [PastRun(DECODER.decode(json.dumps(record))) for record in every]
    peaks._write(prediction, "not computed", Target(gpu="NVIDIA H200", memory_bytes=10**11))
    peaks._believe_runs(prediction, wanted, past)
    return prediction.fits, prediction.memory_basis


def test_runs_of_a_cell_that_ended_or_ran_out_of_memory_say_whether_it_fits():
    wanted = config(records.vision())
    on_cpu = records.vision(device="cpu", peak_memory_bytes={"max": 7 * 10**8, "per_rank": [], "kind": "rss"})
    assert verdict(wanted, on_cpu) == (None, "not computed")
    assert verdict(wanted, records.vision(**OOM)) == ("no", peaks.RAN_OUT)
    assert verdict(wanted, records.vision(epochs=7)) == ("yes", "measured in 1 of this cell's runs")
    both = "measured in 1 of this cell's runs; 1 ran out of memory"
    assert verdict(wanted, records.vision(), records.vision(**OOM)) == ("tight", both)
    assert verdict(wanted, records.vision(**OOM, gpu=records.gpu(by="other"))) == (None, "not computed")
    assert verdict(wanted, records.vision(**OOM, oversubscribed=True)) == (None, "not computed")


def tuning(*words: str, **own: Any) -> dict[str, Any]:
    """The record of a tuning run on a GPU."""
    return records.llm() | {"config": plain(typed_llm(*words))} | own


PACKED = ("packed=true", "max_seq_len=64")


@pytest.mark.parametrize(
    ("wanted", "other", "fits", "fails"),
    [
        (past_runs.vision(device="cuda"), probe(device="cuda"), "yes", True),
        (tuning(), tuning(**PROBE), None, True),
        (tuning(*PACKED), tuning(*PACKED, **PROBE), "yes", True),
        # a shorter run, and a longer one
        (records.vision(), records.vision(dataset__train_limit=96), None, True),
        (records.vision(dataset__train_limit=96), records.vision(), None, False),
        (tuning(), tuning("max_steps=4"), None, True),
        (tuning("max_steps=4"), tuning("max_steps=4"), "yes", True),
        (tuning("max_steps=4"), tuning("max_steps=4", "seed=1"), None, False),  # which met other rows
    ],
)
def test_only_runs_that_met_the_same_data_show_that_a_cell_fits(
    wanted: dict[str, Any], other: dict[str, Any], fits: str | None, fails: bool
):
    """fails: whether such a run shows that the cell does not fit, where it ran out of memory."""
    assert verdict(config(wanted), other | {"peak_memory_bytes": TAKEN})[0] == fits
    assert verdict(config(wanted), other | OOM)[0] == ("no" if fails else None)


@pytest.mark.parametrize(
    ("took", "allocated", "whole", "fits"),
    [
        (70, Interval(90, 80, 100), Interval(95, 84, 108), "tight"),
        (85, Interval(90, 85, 100), Interval(95, 85, 108), "tight"),
        (110, Interval(110, 110, 120), Interval(115, 110, 128), "no"),
    ],
)
def test_shorter_runs_raise_the_lower_end(took: int, allocated: Interval, whole: Interval, fits: str):
    prediction = Prediction("unknown", fits="tight", gpu_memory_bytes=104, memory_basis="steps without values")
    prediction.allocated_bytes, prediction.memory_bytes = Interval(90, 80, 100), Interval(95, 84, 108)
    peaks._raise(prediction, took)
    assert (prediction.allocated_bytes, prediction.memory_bytes, prediction.fits) == (allocated, whole, fits)
    assert ("shorter" in prediction.memory_basis) == (took > 80)
