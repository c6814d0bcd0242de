"""Sampling of a node by the controller, with a stand-in for NVML: samples, files and the record."""

import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from multicard.config.placement import Placement
from multicard.machine.slurm import Allocation
from multicard.measure.timing import clock_s, pause
from multicard.observe import gpu_record, readings, sampler
from multicard.observe.readings import Neighbours
from multicard.observe.sampler import MachineSampler
from multicard.ranks import elastic
from multicard.ranks.failures import Failure
from multicard.ranks.process import RankSettings
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import VisionReport
from multicard.sweep import job
from multicard.vision.workload import WORKLOAD
from tests.conftest import PATIENCE_S, SMALL, Measured, awaited, composed, ok, typed
from tests.helpers import records
from tests.helpers.messages import find, says
from tests.helpers.nvml_stand_in import Gpu, Nvml, install, process

HIDDEN = 5_000_000  # above what Linux gives to any process
CUDA = Placement("cuda", "nccl", 2, False)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.02)
    monkeypatch.setattr(sampler, "ANSWER_S", PATIENCE_S)
    # samples come late where the machine is busy
    monkeypatch.setattr(gpu_record, "MOST_DOUBTFUL", float("inf"))
    monkeypatch.setattr(gpu_record, "LAG_S", 0.0)  # the stand-in has none


def drain(gpu: Gpu, watts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the counter of a GPU run on, as it does under load:
    by the time of the sample that reads it.
    """
    began_s, before = clock_s(), gpu.energy_mj

    def read() -> float:
        now_s = clock_s()
        gpu.energy_mj = before + round(1e3 * watts * (now_s - began_s))
        return now_s

    monkeypatch.setattr(sampler, "clock_s", read)


def sampled(
    folder: Path,
    *uuids: str,
    ranks: int = 1,
    used: str | None = None,
    first: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Sample while ranks start, do what is to be done `first`, and "train" for 4 samples at least,
    on the GPU `used`; the record.
    """
    with MachineSampler(folder, [*uuids], range(ranks or 1)) as watched:
        first()
        start_s, before = clock_s(), len(watched._values[uuids[0]])
        more = 5 * len(sampler.COLUMNS) if before else 0  # of which the first may have begun before
        awaited(
            lambda: (
                len(watched._values[uuids[0]]) >= before + more or not watched._thread.is_alive()
            )
        )
        for rank in range(ranks):
            rank_files.write(
                folder, VisionReport(rank=rank, spans_s=[(start_s, clock_s())], gpu=used)
            )
        pause(0.1)
    watched.write()
    return gpu_record.merge(folder, [(0, 0)], wait=False)


def test_gpus_with_different_support_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = Gpu("GPU-a", bus=3, energy_mj=10**9, power_mw=200_000, reasons=4)
    lacks = (
        "TotalEnergyConsumption",
        "ClockInfo",
        "CurrentClocksThrottleReasons",
        "UtilizationRates",
    )
    nvml = install(monkeypatch, Nvml(whole, Gpu("GPU-b", bus=4, power_mw=70_500, lacks=lacks)))
    record = sampled(tmp_path, "GPU-a", "GPU-b", ranks=2)
    assert nvml.open == 0 and record["problem"] is None and record["covers"] == "training"
    ((part,), (first, second)) = record["parts"], record["devices"]
    ((start_s, end_s),) = part.pop("spans_s")
    assert part == {"start": 0, "node": 0, "host": first["host"], "covers": "training"}
    assert (first["uuid"], first["index"], first["energy_source"]) == ("GPU-a", 3, "counter")
    assert (first["power_max_w"], first["throttle"], first["missing"]) == (
        200,
        {"sw_power_cap": 1},
        {},
    )
    assert (
        first["sm_clock_mean_mhz"],
        first["sm_clock_min_mhz"],
        first["memory_clock_mean_mhz"],
    ) == (1980, 1980, 2619)
    assert (first["temperature_max_c"], first["utilisation_mean"]) == (40, 0.5)
    unknown = ("energy_joules", "energy_source", "sm_clock_min_mhz", "utilisation_mean", "throttle")
    assert {second[figure] for figure in unknown} == {None} and second["power_max_w"] == 70.5
    columns = ("energy_joules", "sm_clock_mhz", "memory_clock_mhz", "utilisation", "reasons")
    assert second["missing"] == dict.fromkeys(columns, "Not Supported")
    # one is not known
    assert record["energy_joules"] is None and records.training_joules(record) is None

    gpu_record.remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "ranks"] == ["gpu.parquet"]
    table = pq.read_table(tmp_path / "gpu.parquet").to_pylist()
    assert list(table[0]) == ["start", "node", "gpu", *sampler.COLUMNS]
    inside = [row for row in table if row["gpu"] == "GPU-a" and start_s <= row["time_s"] <= end_s]
    assert len(inside) == first["samples"] > 3
    # null, and not 0
    assert {row["energy_joules"] for row in table if row["gpu"] == "GPU-b"} == {None}


