"""Call a model between training steps without changing any later step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

# Types of a module's attributes that cannot be changed in place.
IMMUTABLE_TYPES = (bool, int, float, str, tuple, torch.dtype, type(None))


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Call a model within this context without dropout, gradients or recompilation.

    Afterwards, the model is as it was before. Layers of bitsandbytes stay in training mode, in
    which they have no dropout either. In evaluation mode, on CPUs with AVX512-BF16, they would pack
    their weights for inference, and a backward pass cannot read packed weights.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    attributes_before = [
        {name: value for name, value in vars(module).items() if isinstance(value, IMMUTABLE_TYPES)}
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
        for module, attributes, training in zip(modules, attributes_before, modes, strict=True):
            vars(module).update(attributes | {"training": training})


def _end_forward(module: FSDPModule) -> None:
    """Shard a module again, as a backward pass does at its end.

    If FSDP shards several modules as one, it ends the forward pass when the last of them was
    called. TRL's loss reads the output's weights without calling the output. FSDP would wait for
    that call, and not gather the modules any more.
    """
    state = module._get_fsdp_state()
    state._modules_to_run_forward.clear()
    state._training_state = TrainingState.IDLE
    if state._fsdp_param_group is not None:
        state._fsdp_param_group._training_state = TrainingState.IDLE
    module.reshard()
