"""Whether the ranks of a script train together, and what this one has trained."""

import sys

import torch.distributed as dist

from multicard.records.trained_weights import Held
from multicard.script.weights import TrainedParameters

# Libraries that synchronize ranks without torch.distributed.
OTHER_COLLECTIVES = ("horovod.torch", "byteps.torch")


class TrainedTogether:
    """Whether this rank has joined a process group, and the parameters that it trains.

    Attributes:
        is_grouped: this rank exchanges with the others, or has not ended a step yet.
        parameters: the parameters of the optimizer whose steps count.
    """

    def __init__(self, world_size: int) -> None:
        self.is_grouped = True
        self.parameters = TrainedParameters()
        self._world_size = world_size

    @property
    def trains_alone(self) -> bool:
        """True if there are other ranks, and this one exchanges nothing with them."""
        return self._world_size > 1 and not self.is_grouped

    def end_step(self, steps: int) -> None:
        """Look for a process group after the run's step `steps`, counted from 1.

        Ranks may join after steps on their own, so a rank without a group looks again.
        """
        if steps == 1 or not self.is_grouped:
            self.is_grouped = has_joined_ranks()

    def held(self) -> Held:
        """Return what this rank has trained so far. Waits for the device."""
        if self._world_size == 1:
            return Held()
        return Held(self.is_grouped, self.parameters.digests())


def has_joined_ranks() -> bool:
    """Return True if this process exchanges with others."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return True
    return any(name in sys.modules for name in OTHER_COLLECTIVES)
