"""Loaders: each turns a split of a data set into an iterable of batches.

All loaders yield the same images in the sampler's order, normalised and in the precision's transfer
type. They count the bytes that each batch brings to the device. A loader is one entry of
`LOADERS`, and its code is imported only when it is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from multicard.config.vision import (
    BatchedConfig,
    DaliConfig,
    LoaderConfig,
    VisionConfig,
    WorkersConfig,
)
from multicard.config.vision_data import CacheMode, ImagesConfig
from multicard.messages import Refusal, install

if TYPE_CHECKING:
    from multicard.vision.data.batch import Input, LoaderInput


@dataclass(frozen=True)
class Loader:
    """One loader.

    Attributes:
        made_by: The class or function that makes an `Input` of a `LoaderInput`, as "module:name".
        options: The schema of `loader.*`.
        refuse: Raises a `Refusal` for a configuration that the loader cannot handle.
        check: Raises a `Refusal` if a library that the loader needs is not installed.
        prepared: How many batches are ready before a step asks for them, given the options and the
            rank's number of workers.
        in_shared_memory: How many of these batches worker processes keep in /dev/shm.
    """

    made_by: str
    options: type[LoaderConfig] = LoaderConfig
    refuse: Callable[[VisionConfig], None] = lambda config: None
    check: Callable[[], None] = lambda: None
    prepared: Callable[[Any, int], int] = lambda options, workers: 1
    in_shared_memory: Callable[[Any, int], int] = lambda options, workers: 0

    def load(self, source: "LoaderInput") -> "Input":
        return resolve_name(self.made_by)(source)


def refuse_tensors(config: VisionConfig) -> None:
    if isinstance(config.dataset, ImagesConfig) and config.dataset.cache is CacheMode.process:
        raise Refusal(
            "loader.tensors",
            f"loader={config.loader.name}: does not work with dataset.cache=process, which makes"
            " tensors for DataLoader; use `loader=torch`, `dataset.cache=mmap`, or"
            " `dataset.cache=none` (dali: files, as in the papers)",
            key="loader",
            loader=config.loader.name,
        )


def refuse_for_device(config: VisionConfig) -> None:
    refuse_tensors(config)
    if isinstance(config.dataset, ImagesConfig) and config.dataset.cache is CacheMode.none:
        raise Refusal(
            "loader.undecoded",
            "loader=device: moves decoded images, but dataset.cache=none keeps none; use"
            " `dataset.cache=mmap` or `loader=batched`",
            key="loader",
        )


def check_dali() -> None:
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        raise Refusal(
            "loader.no-dali",
            f"loader=dali: NVIDIA DALI is not installed; run `{install('dali')}`, or use"
            " `loader=device`",
            key="loader",
        )


def workers_ahead(options: WorkersConfig, workers: int) -> int:
    return workers * options.prefetch_factor


HERE = "multicard.vision.data"
LOADERS = {
    "torch": Loader(
        f"{HERE}.host_loader:FromHost",
        WorkersConfig,
        prepared=workers_ahead,
        in_shared_memory=workers_ahead,
    ),
    "batched": Loader(
        f"{HERE}.batched_loader:Batched",
        BatchedConfig,
        refuse_tensors,
        prepared=lambda options, workers: options.ahead + 1 if workers else 0,
    ),
    "device": Loader(f"{HERE}.device_loader:Resident", refuse=refuse_for_device),
    "dali": Loader(
        f"{HERE}.dali_loader:Dali",
        DaliConfig,
        refuse_tensors,
        check=check_dali,
        prepared=lambda options, _: options.prefetch_queue_depth,
    ),
}
