"""Only runs that differ in one thing are compared."""

from typing import Any

import numpy as np
import pytest

from multicard.measure import formulas
from multicard.records import comparable
from tests.helpers import records


def result(own: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A training run on CPU ranks: `changes` of its configuration, or of its record; `own` keys of its record alone."""
    return records.as_record(records.vision("cpu", **changes) | (own or {}))


def test_a_reference_differs_on_its_axis_alone():
    one, two = result(), result(gpus=2)
    assert comparable.reference(two, [two, one], gpus=1) is one
    assert comparable.reference(one, [two, one], gpus=1) is one
    assert comparable.reference(two, [two, result(gpus=1, name="y")], gpus=1) is not None  # the name measures nothing
    for other in (
        result(lr=0.1),
        result(dataset__train_limit=5),
        result(precision__name="fp64"),
        result(hardware="H200"),
        result(commit="def"),
        result(dirty=True),
        result(status="failed"),
    ):
        assert comparable.reference(two, [two, other], gpus=1) is None
    fp64 = result(precision={"name": "fp64", "extra": 1})  # an option counts with all its keys
    assert comparable.reference(result(), [fp64], precision="fp64") is fp64


def test_what_differs_beside_the_axes_is_shown():
    assert comparable.varied([result(), result()], ("gpus",)) == ["gpus"]
    assert comparable.varied([result(), result(precision__name="fp64")], ("gpus",)) == ["precision", "gpus"]
    limits = [result(), result(dataset__train_limit=5)]
    assert comparable.varied(limits, ("gpus",)) == ["gpus", "dataset.train_limit"]
    assert [comparable.cell(r, "dataset.train_limit") for r in limits] == ["null", "5"]
    other_set = result(dataset={"name": "mnist", "train_limit": None, "mean": [0.2], "root": "x", "image_size": 32})
    assert comparable.varied([result(), other_set], ()) == ["dataset"]  # and not all that comes with it
    refused = result(status="refused")
    refused.config = {}
    assert comparable.varied([refused, result(gpus=2)], ()) == ["gpus"]
    assert comparable.cell(refused, "lr") == "-" and comparable.cell(refused, "gpus") == "1"


def test_what_follows_from_another_axis_is_not_shown():
    single, distributed, forced = (
        records.as_record(records.llm("cpu", recipe=recipe, gpus=gpus))
        for recipe, gpus in (("auto", 1), ("auto", 2), ("distributed", 1))
    )
    assert comparable.varied([single, distributed], ()) == ["gpus"]
    assert comparable.varied([single, forced], ()) == ["recipe"]


STEPS_S = {  # seconds of steps, in epochs of so many, and those in which a process was stopped
    "one stopped": ([0.1] * 199 + [60.1], 200, [199]),
    "two stopped": ([60.1] + [0.1] * 197 + [60.1] * 2, 200, [198, 199]),
    "of few": ([1.0, 1.0, 1.0, 61.0], 4, [3]),
    "every tenth waits": (([0.1] * 9 + [12.0]) * 20, 200, []),
    "first of an epoch": ([0.1] * 100 + [60.1] + [0.1] * 99, 100, []),
    "short": ([0.1] * 199 + [9.0], 200, []),
    "long steps": ([10.0] * 99 + [150.0], 100, []),
    "none": ([], 1, []),
}


@pytest.mark.parametrize("case", STEPS_S)
def test_a_run_with_a_step_that_was_stopped_is_marked_and_the_step_left_out(case: str):
    samples_s, per_epoch, stopped = STEPS_S[case]
    stalls = formulas.stalled(np.array(samples_s), per_epoch)
    statistics = formulas.statistics(samples_s, 0, stalls)
    run = result({"step_s": statistics})
    assert np.flatnonzero(stalls).tolist() == stopped
    assert (comparable.STALLED in comparable.marks(run)) is bool(stopped)
    assert run.steps.taken == len(samples_s) and statistics["stalled_count"] == len(stopped)
    assert not stopped or statistics["mean"] == pytest.approx(statistics["median"], rel=1e-9) or case == "two stopped"


def segments(*steps: int) -> Any:
    return result({"segments": [{"steps": count} for count in steps]})


def tuned(cut: int, left_out: int) -> Any:
    return records.as_record(records.llm("cpu") | {"text_rows": {"read": 40, "cut": cut, "left_out": left_out}})


def read_in(mode: str) -> Any:
    return result({"input": {"loader": "device", "train": {"mode": mode}}})


SEE_ROWS = "(see text_rows in the records)"
SKIPPED = {"decoded": {"train": {"skipped": 2}, "test": {"skipped": 1}}}
SHARED = {"disturbed_by": [{"name": "solve", "pid": 7}, {"name": None, "pid": 8}]}


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([result(), result(gpus=2)], []),
        (
            [result(), result(commit="def", dirty=True, hardware="H200")],
            [
                "measured on several commits, not compared with one another: 8fdd49003, def+changes",
                "measured on several machines, not compared with one another: AMD EPYC, H200",
            ],
        ),
        ([segments(9), segments(4, 5)], ["in several segments: stopped and started again: 1 run"]),
        (
            [read_in("resident"), read_in("streamed"), result()],
            ["1 with more images than dataset.device_budget_bytes: they crossed batch by batch"],
        ),
        ([result({"input": SKIPPED})], ["up to 3 broken images left out: see input in the records"]),
        ([result({"gpu": {"disturbed_by": []}}), result({"gpu": None}), tuned(0, 0)], []),
        (
            [tuned(12, 3), tuned(0, 0)],
            [f"up to 12 of 40 rows cut at max_seq_len, 3 of them left out: no label remained {SEE_ROWS}"],
        ),
        (
            [result(), *[result({"gpu": SHARED})] * 2],
            ["! others used the GPUs of 2 while they were measured (8, solve): see gpu.disturbed_by in the records"],
        ),
    ],
)
def test_notes_say_what_a_table_cannot(runs: list[Any], said: list[str]):
    assert comparable.notes(runs) == said
