"""What a run trained, tensor by tensor, as it is written once the training is over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")  # in the names of parameters
# types and shapes of a file's tensors, by their names
Stored = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class TensorPart:
    """A tensor that is to be written.

    tensor: on a rank, whose part of it may be a shard; whoever reads it calls collectives, on all
    ranks.
    form: what the file has of the whole of it, of the same shape.
    """

    tensor: torch.Tensor
    form: Callable[[torch.Tensor], torch.Tensor] = lambda whole: whole

    def whole(self) -> torch.Tensor:
        tensor = self.tensor.detach()
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return self.form(gathered).cpu()

    def stored(self, name: str) -> Stored:
        """The tensors that a file has of it, in their order."""
        return {name: (self.tensor.dtype, tuple(self.tensor.shape))}

    def written(self, name: str, whole: torch.Tensor) -> dict[str, torch.Tensor]:
        """These tensors, of the whole of it."""
        return {name: whole}


@dataclass(frozen=True)
class TrainedParts:
    """What an engine trained.

    parts: its tensors, by the names of PEFT (adapters) or of transformers (all weights).
    others: of adapters, the tensors of the base model, where the run alone has them; by
    transformers' names.
    adapter: PEFT's configuration of the adapters; None of all weights.
    reader: the class of transformers that reads the model.
    tied: the output is the embeddings.
    linears: of all weights, the names of those of linear layers.
    groupsize: of them, weights that share a scale once they are quantised; None where they are not.
    """

    parts: dict[str, TensorPart]
    others: dict[str, TensorPart]
    adapter: dict[str, Any] | None
    tied: bool
    reader: str = "AutoModelForCausalLM"
    linears: frozenset[str] = frozenset()
    groupsize: int | None = None


def own_name(name: str) -> str:
    """The name of a parameter without those of wrappers around its modules."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
