"""Fused blocks in Triton's interpreter, which has to be chosen before Triton is imported: a process of its own.

    python -m tests.helpers.fused_blocks block DTYPE AUTOCAST STRIDE CIN COUT BATCH HEIGHT WIDTH
    python -m tests.helpers.fused_blocks ranks

Prints JSON: relative errors (in norm) by name.
"""

import json
import os
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torchvision.models import MobileNetV2
from torchvision.models.mobilenetv2 import InvertedResidual

from multicard.vision import fused_blocks

for tile in fused_blocks.TILES.values():
    tile.update({name: value for name, value in {"P": 16, "C": 16, "ROWS": 3, "LOOPS": 3}.items() if name in tile})


def error(got: Tensor, expected: Tensor, scale: float = 0.0) -> float:
    expected = expected.detach().double()
    return float((got.detach().double() - expected).norm() / max(expected.norm(), scale, 1e-30))


def block(dtype: torch.dtype, autocast: bool, stride: int, cin: int, cout: int, shape: list[int]) -> dict[str, float]:
    """A block against float64, where what is stored between kernels has the rounding of `dtype` alone: else the slope
    of ReLU6 would differ wherever rounding carries a value over its corner, as it does with seed 0."""
    torch.manual_seed(1)
    fused = InvertedResidual(cin, cout, stride, 3)
    with torch.no_grad():
        for parameter in fused.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter)).copy_(parameter.to(dtype))
    exact = deepcopy(fused).double()
    exact.conv.get_submodule("1.0").register_forward_hook(lambda _, __, d: d + (d.to(dtype).double() - d).detach())
    fused.conv.__class__ = fused_blocks.FusedResidual
    images = (torch.randn(shape[0], cin, *shape[1:]) + 0.7).to(dtype).float()
    x = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    x_exact = images.double().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=autocast):
        out = fused(x)
    grad = 256 * torch.randn(out.shape).to(out.dtype)  # as a scaled loss has it
    expected = exact(x_exact)
    (out * grad).sum().backward()
    (expected * grad.double()).sum().backward()
    assert x.grad is not None and x_exact.grad is not None
    errors = {"out": error(out, expected), "x": error(x.grad, x_exact.grad)}
    for (name, p), q in zip(fused.named_parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        # the first scale hardly changes what the second BatchNorm gives: its gradient is the rest of large terms
        rest = exact.get_parameter("conv.0.1.bias").grad if name == "conv.0.1.weight" else None
        errors[name] = error(p.grad, q.grad, 0.0 if rest is None else float(rest.norm()))
    for (name, buffer), q in zip(fused.named_buffers(), exact.buffers(), strict=True):
        errors[name] = error(buffer, q)
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
        plain = deepcopy(fused)
        plain.conv.__class__ = nn.Sequential
        errors["evaluation"] = error(fused.eval()(x), plain.eval()(x))
    return errors


def trained(rank: int, folder: str) -> None:
    """Two steps of a small MobileNetV2 under DDP, plain and fused; saves the largest difference of their weights."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    settings = [[1, 8, 1, 1], [3, 8, 1, 2], [2, 8, 1, 1]]
    plain = MobileNetV2(num_classes=4, inverted_residual_setting=settings, dropout=0.0, width_mult=0.5)
    models = [plain, fused_blocks.fuse(deepcopy(plain), 12, least=0)]
    assert models[1].fused_blocks == 2
    for model in models:
        model.to(memory_format=torch.channels_last)
        ranked, optimizer = nn.parallel.DistributedDataParallel(model), torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            torch.manual_seed(10 * step + rank)
            images = torch.randn(3 - step, 3, 12, 12).contiguous(memory_format=torch.channels_last)
            nn.functional.cross_entropy(ranked(images), torch.arange(len(images))).backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(models[1].state_dict().items(), plain.state_dict().values(), strict=True)
    errors = {name: error(got.float(), expected.float(), 1e-2) for (name, got), expected in pairs}
    Path(folder, f"{rank}.json").write_text(json.dumps(errors))


def main() -> None:
    what, *words = sys.argv[1:]
    if what == "ranks":
        with tempfile.TemporaryDirectory() as folder:
            spawn(trained, (folder,), nprocs=2)
            print(json.dumps([json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]))
        return
    dtype, autocast, *numbers = words
    stride, cin, cout, *shape = map(int, numbers)
    print(json.dumps(block(getattr(torch, dtype), autocast == "True", stride, cin, cout, shape)))


if __name__ == "__main__":
    main()
