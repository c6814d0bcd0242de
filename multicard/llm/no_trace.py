"""Calls of a model between training steps, of which no step shows a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

# attributes of a module that nothing changes in place
PLAIN = (bool, int, float, str, tuple, torch.dtype, type(None))


@contextmanager
def tried(model: nn.Module) -> Iterator[None]:
    """Call a model without dropout, without gradients and without compiling it anew,
    and leave it as it was.

    Layers of bitsandbytes are called in training mode. On CPUs with AVX512-BF16, those in
    evaluation mode, as they are read, pack their weights for inference,
    and what is packed is not what a backward pass reads. They have no dropout.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    plain = [
        {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
        for module in modules
    ]
    buffers = []
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                buffers.append((module, name, buffer, buffer.clone()))
    devices = sorted(
        {parameter.device.index for parameter in model.parameters() if parameter.is_cuda}
    )
    for module in modules:
        module.training = type(module).__module__.startswith("bitsandbytes.")
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        for module in modules:
            if isinstance(module, FSDPModule):
                _end_forward(module)
        with torch.no_grad():
            for module, name, buffer, values in buffers:
                buffer.copy_(values)
                module._buffers[name] = buffer
        for module, before, training in zip(modules, plain, modes, strict=True):
            vars(module).update(before | {"training": training})


def _end_forward(module: FSDPModule) -> None:
    """Shard a module again, as a backward pass does at its end.

    FSDP ends the forward pass of modules that it shards as one after the last of them was called.
    TRL's loss reads the output's weights without calling it, so that FSDP would wait for that call,
    and gather them no more.
    """
    state = module._get_fsdp_state()
    state._modules_to_run_forward.clear()
    state._training_state = TrainingState.IDLE
    if state._fsdp_param_group is not None:
        state._fsdp_param_group._training_state = TrainingState.IDLE
    module.reshard()
