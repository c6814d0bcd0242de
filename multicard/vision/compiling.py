"""`compile=true`: torch.compile of the model, all of it before training starts, so that its time is apart."""

from typing import Any

import torch

from multicard.measure import compile_cache, timing
from multicard.ranks.failures import is_oom
from multicard.vision import resume
from multicard.vision.loop import Loop


def compile_now(loop: Loop) -> dict[str, Any]:
    """Have the model compiled, by a step and an evaluation of a batch of zeros that leave no trace. All ranks call it.

    Returns:
        `compile_s`, the seconds it took, and `compile_cache`, the look-ups in Inductor's cache.

    Raises:
        ValueError: where torch cannot compile the model here.
    """
    share, device, size = loop.share, loop.rank.device, loop.config.dataset.image_size
    started_s, looked_up = timing.clock_s(), compile_cache.lookups()
    buffers = [buffer.clone() for buffer in share.plain.buffers()]
    random = resume.get_random(share.devices)
    images = torch.zeros(share.batch_size, 3, size, size, dtype=loop.precision.transfer_dtype, device=device)
    labels = torch.zeros(share.batch_size, dtype=torch.int64, device=device)
    try:
        share.model.train()
        loop.optim.scaler.scale(loop.loss(share.model, images, labels)).backward()
        share.plain.eval()
        with torch.no_grad():
            loop.outputs(share.plain, images)
    except Exception as error:
        if is_oom(error) or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        remedy = "it needs a C++ compiler (g++); use compile=false to do without"
        raise ValueError(f"compile=true: torch cannot compile the model here ({line}); {remedy}") from error
    loop.optim.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(share.plain.buffers(), buffers, strict=True):
            buffer.copy_(before)
    resume.set_random(random, share.devices)
    timing.synchronize(device)
    return {"compile_s": timing.clock_s() - started_s, "compile_cache": compile_cache.since(looked_up)}
