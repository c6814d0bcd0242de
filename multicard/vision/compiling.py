"""`compile=true`: torch.compile of the model, all of it before training starts, so that its time is apart.

Full batches run the compiled model, in training and in evaluation. An odd last batch runs it as it is: another shape
would be compiled anew in the middle of an epoch.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from multicard.config.vision import StrategyName, VisionConfig
from multicard.measure import timing
from multicard.ranks.failures import is_oom
from multicard.vision import resume
from multicard.vision.strategy import unwrap

if TYPE_CHECKING:
    from multicard.vision.loop import Loop


def wanted(config: VisionConfig, device: torch.device) -> bool:
    """Whether to compile; where it is left open, on CUDA, but for nn.DataParallel, which goes without."""
    if config.compile is not None:
        return config.compile
    return device.type == "cuda" and config.strategy.name is not StrategyName.dp


def for_batch(images: torch.Tensor, batch_size: int, compiled: bool) -> AbstractContextManager[object]:
    """The context in which a compiled model is called: for an odd batch it is not compiled again."""
    odd = compiled and len(images) != batch_size
    return torch.compiler.set_stance("force_eager") if odd else nullcontext()


def compile_now(loop: "Loop", devices: list[torch.device]) -> float:
    """Have the model compiled, by a step and an evaluation of a batch of zeros that leave no trace. All ranks call it.

    Returns:
        The seconds it took.

    Raises:
        ValueError: where torch cannot compile the model here.
    """
    config, share, rank = loop.config, loop.share, loop.rank
    model, size = unwrap(share.model), config.dataset.image_size
    started_s = timing.clock_s()
    before = [buffer.clone() for buffer in model.buffers()]
    random = resume.get_random(devices)
    batch = (
        torch.zeros(share.batch_size, 3, size, size, dtype=loop.precision.transfer, device=rank.device),
        torch.zeros(share.batch_size, dtype=torch.int64, device=rank.device),
    )
    try:
        share.model.train()
        loop.scaler.scale(loop.forward(batch, share.model)).backward()
        model.eval()
        with torch.no_grad():
            loop.outputs(batch[0], model)
    except Exception as error:
        if is_oom(error) or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        remedy = "it needs a C++ compiler (g++); use compile=false to do without"
        raise ValueError(f"compile=true: torch cannot compile the model here ({_first(error)}); {remedy}") from error
    loop.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, content in zip(model.buffers(), before, strict=True):
            buffer.copy_(content)
    resume.set_random(random, devices)
    timing.synchronize(rank.device)
    return timing.clock_s() - started_s


def _first(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
