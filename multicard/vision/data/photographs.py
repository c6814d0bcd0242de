"""`dataset=images`: read photographs, split them, and decode them as `dataset.cache` says.

The photographs come from any of the sources in `sample_sources`.
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
from multicard.records.schema_data import Ignored, RepeatedImages
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
from multicard.vision.data.data_parts import (
    OR_USE_A_TABLE,
    DataPart,
    PartSamples,
    train_and_tests,
    train_on_overrides,
)
from multicard.vision.data.splits import DataSplits, Split, held_out
from multicard.vision.data.stored_images import files_of

NAMED_CLASSES = 1000  # A record names at most this many classes.
FIFTH = 0.2  # The share to test on that remedies suggest (`train_on_overrides`).
_say_once = cache(say)  # The cells of a sweep share their data, so notices would repeat.


def read_photographs(config: ImagesConfig, seed: int) -> DataSplits:
    """Read the images, still encoded, of a part to train on and a part to test on.

    If there is only one part, `dataset.split` holds a share of it out for testing.

    Raises:
        Refusal: No classifier can be trained and tested on the data.
    """
    root = Path(str(config.root)).expanduser()
    place = f"dataset.root={root}"
    try:
        source = sample_sources.find_parts(root, config.parts, config.columns)
        train_part, tests = train_and_tests(source, place)
        unlabelled = list[DataPart]()
        while tests and not tests[0].has_labels:
            unlabelled.append(tests.pop(0))
        chosen_parts = [train_part, *tests[:1]]
        by_folders = config.columns.get("label", "") is None
        if root.is_dir() and config.parts is None and not source.tables and not by_folders:
            test_part = tests[0] if tests else None
            tables = label_tables.require_folders_are_classes(
                root, train_part.read(), test_part, partial(part_tables.reading_overrides, root)
            )
            source = replace(source, notices=tuple(part_tables.unread_table_notices(root, tables)))
        _require_a_test(
            chosen_parts, config, root, [*(part.name for part in unlabelled), *source.unlabelled]
        )
        samples = [part.read() for part in chosen_parts]
    except OSError as error:
        raise Refusal(
            "photographs.unreadable",
            f"{error.filename}: cannot be read ({error.strerror}); correct its permissions, or"
            " remove it",
            key="dataset.root",
            path=str(error.filename),
            why=error.strerror,
        ) from None
    names = samples[0].classes
    _require_classes(samples, chosen_parts, place)
    class_numbers = {name: number for number, name in enumerate(names)}
    facts: dict[str, Any] = {"classes": names[:NAMED_CLASSES]}  # In the order of their numbers.
    counts = sum((part.ignored for part in samples), source.ignored)
    for part in unlabelled:
        counts[f"images of {part.name}, which has no labels"] += len(part.read().images)
    pages = sum(pixel_values.further_pages(part.images) for part in samples)
    counts[pixel_values.PAGES] += pages
    notices = [*dict.fromkeys([*source.notices, *samples[0].notices])]
    ignored = [Ignored(what, number) for what, number in counts.most_common() if number]
    train, *rest = (
        Split(part.images, np.array([class_numbers[label] for label in part.labels]))
        for part in samples
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
    for name, number in class_numbers.items():
        members = is_test[train.labels == number]
        if 0 < members.sum() < len(members):
            continue
        missing_part = "train" if members.any() else "test"
        raise Refusal(
            "photographs.split-leaves-none",
            f"dataset.split={config.split}: leaves {name}, with {count(len(members), 'image')},"
            f" without one to {missing_part} on; choose another share, or add images of this class",
            key="dataset.split",
            name=name,
            images=len(members),
            lacking=missing_part,
        )
    part_name = train_part.name.lower()
    facts["parts"] = {"train": part_name, "test": f"{config.split:g} of {part_name}", "unused": []}
    test_indices = np.flatnonzero(is_test)
    train_indices = np.flatnonzero(~is_test)
    train_part_samples = train.part(train_indices)
    return DataSplits(
        train_part_samples, train.part(test_indices), len(names), facts, ignored, names, notices
    )


def _require_a_test(
    chosen_parts: list[DataPart], config: ImagesConfig, root: Path, unlabelled: list[str]
) -> None:
    """Refuse data without a part to test on, and `dataset.split` for data that have one.

    Args:
        taken: The part to train on, and the part to test on if there is one.
        unlabelled: Names of parts to test on whose images have no class.
    """
    train, *tests = chosen_parts
    if tests and config.split is not None:
        raise Refusal(
            "photographs.split-already",
            f"dataset.split={config.split}: {config.root} already has {tests[0].name} to test on;"
            " use `dataset.split=null`",
            key="dataset.split",
            parts=[tests[0].name.lower()],
        )
    if tests or config.split is not None:
        return
    _require_two_classes(train.read(), f"dataset.root={root}")
    # The names show whether folders were wrongly taken for classes.
    classes = train.read().classes[:10]
    above = None
    if train.kind is None:
        above = (
            class_folders.parts_above(root)
            if root.is_dir()
            else part_tables.folder_of_part_table(root)
        )
    if above is not None:
        raise Refusal(
            "photographs.part-alone",
            f"dataset.root={root}: is one part of the data in {above}, which has others to test"
            f" on; use `{override('dataset.root', above)}`, or `dataset.split=0.2` to test on a"
            " fifth of each class of this part",
            key="dataset.root",
            classes=classes,
            above=str(above),
        )
    labelled = None
    if unlabelled and root.is_dir():
        labelled = part_tables.overrides_to_label_tests(root, train.read())
    if labelled is not None:
        raise Refusal(
            "photographs.test-in-table",
            f"dataset.root={root}: {' and '.join(unlabelled)} has no folders of classes, but"
            f" tables here give the classes of all parts; use `{labelled}`",
            key="dataset.root",
            parts=unlabelled,
            remedy=labelled,
        )
    if unlabelled:
        remedy = "dataset.split=0.2"
        raise Refusal(
            "photographs.test-unlabelled",
            f"dataset.root={root}: the images of {' and '.join(unlabelled)} have no labels, so"
            f" accuracy cannot be measured on them. Use `{remedy}` to test on a fifth of each class"
            f" of {train.name}",
            key="dataset.root",
            parts=unlabelled,
            remedy=remedy,
        )
    raise Refusal(
        "photographs.nothing-to-test-on",
        f"dataset.root={root}: has classes ({', '.join(classes)}), but no images to test on; use "
        "`dataset.split=0.2` to test on a fifth of each class, or add a folder val with images of"
        " each class",
        key="dataset.root",
        classes=classes,
    )


def _require_classes(samples: list[PartSamples], chosen_parts: list[DataPart], place: str) -> None:
    """Refuse parts whose classes differ, and data with a single class."""
    names = samples[0].classes
    differing_classes = sorted({*names} ^ {*samples[-1].classes})[:20]
    if differing_classes:
        parts = [part.name for part in chosen_parts]
        groups = class_names.group_similar_names(differing_classes)
        similar_names = groups[0] if groups else []
        hint = ""
        if similar_names:
            # An accent may be written in two ways that look the same, so it is shown as a code.
            shown_names = " and ".join(map(ascii, similar_names))
            hint = f" ({shown_names} may be one class: give them one name)"
        raise Refusal(
            "photographs.other-classes",
            f"{place}: {' and '.join(parts)} need the same classes, but only one of them has"
            f" {', '.join(differing_classes)}{hint}; {_one_part_alone(samples, parts)}",
            key="dataset.root",
            parts=[name.lower() for name in parts],
            classes=differing_classes,
            alike=similar_names,
        )
    _require_two_classes(samples[0], place)


def _require_two_classes(samples: PartSamples, place: str) -> None:
    if len(samples.classes) != 1:
        return
    (name,) = samples.classes
    found = f"has only one class, {name}; add images of a second class"
    image = samples.images[0]
    if isinstance(image, Path) and name in (folder.name for folder in image.parents):
        found = (
            f"has all images in one folder, {name}, and a folder is a class; put the images of"
            f" each class into a folder of that class, {OR_USE_A_TABLE}"
        )
    raise Refusal(
        "photographs.one-class",
        f"{place}: {found}",
        key="dataset.root",
        classes=samples.classes,
    )


def _one_part_alone(samples: list[PartSamples], parts: list[str]) -> str:
    """Return a remedy for parts whose classes differ.

    It suggests to use the first part that suffices alone, or else to add images.
    """
    for part, name in zip(samples, parts, strict=True):
        few = any(round(FIFTH * images) == 0 for images in Counter(part.labels).values())
        if len(part.classes) > 1 and not few:
            return (
                f"`{train_on_overrides(name, None)}` trains on four fifths of {name} alone and"
                " tests on the others"
            )
    return "add images of the classes that are missing"


def finish(data: DataSplits, config: ImagesConfig) -> DataSplits:
    """Decode the photographs now, unless they are to be decoded at each access."""
    if config.cache is CacheMode.process:
        return in_process(data, config)
    if config.cache is CacheMode.mmap:
        return decoded_cache.decode_into_cache(data, config)
    for file in files_of([*data.train.images, *data.test.images]):
        file.load()  # Workers are forked later and share the loaded file.
    return data


def in_process(data: DataSplits, config: ImagesConfig) -> DataSplits:
    """Decode the photographs into float32 tensors in the memory of each process.

    A batch then only has to be normalised, as in scenario B of arXiv 2505.22905
    (`dataset.cache=process`).

    Raises:
        Refusal: A photograph is broken.
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
    """Decode images as an array (N, S, S, 3) with values from 0 to 1.

    In memory, channels come first (N, 3, S, S), like in torchvision's ToTensor. As many threads
    decode as torch computes with.
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
            pass  # Iterating re-raises the exception of a thread.
    return Split(tensors.transpose(0, 2, 3, 1), split.labels)


def require_room(config: ImagesConfig, processes: int) -> None:
    """Refuse `dataset.cache=process` if the copies of all processes exceed the machine's memory."""
    if config.cache is not CacheMode.process:
        return
    data = read_photographs(config, seed=0)
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