def test_what_is_not_known_of_the_training_is_not_passed_off_as_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(monkeypatch, Nvml(Gpu("GPU-a")))
    record = sampled(tmp_path, "GPU-a", ranks=0)
    assert (
        record["covers"] == record["parts"][0]["covers"] == "sampled"
        and records.training_joules(record) is None
    )
    assert record["devices"][0]["power_max_w"] == 100 and record["energy_joules"] == 0


def test_the_gpus_of_a_run_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(*(Gpu(uuid) for uuid in ("GPU-a", "GPU-b", "GPU-c"))))

    def uuids(placement: Placement, *words: str) -> list[str]:
        return MachineSampler.of_run(
            typed("strategy=ddp_ds", *words), placement, tmp_path, 0
        )._uuids

    assert uuids(CUDA, "gpus=2") == ["GPU-a", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert uuids(CUDA, "gpus=2", "oversubscribe=true") == ["GPU-c"]  # both ranks are on it
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,1")
    assert uuids(CUDA, "gpus=2") == ["GPU-c", "GPU-a"]
    assert uuids(Placement("cuda", "nccl", 1, False), "gpus=2", "strategy=dp") == ["GPU-c", "GPU-a"]
    assert uuids(Placement("cpu", "gloo", 2, False), "gpus=2") == []
    assert MachineSampler.of_run(typed("gpus=2"), CUDA, tmp_path, 0, node=3)._ranks == range(6, 8)


def test_on_cpu_ranks_nothing_is_asked_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler.devices, "nvml", lambda: pytest.fail("NVML was asked"))
    # as for a cell of a race, in whose pauses others train
    with MachineSampler(tmp_path, [], range(2)) as watched:
        pause(0.05)
    watched.write()
    assert not list(tmp_path.iterdir()) and records.training_joules(None) is None


