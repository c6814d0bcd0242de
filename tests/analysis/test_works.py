"""Which settings of a script did as much work: by the samples that their records have."""

from pathlib import Path
from typing import Any

import pytest

from analysis import conclusion
from analysis.answers import Answer, answers
from analysis.commands import best, compared_cells
from analysis.commands.best import known_rankings
from analysis.figures.effect_charts import what_matters
from analysis.runs import load, works
from analysis.runs.load import Run
from tests.helpers import records
from tests.helpers.messages import codes, find, says
from tests.helpers.records import write_all as write


def script(
    samples: int | None, steps: int, total_s: float, per_s: float | None = None, **changes: Any
) -> dict[str, Any]:
    """A run of a script that trained on so many samples in so many steps a rank.

    Args:
        per_s: samples a second; None: as many as it trained in its time.
    """
    record = records.script(**{"total_s": total_s, "steps": None} | changes)
    rate = per_s
    if per_s is None and samples is not None:
        rate = samples / total_s
    (epoch,) = record["epochs"]
    epochs = [epoch | {"samples": samples, "steps": steps}]
    return record | {"epochs": epochs, "samples_per_s": rate}


def found(folder: Path, *each: dict[str, Any]) -> list[Answer]:
    return answers(load.read_runs([write(folder / "s", *each)]).runs)


def read(folder: Path, *each: dict[str, Any]) -> list[Run]:
    return load.read_runs([write(folder / "s", *each)]).runs


def test_a_run_that_goes_on_from_another_is_not_faster_for_training_less(tmp_path: Path):
    whole, rest = script(6144, 192, 60.0), script(2048, 32, 44.0, per_s=53.0, gpus=2)
    (only,) = found(tmp_path, whole, rest)
    assert only.ranking.column == "pace_s"
    assert only.setting == "gpus=1"
    facts = find(only.sentence, "answer.unlike-amounts").facts
    assert facts == {"least": 2048, "most": 6144}


@pytest.mark.parametrize(
    ("samples", "steps"),
    [
        (6144, 96),  # the data are divided among ranks
        (6100, 95),  # but for last batches
        (12_288, 192),  # each rank takes as many steps
    ],
)
def test_usual_amounts_of_more_ranks_have_no_other_cause(tmp_path: Path, samples: int, steps: int):
    (only,) = found(tmp_path, script(6144, 192, 60.0), script(samples, steps, 40.0, gpus=2))
    assert not says(only.sentence, "answer.unlike-amounts")
    assert only.ranking.is_at_pace is (samples > 7000)
    assert only.setting == "gpus=2"


def test_steps_of_larger_batches_are_compared_by_the_time_of_as_many_samples(tmp_path: Path):
    small = script(120, 30, 10.0, **{"args__batch_size": 4})
    large = script(480, 30, 10.7, **{"args__batch_size": 16})
    (only,) = found(tmp_path, small, large)
    assert only.setting == "args.batch_size=16" and only.ranking.is_at_pace
    assert only.comparison.speedup is not None and only.comparison.speedup.ratio == pytest.approx(
        480 / 120 * 10 / 10.7
    )
    (effects,) = [one for one in what_matters([only.ranking]) if one.measure == "total_s"]
    assert not effects.doubts


@pytest.mark.parametrize("key", ["args__max_steps", "args__epochs", "words"])
def test_an_argument_that_sets_the_length_makes_other_works(tmp_path: Path, key: str):
    def value(length: int) -> Any:
        return [str(length)] if key == "words" else length

    each = [
        script(8 * 10 * length, 10 * length, time_s * length, gpus=gpus, **{key: value(length)})
        for length in (1, 3)
        for gpus, time_s in ((1, 10.0), (2, 6.0))
    ]
    for one in each:
        one["epochs"][0]["samples"] *= one["config"]["gpus"]
    name = key.replace("__", ".")
    several = found(tmp_path, *each)
    assert len(several) == 2
    for one in several:
        assert one.setting == "gpus=2" and one.ranking.keys == ["gpus"]
        assert find(one.sentence, "answer.other-lengths").facts == {"keys": [name]}


