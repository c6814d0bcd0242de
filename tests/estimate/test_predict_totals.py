"""Totals and energy predicted of runs: their parts, lengths, intervals and calibration."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.config.base import RunConfig, plain
from multicard.estimate import history, totals
from multicard.estimate.history import PastRun
from multicard.estimate.memory.facts import ImageFacts
from multicard.records.schema_parts import Interval
from tests.conftest import typed, typed_llm
from tests.helpers import records
from tests.helpers.past_runs import (
    EVALUATE_S,
    H200,
    REST_S,
    STEPS,
    WARMUP_S,
    config,
    missed,
    past,
    predicted,
    probe,
    raced,
    vision,
)

# ---- parts and their intervals


def test_deviations_of_independent_parts_add_as_squares():
    part = totals.summed([Interval(10.0, 7.0, 14.0), Interval(5.0, 1.0, 8.0)])
    assert (part.value, part.low, part.high) == (15.0, 10.0, 20.0)
    factor = totals.product(Interval(2.0, 1.0, 4.0), totals.exact(3.0))
    assert (factor.value, factor.low, factor.high) == pytest.approx((6.0, 3.0, 12.0))
    both = totals.product(Interval(2.0, 1.0, 4.0), Interval(3.0, 1.5, 6.0))
    assert both.high == pytest.approx(6.0 * 2 ** math.sqrt(2))
    assert totals.widened(Interval(10.0, 8.0, 13.0), 2.0) == Interval(10.0, 6.0, 16.0)


def test_the_interval_of_a_figure_narrows_with_runs_and_covers_the_next(seed: int = 0):
    one, ten = totals.spread([2.0], 0.05), totals.spread([2.0] * 10, 0.05)
    assert (one.value, ten.value) == pytest.approx((2.0, 2.0))
    assert one.high > ten.high > 2.0 > ten.low > one.low
    import numpy as np

    draws = np.random.default_rng(seed).lognormal(0.0, 0.05, (400, 6))
    inside = [part.low <= draw[5] <= part.high for draw in draws for part in [totals.spread(list(draw[:5]), 0.05)]]
    assert 0.86 <= np.mean(inside) <= 0.98


# ---- lengths


@pytest.mark.parametrize("strategy", ["ddp_ds", "ddp_rr", "ddp"])
@pytest.mark.parametrize(("ranks", "samples"), [(1, 96), (2, 97), (4, 130), (3, 47)])
def test_the_steps_of_an_epoch_are_those_of_the_strategies(
    strategy: str, ranks: int, samples: int, monkeypatch: pytest.MonkeyPatch
):
    from multicard.vision import strategy as strategies

    monkeypatch.setattr(strategies, "replicate", lambda model, config, rank: (model, model))
    wanted = typed(f"strategy={strategy}", f"gpus={ranks}", "batch_size=16", "device=cpu")
    rank: Any = SimpleNamespace(world_size=ranks, rank=0, device=None)
    share = strategies.STRATEGIES[strategy].share(None, samples, wanted, rank)  # pyright: ignore[reportArgumentType]
    assert totals.length_of_images(wanted, samples, 0).steps == share.steps


def test_the_length_of_a_run_by_hand():
    of_dp = typed("strategy=dp", "gpus=4", "batch_size=16")
    assert totals.length_of_images(of_dp, 130, 7) == totals.Length(3, 2 / 64, 7)
    tuning = typed_llm("gpus=2", "batch_size=3", "gradient_accumulation_steps=2", "device=cpu")
    assert totals.length_of_rows(tuning, 41) == totals.Length(3)  # 21 rows a rank, 7 batches
    tuning.max_steps = 2
    assert totals.length_of_rows(tuning, 41) == totals.Length(2)


def test_lengths_come_from_runs_on_the_same_data_else_from_the_data():
    known = past(vision(dataset__train_limit=None))  # 320 images
    read = []

    def sizes(wanted: RunConfig) -> ImageFacts:
        read.append(wanted)
        return ImageFacts(640, 500, 10, 8, 1)

    def of(**changes: Any) -> totals.Length | None:
        wanted = config(vision(), **changes)
        near = totals.Alike(history.setting(records.vision()["config"]), [])
        return totals.length(wanted, near, known, sizes)

    assert of() == totals.Length(20, 1.0, 1000)
    assert of(batch_size=32) == totals.Length(10, 1.0, 1000)
    assert of(dataset__train_limit=100) == totals.Length(7, 0.25, 1000)
    assert of(dataset__train_limit=1000, epochs=5) == totals.Length(20, 1.0, 1000)
    assert not read
    assert of(dataset__name="mnist") == totals.Length(40, 1.0, 500)
    assert len(read) == 1


def test_a_limit_is_no_size_of_the_data():
    wanted = typed("dataset.train_limit=5000", "dataset.test_limit=1000")  # of 1,438 digits
    assert totals.length(wanted, totals.Alike({}, []), []) is None
    known = past(vision(dataset__train_limit=500, dataset__test_limit=5000))  # 320 images, and 1,000
    assert totals.length(config(vision(), dataset__train_limit=5000), totals.Alike({}, []), known) == totals.Length(
        20, 1.0, 1000
    )


def test_rows_of_text_are_those_that_have_a_label():
    def record(wanted: RunConfig, **own: Any) -> dict[str, Any]:
        return records.llm(**own) | {"config": plain(wanted)}

    def of(wanted: RunConfig, known: list[PastRun]) -> totals.Length | None:
        return totals.length(wanted, totals.Alike({}, []), known)

    rows, longer = typed_llm("batch_size=2"), typed_llm("batch_size=4")
    known = past(record(rows, text_rows={"read": 500, "cut": 9, "left_out": 20}))
    assert of(longer, known) == totals.Length(120)
    assert of(longer, []) == totals.Length(125)  # of dataset.rows
    stored = "template=grammar", "dataset=grammar", "dataset.rows=5000"  # of a file that may have fewer
    assert of(typed_llm("batch_size=4", *stored), []) is None
    words = "packed=true", "max_seq_len=64"
    accumulated = typed_llm("batch_size=2", "gpus=4", "gradient_accumulation_steps=8", *words)
    counts = {"read": 500, "cut": 0, "left_out": 0}
    packed = past(record(accumulated, text_rows=counts | {"sequences": 120}))
    assert of(accumulated, packed) == totals.Length(1)
    assert of(typed_llm("batch_size=2", *words), packed) == totals.Length(60)
    older = past(record(accumulated, text_rows=counts))
    assert of(typed_llm("batch_size=4", *words), older) is None  # how many sequences, nobody knows
    assert of(typed_llm("batch_size=4", "max_steps=9", *words), known) == totals.Length(9)


# ---- totals and energy


def test_the_total_of_a_cell_that_ran_is_what_it_took():
    record = vision()
    prediction = predicted(config(record), past(record))
    assert prediction.basis == "measured"
    assert prediction.step_s is not None and prediction.step_s.value == pytest.approx(0.1)
    assert prediction.total_s is not None and prediction.total_s.value == pytest.approx(record["total_s"])
    assert prediction.total_s.low < record["total_s"] < prediction.total_s.high


def test_the_total_of_a_longer_run_grows_with_its_epochs_and_images():
    known = past(vision(epochs=2))
    longer = predicted(config(vision(epochs=6)), known)
    assert (longer.basis, longer.runs) == ("scaled", 1)
    assert longer.about.endswith("of another length")
    assert longer.total_s is not None
    assert longer.total_s.value == pytest.approx(vision(epochs=6)["total_s"])
    shorter = predicted(config(vision(), dataset__train_limit=160), known)  # half of the images
    assert shorter.total_s is not None
    assert shorter.total_s.value == pytest.approx(2 * (10 * 0.1 + EVALUATE_S + REST_S) + WARMUP_S)


def test_the_error_of_the_step_does_not_average_out():
    record = vision()
    near = totals.Alike(history.setting(record["config"]), past(record))
    step_s = Interval(0.1, 0.09, 0.11)
    short, long = (
        totals.total_s(config(record, epochs=epochs), step_s, totals.Length(STEPS), near, False) for epochs in (2, 200)
    )
    assert 0.099 < long.high / long.value - 1 < short.high / short.value - 1 < 0.2


def test_the_total_from_a_probe_is_that_of_the_whole_run():
    prediction = predicted(config(vision(epochs=3)), past(probe(epochs=3)))
    assert (prediction.basis, prediction.runs) == ("probed", 1)
    assert prediction.total_s is not None
    assert prediction.total_s.value == pytest.approx(vision(epochs=3)["total_s"] - 3 * REST_S)  # which no probe tells
    assert prediction.total_s.low < vision(epochs=3)["total_s"] < prediction.total_s.high


def test_of_a_race_predictions_take_the_step_alone():
    wanted = config(vision(epochs=3))
    alone = predicted(wanted, past(raced(epochs=3)))
    assert alone.step_s is not None and alone.step_s.value == pytest.approx(0.1)
    assert alone.total_s is None and "size of its data" in alone.about  # 16 test images are none
    both = predicted(wanted, past(vision(epochs=3), raced(epochs=3)))
    assert both.total_s is not None and both.total_s.value == pytest.approx(vision(epochs=3)["total_s"])


def test_energy_is_the_power_of_gpus_alike_by_the_total():
    record = vision(device="cuda", gpus=2)
    record["gpu"]["energy_joules"] = 1200.0 * record["total_s"]  # 600 W each
    known = past(record)
    same = predicted(config(record), known, H200)
    assert same.energy_joules is not None and same.energy_joules.value == pytest.approx(1200.0 * record["total_s"])
    near = totals.Alike(history.setting(vision(device="cuda", gpus=4)["config"]), known)
    more = totals.energy_joules(totals.exact(10.0), config(record, gpus=4), near)
    assert more is not None and more.value == pytest.approx(4 * 600.0 * 10.0)
    own = totals.energy_joules(
        totals.exact(10.0), config(record), totals.Alike(history.setting(record["config"]), known)
    )
    assert own is not None and more.high / more.value > own.high / own.value
    sampled = past(record | {"gpu": record["gpu"] | {"covers": "sampled"}})
    assert predicted(config(record), sampled, H200).energy_joules is None
    assert predicted(config(vision()), past(vision())).energy_joules is None  # CPU ranks


# ---- calibration


def test_intervals_are_widened_or_narrowed_by_how_predictions_came_out():
    def factor(*every: dict[str, Any]) -> float:
        return totals.calibration(past(*every), "measured")

    misses = [missed(0.1 * number) for number in range(1, 20)]
    assert factor(*misses[:9]) == 1.0  # too few
    assert factor(*misses) == pytest.approx(1.8)  # the 18th of 19
    assert factor(*[missed(0.01)] * 10) == totals.LEAST_FACTOR
    assert factor(*[missed(-2.0, basis="scaled")] * 30) == 1.0  # of another basis
    # already narrowed intervals are not narrowed again
    assert factor(*[missed(1.0, calibration=0.5)] * 10) == pytest.approx(0.5)
    probes = [probe(prediction=missed(3.0)["prediction"]) for _ in range(12)]  # 1.9 s, of whole runs of 100 s
    assert factor(*misses[:9], *probes) == 1.0
    plain, widened = (predicted(config(vision()), past(vision(), *more)) for more in ([], [missed(3.0)] * 12))
    assert plain.total_s is not None and widened.total_s is not None
    assert (plain.calibration, widened.calibration) == pytest.approx((1.0, 3.0))
