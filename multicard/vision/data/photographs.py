"""`dataset=images`: photographs of any of `sample_sources`, split,
and decoded as `dataset.cache` says.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from multicard.config.job import count
from multicard.config.pasting import override
from multicard.config.vision_data import CacheMode, ImagesConfig
from multicard.measure import memory, timing
from multicard.messages import Message, Refusal, say
from multicard.records.schema_parts import Ignored, RepeatedImages
from multicard.records.text_table import in_bytes
from multicard.vision.data import (
    class_folders,
    class_names,
    decoded_cache,
    decoding,
    label_tables,
    part_tables,
    photograph_notices,
    pixel_values,
    repeated_images,
    sample_sources,
)
from multicard.vision.data.data_parts import DataPart, PartSamples, train_and_tests, train_on
from multicard.vision.data.splits import DataSplits, Split, held_out
from multicard.vision.data.stored_images import files_of

NAMED_CLASSES = 1000  # at most, in a record
FIFTH = 0.2  # the share to test on that remedies offer (`train_on`)
_say_once = cache(say)  # the cells of a sweep have the same data


def read(config: ImagesConfig, seed: int) -> DataSplits:
    """The images, still encoded, of the parts that are there; of one part alone `dataset.split` is
    held out. What no classifier can be trained and tested on is refused.
    """
    root = Path(str(config.root)).expanduser()
    place = f"dataset.root={root}"
    try:
        source = sample_sources.find(root, config.parts, config.columns)
        train_part, tests = train_and_tests(source, place)
        unlabelled = list[DataPart]()
        while tests and not tests[0].has_labels:
            unlabelled.append(tests.pop(0))
        taken = [train_part, *tests[:1]]
        by_folders = config.columns.get("label", "") is None
        if root.is_dir() and config.parts is None and not source.tables and not by_folders:
            test_part = tests[0] if tests else None
            tables = label_tables.require_folders_are_classes(
                root, train_part.read(), test_part, partial(part_tables.reading, root)
            )
            source = replace(source, notices=tuple(part_tables.tables_not_read(root, tables)))
        _require_a_test(
            taken, config, root, [*(part.name for part in unlabelled), *source.unlabelled]
        )
        samples = [part.read() for part in taken]
    except OSError as error:
        raise Refusal(
            "photographs.unreadable",
            f"{error.filename}: cannot be read ({error.strerror}); see that you may read it, or"
            " remove it",
            key="dataset.root",
            path=str(error.filename),
            why=error.strerror,
        ) from None
    names = samples[0].classes
    _require_classes(samples, taken, place)
    numbers = {name: number for number, name in enumerate(names)}
    facts: dict[str, Any] = {"classes": names[:NAMED_CLASSES]}  # in the order of their numbers
    counts = sum((part.ignored for part in samples), source.ignored)
    for part in unlabelled:
        counts[f"images of {part.name}, which has no labels"] += len(part.read().images)
    pages = sum(pixel_values.further_pages(part.images) for part in samples)
    counts[pixel_values.PAGES] += pages
    notices = [*dict.fromkeys([*source.notices, *samples[0].notices])]
    ignored = [Ignored(what, number) for what, number in counts.most_common() if number]
    train, *rest = (
        Split(part.images, np.array([numbers[label] for label in part.labels])) for part in samples
    )
    if rest:
        unused = [part.name.lower() for part in tests[1:]]
        facts["parts"] = {
            "train": train_part.name.lower(),
            "test": tests[0].name.lower(),
            "unused": unused,
        }
        return DataSplits(train, rest[0], len(names), facts, ignored, names, notices)
    assert config.split is not None
    is_test = held_out(train.labels, config.split, seed)
    for name, number in numbers.items():
        members = is_test[train.labels == number]
        if 0 < members.sum() < len(members):
            continue
        lacking = "train" if members.any() else "test"
        raise Refusal(
            "photographs.split-leaves-none",
            f"dataset.split={config.split}: leaves {name}, of {count(len(members), 'image')},"
            f" without one to {lacking} on; choose another share, or add images of it",
            key="dataset.split",
            name=name,
            images=len(members),
            lacking=lacking,
        )
    whole = train_part.name.lower()
    facts["parts"] = {"train": whole, "test": f"{config.split:g} of {whole}", "unused": []}
    held = np.flatnonzero(is_test)
    kept = np.flatnonzero(~is_test)
    kept_part = train.part(kept)
    return DataSplits(kept_part, train.part(held), len(names), facts, ignored, names, notices)


def _require_a_test(
    taken: list[DataPart], config: ImagesConfig, root: Path, unlabelled: list[str]
) -> None:
    """Refuse data without a part to test on, and a share of data that have one.

    Args:
        unlabelled: parts to test on whose images have no class.
    """
    train, *tests = taken
    if tests and config.split is not None:
        raise Refusal(
            "photographs.split-already",
            f"dataset.split={config.split}: {config.root} has {tests[0].name} to test on; use"
            " `dataset.split=null`",
            key="dataset.split",
            parts=[tests[0].name.lower()],
        )
    if tests or config.split is not None:
        return
    _require_two_classes(train.read().classes, f"dataset.root={root}")
    classes = train.read().classes[:10]  # shows where folders of other names were taken for classes
    above = None
    if train.kind is None:
        above = class_folders.parts_above(root) if root.is_dir() else part_tables.folder_of(root)
    if above is not None:
        raise Refusal(
            "photographs.part-alone",
            f"dataset.root={root}: is a part of the data in {above}, which has others to test on;"
            f" use `{override('dataset.root', above)}`, or `dataset.split=0.2` to test on a fifth"
            " of each class of this one",
            key="dataset.root",
            classes=classes,
            above=str(above),
        )
    if unlabelled:
        remedy = "dataset.split=0.2"
        raise Refusal(
            "photographs.test-unlabelled",
            f"dataset.root={root}: the images of {' and '.join(unlabelled)} have no labels, so that"
            f" nothing can be measured on them. Use `{remedy}` to test on a fifth of each class of"
            f" {train.name}",
            key="dataset.root",
            parts=unlabelled,
            remedy=remedy,
        )
    raise Refusal(
        "photographs.nothing-to-test-on",
        f"dataset.root={root}: has classes ({', '.join(classes)}), but no images to test on; use "
        "`dataset.split=0.2` to test on a fifth of each class, or add val with images of each",
        key="dataset.root",
        classes=classes,
    )


def _require_classes(samples: list[PartSamples], taken: list[DataPart], place: str) -> None:
    """Refuse parts of other classes, and a single class."""
    names = samples[0].classes
    differ = sorted({*names} ^ {*samples[-1].classes})[:20]
    if differ:
        parts = [part.name for part in taken]
        same = next(iter(class_names.alike(differ)), [])
        hint = (
            f", and {' and '.join(map(ascii, same))} may be one: give them one name" if same else ""
        )
        raise Refusal(
            "photographs.other-classes",
            f"{place}: only in one of {' and '.join(parts)}: {', '.join(differ)}; both need the"
            f" same classes{hint}; {_one_part_alone(samples, parts)}",
            key="dataset.root",
            parts=[name.lower() for name in parts],
            classes=differ,
            alike=same,
        )
    _require_two_classes(names, place)


def _require_two_classes(names: list[str], place: str) -> None:
    if len(names) == 1:
        raise Refusal(
            "photographs.one-class",
            f"{place}: has one class alone, {names[0]}; add images of a second class",
            key="dataset.root",
            classes=names,
        )


def _one_part_alone(samples: list[PartSamples], parts: list[str]) -> str:
    """What to do where parts differ: use the first that has several classes alone,
    or add one where none has.
    """
    for part, name in zip(samples, parts, strict=True):
        few = any(round(FIFTH * images) == 0 for images in Counter(part.labels).values())
        if len(part.classes) > 1 and not few:
            return (
                f"`{train_on(name, None)}` trains on four fifths of {name} alone and tests on the"
                " others"
            )
    return "add images of the classes that are missing"


def finish(data: DataSplits, config: ImagesConfig) -> DataSplits:
    """The same photographs decoded, unless they are to be decoded each time."""
    if config.cache is CacheMode.process:
        return in_process(data, config)
    if config.cache is CacheMode.mmap:
        return decoded_cache.cached(data, config)
    for file in files_of([*data.train.images, *data.test.images]):
        file.load()  # before workers are forked, which share it
    return data


def in_process(data: DataSplits, config: ImagesConfig) -> DataSplits:
    """`dataset.cache=process`: photographs as float32 tensors in the memory of each process
    (scenario B of 2505.22905), so that a batch has only to be normalised.
    A broken one is refused.
    """
    started_s = timing.clock_s()
    train, test = (_as_tensors(split, config.image_size) for split in (data.train, data.test))
    facts = {
        "cache": str(config.cache),
        "read_s": timing.clock_s() - started_s,
        "process_bytes": sum(
            split.images.nbytes for split in (train, test) if isinstance(split.images, np.ndarray)
        ),
    }
    return replace(data, train=train, test=test, facts=data.facts | facts)


def _as_tensors(split: Split, size: int) -> Split:
    """Images (N, S, S, 3) with values in 0..1, in memory by channels (N, 3, S, S), as torchvision's
    ToTensor has them, read by as many threads as torch computes with.
    """
    import torch

    paths = split.images
    tensors = np.empty((len(split), 3, size, size), np.float32)

    def read_image(index: int) -> None:
        image = decoding.decode(paths[index], size)
        np.multiply(
            image.transpose(2, 0, 1), np.float32(1 / 255), out=tensors[index], dtype=np.float32
        )

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(read_image, range(len(paths))):
            pass  # raises what a thread raised
    return Split(tensors.transpose(0, 2, 3, 1), split.labels)


def require_room(config: ImagesConfig, processes: int) -> None:
    """Refuse a copy of the decoded photographs in each process
    where they do not fit into this machine's memory.
    """
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
            f"dataset.cache=process: {count(processes, 'rank')}, each with {images:,} images of"
            f" {config.image_size} px as float32, need {in_bytes(needed_bytes)} of memory, and"
            f" {in_bytes(available_bytes)} are available; use fewer gpus, a smaller"
            " dataset.image_size or dataset.train_limit, or `dataset.cache=mmap`",
            key="dataset.cache",
            ranks=processes,
            images=images,
            image_size=config.image_size,
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
        )


def check(config: ImagesConfig) -> None:
    """See that both parts hold the same classes, each with an image,
    and that decoded ones can be stored.
    """
    data = read(config, seed=0)
    parts = data.facts["parts"]
    for notice in (*data.notices, *photograph_notices.of_data(data, config)):
        _say_once(notice)
    if parts["unused"]:
        note = Message(
            "photographs.tests-on",
            f"dataset.root={config.root}: tests on {parts['test']}, not on"
            f" {' and '.join(parts['unused'])}",
            key="dataset.root",
            part=parts["test"],
            unused=parts["unused"],
        )
        _say_once(note)
    if config.cache is CacheMode.mmap:
        decoded_cache.check(config)


def repeated(data: DataSplits, config: ImagesConfig) -> RepeatedImages | None:
    """Images of these parts that are the same ones, counted and said."""
    found = repeated_images.repeated(data.train, data.test)
    if found is None or not (found.in_both or found.two_labels):
        return found
    said = []
    if found.in_both:
        said.append(f"{found.in_both:,} of {found.tested:,} test images are trained on too")
    if found.two_labels:
        said.append(f"{count(found.two_labels, 'sample')} of images with two labels")
    part = (
        ""
        if found.compared == found.images
        else f" (found in {found.compared:,} of {found.images:,} images)"
    )
    note = Message(
        "photographs.repeated",
        f"dataset.root={config.root}: {', '.join(said)}, by their files or bytes{part}",
        key="dataset.root",
        root=str(config.root),
        in_both=found.in_both,
        two_labels=found.two_labels,
        tested=found.tested,
        compared=found.compared,
        images=found.images,
    )
    _say_once(note)
    return found
