"""Fused blocks in Triton's interpreter, which has to be chosen before Triton is imported: a process of its own.

    python -m tests.helpers.fused_blocks block DTYPE AUTOCAST STRIDE CIN COUT BATCH HEIGHT WIDTH
    python -m tests.helpers.fused_blocks stem DTYPE AUTOCAST WIDE COUT BATCH HEIGHT WIDTH
    python -m tests.helpers.fused_blocks ranks GREY
    python -m tests.helpers.fused_blocks runs LOADER

Prints JSON: relative errors (in norm) by name; of each run its losses, its fused blocks, and the shapes and strides of
what a fused stem read.
"""

import json
import os
import sys
import tempfile
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torchvision.models import MobileNetV2
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops import Conv2dNormActivation

from multicard.ranks.process import Rank
from multicard.records import rank_files, run_folder
from multicard.records.progress import Board
from multicard.vision import fused_blocks
from multicard.vision.train import train
from tests.conftest import typed

RUN = ("device=cpu", "dataset=digits", "dataset.image_size=32", "dataset.train_limit=6", "dataset.test_limit=4")
RUN += ("epochs=1", "batch_size=4", "model.width=0.35", "layout=nhwc", "tracker.mode=disabled")
FUSED = ["model.blocks=fused"]
RUNS = {"plain": [], "grey": FUSED, "coloured": [*FUSED, "dataset.std=[0.2,0.3,0.4]"]}

for tile in fused_blocks.TILES.values():
    tile.update({name: value for name, value in {"P": 16, "C": 16, "ROWS": 3, "LOOPS": 3}.items() if name in tile})


def error(got: Tensor, expected: Tensor, scale: float = 0.0) -> float:
    expected = expected.detach().double()
    return float((got.detach().double() - expected).norm() / max(expected.norm(), scale, 1e-30))


def block(dtype: torch.dtype, autocast: bool, stride: int, cin: int, cout: int, *shape: int) -> dict[str, float]:
    """A block against float64."""
    torch.manual_seed(1)
    plain = InvertedResidual(cin, cout, stride, 3)
    images = (torch.randn(shape[0], cin, *shape[1:]) + 0.7).to(dtype).float()
    x = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    x_exact = images.double().requires_grad_()
    parts = ("conv", "conv.1.0", "conv.0.1")
    errors = compared(plain, parts, fused_blocks.FusedResidual, x, x_exact, dtype, autocast)
    assert x.grad is not None and x_exact.grad is not None
    return errors | {"x": error(x.grad, x_exact.grad)}


def stem(dtype: torch.dtype, autocast: bool, wide: int, cout: int, *shape: int) -> dict[str, float]:
    """A stem and its first block on grey images, likewise, compiled up to the kernels; evaluation is of three channels
    and of one."""
    torch.manual_seed(1)
    first = Conv2dNormActivation(3, wide, 3, 2, activation_layer=nn.ReLU6)
    plain = nn.Sequential(nn.Sequential(first, InvertedResidual(wide, cout, 1, 1), nn.Conv2d(cout, 8, 1)))
    plain.compile(backend="aot_eager", fullgraph=True)
    x = (torch.randn(shape[0], 1, *shape[1:]) + 0.7).to(dtype).float()
    x_exact = x.double().expand(-1, 3, -1, -1)
    parts = ("0", "0.1.conv.0.0", "0.0.1")
    return compared(plain, parts, fused_blocks.GreyFeatures, x, x_exact, dtype, autocast)