def check_photographs(config: ImagesConfig) -> None:
    """Check that both parts hold the same classes, and that decoded photographs can be stored.

    Print the notices about the data.
    """
    data = read_photographs(config, seed=0)
    parts = data.facts["parts"]
    for notice in (*data.notices, *photograph_notices.notices_of_data(data, config)):
        _say_once(notice)
    if parts["unused"]:
        note = Message(
            "photographs.tests-on",
            f"dataset.root={config.root}: tests on {parts['test']} and not on"
            f" {' and '.join(parts['unused'])}",
            key="dataset.root",
            part=parts["test"],
            unused=parts["unused"],
        )
        _say_once(note)
    if config.cache is CacheMode.mmap:
        decoded_cache.check_cache_writable(config)


def count_repeated(data: DataSplits, config: ImagesConfig) -> RepeatedImages | None:
    """Count the images that occur more than once in these parts, and print a notice about them."""
    counts = repeated_images.count_repeated(data.train, data.test)
    if counts is None or not (counts.in_both or counts.two_labels):
        return counts
    findings = []
    if counts.in_both:
        findings.append(f"{counts.in_both:,} of {counts.tested:,} test images are also trained on")
    if counts.two_labels:
        findings.append(f"{count(counts.two_labels, 'sample')} show images that have two labels")
    coverage = (
        ""
        if counts.compared == counts.images
        else f" (found in {counts.compared:,} of {counts.images:,} images)"
    )
    note = Message(
        "photographs.repeated",
        f"dataset.root={config.root}: {', '.join(findings)}, as their files or bytes"
        f" show{coverage}",
        key="dataset.root",
        root=str(config.root),
        in_both=counts.in_both,
        two_labels=counts.two_labels,
        tested=counts.tested,
        compared=counts.compared,
        images=counts.images,
    )
    _say_once(note)
    return counts
