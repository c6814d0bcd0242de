"""The formulas of the benchmarks, in closed form, and what they compare."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import input as loader_rates
from benchmarks import step, training_within
from benchmarks.step import Cell, bytes_an_image
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.vision.data import datasets
from tests.conftest import SMALL, typed
from tests.helpers.rank_work import feed, loop_of, quiet_model


class Block(nn.Module):
    use_res_connect = True

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU6())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.layers(images)


def test_bytes_of_a_step_count_each_tensor_as_often_as_it_is_read_or_written():
    values = 3 * 8 * 8  # in each tensor of this block
    fused, unfused = (bytes_an_image(Block().to("meta"), 8, 2, fused=fused) for fused in (True, False))
    assert fused == 2 * values * (3 + 3 + 8 + 3)
    assert unfused == fused + 2 * values * 5
    strided = nn.Conv2d(3, 5, 2, stride=2).to("meta")
    assert bytes_an_image(strided, 8, 4, fused=False) == 4 * (3 * 3 * 64 + 3 * 5 * 16)


@pytest.mark.parametrize(
    ("words", "modes"),
    [
        ("", [None]),
        ("--compile", [None, "default"]),
        ("--compile reduce-overhead max-autotune --only-compiled", ["reduce-overhead", "max-autotune"]),
    ],
)
def test_the_modes_of_steps_are_those_asked_for(words: str, modes: list[str | None]):
    args = step.options().parse_args([*words.split(), "--precisions", "fp32", "--pointwise", "convolution", "linear"])
    linear = [Cell("fp32", "nhwc", mode, "linear") for mode in modes]
    plain = [Cell("fp32", layout, mode, "convolution") for layout in ("nchw", "nhwc") for mode in modes]
    assert sorted(step.cells(args), key=str) == sorted(linear + plain, key=str)


def test_the_interval_of_a_median_holds_the_values_next_to_it():
    assert training_within.interval([3.0] * 7) == (3.0, 3.0, 3.0)
    values = np.random.default_rng(0).permutation(np.arange(1.0, 101.0)).tolist()
    assert training_within.interval(values) == (50.5, 40.0, 61.0)  # ranks 40 and 61 of 100: Conover's table


def test_blocks_by_turns_cancel_a_drift_and_end_once_the_interval_is_narrow():
    now_s, taken = 0.0, []

    def block(seconds: float):
        def turn() -> None:
            nonlocal now_s
            taken.append(seconds)
            now_s += seconds * (1 + 0.01 * len(taken))  # the machine becomes slower all the time

        return turn

    clocks = lambda: np.array([now_s, 2 * now_s])  # noqa: E731
    ratios, plain_s = training_within.rounds(block(1.03), block(1.0), clocks, minutes=1)
    assert np.array(ratios) == pytest.approx(1.03, abs=1e-3) and plain_s > 1
    assert len(ratios) == training_within.LEAST_ROUNDS
    orders = {tuple(taken[first : first + 4]) for first in range(0, len(taken), 4)}
    assert orders == {(1.03, 1.0, 1.0, 1.03), (1.0, 1.03, 1.03, 1.0)}
    assert len(training_within.rounds(block(1.0), block(1.0), clocks, minutes=0)[0]) == training_within.FEWEST


def test_the_plain_loop_trains_what_the_measured_loop_trains(tmp_path: Path):
    config, rank = typed(*SMALL, "model.width=0.35"), Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
    content = datasets.load(config.dataset, config.seed)
    Board(tmp_path, 1, create=True)
    weights = []
    for epoch in (lambda loop, batches: loop.train_epoch(0, batches), training_within.plain_epoch):
        loop, share = loop_of(rank, config, tmp_path, quiet_model(config), len(content.train))
        epoch(loop, feed(content.train, share.sampler, config, torch.float32))
        weights.append([parameter.detach() for parameter in share.plain.parameters()])
        assert loop.optim.schedule.last_epoch == share.steps > 1
    assert all(torch.equal(measured, plain) for measured, plain in zip(*weights, strict=True))


def test_loaders_are_compared_with_torchs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(loader_rates, "SECONDS", 0.02)
    monkeypatch.setattr(loader_rates, "cores", lambda: 1)
    words, device = ("dataset=mnist", "dataset.root=none", "dataset.image_size=32"), torch.device("cpu")
    every = loader_rates.candidates(loader_rates.grey_noise(200), words, device)
    assert {"plain script, 0 workers", "torch, 1 workers", "batched, 0 workers", "device"} <= every.keys()
    chosen = {name: turn for name, turn in every.items() if name.endswith(" 0 workers") or name == "device"}
    loader_rates.compare("grey", chosen, 2)
    (torchs,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| torch, 0 workers")]
    assert torchs.split(" | ")[3] == "1.00"
