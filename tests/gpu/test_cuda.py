"""What only a CUDA device can show: `make test-gpu`, or `pytest -m gpu`.
Skipped where there is none.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from multicard.llm import workload as llm
from multicard.measure import memory, timing
from multicard.measure.timing import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, StepTimer
from multicard.ranks import failures
from multicard.records.progress import LossPeek
from multicard.run.workload import Workload
from multicard.vision import workload as vision
from multicard.vision.data.batched_loader import Buffers
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.splits import Shuffled
from multicard.vision.precision import PRECISIONS
from multicard.vision.strategy import STRATEGIES
from tests.conftest import ROOT, SMALL, Measured, has_dali, ok, typed
from tests.helpers.loader_sources import DALI, noise, pixels, read, source
from tests.helpers.recorded import steps
from tests.helpers.stopped_runs import Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = "device=cuda"


def several() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")


def busy(milliseconds: float) -> None:
    """Keep the stream busy for about that long: a fixed number of cycles a millisecond,
    at 1.5 GHz.
    """
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_laps_are_the_devices_time_and_cost_no_synchronisation():
    timer = timing.StepTimer(torch.device("cuda", 0))
    busy(1)  # compiled and loaded before anything is timed
    torch.cuda.synchronize()
    timer.start()
    for phase, milliseconds in (
        (H2D, 0),
        (FORWARD, 50),
        (BACKWARD, 100),
        (OPTIMIZER, 0),
        (DATA, 0),
    ):
        timer.begin(phase)
        busy(milliseconds) if milliseconds else None
    assert not torch.cuda.current_stream().query()  # the host ran ahead
    wall_s, table = timer.stop()
    assert table[0, BACKWARD] / table[0, FORWARD] == pytest.approx(2, rel=0.1)
    assert table.sum() <= wall_s and table.sum() == pytest.approx(wall_s, rel=0.2)
    timer.start()
    time.sleep(0.1)  # a host that is slow to bring data: the device stands idle
    for phase in (H2D, FORWARD, BACKWARD, OPTIMIZER, DATA):
        timer.begin(phase)
    _, table = timer.stop()
    assert 0.09 < table[-1, DATA] < 0.2 and table[-1, FORWARD] < 0.01


def test_the_peek_at_the_loss_waits_for_nothing():
    peek = LossPeek(torch.device("cuda", 0), every=1)
    loss = torch.tensor(2.5, device="cuda")
    busy(50)
    peek.offer(loss)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    peek.offer(loss)
    assert peek.value == 2.5


TRAINED = [
    *(
        (f"precision={p}", f"layout={o}", "num_workers=2")
        for p in PRECISIONS
        for o in ("nchw", "nhwc")
    ),
    *(
        (f"loader={loader}", "epochs=2", "num_workers=2")
        for loader in LOADERS
        if loader != "dali" or has_dali()
    ),
    *((f"strategy={strategy}", "gpus=2") for strategy in STRATEGIES),
    ("strategy.sync_batchnorm=true", "gpus=2"),
    ("preset=fast", "epochs=2", "dataset.train_limit=100"),
    ("preset=fast", "compile=max-autotune-no-cudagraphs", "model.pointwise=linear"),
    ("layout=nhwc", "model.depthwise=triton", "precision=fp64"),
    ("cudnn_benchmark=true", "epochs=2", "dataset.train_limit=100"),
]


@pytest.mark.parametrize("words", TRAINED, ids=" ".join)
def test_everything_trains(measured: Measured, words: tuple[str, ...]):
    if "gpus=2" in words:
        several()
    result = ok(measured(CUDA, *words))
    assert (
        result["peak_memory_bytes"]["kind"] == "cuda_allocated"
        and result["peak_memory_bytes"]["max"] > 2**20
    )
    assert result["transfer_bytes"]["source"] == "counted" and result["transfer_bytes"]["h2d"] > 0
    assert result["epochs"][0]["train_loss"] > 0
    unknown = "strategy.sync_batchnorm=true" in words
    assert (result["communication_bytes"] is None) is unknown
    environment = json.loads((Path(result["folder"]) / "environment.json").read_text())
    precision, flags = PRECISIONS[result["axes"]["precision"]], environment["flags"]
    tf32 = (precision.tf32_conv, precision.tf32_matmul)
    assert (flags["cudnn_allow_tf32"], flags["matmul_allow_tf32"]) == tf32
    assert environment["gpus"][0]["name"] and environment["ranks"][0]["device"] != "cpu"
    if "preset=fast" in words:
        assert result["compile_s"] > 0
        assert flags["autocast_dtype"] in ("bfloat16", "float16")


def test_energy_and_state_are_the_gpus_own(measured: Measured):
    # 2 s at least: less is too short for energy
    result = ok(measured(CUDA, "epochs=60", "dataset.train_limit=640"))
    gpu, folder = result["gpu"], Path(result["folder"])
    trained_s = sum(epoch["train_s"] for epoch in result["epochs"])
    assert steps(result, "step_s").sum() == pytest.approx(trained_s, rel=0.1)
    (device,) = gpu["devices"]
    assert (gpu["covers"], gpu["problem"], device["energy_source"]) == ("training", None, "counter")
    assert device["energy_joules"] > 0 and 20 < device["power_mean_w"] < 1500
    assert result["joules_per_image"] == gpu["energy_joules"] / (60 * 640)
    rows = pq.read_table(folder / "gpu.parquet").to_pydict()
    joules, seconds = (rows[key][-1] - rows[key][0] for key in ("energy_joules", "time_s"))
    known = {name: [value for value in rows[name] if value is not None] for name in rows}
    assert joules / seconds == pytest.approx(np.mean(known["power_w"]), rel=0.5)  # the same units
    assert 10 < max(known["temperature_c"]) < 100 and max(known["sm_clock_mhz"]) > 100
    # the rank read the counter there
    for end_s in (end_s for span in gpu["parts"][0]["spans_s"] for end_s in span):
        assert min(abs(time_s - end_s) for time_s in rows["time_s"]) < 0.05
    environment = json.loads((folder / "environment.json").read_text())
    topology = environment["topology"]["gpus"][0]
    assert topology["uuid"] == device["uuid"] and topology["pci"] and topology["power_limit_w"] > 20
    assert environment["ranks"][0]["gpu"] == device["uuid"]  # torch's own


@pytest.mark.parametrize("workload", [vision.WORKLOAD, llm.WORKLOAD])
def test_ranks_are_forked_from_a_server_that_has_not_started_cuda(workload: Workload):
    script = (
        "from multicard.ranks import elastic\nelastic.warm_up('cuda',"
        f" {workload.preloaded('cuda')})\n"
    )
    line = [sys.executable, "-c", f"{script}print(elastic._start_method('cuda'))"]
    assert (
        subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
        == "forkserver"
    )


def test_one_process_trains_on_all_gpus(measured: Measured):
    several()
    # all are one batch
    words = ("gpus=2", "precision=fp64", "dataset.train_limit=32", "batch_size=16", "epochs=2")
    parallel, apart = (
        ok(measured(CUDA, *words, f"strategy={strategy}")) for strategy in ("dp", "ddp_rr")
    )
    # round robin has the same images, and numbers for dropout, on each GPU
    losses = [[epoch["train_loss"] for epoch in result["epochs"]] for result in (parallel, apart)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    memory_bytes = parallel["peak_memory_bytes"]
    assert len(memory_bytes["per_rank"]) == 1 and len(memory_bytes["per_gpu"]) == 2
    assert memory_bytes["max"] == memory_bytes["per_gpu"][0] > memory_bytes["per_gpu"][1] > 2**20
    assert len(parallel["gpu"]["devices"]) == 2
    moved, parameters = parallel["communication_bytes"], 8 * parallel["parameters"]
    assert moved["reduce"] == 2 * parameters and moved["scatter"] > 0 and moved["gather"] > 0


@pytest.mark.parametrize("strategy", ["ddp_ds", "ddp_rr", "ddp"])
def test_ranks_may_share_a_gpu_for_a_trial(measured: Measured, strategy: str):
    count = torch.cuda.device_count() + 1
    result = ok(measured(CUDA, f"gpus={count}", "oversubscribe=true", f"strategy={strategy}"))
    assert len(result["gpu"]["devices"]) == count - 1
    assert (
        result["oversubscribed"] is True and len(result["peak_memory_bytes"]["per_rank"]) == count
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_that_was_stopped_goes_on(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # kernels that add in any order differ by 1e-6,
    # which training makes 7 % of a loss within six steps
    monkeypatch.setattr(
        "tests.helpers.stopped_runs.WORK", "tests.helpers.rank_work:train_deterministically"
    )
    config = typed(*SMALL, CUDA, f"precision={precision}", "epochs=2", "lr=0.001")
    whole, cut = (
        Case(tmp_path / name, config, workers=2, device="cuda") for name in ("whole", "cut")
    )
    expected, summary = whole.train(12), cut.train(4, 12)  # of 12 steps
    assert cut.rows()["loss"] == pytest.approx(whole.rows()["loss"], rel=0.01)
    assert summary["epochs"][0]["samples_trained"] == expected["epochs"][0]["samples_trained"] == 96
    host, device = whole.state(12)["random"]
    assert torch.equal(cut.state(12)["random"][0], host) and torch.equal(
        cut.state(12)["random"][1], device
    )
    for epoch in summary["epochs"]:
        assert (
            cut.rows()["step_s"][cut.rows()["epoch"] == epoch["epoch"]].sum()
            <= epoch["train_s"] * 1.01
        )


def test_memory_that_runs_out_is_a_result(measured: Measured):
    words = (
        "dataset.image_size=700",
        "batch_size=128",
        "dataset.train_limit=128",
        "precision=fp64",
        "num_workers=0",
    )
    result = measured(CUDA, *words, "model.name=efficientnet_v2_l")
    assert result["status"] == "oom" and "OutOfMemoryError" in result["cause"]["message"]


def test_allocations_that_failed_are_counted_though_they_are_caught():
    torch.cuda.init()
    before = memory.device_memory("cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    after = memory.device_memory("cuda")
    assert before is not None and after is not None and 0 < after.free_bytes < after.total_bytes
    assert after.failed_allocations == before.failed_allocations + 1
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert failures.is_oom(error, after)


@pytest.mark.parametrize("loader", ["batched", "device", DALI])
@pytest.mark.parametrize(
    "words", [(), ("dataset.device_budget_bytes=0",), ("dataset.augment=true", "dataset.flip=true")]
)
@pytest.mark.parametrize("sharded", [False, True])
def test_batches_made_beside_a_busy_step_are_those_of_the_host(
    loader: str, words: tuple[str, ...], sharded: bool
):
    content, options = noise(40, 28, 28), {"training": True, "sharded": sharded, "pin": True}
    expected = pixels(read(source(content, Shuffled(40, 1), *words)))
    device = torch.device("cuda", 0)
    asked = source(content, Shuffled(40, 1), *words, f"loader={loader}", device=device, **options)
    loaded, copies = LOADERS[loader].load(asked), []
    for _ in range(2):  # epochs
        for batch in loaded:
            batch.wait()
            images = batch.images.to(device, non_blocking=True).expand(-1, 3, -1, -1)
            busy(5)  # a step, while the next batch is made
            copies.append(images.clone())
    on_host = torch.cat(copies).cpu()
    for epoch in on_host.split(40):
        assert (epoch - expected).abs().max() * 255 * asked.config.dataset.std[0] <= 1.0 + 1e-2


@pytest.mark.parametrize(("loader", "workers"), [("device", 0), ("batched", 0), ("batched", 2)])
def test_making_batches_neither_waits_for_the_step_nor_takes_more_memory_each_epoch(
    loader: str, workers: int
):
    words = (f"loader={loader}", "dataset.image_size=500")
    asked = source(
        noise(64, 28, 28), Shuffled(64, 1), *words, batch_size=8, device=torch.device("cuda", 0)
    )
    batches, reserved_bytes = LOADERS[loader].load(replace(asked, workers=workers, pin=True)), []
    for _ in range(8):
        for batch in batches:
            batch.wait()
            busy(1)
            del batch
        torch.cuda.synchronize()
        reserved_bytes.append(torch.cuda.memory_reserved())
    assert reserved_bytes[-1] == reserved_bytes[1]
    left = iter(batches)
    for _ in range(6):  # the first ones page-lock memory, which waits for the device
        next(left).wait()
        torch.cuda.synchronize()
    busy(50)
    next(left)
    assert not torch.cuda.current_stream().query()


def test_batches_are_made_in_page_locked_memory_and_copied_beside_the_step():
    """A step waits for less than a tenth of what a copy in its own stream takes."""
    assert Buffers(64, pin=True).take().is_pinned()
    device = torch.device("cuda", 0)
    asked = source(
        noise(640, 28, 28),
        Shuffled(640, 1),
        "loader=batched",
        "dataset.image_size=500",
        batch_size=32,
    )
    loader, timer = (
        LOADERS["batched"].load(replace(asked, workers=4, pin=True, device=device)),
        StepTimer(device),
    )
    on_host, waited_s = torch.empty(32, 1, 500, 500).pin_memory(), []
    for ahead in (True, False):
        timer.start()
        for batch in loader:
            timer.begin(H2D)
            batch.wait()
            images = batch.images if ahead else on_host.to(device, non_blocking=True)
            for phase in (FORWARD, BACKWARD, OPTIMIZER):
                timer.begin(phase)
                busy(20)
            timer.begin(DATA)
            assert images.is_cuda
        waited_s.append(np.median(timer.stop()[1][:, H2D]))
    assert waited_s[0] < waited_s[1] / 10
