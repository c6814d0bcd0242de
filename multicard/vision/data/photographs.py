"""`dataset=images`: a folder of photographs, train/<class>/* and validation/<class>/*.

What cannot be used is refused with ValueError, which names the key, or the file, and the remedy.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from multicard.config.job import count
from multicard.config.keys import require
from multicard.config.vision import CacheMode, ImagesConfig
from multicard.measure import memory, timing
from multicard.records.text_table import in_bytes
from multicard.vision.data import decoded_cache, decoding
from multicard.vision.data.splits import Data, Split

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


def read(config: ImagesConfig) -> Data:
    """The paths of all photographs, classes and files in the order of their names, as torchvision's ImageFolder has
    them, but for hidden ones."""
    root = Path(str(config.root)).expanduser()
    parts = []
    for part in ("train", "validation"):
        images = [images_in(folder) for folder in class_folders(root / part)]
        labels = np.repeat(np.arange(len(images)), [len(paths) for paths in images])
        parts.append(Split([path for paths in images for path in paths], labels.astype(np.int64)))
    return Data(*parts, classes=len(images))


def finish(data: Data, config: ImagesConfig) -> Data:
    """The same photographs decoded, unless they are to be decoded each time."""
    if config.cache is CacheMode.process:
        return in_process(data, config)
    return data if config.cache is CacheMode.none else decoded_cache.cached(data, config)


def in_process(data: Data, config: ImagesConfig) -> Data:
    """`dataset.cache=process`: photographs as float32 tensors in the memory of each process (scenario B of 2505.22905),
    so that a batch has only to be normalised. A broken one is refused."""
    started_s = timing.clock_s()
    train, test = (_as_tensors(split, config.image_size) for split in (data.train, data.test))
    facts = {
        "cache": config.cache.value,
        "read_s": timing.clock_s() - started_s,
        "process_bytes": sum(split.images.nbytes for split in (train, test) if isinstance(split.images, np.ndarray)),
    }
    return Data(train, test, data.classes, facts)


def _as_tensors(split: Split, size: int) -> Split:
    """Images (N, S, S, 3) with values in 0..1, in memory by channels (N, 3, S, S), as torchvision's ToTensor has them,
    read by as many threads as torch computes with."""
    import torch

    paths = split.images
    tensors = np.empty((len(split), 3, size, size), np.float32)

    def read_image(index: int) -> None:
        image = decoding.decode(Path(paths[index]), size)
        np.multiply(image.transpose(2, 0, 1), np.float32(1 / 255), out=tensors[index], dtype=np.float32)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(read_image, range(len(paths))):
            pass  # raises what a thread raised
    return Split(tensors.transpose(0, 2, 3, 1), split.labels)


def require_room(config: ImagesConfig, processes: int) -> None:
    """Refuse a copy of the decoded photographs in each process where they do not fit into this machine's memory."""
    if config.cache is not CacheMode.process:
        return
    check(config)  # there are folders to look into
    data = read(config)
    limited = (data.train, config.train_limit), (data.test, config.test_limit)
    images = sum(min(len(split), limit or len(split)) for split, limit in limited)
    needed_bytes = processes * images * 3 * config.image_size**2 * 4
    available_bytes = memory.available_memory_bytes()
    copies = f"{count(processes, 'rank')}, each with {images:,} images of {config.image_size} px as float32"
    problem = f"{copies}, need {in_bytes(needed_bytes)} of memory, and {in_bytes(available_bytes)} are available"
    remedy = "use fewer gpus, a smaller dataset.image_size or dataset.train_limit, or dataset.cache=mmap"
    require(needed_bytes <= available_bytes, f"dataset.cache=process: {problem}; {remedy}")


def class_folders(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """All images below `folder` that neither are hidden nor lie in a hidden folder, by folder and name.

    Raises:
        ValueError: a link to a folder that is read already, as in a circle of links.
        OSError: a folder that cannot be read.
    """

    def stop(error: OSError) -> None:
        raise error

    images, seen = [], set()
    for part, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(part)
        require(real not in seen, f"{part}: leads to a folder of {folder} that is read already; remove this link")
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        images += [(part, name) for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    return [Path(*image) for image in sorted(images)]


def check(config: ImagesConfig) -> None:
    """See that both parts hold the same classes, each with an image, and that decoded ones can be stored."""
    root = Path(str(config.root)).expanduser()
    key = f"dataset.root={root}"
    remedy = "it must hold train/<class>/ and validation/<class>/ with the images"
    classes: list[set[str]] = []
    try:
        for part in ("train", "validation"):
            require((root / part).is_dir(), f"{key}: no folder {part}/ in it; {remedy}")
            folders = class_folders(root / part)
            require(bool(folders), f"{key}: no class folders in {part}/; {remedy}")
            empty = next((folder.name for folder in folders if not images_in(folder)), None)
            require(empty is None, f"{key}: no image in {part}/{empty}/; put its images there or remove the folder")
            classes.append({folder.name for folder in folders})
    except OSError as error:
        problem = f"{error.filename}: cannot be read ({error.strerror})"
        raise ValueError(f"{problem}; see that you may read it, or remove it") from None
    differ = sorted(classes[0] ^ classes[1])
    remedy = "both parts need the same class folders"
    require(not differ, f"{key}: only in one of train/ and validation/: {', '.join(differ)}; {remedy}")
    if config.cache is CacheMode.mmap:
        decoded_cache.check(config)