def compared(
    plain: nn.Module, parts: tuple[str, str, str], kind: type[nn.Sequential], x: Tensor, x_exact: Tensor,
    dtype: torch.dtype, autocast: bool,
) -> dict[str, float]:  # fmt: skip
    """Errors of a module whose part has a fused `kind`, against float64, where what is stored between kernels has the
    rounding of `dtype` alone: else the slope of ReLU6 would differ wherever rounding carries a value over its corner,
    as it does with other seeds.

    parts: the names of what is fused, of its depthwise convolution and of its first BatchNorm.
    """
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter)).copy_(parameter.to(dtype))
    exact, fused = deepcopy(plain).double(), plain
    exact.get_submodule(parts[1]).register_forward_hook(lambda _, __, d: d + (d.to(dtype).double() - d).detach())
    fused.get_submodule(parts[0]).__class__ = kind
    with torch.autocast("cpu", dtype, enabled=autocast):
        out = fused(x)
    grad = 256 * torch.randn(out.shape).to(out.dtype)  # as a scaled loss has it
    expected = exact(x_exact)
    (out * grad).sum().backward()
    (expected * grad.double()).sum().backward()
    errors = {"out": error(out, expected)}
    for (name, p), q in zip(fused.named_parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        # the first scale hardly changes what the second BatchNorm gives: its gradient is the rest of large terms
        rest = exact.get_parameter(f"{parts[2]}.bias").grad if name == f"{parts[2]}.weight" else None
        errors[name] = error(p.grad, q.grad, 0.0 if rest is None else float(rest.norm()))
    for (name, buffer), q in zip(fused.named_buffers(), exact.buffers(), strict=True):
        errors[name] = error(buffer, q)
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
        before = deepcopy(fused)
        before.get_submodule(parts[0]).__class__ = nn.Sequential
        errors["evaluation"] = error(fused.eval()(x), before.eval()(x_exact.to(x.dtype)))
    return errors


def trained(rank: int, folder: str, grey: bool) -> None:
    """Two steps of a small MobileNetV2 under DDP, plain and fused; saves the largest difference of their weights."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    settings = [[1, 8, 1, 1], [3, 8, 1, 2], [2, 8, 1, 1]]
    plain = MobileNetV2(num_classes=4, inverted_residual_setting=settings, dropout=0.0, width_mult=0.5)
    models = [plain, fused_blocks.fuse(deepcopy(plain), 12, grey, least=0, least_stem=0)]
    assert models[1].fused_blocks == 2 + grey
    for model in models:
        model.to(memory_format=torch.channels_last)
        ranked, optimizer = nn.parallel.DistributedDataParallel(model), torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            torch.manual_seed(10 * step + rank)
            images = torch.randn(3 - step, 1 if grey else 3, 12, 12).expand(-1, 3, -1, -1)
            images = images.contiguous(memory_format=torch.channels_last)
            nn.functional.cross_entropy(ranked(images), torch.arange(len(images))).backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(models[1].state_dict().items(), plain.state_dict().values(), strict=True)
    errors = {name: error(got.float(), expected.float(), 1e-2) for (name, got), expected in pairs}
    Path(folder, f"{rank}.json").write_text(json.dumps(errors))


def run(words: list[str]) -> dict[str, Any]:
    """Train in this process, whose stems are fused at any size; they run layer by layer, as kernels would take
    minutes, and rounding grows to percents in the second step."""
    read = set[tuple[Any, Any]]()

    def noted(self: Any, images: Tensor) -> Tensor:
        if self.training:
            read.add((tuple(images.shape), images.stride()))
        return nn.Sequential.forward(self, images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last))

    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(fused_blocks, "fuse", partial(fused_blocks.fuse, least_stem=0)),
        mock.patch.object(fused_blocks.GreyFeatures, "forward", noted),
    ):
        folder = Path(name)
        Board(folder, 1, create=True)
        train(Rank(0, 0, 1, torch.device("cpu"), "gloo", 1), typed(*words), folder, 0)
        report = json.loads(rank_files.path_of(folder, 0).read_text())
        losses = run_folder.read_steps(folder)["loss"].to_pylist()
    return {"losses": losses, "fused_blocks": report["flags"]["fused_blocks"], "read": sorted(read)}


def main() -> None:
    what, *words = sys.argv[1:]
    if what == "runs":
        fixed = [*RUN, f"loader={words[0]}"]
        print(json.dumps({name: run([*fixed, *more]) for name, more in RUNS.items()}))
        return
    if what == "ranks":
        with tempfile.TemporaryDirectory() as folder:
            spawn(trained, (folder, words == ["True"]), nprocs=2)
            print(json.dumps([json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]))
        return
    dtype, autocast, *sizes = words
    of = {"block": block, "stem": stem}[what]
    print(json.dumps(of(getattr(torch, dtype), autocast == "True", *map(int, sizes))))


if __name__ == "__main__":
    main()
