"""Several ranks in one process: FSDP on collectives that move nothing, and on a GPU that is not there."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives
from torch.distributed import device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state
from torch.testing._internal.distributed.fake_pg import FakeStore

HANDLE_USERS = (device_mesh, _fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state)


class _Event:
    def record(self, *_: Any) -> "_Event":
        return self

    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...


class _Stream:
    def wait_stream(self, *_: Any) -> None: ...
    def wait_event(self, *_: Any) -> None: ...
    def record_event(self, *_: Any) -> _Event:
        return _Event()


# What FSDP asks `torch.cuda` for; nothing runs, so nothing waits
CUDA = SimpleNamespace(
    Stream=lambda *_, **__: _Stream(),
    Event=lambda *_, **__: _Event(),
    current_device=lambda: 0,
    device_count=lambda: 8,
    set_device=lambda *_: None,
    is_initialized=lambda: True,
    is_available=lambda: True,
    current_stream=lambda *_: _Stream(),
    stream=lambda *_: nullcontext(),
    synchronize=lambda *_: None,
)


@contextmanager
def fake_ranks(count: int, device: torch.device) -> Iterator[Any]:
    """Join a group of `count` ranks as its rank 0. Enter it before fake tensors: a mesh reads its ranks.

    Yields:
        The device mesh to shard over.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        with ExitStack() as stack:
            if device.type == "cuda":
                for patch in _for_cuda():
                    stack.enter_context(patch)
            yield device_mesh.init_device_mesh(device.type, (count,))
    finally:
        dist.destroy_process_group()


def _for_cuda() -> list[Any]:
    optimizer = sys.modules["torch.optim.optimizer"]
    return [
        *(mock.patch.object(module, "_get_device_handle", lambda *_: CUDA) for module in HANDLE_USERS),
        mock.patch.object(torch.accelerator, "current_stream", lambda *_: _Stream()),
        # C++ says of a DTensor on fake tensors that it is on meta
        mock.patch.object(_fsdp_param_group.FSDPParamGroup, "_validate_no_meta_params", lambda *_: None),
        mock.patch.object(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cuda", "meta", "cpu"]),
    ]
