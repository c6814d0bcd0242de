"""`dataset=images`: photographs of any of `sample_sources`, split, and decoded as `dataset.cache` says."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from multicard.config.job import count
from multicard.config.vision import CacheMode, ImagesConfig
from multicard.measure import memory, timing
from multicard.messages import Message, Refusal, say
from multicard.records.text_table import in_bytes
from multicard.vision.data import decoded_cache, decoding, sample_sources
from multicard.vision.data.sample_sources import FORMS, TESTS, TRAIN, WHOLE, Parts, files_of
from multicard.vision.data.splits import Data, Split, held_out

NAMED_CLASSES = 1000  # at most, in a record
_say_once = cache(say)  # the cells of a sweep have the same data


def read(config: ImagesConfig, seed: int) -> Data:
    """The images, still encoded, of the parts that are there; of one part alone `dataset.split` is held out.
    What no classifier can be trained and tested on is refused.
    """
    root = Path(str(config.root)).expanduser()
    try:
        parts = sample_sources.find(root)
        taken = _taken(parts, config, root)
        samples = [parts[name]() for name in taken]
    except OSError as error:
        raise Refusal(
            "photographs.unreadable",
            f"{error.filename}: cannot be read ({error.strerror}); see that you may read it, or remove it",
            key="dataset.root",
            path=str(error.filename),
            why=error.strerror,
        ) from None
    names = samples[0].classes
    differ = sorted({*names} ^ {*samples[-1].classes})[:20]
    if differ:
        raise Refusal(
            "photographs.other-classes",
            f"dataset.root={root}: only in one of {' and '.join(taken)}: {', '.join(differ)}; both need the same "
            "classes",
            key="dataset.root",
            parts=taken,
            classes=differ,
        )
    if len(names) == 1:
        raise Refusal(
            "photographs.one-class",
            f"dataset.root={root}: has one class alone, {names[0]}; add images of a second class",
            key="dataset.root",
            classes=names,
        )
    numbers = {name: number for number, name in enumerate(names)}
    facts: dict[str, Any] = {"classes": names[:NAMED_CLASSES]}  # in the order of their numbers
    train, *rest = (Split(part.images, np.array([numbers[label] for label in part.labels])) for part in samples)
    if rest:
        test, unused = rest[0], [name for name in TESTS[TESTS.index(taken[1]) + 1 :] if name in parts]
        facts["parts"] = {"train": taken[0], "test": taken[1], "unused": unused}
        return Data(train, test, len(names), facts)
    assert config.split is not None
    is_test = held_out(train.labels, config.split, seed)
    for name, number in numbers.items():
        members = is_test[train.labels == number]
        if 0 < members.sum() < len(members):
            continue
        lacking = "train" if members.any() else "test"
        raise Refusal(
            "photographs.split-leaves-none",
            f"dataset.split={config.split}: leaves {name}, of {count(len(members), 'image')}, without one to {lacking} "
            "on; choose another share, or add images of it",
            key="dataset.split",
            name=name,
            images=len(members),
            lacking=lacking,
        )
    facts["parts"] = {"train": taken[0], "test": f"{config.split:g} of {taken[0]}", "unused": []}
    return Data(train.part(np.flatnonzero(~is_test)), train.part(np.flatnonzero(is_test)), len(names), facts)


def _taken(parts: Parts, config: ImagesConfig, root: Path) -> list[str]:
    """The part to train on and, unless it is to be split, the one to test on."""
    train, tests = WHOLE if WHOLE in parts else TRAIN, [name for name in TESTS if name in parts]
    if train not in parts:
        raise Refusal("photographs.no-train", f"dataset.root={root}: no {TRAIN} in it; {FORMS}", key="dataset.root")
    if not tests and config.split is None:
        classes = parts[train]().classes[:10]  # shows where folders of other names were taken for classes
        raise Refusal(
            "photographs.nothing-to-test-on",
            f"dataset.root={root}: has classes ({', '.join(classes)}), but no images to test on; use "
            "`dataset.split=0.2` to test on a fifth of each class, or add val with images of each",
            key="dataset.root",
            classes=classes,
        )
    if tests and config.split is not None:
        raise Refusal(
            "photographs.split-already",
            f"dataset.split={config.split}: {config.root} has {' and '.join(tests)} to test on; leave dataset.split "
            "out",
            key="dataset.split",
            parts=tests,
        )
    return [train, *tests[:1]]


def finish(data: Data, config: ImagesConfig) -> Data:
    """The same photographs decoded, unless they are to be decoded each time."""
    if config.cache is CacheMode.process:
        return in_process(data, config)
    if config.cache is CacheMode.mmap:
        return decoded_cache.cached(data, config)
    for file in files_of([*data.train.images, *data.test.images]):
        file.load()  # before workers are forked, which share it
    return data


def in_process(data: Data, config: ImagesConfig) -> Data:
    """`dataset.cache=process`: photographs as float32 tensors in the memory of each process (scenario B of 2505.22905),
    so that a batch has only to be normalised. A broken one is refused."""
    started_s = timing.clock_s()
    train, test = (_as_tensors(split, config.image_size) for split in (data.train, data.test))
    facts = {
        "cache": str(config.cache),
        "read_s": timing.clock_s() - started_s,
        "process_bytes": sum(split.images.nbytes for split in (train, test) if isinstance(split.images, np.ndarray)),
    }
    return replace(data, train=train, test=test, facts=data.facts | facts)


def _as_tensors(split: Split, size: int) -> Split:
    """Images (N, S, S, 3) with values in 0..1, in memory by channels (N, 3, S, S), as torchvision's ToTensor has them,
    read by as many threads as torch computes with."""
    import torch

    paths = split.images
    tensors = np.empty((len(split), 3, size, size), np.float32)

    def read_image(index: int) -> None:
        image = decoding.decode(paths[index], size)
        np.multiply(image.transpose(2, 0, 1), np.float32(1 / 255), out=tensors[index], dtype=np.float32)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(read_image, range(len(paths))):
            pass  # raises what a thread raised
    return Split(tensors.transpose(0, 2, 3, 1), split.labels)


def require_room(config: ImagesConfig, processes: int) -> None:
    """Refuse a copy of the decoded photographs in each process where they do not fit into this machine's memory."""
    if config.cache is not CacheMode.process:
        return
    data = read(config, seed=0)
    limited = (data.train, config.train_limit), (data.test, config.test_limit)
    images = sum(min(len(split), limit or len(split)) for split, limit in limited)
    needed_bytes = processes * images * 3 * config.image_size**2 * 4
    available_bytes = memory.available_memory_bytes()
    if needed_bytes > available_bytes:
        raise Refusal(
            "photographs.no-room",
            f"dataset.cache=process: {count(processes, 'rank')}, each with {images:,} images of {config.image_size} px "
            f"as float32, need {in_bytes(needed_bytes)} of memory, and {in_bytes(available_bytes)} are available; use "
            "fewer gpus, a smaller dataset.image_size or dataset.train_limit, or `dataset.cache=mmap`",
            key="dataset.cache",
            ranks=processes,
            images=images,
            image_size=config.image_size,
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
        )


def check(config: ImagesConfig) -> None:
    """See that both parts hold the same classes, each with an image, and that decoded ones can be stored."""
    parts = read(config, seed=0).facts["parts"]
    if parts["unused"]:
        note = Message(
            "photographs.tests-on",
            f"dataset.root={config.root}: tests on {parts['test']}, not on {' and '.join(parts['unused'])}",
            key="dataset.root",
            part=parts["test"],
            unused=parts["unused"],
        )
        _say_once(note)
    if config.cache is CacheMode.mmap:
        decoded_cache.check(config)
