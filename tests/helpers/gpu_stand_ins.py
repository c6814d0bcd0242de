"""GPUs that are not there: torch's own DataParallel on tensors of the CPU,
and the bytes that it would copy.

torch's code divides the batch, replicates the model, gathers the outputs and sums the gradients.
What copies tensors from GPU to GPU (`torch.nn.parallel.comm`) copies them here within memory,
and replicas compute one after the other.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

FUNCTIONS: Any = sys.modules["torch.nn.parallel._functions"]


class OnStandIns(nn.DataParallel):
    """DataParallel on GPUs that are not there."""

    def __init__(self, module: nn.Module, device_ids: Sequence[int]) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids = module, list(device_ids)
        self.dim = self.output_device = 0
        self.src_device_obj = next(module.parameters()).device

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
        """Each replica in a thread of its own, in which
        autocast is off unless the replica turns it on.
        """
        outputs, grad_enabled = [], torch.is_grad_enabled()

        def run(replica: nn.Module, arguments: Any) -> None:
            with torch.set_grad_enabled(grad_enabled):
                outputs.append(replica(*arguments))

        for replica, arguments in zip(replicas, inputs, strict=True):
            thread = Thread(target=run, args=(replica, arguments))
            thread.start()
            thread.join()
        return outputs

    def gather(self, outputs: Any, output_device: Any) -> Any:
        # that these are tensors of GPUs, and not of no dimension
        answers = mock.Mock(side_effect=[True, False])
        with mock.patch.object(FUNCTIONS, "all", answers):
            return super().gather(outputs, output_device)


@contextmanager
def stand_ins() -> Iterator[Counter[str]]:
    """Within, DataParallel runs on GPUs that are not there; the
    bytes that it copies between them, by kind.
    """
    moved: Counter[str] = Counter()

    def count(kind: str, parts: Sequence[Tensor]) -> None:
        moved[kind] += sum(part.nbytes for part in parts)

    def scatter(
        tensor: Tensor, gpus: Any, sizes: Any = None, dim: int = 0, streams: Any = None
    ) -> tuple[Tensor, ...]:
        first, *others = (
            tensor.chunk(len(gpus), dim) if sizes is None else tensor.split(list(sizes), dim)
        )
        count("scatter", others)
        return first.clone(), *(part.clone() for part in others)

    def broadcast(tensors: Any, gpus: Any, buffer_size: int = 0) -> list[list[Tensor]]:
        copies = [[tensor.clone() for tensor in tensors] for _ in gpus[1:]]
        for own in copies:
            count("broadcast", own)
        return [list(tensors), *copies]

    def reduce(by_gpu: Any, destination: Any = None, buffer_size: int = 0) -> tuple[Tensor, ...]:
        for own in by_gpu[1:]:
            count("reduce", own)
        return tuple(torch.stack(parts).sum(dim=0) for parts in zip(*by_gpu, strict=True))

    def gather(tensors: Any, dim: int = 0, destination: Any = None) -> Tensor:
        count("gather", tensors[1:])
        return torch.cat(tensors, dim)

    copying = {
        "scatter": scatter,
        "gather": gather,
        "broadcast_coalesced": broadcast,
        "reduce_add_coalesced": reduce,
    }
    with (
        mock.patch.object(nn, "DataParallel", OnStandIns),
        mock.patch.multiple("torch.nn.parallel.comm", **copying),
        # whether these are tensors of GPUs
        mock.patch.object(FUNCTIONS, "all", lambda _: True, create=True),
    ):
        yield moved
