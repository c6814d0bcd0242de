"""`global_batch_size`: one batch over all ranks, whatever their number."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.runs import grouping
from analysis.runs.columns import columns
from analysis.runs.load import Run
from multicard.cli import command_line
from multicard.decide.race import command as race
from multicard.llm import workload as llm
from multicard.records import comparable
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, typed, typed_llm
from tests.helpers import records
from tests.llm.test_llm_run import FIXED, ok, steps

Called = Callable[..., tuple[int, str]]
ASKED = "batch_size_asked=global"  # what the command line adds where batch_size is not given


@pytest.mark.parametrize(
    ("words", "batch", "summed"),
    [
        ([ASKED, "gpus=2"], 12, 1),
        ([ASKED, "gpus=2", "nodes=3"], 4, 1),
        ([ASKED, "gpus=2", "gradient_accumulation_steps=4"], 3, 4),
        (["batch_size=3", "gpus=2"], 3, 4),
        (["batch_size=3", "gpus=8"], 3, 1),
        (["batch_size=3", "gpus=2", "gradient_accumulation_steps=4"], 3, 4),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_ranks_batch_and_the_accumulation_follow_from_the_ranks(words: list[str], batch: int, summed: int):
    config = typed_llm("global_batch_size=24", *words)
    assert (config.batch_size, config.gradient_accumulation_steps) == (batch, summed)


def test_of_training_the_ranks_batch_alone_follows():
    sizes = [typed("global_batch_size=24", ASKED, f"gpus={gpus}").batch_size for gpus in (1, 2, 3)]
    assert sizes == [24, 12, 8]
    assert typed("global_batch_size=24", "batch_size=12", "gpus=2").batch_size == 12
    without = typed(ASKED)  # global_batch_size=null
    assert without.batch_size == 32 and without.identity() == typed().identity()


@pytest.mark.parametrize(
    ("make", "words", "message"),
    [
        (typed, [ASKED, "gpus=5"], "global_batch_size=24: does not divide by gpus x nodes = 5; use 20 or 25"),
        (typed, [ASKED, "gpus=25"], "global_batch_size=24: does not divide by gpus x nodes = 25; use 25"),
        (typed, ["batch_size=12"], "global_batch_size=24: is not gpus x nodes x batch_size = 12; leave batch_size out"),
        (typed_llm, ["batch_size=7"], "does not divide by gpus x nodes x batch_size = 7; use 21 or 28"),
        (typed_llm, ["batch_size=4", "gradient_accumulation_steps=5"], "steps=5; leave one of them out"),
        (typed, ["batch_size_asked=mine"], "batch_size_asked=mine: is set by global_batch_size; leave it out"),
    ],
)
def test_what_does_not_divide_is_refused(make: Callable[..., object], words: list[str], message: str):
    with pytest.raises(ValueError) as refusal:
        make("global_batch_size=24", *words)
    assert message in str(refusal.value)


def test_a_strategy_whose_epochs_grow_with_the_ranks_has_no_global_batch():
    for strategy in ("ddp_ds", "ddp_rr"):
        WORKLOAD.refuse(typed("global_batch_size=24", ASKED, "gpus=2", f"strategy={strategy}"))
    with pytest.raises(ValueError, match=r"^strategy=ddp: .*; use ddp_ds or ddp_rr$"):
        WORKLOAD.refuse(typed("global_batch_size=24", ASKED, "gpus=2", "strategy=ddp"))


def test_the_command_line_tells_whether_the_batch_size_was_given():
    assert command_line.switched(["global_batch_size=8"], llm.WORKLOAD) == ["global_batch_size=8", ASKED]
    for given in (["global_batch_size=8", "batch_size=2"], ["global_batch_size=8", ASKED]):  # also read again
        assert command_line.switched(given, llm.WORKLOAD) == given


def trained(gpus: int, **changes: Any) -> dict[str, Any]:
    batch = {"global_batch_size": 32, "batch_size_asked": "global", "batch_size": 32 // gpus}
    return records.vision(gpus=gpus, total_s=100 / gpus, **batch | changes)


def test_ranks_of_one_global_batch_are_compared_as_one_training():
    one, two = (records.as_record(trained(gpus)) for gpus in (1, 2))
    assert two.axes["global_batch_size"] == 32 and two.axes["batch_size"] == 16
    assert "global_batch_size" not in records.as_record(records.vision()).axes
    assert comparable.reference(two, [one, two], gpus=1) is one
    assert comparable.varied([one, two], ()) == ["gpus"]
    others = [records.as_record(records.vision(gpus=2, batch_size=size)) for size in (8, 16)]
    assert comparable.varied([one, *others], ()) == ["gpus", "batch_size", "global_batch_size"]
    given = records.as_record(trained(2, batch_size_asked=None))  # then it is a setting of its own
    assert comparable.reference(given, [one], gpus=1) is None
    tuned = [records.as_record(records.llm(gpus=gpus, global_batch_size=8, batch_size=2,
                                           gradient_accumulation_steps=4 // gpus, recipe="distributed"))
             for gpus in (1, 2)]  # fmt: skip
    assert comparable.reference(tuned[1], tuned, gpus=1) is tuned[0]
    runs = [Run(Path(str(place)), columns(Path(str(place)), record)) for place, record in enumerate((one, two))]
    assert len(grouping.by_setting(runs, ("gpus", "nodes"))) == 1 and len(grouping.by_setting(runs)) == 2


def test_a_race_vouches_for_the_accuracy_of_one_global_batch():
    def differing(*words: str) -> list[str]:
        return race._differing([SimpleNamespace(config=typed(*words, f"gpus={gpus}")) for gpus in (1, 2)])  # pyright: ignore[reportArgumentType]

    assert differing("global_batch_size=24", ASKED) == [] and differing() == ["gpus"]


def test_the_record_has_the_numbers_and_a_sweep_is_resumed(called: Called, tmp_path: Path, processes: None):
    words = ["-m", *(word for word in SMALL if "batch_size" not in word), "global_batch_size=16", "gpus=1,2"]
    words += ["model.width=0.35", f"hydra.sweep.dir={tmp_path}"]
    assert called(*words)[0] == 0
    found = sorted(tmp_path.glob("*global_batch_size=16,gpus=*/result.json"))
    made = [records.run_folder.read(path.parent).record for path in found]  # pyright: ignore[reportOptionalMemberAccess]
    assert [(record.axes["batch_size"], record.axes["global_batch_size"]) for record in made] == [(16, 16), (8, 16)]
    assert [record.config["batch_size"] for record in made] == [16, 8]
    assert made[0].epochs[0].steps == made[1].epochs[0].steps == 6
    assert called(*words)[1].count("measured before") == 2


def test_tuning_learns_the_same_on_one_rank_and_on_two(tuned: Any):
    words = ["global_batch_size=4", "batch_size=1", "max_steps=5", "lr=3e-3", FIXED]
    one, two = (ok(tuned(*words, f"gpus={gpus}")) for gpus in (1, 2))
    assert [run["config"]["gradient_accumulation_steps"] for run in (one, two)] == [4, 2]
    assert one["tokens"]["loss_bearing"] == two["tokens"]["loss_bearing"]
    assert np.abs(steps(one, "loss") - steps(two, "loss")).max() < 1e-4