@pytest.mark.parametrize(
    ("nvml", "uuids", "code", "facts", "most_w"),
    [
        (Nvml(driver=False), ["GPU-a"], "gpus.no-nvml", {}, [None]),
        (
            Nvml(Gpu("GPU-a"), Gpu("GPU-b", forbids=("HandleByUUID",))),
            ["GPU-a", "GPU-b"],
            "gpus.unknown-to-nvml",
            {"reasons": ["GPU-b (Insufficient Permissions)"]},  # NVML's own words
            [100, None],
        ),
        (
            Nvml(Gpu("GPU-a", utilisation_percent="?")),  # type: ignore
            ["GPU-a"],
            "gpus.sampling-failed",
            {"type": "ValueError"},
            [None],
        ),
    ],
)
def test_a_sampler_that_fails_says_why_and_ends_nothing(
    nvml: Nvml,
    uuids: list[str],
    code: str,
    facts: dict[str, Any],
    most_w: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    install(monkeypatch, nvml)
    record = sampled(tmp_path, *uuids)
    assert find(record["problem"], code, **facts) and record["energy_joules"] is None
    assert record["problem"].startswith("node 0, start 0: ")
    assert [device["power_max_w"] for device in record["devices"]] == most_w


def test_what_nvml_does_not_allow_is_missing_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forbidden = (
        "TotalEnergyConsumption",
        "PowerUsage",
        "ComputeRunningProcesses",
        "GraphicsRunningProcesses",
    )
    once = Gpu("MIG-a", lacks=("UtilizationRates",), forbids=forbidden)
    install(monkeypatch, Nvml(Gpu("GPU-a", instances=[once])))
    record = sampled(
        tmp_path, "MIG-a", first=lambda: setattr(once, "forbids", (*forbidden, "ClockInfo"))
    )
    (device,) = record["devices"]
    assert record["problem"] is None and record["energy_joules"] is device["power_max_w"] is None
    kept = dict.fromkeys(("energy_joules", "power_w", "processes"), "Insufficient Permissions")
    # clocks were there at first
    assert device["missing"] == kept | {"utilisation": "Not Supported"}


def test_energy_of_other_gpus_than_the_ranks_used_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(monkeypatch, Nvml(Gpu("GPU-a"), Gpu("GPU-b")))
    right = sampled(tmp_path / "right", "GPU-a", used="GPU-a")
    assert right["problem"] is None and right["energy_joules"] == 0
    # of an instance CUDA may say the GPU's UUID
    assert not says(
        sampled(tmp_path / "instance", "MIG-a", used="GPU-c")["problem"],
        "gpus.numbered-differently",
    )
    wrong = sampled(tmp_path / "wrong", "GPU-a", used="GPU-b")
    assert wrong["energy_joules"] is None and [device["uuid"] for device in wrong["devices"]] == [
        "GPU-a",
        "GPU-b",
    ]
    numbered = {"uuids": ["GPU-b"], "variable": "CUDA_DEVICE_ORDER"}
    assert says(wrong["problem"], "gpus.numbered-differently", **numbered)


def test_a_run_on_gpus_records_what_they_took(measured: Measured, monkeypatch: pytest.MonkeyPatch):
    """All of a run but its ranks' devices: those compute on CPU."""
    gpus = [Gpu("GPU-a", compute=[process(1, 7)]), Gpu("GPU-b")]
    install(monkeypatch, Nvml(*gpus))
    drain(gpus[0], 150, monkeypatch)
    start = elastic.launch

    def on_cpu(
        work: str, arguments: Any, placement: Placement, launched: RankSettings
    ) -> Failure | None:
        launched = replace(launched, device="cpu", backend="gloo", numa=False, threads=1)
        return start(work, arguments, replace(placement, device="cpu"), launched)

    monkeypatch.setattr(elastic, "launch", on_cpu)
    result = ok(
        measured(
            "device=cuda", "backend=gloo", "epochs=2", "num_workers=0", "dataset.train_limit=32"
        )
    )
    gpu = result["gpu"]
    assert gpu["covers"] == "training" and gpu["problem"] is None
    (device,), (part,) = gpu["devices"], gpu["parts"]
    assert device["uuid"] == "GPU-a" and len(part["spans_s"]) == 2
    assert sum(end_s - start_s for start_s, end_s in part["spans_s"]) == pytest.approx(
        result["total_s"]
    )
    assert gpu["energy_joules"] == pytest.approx(150 * result["total_s"], rel=1e-3)
    assert result["joules_per_image"] == gpu["energy_joules"] / (2 * 32)
    assert [other["pid"] for other in gpu["disturbed_by"]] == [1]
    folder = Path(result["folder"])
    assert pq.read_table(folder / "gpu.parquet").num_rows > 2 and not (folder / "gpu").exists()
    topology = run_folder.read_environment(folder).topology or {}
    assert [gpu["uuid"] for gpu in topology["gpus"]] == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize("failure", [None, Failure("node", "node 0 ended the run")])
def test_another_node_leaves_its_part_unless_the_run_is_recorded_by_then(
    failure: Failure | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(monkeypatch, Nvml(Gpu("GPU-a"), Gpu("GPU-b")))
    left: list[list[str]] = []

    def end(_: Failure | None) -> None:
        left.append(sorted(path.name for path in tmp_path.glob("gpu/*")))

    guest = SimpleNamespace(wait_for_start=lambda: (2, ()), listen=lambda _: None, finish=end)
    monkeypatch.setattr(job, "Guest", lambda *_: guest)
    monkeypatch.setattr(elastic, "launch", lambda *_: failure)
    cell = job.SlurmJob(
        WORKLOAD, composed(*SMALL, "device=cuda", "gpus=1", "nodes=2"), tmp_path, None
    )
    assert cell._run_ranks(Allocation(("n1", "n2"), 1, "7")) == failure
    # before node 0 hears of the end
    assert left == [["s02_n01.json", "s02_n01.parquet"] if failure is None else []]


def test_a_driver_that_hangs_does_not_hang_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "ANSWER_S", 0.2)
    nvml, answer = install(monkeypatch, Nvml(Gpu("GPU-a"))), threading.Event()
    monkeypatch.setattr(nvml, "nvmlInit", lambda: answer.wait(PATIENCE_S))
    watched = MachineSampler(tmp_path, ["GPU-a"], range(1))
    try:
        with watched:
            rank_files.write(
                tmp_path, VisionReport(rank=0, spans_s=[(clock_s(), clock_s() + 1e-6)])
            )
        watched.write()
    finally:
        answer.set()
        watched._thread.join(PATIENCE_S)
    record = gpu_record.merge(tmp_path, [(0, 0)], wait=False)
    assert (
        says(record["problem"], "gpus.nvml-silent", seconds=0.2) and record["energy_joules"] is None
    )


def noted(ranks: int, *pids: int, before: tuple[int, ...] = ()) -> list[int]:
    seen = Neighbours(ranks)
    for pid in before:
        seen.note(0.0, "GPU-a", pid, None, before_ranks=True)
    for pid in pids:
        seen.note(1.0, "GPU-a", pid, None)
    return [other["pid"] for other in seen.foreign([(0.0, 1.0)])]


def test_processes_are_told_apart_by_descent_and_those_out_of_sight_are_ours_up_to_the_number_of_ranks():
    child = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $! && wait"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert readings.identify(child.pid) == (True, "sh") and readings.identify(grandchild)[0]
        assert noted(2, child.pid, grandchild, os.getpid(), 1) == [1]
        # one of the two ranks was seen otherwise
        assert noted(2, child.pid, HIDDEN, HIDDEN + 1) == [HIDDEN + 1]
    finally:
        subprocess.run(["kill", str(grandchild)], check=False)
        child.wait()
    assert readings.identify(child.pid) == (None, None)
    assert noted(2, HIDDEN, HIDDEN + 1) == []
    assert noted(2, HIDDEN, HIDDEN + 1, HIDDEN + 2) == [HIDDEN + 2]
    assert noted(2, HIDDEN, HIDDEN + 1, before=(HIDDEN,)) == [HIDDEN]


def test_others_are_recorded_once_with_their_most_memory_where_they_overlap_the_training():
    seen = Neighbours(1)
    for time_s, gpu, pid, held_bytes in (
        (0, "GPU-a", HIDDEN, 9),
        (0, "GPU-a", 1, 7),
        (1, "GPU-a", HIDDEN, 5),
    ):
        seen.note(time_s, gpu, pid, held_bytes, before_ranks=True)
    seen.note(3.0, "GPU-b", 1, None)
    init = Path("/proc/1/comm").read_text().strip()
    assert seen.foreign([(0.5, 2.0), (2.5, 4.0)]) == [
        {"gpu": "GPU-a", "pid": HIDDEN, "name": None, "memory_bytes": 9},
        # it had left the other before
        {"gpu": "GPU-b", "pid": 1, "name": init, "memory_bytes": None},
    ]
