"""`strategy=dp`: torch's own DataParallel, on GPUs that are not there
(`tests.helpers.gpu_stand_ins`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from multicard.config.placement import Placement, place
from multicard.measure import formulas
from multicard.ranks.process import Rank
from multicard.records import rank_files, run_folder
from multicard.records.progress import Board
from multicard.vision import workload
from multicard.vision.strategy import STRATEGIES
from multicard.vision.summary import summarise
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, typed
from tests.helpers import rank_work, records
from tests.helpers.gpu_stand_ins import stand_ins
from tests.helpers.launching import on_ranks
from tests.helpers.messages import refused

ALONE = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
EXACT = (*SMALL, "precision=fp64", "schedule=constant", "model.width=0.35")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another are slow on a busy machine
    yield
    torch.set_num_threads(threads)


def largest_difference(a: list[Tensor], b: list[Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


def trained(folder: Path, *words: str) -> dict[str, Any]:
    """Parameters and losses after a training in this process,
    without BatchNorm's statistics and dropout.
    """
    folder.mkdir()
    Board(folder, 1, create=True)
    with stand_ins():
        rank_work.train_quietly(ALONE, typed(*EXACT, *words), folder)
    return torch.load(folder / "0.pt")


@pytest.mark.parametrize(("gpus", "each"), [(2, 6), (3, 4)])
def test_gpus_of_a_process_step_as_one_with_the_whole_batch(gpus: int, each: int, tmp_path: Path):
    # of the last batch, each GPU has 2 images or 1
    words = ("strategy=dp", "dataset.train_limit=16", "epochs=2")
    one = trained(tmp_path / "one", *words, f"batch_size={gpus * each}")
    several = trained(tmp_path / "several", *words, f"batch_size={each}", f"gpus={gpus}")
    assert largest_difference(one["parameters"], several["parameters"]) < 1e-9
    assert several["losses"] == pytest.approx(one["losses"], rel=1e-9)


@pytest.mark.usefixtures("processes")
def test_they_step_as_ddp_does_on_the_same_batch(tmp_path: Path):
    # all images are one batch
    words = ("dataset.train_limit=8", "epochs=2", "batch_size=4", "gpus=2")
    parallel = trained(tmp_path / "dp", *words, "strategy=dp")
    config = typed(*EXACT, *words)
    ranks = on_ranks(2, "train_quietly", tmp_path / "ddp", config, tmp_path / "ddp")
    assert largest_difference(parallel["parameters"], ranks[0]["parameters"]) < 1e-9
    means = [sum(losses) / 2 for losses in zip(*(rank["losses"] for rank in ranks), strict=True)]
    assert parallel["losses"] == pytest.approx(means, rel=1e-9)


def small_model() -> nn.Sequential:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    return nn.Sequential(*layers).double()


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_batchnorm_is_of_each_gpu_and_the_first_ones_statistics_stay():
    images, labels = torch.randn(10, 3, 8, 8, dtype=torch.float64), torch.randint(10, (10,))
    config = typed("strategy=dp", "gpus=2", "batch_size=5", "precision=fp64")
    with stand_ins():
        share = STRATEGIES["dp"].share(small_model(), 10, config, ALONE)
        loss = cross_entropy(share.model(images), labels)
        loss.backward()
    halves = [small_model(), small_model()]
    own = []
    for half, part, of_part in zip(halves, images.chunk(2), labels.chunk(2), strict=True):
        own.append(cross_entropy(half(part), of_part))
        own[-1].backward()
    assert loss.item() == pytest.approx(sum(each.item() for each in own) / 2)
    # as DDP averages them
    means = [(a + b) / 2 for a, b in zip(*map(gradients, halves), strict=True)]
    assert largest_difference(gradients(share.plain), means) < 1e-12
    assert largest_difference(list(share.plain.buffers()), list(halves[0].buffers())) < 1e-12
    assert largest_difference(list(halves[0].buffers()), list(halves[1].buffers())) > 1e-3


def test_evaluation_is_on_all_gpus_and_autocast_reaches_each():
    config = typed("strategy=dp", "gpus=3", "precision=bf16", "device=cpu")
    seen: list[tuple[int, torch.dtype]] = []
    model = small_model().float()
    model[4].register_forward_hook(
        lambda _, inputs, output: seen.append((len(output), output.dtype))
    )
    with stand_ins(), torch.no_grad():
        share = STRATEGIES["dp"].share(model, 96, config, ALONE)
        share.evaluation_model.eval()
        assert len(share.evaluation_model(torch.randn(8, 3, 8, 8))) == 8
        assert len(share.evaluation_model(torch.randn(1, 3, 8, 8))) == 1
    assert seen == [
        (3, torch.bfloat16),
        (3, torch.bfloat16),
        (2, torch.bfloat16),
        (1, torch.bfloat16),
    ]
    assert (share.batch_size, share.steps, share.distinct) == (3 * config.batch_size, 1, 96)


@pytest.mark.parametrize(
    ("words", "devices", "code", "key"),
    [
        (["gpus=2"], 0, "strategy.dp-on-cpu", "strategy"),
        (["gpus=2", "oversubscribe=true"], 1, "strategy.dp-oversubscribed", "strategy"),
        (["compile=max-autotune"], 1, "strategy.dp-compiled", "compile"),
        (["strategy.name=ddp"], 1, "vision.other-strategy", "strategy.name"),
    ],
)
def test_what_it_cannot_do_is_refused(words: list[str], devices: int, code: str, key: str):
    config = typed("strategy=dp", *words)
    with refused(code, key=key):
        WORKLOAD.refuse(config)
        WORKLOAD.fits(config, place(config, devices))


def test_it_is_of_one_node():
    config = typed("strategy=dp", "nodes=2")
    with refused("strategy.dp-on-nodes", nodes=2):
        WORKLOAD.fits(config, place(config, 1, nodes=2))


def test_one_process_has_all_gpus_of_the_run():
    config = typed("strategy=dp", "gpus=3", "global_batch_size=96", "compile=null")
    placement = place(config, 4)
    WORKLOAD.refuse(config)
    WORKLOAD.fits(config, placement)
    assert (placement.device, placement.processes, placement.ranks(config.gpus)) == (
        "cuda",
        1,
        "3 GPUs",
    )
    assert (config.batch_size, config.rank_batch_size) == (32, 96)
    assert "batch 32 a GPU" in WORKLOAD.describe(config)
    one = typed("strategy=dp", "device=cpu")  # trains as the others do
    WORKLOAD.fits(one, place(one, 0))


def test_its_workers_load_for_all_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workload.environment, "cores", lambda: 64)
    for strategy, workers in (("dp", 16), ("ddp_ds", 8)):
        config = typed(f"strategy={strategy}", "gpus=2")
        assert workload.workers(config, place(config, 2)) == workers


@pytest.mark.parametrize(
    ("batches", "gpus", "expected"),
    [
        ({8: 3}, 2, (12, 3)),
        ({8: 3, 5: 1}, 4, (3 * 6 + 3, 3 * 3 + 2)),  # of 5, three GPUs have 2, 2 and 1
        ({1: 2}, 4, (0, 0)),
        ({7: 5}, 1, (0, 0)),
    ],
)
def test_what_leaves_the_first_gpu(batches: dict[int, int], gpus: int, expected: tuple[int, int]):
    assert formulas.on_further_gpus(batches, gpus) == expected
    for size in batches:
        first, *others = torch.empty(size).chunk(gpus)
        assert formulas.on_further_gpus({size: 1}, gpus) == (size - len(first), len(others))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "words", [(), ("precision=fp64", "model.freeze=backbone"), ("precision=bf16", "gpus=3")]
)
def test_bytes_between_gpus_are_those_that_torch_copies(words: tuple[str, ...], tmp_path: Path):
    sizes = ("dataset.train_limit=75", "dataset.test_limit=21", "epochs=2", "model.width=0.35")
    config = typed(*SMALL, "strategy=dp", "gpus=2", *sizes, *words)
    (moved,) = on_ranks(1, "train_on_stand_ins", tmp_path, config, tmp_path, 0)
    ranks, steps = rank_files.read_reports(tmp_path), run_folder.merge_steps(tmp_path)
    record: Any = records.as_record({"config": {}})
    summarise(record, config, Placement("cpu", "gloo", 1, False), ranks, steps)
    counted = {
        name: getattr(record.communication_bytes, name)
        for name in ("scatter", "broadcast", "gather", "reduce")
    }
    assert counted == moved
    assert record.received_bytes == sum(moved.values()) > 0
    assert len(record.peak_memory_bytes.per_gpu) == config.gpus
    assert (
        record.epochs[0].steps == -(-75 // (16 * config.gpus))
        and record.epochs[0].samples_trained == 75
    )
