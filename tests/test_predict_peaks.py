"""What earlier runs of a cell say of its memory."""

import json
from typing import Any

import pytest

from multicard.predict import peaks
from multicard.predict.history import DECODER, PastRun
from multicard.predict.memory.facts import Machine
from multicard.records.schema_parts import Prediction
from tests import records


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (records.vision(device="cpu", peak_memory_bytes={"max": 7 * 10**8, "per_rank": [], "kind": "rss"}), None),
        (records.vision(status="oom", peak_memory_bytes=None), "no"),
        (records.vision(), "yes"),
    ],
)
def test_only_a_run_that_ran_out_of_memory_says_that_it_does_not_fit(record: dict[str, Any], fits: str | None):
    prediction = Prediction("unknown")
    past = [PastRun(DECODER.decode(json.dumps(record)))]
    peaks._complete(prediction, "not computed", Machine("cuda", "NVIDIA H200", 10**11), past)
    assert prediction.fits == fits
