"""Energy and state in a span of time, in closed form."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pynvml
import pytest

from multicard.machine import devices
from multicard.observe import gpu_record, sampler
from multicard.observe.readings import COLUMNS, Counters
from multicard.records.rank_files import RankProbe, RankReport
from tests.helpers import records
from tests.helpers.messages import Told, says, told
from tests.helpers.nvml_stand_in import Gpu, Nvml, install

NAN = float("nan")


def rows(times_s: list[float], **columns: list[float]) -> dict[str, np.ndarray]:
    """The samples of one GPU; columns that are not passed are NaN."""
    blank = [NAN] * len(times_s)
    return {name: np.array(columns.get(name, blank)) for name in COLUMNS} | {
        "time_s": np.array(times_s)
    }


@pytest.mark.parametrize(
    ("spans", "joules", "doubtful_s"),
    [
        ([(0, 4)], 1000, 0.2),  # the whole
        ([(1, 2)], 100, 0.2),  # from reading to reading
        ([(2.25, 3)], 0.75 * 300, 0.35),
        ([(1.5, 3.5)], 50 + 300 + 250, 1.0),
        ([(0, 1), (2, 3)], 100 + 300, 0.4),
        ([(0, 1), (1.01, 2), (2.02, 3)], 100 + 99 + 0.98 * 300, 0.2 + 0.01 + 0.02),  # short pauses
        ([(2, 2)], 0, 0.2),
        ([(-0.1, 2)], None, 0),  # not watched by then
        ([(2, 4.1)], None, 0),
    ],
)
def test_joules_between_readings_are_those_of_steady_power(
    spans: Any, joules: float | None, doubtful_s: float
):
    counter = rows([0, 1, 2, 3, 4], energy_joules=[50, 150, 250, 550, 1050])
    # a sample that failed
    gaps = rows([0, 0.5, 1, 2, 3, 4], energy_joules=[50, NAN, 150, 250, 550, 1050])
    for each in (counter, gaps):
        expected = None if joules is None else pytest.approx((joules, doubtful_s))
        assert gpu_record.joules_within(each, np.array(spans, float)) == expected


def test_a_gpu_without_a_counter_or_with_one_that_began_anew_has_no_energy():
    spans = np.array([(0.0, 2.0)])
    for counter in ([NAN] * 3, [900, 1000, 50]):  # the driver was loaded again
        figures = gpu_record.energy(
            [(rows([0, 1, 2], energy_joules=counter, power_w=[9] * 3), spans)]
        )
        assert set(figures.values()) == {None}


def test_reasons_are_nvmls_own_and_told_by_their_share_of_the_samples():
    bits = {
        pynvml.nvmlClocksThrottleReasonGpuIdle: "gpu_idle",
        pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap",
        pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
        pynvml.nvmlClocksThrottleReasonReliability: "reliability",
    }
    assert gpu_record.throttle(np.array([sum(bits)])) == dict.fromkeys(bits.values(), 1)
    known = (1 << len(gpu_record.REASONS)) - 1
    assert known == pynvml.nvmlClocksThrottleReasonAll | pynvml.nvmlClocksEventReasonAll
    assert gpu_record.throttle(np.array([1 << 40 | 8])) == {"hw_slowdown": 1, "bit_40": 1}
    shares = {"sw_power_cap": 0.75, "sw_thermal_slowdown": 0.25}
    assert gpu_record.throttle(np.array([0, 4, 4 | 32, 4, NAN])) == shares
    assert gpu_record.throttle(np.zeros(3)) == {} and gpu_record.throttle(np.array([NAN])) is None


def figures(*worked: tuple[dict[str, np.ndarray], tuple[float, float]]) -> dict[str, Any]:
    """Energy and state of a GPU in spans, however short."""
    parts = [(samples, np.array([span], float)) for samples, span in worked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_record, "MOST_DOUBTFUL", float("inf"))
        return gpu_record.energy(parts) | gpu_record.state(parts)


def test_the_state_of_a_gpu_is_of_the_samples_in_the_span():
    samples = rows(
        [0.0, 1, 2, 3],
        energy_joules=[0, 50, 350, 750],
        power_w=[50, 200, 500, 900],
        sm_clock_mhz=[300, 1900, 1500, 210],
        memory_clock_mhz=[100, 2600, 2600, 100],
        temperature_c=[30, 55, 60, 99],
        utilisation=[0, 1, 0.5, 0],
        reasons=[1, 0, 4, 1],
    )
    assert figures((samples, (0.5, 2.5))) == {
        "samples": 2,
        "energy_joules": 25 + 300 + 200,
        "energy_source": "counter",
        "power_mean_w": 525 / 2,
        "power_max_w": 500,
        "sm_clock_mean_mhz": 1700,
        "sm_clock_min_mhz": 1500,
        "memory_clock_mean_mhz": 2600,
        "temperature_max_c": 60,
        "utilisation_mean": 0.75,
        "throttle": {"sw_power_cap": 0.5},
    }
    short = figures((samples, (1.25, 1.75)))  # between two samples
    assert (short["samples"], short["energy_joules"], short["power_mean_w"]) == (0, 150, 300)
    assert short["power_max_w"] is short["utilisation_mean"] is short["throttle"] is None


def test_spans_of_several_starts_add_up():
    first = rows([0.0, 1, 2], energy_joules=[0, 100, 200], temperature_c=[40, 50, 60])
    second = rows([0.0, 4], energy_joules=[50, 1250], temperature_c=[70, NAN])
    energy = figures((first, (0, 1)), (second, (0, 4)))
    assert (energy["energy_joules"], energy["power_mean_w"]) == (1300, 260)
    assert (energy["temperature_max_c"], energy["samples"]) == (70, 4)
    at_once = figures((first, (1, 1)))
    assert at_once["energy_joules"] is at_once["power_mean_w"] is None  # not a figure, and not 0
    lost = figures((first, (0, 1)), (rows([]), (0, 4)))
    assert lost["energy_joules"] is lost["energy_source"] is lost["power_mean_w"] is None


def part(*spans_s: tuple[float, float], start: int = 0, node: int = 0) -> dict[str, Any]:
    """A part whose samples hold no more than one GPU."""
    device = {"host": f"n{node}", "uuid": f"GPU-{node}", "index": 0, "missing": {}}
    own = {
        "start": start,
        "node": node,
        "host": f"n{node}",
        "covers": "training",
        "spans_s": spans_s,
    }
    return own | {"devices": [device], "disturbed_by": [], "problem": None}


def test_starts_and_nodes_add_up_and_a_missing_one_is_said(tmp_path: Path):
    expected = [(start, node) for start in (0, 1) for node in (0, 1)]
    for start, node in expected:
        table = np.full((10, len(COLUMNS)), NAN)
        table[:, 0], table[:, 1] = np.arange(10), np.arange(10) * (300 if node else 100)
        own = part((1, 3), (4, 8), start=start, node=node)
        gpu_record.write_part(tmp_path, own, {f"GPU-{node}": table})
    record = gpu_record.merge(tmp_path, expected, wait=False)
    assert [(device["host"], device["uuid"]) for device in record["devices"]] == [
        ("n0", "GPU-0"),
        ("n1", "GPU-1"),
    ]
    assert [device["energy_joules"] for device in record["devices"]] == [1200, 3600]
    assert records.training_joules(record) == 4800
    assert (
        len(pq.read_table(tmp_path / "gpu.parquet").group_by(["start", "node"]).aggregate([])) == 4
    )

    # by a start after one that was cut off
    assert gpu_record.merge(tmp_path, expected, wait=False) == record
    for path in (tmp_path / "gpu").glob("s01_n01.*"):
        path.unlink()
    record = gpu_record.merge(tmp_path, expected, wait=False)
    assert told(record["problem"]) == [Told("gpus.unsampled", None, {"start": 1, "node": 1})]
    assert record["energy_joules"] is None
    assert record["devices"][0]["energy_joules"] == 1200


@pytest.mark.parametrize(
    ("seconds", "read", "known"),
    [(3, True, True), (3, False, False), (10, False, True), (1.5, True, False)],
)
def test_readings_at_the_ends_of_a_short_training_make_its_energy_known(
    seconds: float, read: bool, known: bool
):
    """A GPU at 100 W, sampled once a second; the counter may lag by 0.1 s at each end."""
    start_s, end_s = 5.3, 5.3 + seconds
    times_s = np.arange(0.0, end_s + 3)
    samples = np.full((len(times_s), len(COLUMNS)), NAN)
    samples[:, 0], samples[:, 1] = times_s, 100 * times_s
    readings = [(100 + at_s, 100 * at_s) for at_s in (start_s, end_s)] if read else []
    earlier = [(1.0, 1e9)]  # of a start before
    joined = sampler.with_readings(samples, readings + earlier, (100.0, 100 + times_s[-1]))
    own = {(0, 0, "GPU-0"): dict(zip(COLUMNS, joined.T, strict=True))}
    record = gpu_record.summarise([part((start_s, end_s))], own, [])
    (gpu,) = record["devices"]
    if known:
        assert (record["energy_joules"], gpu["power_mean_w"]) == pytest.approx((100 * seconds, 100))
        assert (gpu["energy_source"], record["problem"]) == ("counter", None)
    else:
        assert record["energy_joules"] is gpu["energy_joules"] is gpu["power_mean_w"] is None
        assert gpu["energy_source"] == gpu_record.TOO_SHORT and says(
            record["problem"], "gpus.too-short"
        )


def test_ranks_read_the_counters_of_their_gpus(monkeypatch: pytest.MonkeyPatch):
    gpus = [Gpu("GPU-a", energy_mj=7000), Gpu("GPU-b", lacks=("TotalEnergyConsumption",))]
    install(monkeypatch, Nvml(*gpus))
    monkeypatch.setattr(devices, "used_gpu", lambda device: device)
    counters = Counters(["GPU-a", "GPU-b", "GPU-unknown"])
    counters.read()
    gpus[0].energy_mj = 9000
    counters.read()
    assert [(uuid, joules) for _, uuid, joules in counters.readings] == [
        ("GPU-a", 7.0),
        ("GPU-a", 9.0),
    ]
    assert counters.readings[0][0] < counters.readings[1][0]
    none = [Counters(["GPU-b"]), Counters(["GPU-unknown"]), Counters([None])]
    install(monkeypatch, Nvml(driver=False))
    for each in (*none, Counters(["GPU-a"])):
        each.read()
        assert each.readings == []


@pytest.mark.parametrize(
    ("by_rank", "sampled", "trained"),
    [
        ([[(2, 4), (5, 7)], [(2.5, 4), (5, 8)]], (0, 9), [(2, 4), (5, 8)]),
        ([[(2, 4), (5, 7)], [(3, 4.5)]], (0, 9), [(2, 4.5)]),  # cut short: one epoch counts
        ([[(2, 4), (4, 7)], [(2, 5), (5, 8)]], (0, 9), [(2, 5), (5, 8)]),  # nothing twice
        ([[(2, 7)]], (0, 9), []),  # a rank's file is missing
        ([[(2, 7)], []], (0, 9), []),
        ([[(2, 7)], [(2, 7)]], (3, 9), []),  # files of an earlier start
        ([[(2, 7)], [(2, 7)]], (0, 6), []),
    ],
)
def test_the_training_is_all_that_any_rank_did_of_what_all_came_to_the_end_of(
    by_rank: Any, sampled: Any, trained: Any
):
    ranks = [RankReport(rank=rank, spans_s=spans_s) for rank, spans_s in enumerate(by_rank)]
    assert sampler.training_spans(ranks, 2, sampled) == trained
    for rank in ranks:
        rank.probe = RankProbe("race", 4)  # others trained in its pauses
    assert sampler.training_spans(ranks, 2, sampled) == []
