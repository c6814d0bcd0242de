"""The formulas of the benchmarks, in closed form."""

import torch
from torch import nn

from benchmarks.step import bytes_an_image


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
