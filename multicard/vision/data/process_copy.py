"""`dataset.cache=process`: photographs as float32 tensors in the memory of each process, a copy each (scenario B of
2505.22905). All that is left to do for a batch is to normalise it. `input` in the record says how long reading took."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from multicard.config.job import count
from multicard.config.keys import require
from multicard.config.vision import ImagesConfig
from multicard.measure import memory, timing
from multicard.records.text_table import in_bytes
from multicard.vision.data import decoding
from multicard.vision.data.splits import Data, Split


def in_process(data: Data, config: ImagesConfig) -> Data:
    """The same data set with its images decoded into this process's memory.

    Raises:
        ValueError: naming a broken image.
    """
    started_s = timing.clock_s()
    train, test = (_decoded(split, config.image_size) for split in (data.train, data.test))
    facts = {
        "cache": config.cache.value,
        "read_s": timing.clock_s() - started_s,
        "process_bytes": sum(split.images.nbytes for split in (train, test) if isinstance(split.images, np.ndarray)),
    }
    return Data(train, test, data.classes, facts)


def _decoded(split: Split, size: int) -> Split:
    """Images (N, S, S, 3) with values in 0..1, in memory by channels (N, 3, S, S), as torchvision's ToTensor has them.

    They are read by as many threads as torch computes with here.
    """
    import torch

    assert isinstance(split.images, list)
    tensors = np.empty((len(split), 3, size, size), np.float32)
    paths = split.images

    def read(index: int) -> None:
        image = decoding.decode(paths[index], size)
        np.multiply(image.transpose(2, 0, 1), np.float32(1 / 255), out=tensors[index], dtype=np.float32)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(read, range(len(paths))):
            pass  # raises what a thread raised
    return Split(tensors.transpose(0, 2, 3, 1), split.labels)


def require_room(config: ImagesConfig, images: int, processes: int) -> None:
    """Refuse copies that do not fit into this machine's memory.

    Args:
        images: of training and test.
        processes: on this machine, each with a copy.

    Raises:
        ValueError: with the bytes that they need and that there are.
    """
    needed_bytes = processes * images * 3 * config.image_size**2 * 4
    available_bytes = memory.available_memory_bytes()
    copies = f"{count(processes, 'rank')}, each with {images:,} images of {config.image_size} px as float32"
    problem = f"{copies}, need {in_bytes(needed_bytes)} of memory, of which {in_bytes(available_bytes)} are available"
    remedy = "use fewer gpus, a smaller dataset.image_size or dataset.train_limit, or dataset.cache=mmap"
    require(needed_bytes <= available_bytes, f"dataset.cache=process: {problem}; {remedy}")
