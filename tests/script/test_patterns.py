"""What each step trained on, in the loops of `patterns.py`,
as multicard and as `counting.py` count it.
"""

from pathlib import Path

import pytest

from tests.helpers.messages import says
from tests.script import harness, patterns
from tests.script.counting import counting
from tests.script.test_recorder import column, recorded

UNLOADED = ("no-loader", "layer-by-layer")  # nothing tells their samples


CASES = [(name, "trainer") for name in patterns.PATTERNS]
OFTEN = ("plain", "one-ahead", "streamed", "broken-off-of-several")
CASES += [(name, how) for name in OFTEN for how in ("none", "no-grad", "no-loader")]


@pytest.mark.parametrize(("name", "evaluation"), CASES)
def test_a_step_has_the_samples_that_it_trained_on(tmp_path: Path, name: str, evaluation: str):
    with counting() as counter, recorded(tmp_path):
        patterns.main(name, evaluation, first=name not in UNLOADED)
    found = list(zip(column(tmp_path, "samples"), column(tmp_path, "batches"), strict=True))
    if name in UNLOADED:
        assert found == [(0, 0)] * counter.optimizer_steps
    else:
        assert found == counter.steps


@pytest.mark.parametrize("evaluation", ["none", "trainer"])
@pytest.mark.parametrize("name", patterns.COUNTING)
def test_a_step_never_has_the_samples_of_a_batch_that_was_skipped(
    tmp_path: Path, name: str, evaluation: str
):
    with recorded(tmp_path):
        by_hand = patterns.main(name, evaluation)
    found = column(tmp_path, "samples")
    assert len(found) == len(by_hand)
    assert [
        samples for samples, true in zip(found, by_hand, strict=True) if samples not in (0, true)
    ] == []


def test_batches_that_were_seen_to_reach_no_loss_are_named(tmp_path: Path):
    with recorded(tmp_path) as reports:
        patterns.main("every-second")
    assert says("\n".join(reports[0].seen), "script.samples-unknown")
    assert says("\n".join(reports[0].seen), "script.batches-skipped")


KNOWN = (
    "mixed",
    "joining-late",
    "whole-pass",
    "cleared",
    "cleared-by-module",
    "cleared-by-turns",
    "gradients-alone",
    "averaged",
)


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_trained_on_is_known_where_operations_and_cleared_gradients_show_it(
    tmp_path: Path, name: str
):
    with recorded(tmp_path):
        by_hand = patterns.main(name)
    assert column(tmp_path, "samples") == by_hand


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("name", ["one-ahead", "accumulated-at-once"])
def test_ranks_count_the_samples_that_they_trained_on(tmp_path: Path, name: str, gpus: int):
    found = harness.compare(
        Path(patterns.__file__), tmp_path / "run", [name, "trainer"], gpus, ["warmup_steps=1"]
    )
    assert found.record.cause is None and found.counted == found.by_hand
    assert all(found.counted)
