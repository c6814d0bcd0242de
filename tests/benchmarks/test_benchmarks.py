"""The formulas of the benchmarks, in closed form, and what they compare."""

import re

import pytest
import torch
from torch import nn

from benchmarks import input as loader_rates
from benchmarks import step
from benchmarks.step import Cell, bytes_an_image


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


def test_loaders_are_compared_with_torchs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(loader_rates, "SECONDS", 0.02)
    monkeypatch.setattr(loader_rates, "cores", lambda: 1)
    words, device = ("dataset=mnist", "dataset.root=none", "dataset.image_size=32"), torch.device("cpu")
    every = loader_rates.candidates(loader_rates.grey_noise(200), words, device)
    assert {"plain script, 0 workers", "torch, 1 workers", "batched, 0 workers", "device"} <= every.keys()
    chosen = {name: turn for name, turn in every.items() if name.endswith(" 0 workers") or name == "device"}
    loader_rates.compare("grey", chosen, 2)
    (torchs,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("torch, 0 workers")]
    assert re.split(r"\s{2,}", torchs)[3] == "1.00"
