"""Samplers: which samples a rank loads, and in which order."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from torch.utils.data import DistributedSampler, Sampler


class Shuffled(Sampler[int]):
    """Every sample once an epoch, in an order that follows from seed, stream and epoch."""

    def __init__(self, samples: int, seed: int, stream: int = 0) -> None:
        self.samples, self.seed, self.stream, self.epoch = samples, seed, stream, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        shuffle = np.random.default_rng([self.seed, self.stream, self.epoch])
        return iter(shuffle.permutation(self.samples).tolist())


class Strided(Sampler[int]):
    """Samples rank, rank + world, ...: each on exactly one rank, none twice, for evaluation."""

    def __init__(self, samples: int, rank: int, world_size: int) -> None:
        self.indices = range(rank, samples, world_size)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class Remaining(Sampler[int]):
    """The rest of an epoch of `sampler` after its first `skip` samples, which are not loaded.

    It yields draws, the epoch times `samples` plus the index of a sample: augmentation follows from the draw, in any
    process.
    """

    def __init__(self, sampler: Shuffled | DistributedSampler[int], samples: int) -> None:
        self.sampler, self.samples, self.epoch, self.skip = sampler, samples, 0, 0

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        self.sampler.set_epoch(epoch)
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return max(0, len(self.sampler) - self.skip)  # the last step may have fewer samples than were counted for it

    def __iter__(self) -> Iterator[int]:
        return (self.epoch * self.samples + index for index in islice(self.sampler, self.skip, None))