def test_a_sweep_of_lengths_alone_ends_without_a_faster_one(tmp_path: Path):
    each = [script(8 * steps, steps, float(steps), **{"args__n": steps}) for steps in (10, 30)]
    folder = write(tmp_path / "s", *each)
    ended = conclusion([path.parent for path in folder.glob("*/result.json")])
    assert not ended.recommended
    said = "\n".join(map(str, ended.lines))
    assert codes(said).count("answer.other-lengths") == 2


def test_a_script_that_ends_after_some_seconds_is_compared_by_what_it_did(tmp_path: Path):
    slow, fast = (
        script(8 * steps, steps, 60.0, **{"args__precision": name})
        for name, steps in (("fp32", 100), ("bf16", 150))
    )
    (only,) = found(tmp_path, slow, fast)
    assert only.setting == "args.precision=bf16" and only.ranking.is_at_pace
    assert not only.ranking.lengths


def test_runs_whose_amounts_nobody_knows_are_not_recommended(tmp_path: Path):
    one = script(None, 100, 60.0)
    (unknown,) = found(tmp_path / "unknown", one, script(None, 100, 40.0, gpus=2))
    assert says(unknown.sentence, "answer.unknown-amounts", least=100, most=200)
    assert unknown.recommended is None
    assert says(unknown.next.sentence, "answer.train-as-much")
    (divided,) = found(tmp_path / "divided", one, script(None, 50, 40.0, gpus=2))
    assert divided.setting == "gpus=2" and divided.recommended is not None
    assert says(divided.sentence, "answer.samples-uncounted")


def test_tokens_count_where_samples_are_not_known(tmp_path: Path):
    each = [script(None, 100, 60.0), script(None, 100, 60.0, **{"args__batch": 8})]
    for one, tokens in zip(each, (1000, 2000), strict=True):
        one |= {"tokens": {"non_padding": tokens}, "tokens_per_s": {"non_padding": tokens / 60}}
    (only,) = found(tmp_path, *each)
    assert only.setting == "args.batch=8"
    assert only.ranking.paced == " a thousand tokens"
    each[0]["samples_per_s"] = 5.0  # of the other none is known: no unit is common
    (only,) = found(tmp_path / "mixed", *each)
    assert only.ranking.column == "total_s" and only.recommended is None


@pytest.mark.parametrize(("goal", "n"), [("energy", 2), ("memory", 1), ("time", 1)])
def test_energy_of_other_amounts_is_ranked_apart(tmp_path: Path, goal: str, n: int):
    each = [
        script(120 * size, 30, 10.0, gpu=records.gpu(energy_joules=100.0 * size), **{key: size})
        for size in (1, 4)
        for key in ["args__batch_size"]
    ]
    runs = read(tmp_path, *each)
    shown = best.output(runs, goal, best.Limits(), mix=False, summarize=lambda ranking: None)  # pyright: ignore[reportArgumentType]
    assert codes("\n".join(shown.lines(None))).count("best.first") == n


def test_repetitions_that_did_as_much_are_averaged(tmp_path: Path):
    runs = read(tmp_path, *(script(1000, 100, 60.0 + n, repetition=n) for n in (1, 2, 3)))
    (ranking,) = known_rankings(runs)
    assert ranking.column == "total_s" and ranking.best.cost == pytest.approx(62.0)
    assert works.did_as_much(runs[:1], runs[1:])


def test_steps_of_other_amounts_are_not_compared_by_their_time(tmp_path: Path):
    each = [script(120 * size, 30, 10.0, **{"args__batch_size": size}) for size in (1, 4)]
    runs = read(tmp_path, *each)
    (cell,) = compared_cells.compare(runs, runs, ["args.batch_size"], common=False, mix=False)
    assert find(str(cell.verdict), "compare.untold").facts["limit"] == "step-work"
