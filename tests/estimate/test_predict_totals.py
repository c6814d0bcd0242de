"""Totals, energy and memory of runs, by earlier ones: parts, lengths and intervals."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multicard import messages
from multicard.config.base import RunConfig, plain
from multicard.estimate import history, peaks, totals
from multicard.estimate.memory.answers import NOT_COMPUTED
from multicard.estimate.observations import Basis
from multicard.records.schema_parts import PredictedInterval, Prediction
from tests.conftest import typed, typed_llm
from tests.helpers import records
from tests.helpers.messages import Told, says, told
from tests.helpers.past_runs import (
    EVALUATE_S,
    H200,
    REST_S,
    STEPS,
    WARMUP_S,
    config,
    past,
    predicted,
    probe,
    raced,
    vision,
)

# ---- parts and their intervals


def test_deviations_of_independent_parts_add_as_squares():
    part = totals.summed([PredictedInterval(10.0, 7.0, 14.0), PredictedInterval(5.0, 1.0, 8.0)])
    assert (part.value, part.low, part.high) == (15.0, 10.0, 20.0)
    factor = totals.product(PredictedInterval(2.0, 1.0, 4.0), totals.exact(3.0))
    assert (factor.value, factor.low, factor.high) == pytest.approx((6.0, 3.0, 12.0))
    both = totals.product(PredictedInterval(2.0, 1.0, 4.0), PredictedInterval(3.0, 1.5, 6.0))
    assert both.high == pytest.approx(6.0 * 2 ** math.sqrt(2))


def test_the_interval_of_a_figure_narrows_with_runs_and_covers_the_next():
    one, ten = totals.next_value_interval([2.0], 0.05), totals.next_value_interval([2.0] * 10, 0.05)
    assert (one.value, ten.value) == pytest.approx((2.0, 2.0))
    assert one.high > ten.high > 2.0 > ten.low > one.low
    draws = np.random.default_rng(0).lognormal(0.0, 0.05, (400, 6))
    inside = [
        part.low <= draw[5] <= part.high
        for draw in draws
        for part in [totals.next_value_interval(list(draw[:5]), 0.05)]
    ]
    assert 0.86 <= np.mean(inside) <= 0.98


# ---- lengths


@pytest.mark.parametrize("strategy", ["ddp_ds", "ddp_rr", "ddp"])
@pytest.mark.parametrize(("ranks", "samples"), [(1, 96), (2, 97), (4, 130), (3, 47)])
def test_the_steps_of_an_epoch_are_those_of_the_strategies(
    strategy: str, ranks: int, samples: int, monkeypatch
):
    import torch

    from multicard.vision import strategy as strategies

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda model, **_: model)
    wanted = typed(f"strategy={strategy}", f"gpus={ranks}", "batch_size=16", "device=cpu")
    rank: Any = SimpleNamespace(world_size=ranks, rank=0, device=torch.device("cpu"))
    share = strategies.STRATEGIES[strategy].share(None, samples, wanted, rank)  # pyright: ignore[reportArgumentType]
    assert totals.length_of_images(wanted, samples, 0).steps == share.steps


def test_the_length_of_a_run_by_hand():
    of_dp = typed("strategy=dp", "gpus=4", "batch_size=16")
    assert totals.length_of_images(of_dp, 130, 7) == totals.Length(3, 7)
    tuning = typed_llm("gpus=2", "batch_size=3", "gradient_accumulation_steps=2", "device=cpu")
    assert totals.length_of_rows(tuning, 41) == totals.Length(3)  # 21 rows a rank, 7 batches
    tuning.max_steps = 2
    assert totals.length_of_rows(tuning, 41) == totals.Length(2)


def test_lengths_of_images_come_from_runs_of_the_cell_else_from_the_data():
    for words, length in (
        (["dataset.test_limit=1000"], totals.Length(90, 359)),  # 1,438 digits, and 359
        (["dataset.train_limit=100"], totals.Length(7, 359)),
        (["dataset=images", "dataset.root=/nowhere"], None),
    ):
        assert (
            totals.epoch_length(typed("batch_size=16", *words), totals.NearestRuns({}, []), [])
            == length
        )
    ran = vision(dataset__train_limit=1000)  # of which it left some out
    alike = totals.NearestRuns(history.setting(ran["config"]), past(ran))
    assert totals.epoch_length(config(ran), alike, []) == totals.Length(20, 300)
    # of a script, whose steps are those of its whole run
    for ended_by, steps in (("run", 11), ("seconds", None)):
        ended = probe()["probe"] | {"ended_by": ended_by, "steps_per_epoch": 0}
        assert totals._steps_per_epoch(*past(probe() | {"probe": ended})) == steps


def test_rows_of_text_are_those_that_have_a_label():
    def told(
        wanted: RunConfig, counts: dict[str, int] | None = None, by: RunConfig | None = None
    ) -> int | None:
        """Steps of an epoch, by a run with these counts."""
        record = records.llm(text_rows=counts) | {"config": plain(by or wanted)}
        found = totals.epoch_length(
            wanted, totals.NearestRuns({}, []), past(record) if counts else []
        )
        return found and found.steps

    counts = {"read": 500, "cut": 9, "left_out": 20}
    assert told(typed_llm("batch_size=4"), counts, by=typed_llm("batch_size=2")) == 120
    assert told(typed_llm("batch_size=4")) == 125  # by dataset.rows
    # of a file that may have fewer
    stored = "template=grammar", "dataset=grammar", "dataset.rows=5000"
    assert told(typed_llm("batch_size=4", *stored)) is None
    words = "batch_size=2", "packed=true", "max_seq_len=64"
    accumulated = typed_llm("gpus=4", "gradient_accumulation_steps=8", *words)
    assert told(accumulated, counts | {"sequences": 120}) == 1
    assert told(typed_llm(*words), counts | {"sequences": 120}, by=accumulated) == 60
    # how many sequences, older records do not tell
    assert told(typed_llm(*words), counts, by=accumulated) is None
    assert told(typed_llm("max_steps=9", *words), counts, by=accumulated) == 9


# ---- totals and energy


def total_s(prediction: Prediction) -> PredictedInterval:
    assert prediction.total_s is not None
    return prediction.total_s


@pytest.mark.parametrize(
    ("wanted", "total", "basis"),
    [
        (config(vision()), vision()["total_s"], "measured"),
        (config(vision(epochs=6)), vision(epochs=6)["total_s"], "scaled"),
        # half of the images
        (
            config(vision(), dataset__train_limit=160),
            2 * (10 * 0.1 + EVALUATE_S + REST_S) + WARMUP_S,
            "scaled",
        ),
    ],
)
def test_the_total_is_what_the_cell_took_and_grows_with_epochs_and_images(
    wanted: RunConfig, total: float, basis: str
):
    found = predicted(wanted, past(vision(epochs=2)))
    assert (found.basis, found.runs) == (basis, 1)
    assert says(found.about, "estimate.other-length") == (basis == "scaled")
    assert found.step_s is not None and found.step_s.value == pytest.approx(0.1)
    assert (
        total_s(found).value == pytest.approx(total)
        and total_s(found).low < total < total_s(found).high
    )


def test_the_error_of_the_step_does_not_average_out():
    record = vision()
    near = totals.NearestRuns(history.setting(record["config"]), past(record))
    step_s = PredictedInterval(0.1, 0.09, 0.11)
    short, long = (
        totals.total_s(config(record, epochs=epochs), step_s, totals.Length(STEPS), near)
        for epochs in (2, 200)
    )
    assert 0.099 < long.high / long.value - 1 < short.high / short.value - 1 < 0.2


def test_the_total_from_a_probe_is_that_of_the_whole_run_and_a_race_tells_the_step_alone():
    wanted, took_s = config(vision(epochs=3)), vision(epochs=3)["total_s"]
    probed = predicted(wanted, past(probe(epochs=3)))
    assert (probed.basis, probed.runs) == ("probed", 1)
    assert total_s(probed).value == pytest.approx(took_s - 3 * REST_S)  # which no probe tells
    assert total_s(probed).low < took_s < total_s(probed).high
    alone = predicted(wanted, past(raced(epochs=3)))
    assert alone.step_s is not None and alone.step_s.value == pytest.approx(0.1)
    # as of a cell without runs: a race evaluates one batch
    evaluated_s = totals.EVALUATION.value * 300 / 16 * 0.1
    assert total_s(alone).value == pytest.approx(3 * (STEPS * 0.1 + evaluated_s))
    assert total_s(
        predicted(wanted, past(vision(epochs=3), raced(epochs=3)))
    ).value == pytest.approx(took_s)


def test_energy_is_the_power_of_gpus_alike_by_the_total():
    record = vision(device="cuda", gpus=2)
    record["gpu"]["energy_joules"] = 1200.0 * record["total_s"]  # 600 W each
    known = past(record)
    same = predicted(config(record), known, H200).energy_joules
    assert same is not None and same.value == pytest.approx(1200.0 * record["total_s"])
    own, more = (
        totals.energy_joules(
            totals.exact(10.0), config(record, gpus=gpus), totals.NearestRuns(setting, known)
        )
        for gpus, setting in (
            (gpus, history.setting(vision(device="cuda", gpus=gpus)["config"])) for gpus in (2, 4)
        )
    )
    assert own is not None and more is not None and more.value == pytest.approx(4 * 600.0 * 10.0)
    assert more.high / more.value > own.high / own.value
    sampled = past(record | {"gpu": record["gpu"] | {"covers": "sampled"}})
    assert predicted(config(record), sampled, H200).energy_joules is None
    assert predicted(config(vision()), past(vision())).energy_joules is None  # CPU ranks


# ---- memory by earlier runs of the cell

TAKEN = {"max": 5 * 10**9, "per_rank": [5 * 10**9], "kind": "cuda_allocated"}
PROBE = {"probe": probe()["probe"]}
OOM: dict[str, Any] = {"status": "oom", "peak_memory_bytes": None}


def verdict(wanted: RunConfig, *every: dict[str, Any]) -> tuple[str | None, str]:
    """`fits` and its basis by these records, for a cell whose memory cannot be computed."""
    prediction = Prediction("unknown", memory_basis=NOT_COMPUTED)
    peaks._apply_measured_peaks(prediction, wanted, past(*every))
    return prediction.fits, prediction.memory_basis


def test_runs_of_a_cell_that_ended_or_ran_out_of_memory_say_whether_it_fits():
    wanted = config(records.vision())
    resident = {"max": 7 * 10**8, "per_rank": [], "kind": "rss"}
    not_known, ran_out = told(NOT_COMPUTED)[0], told(peaks.RAN_OUT)[0]
    for runs, fits, basis in (
        ([{"device": "cpu", "peak_memory_bytes": resident}], None, not_known),
        ([OOM], "no", ran_out),
        ([{"epochs": 7}], "yes", Told("memory.measured", None, {"runs": 1, "ran_out": 0})),
        ([{}, OOM], "tight", Told("memory.measured", None, {"runs": 1, "ran_out": 1})),
        ([OOM | {"gpu": records.gpu(by="other")}], None, not_known),
        ([OOM | {"oversubscribed": True}], None, not_known),
    ):
        found, on = verdict(wanted, *(records.vision(**run) for run in runs))
        assert (found, told(on)) == (fits, [basis])
        is_measured = Basis.of_memory(Prediction("unknown", memory_basis=on)) is Basis.measured
        assert is_measured == (basis.code == "memory.measured")


def test_the_basis_of_memory_is_read_from_a_records_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "BY_CODE", False)
    _, on = verdict(config(records.vision()), records.vision())
    assert Basis.of_memory(Prediction("unknown", memory_basis=on)) is Basis.measured


def tuning(*words: str, **own: Any) -> dict[str, Any]:
    """The record of a tuning run on a GPU."""
    return records.llm() | {"config": plain(typed_llm(*words))} | own


PACKED = ("packed=true", "max_seq_len=64")


@pytest.mark.parametrize(
    ("wanted", "other", "fits", "fails"),
    [
        (vision(device="cuda"), probe(device="cuda"), "yes", True),
        (tuning(), tuning(**PROBE), None, True),
        (tuning(*PACKED), tuning(*PACKED, **PROBE), "yes", True),
        # a shorter run, and a longer one
        (records.vision(), records.vision(dataset__train_limit=96), None, True),
        (records.vision(dataset__train_limit=96), records.vision(), None, False),
        (tuning(), tuning("max_steps=4"), None, True),
        (tuning("max_steps=4"), tuning("max_steps=4"), "yes", True),
        # which met other rows
        (tuning("max_steps=4"), tuning("max_steps=4", "seed=1"), None, False),
    ],
)
def test_only_runs_that_met_the_same_data_show_that_a_cell_fits(
    wanted: dict[str, Any], other: dict[str, Any], fits: str | None, fails: bool
):
    """fails: whether such a run shows that the cell does not fit, where it ran out of memory."""
    assert verdict(config(wanted), other | {"peak_memory_bytes": TAKEN})[0] == fits
    assert verdict(config(wanted), other | OOM)[0] == ("no" if fails else None)
