"""Counts tiny graphs on a GPU that is not there, and prints what was found as JSON: a process of
its own, as the stand-in for the CUDA runtime comes before torch.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks import absent_gpu

SIDE = 1000
IMAGES, CHANNELS, OUT, HEIGHT = 2, 4, 8, 16


def affine() -> tuple[Callable[..., Any], list[Any]]:
    import torch

    half = torch.empty(
        SIDE, SIDE, dtype=torch.float16, device=absent_gpu.DEVICE, requires_grad=True
    )
    return lambda x: x * 2 + 1, [half]


def convolution() -> tuple[Callable[..., Any], list[Any]]:
    import torch
    from torch.nn.functional import conv2d

    images = torch.empty(
        IMAGES, CHANNELS, HEIGHT, HEIGHT, device=absent_gpu.DEVICE, requires_grad=True
    )
    weight = torch.empty(OUT, CHANNELS, 1, 1, device=absent_gpu.DEVICE, requires_grad=True)
    return conv2d, [images, weight]


def main() -> None:
    absent_gpu.load_runtime()
    import torch

    from benchmarks.kernel_bytes import EagerLaunches, collect_graphs

    found: dict[str, Any] = {}
    for make in (affine, convolution):
        with absent_gpu.pretend_gpu() as mode, collect_graphs(mode) as graphs:
            with mode:
                function, inputs = make()
            compiled = torch.compile(function, dynamic=False)
            with EagerLaunches(mode) as eager:
                compiled(*inputs).sum().backward()
            with torch.no_grad():
                compiled(*inputs)
        found[make.__name__] = {
            "graphs": [asdict(graph) for graph in graphs],
            "eager": dict(eager.launches),
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
