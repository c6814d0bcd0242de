"""Images in folders of classes: the parts of the data by the names of folders, and all that is not read by its kind.

What only looks like parts is refused with the overrides that read it in one way or the other.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import Kind
from multicard.vision.data.data_parts import FORMS, WHOLE, Part, Samples, Source, order_of_tests, train_on

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jfif", ".avif")
# What systems and programs leave in folders; it counts as hidden, as all whose name begins with a dot does
LEFT_BY_OTHERS = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
LEFT_BY_OTHERS |= {"thumbs.db", "desktop.ini", "icon\r"}
OWN = ".multicard"  # holds decoded images
LONGEST_ENDING = 8  # letters; what is longer is a part of a name
AS_CLASSES = "dataset.parts=[] dataset.split=0.2"  # whatever the folders are called


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in LEFT_BY_OTHERS


def kind_of_file(name: str) -> str:
    """The kind under which a file that is not read is counted: its ending."""
    ending = Path(name).suffix.lower()
    is_ending = 1 < len(ending) <= LONGEST_ENDING and ending[1:].isalnum()
    return ending if is_ending else "files without an ending"


class Look(NamedTuple):
    """What lies directly in a folder: whether an image does, and its folders but for hidden ones."""

    has_images: bool
    folders: list[Path]

    @property
    def names(self) -> set[str]:
        return {folder.name for folder in self.folders}


def look(folder: Path) -> Look:
    """A look into a folder, up to its first image: folders of classes may hold a million."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.name.lower().endswith(SUFFIXES):
                return Look(True, [])
    return Look(False, sorted(folders))


def class_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))


# ---- the parts


def parts_of(root: Path, chosen: Sequence[str] | None = None) -> Source:
    """The parts in a folder, by the names of its folders; one part where these are classes.

    A folder that holds nothing but another one is passed through.

    Args:
        chosen: `dataset.parts`.
    """
    if chosen is not None:
        return _chosen(root, chosen)
    ignored = Counter[str]()
    while (below := _only_folder(root)) is not None and part_names.parsed(below.name) is None:
        ignored += beside(root)
        root = below
    found = _parts(root)
    return Source(found.parts, ignored + found.ignored)


def _only_folder(folder: Path) -> Path | None:
    """The only folder in a folder, where it holds folders and neither holds images itself."""
    inside = look(folder)
    if inside.has_images or len(inside.folders) != 1:
        return None
    below = look(inside.folders[0])
    return inside.folders[0] if below.folders and not below.has_images else None


def _parts(root: Path) -> Source:
    folders = class_folders(root)
    if not folders:
        raise no_classes(root)
    looks = {folder: look(folder) for folder in folders}
    names = part_names.named(folder.name for folder in folders)
    named = {folder: names[folder.name].kind for folder in folders if folder.name in names}
    kinds = {*named.values()}
    if len(named) == len(folders) or (Kind.train in kinds and len(kinds) > 1):
        return _by_name(root, named, looks)
    filled = {folder: inside for folder, inside in looks.items() if inside.has_images or holds_images(folder)}
    split = {folder: kind for folder, kind in named.items() if len(look(unwrapped(folder)).folders) > 1}
    if len(filled) == 1:
        (only,) = filled
        if only in split:
            return _by_name(root, split, looks)
        if len(kinds_within(filled[only])) > 1:  # the data set itself, beside folders of other things
            found = _parts(only)
            others = Counter({f"{each.name}/": count_files(each) for each in folders if each != only})
            return Source(found.parts, found.ignored + others + beside(root))
    _refuse_what_looks_like_parts(root, filled, [*split])
    by_class = _parts_within_classes(root, filled)
    return by_class or Source([Part(WHOLE, None, partial(read_classes, root))])


def unwrapped(folder: Path) -> Path:
    """The folder itself, or the one within that holds more than a single folder: seg_train/seg_train."""
    while (below := _only_folder(folder)) is not None:
        folder = below
    return folder


def _by_name(root: Path, named: dict[Path, Kind], looks: dict[Path, Look]) -> Source:
    """Parts by the names of their folders. One to test on that holds images without classes is not read."""
    with_images = [folder for folder in looks if looks[folder].has_images]
    if any(named.get(folder) is Kind.train for folder in with_images):
        raise _images_in_part(root, with_images)
    read = sorted({*named} - {*with_images}, key=lambda folder: order_of_tests(folder.name))
    ignored = beside(root)
    for folder in looks:
        if folder not in read:
            ignored[f"{folder.name}/"] += count_files(folder)
    return Source([Part(folder.name, named[folder], partial(read_classes, folder)) for folder in read], ignored)


def _images_in_part(root: Path, parts: Sequence[Path]) -> Refusal:
    names = [folder.name for folder in parts]
    both = len(names) > 1
    return Refusal(
        "photographs.part-without-classes",
        f"dataset.root={root}: {' and '.join(names)} {'hold' if both else 'holds'} images themselves, and no folders "
        "of classes; put the images of each class into a folder of it"
        + (f", or use `{AS_CLASSES}` if these are the classes" if both else ""),
        key="dataset.root",
        parts=names,
    )


def _refuse_what_looks_like_parts(root: Path, filled: dict[Path, Look], split: Sequence[Path]) -> None:
    """Refuse folders that may be parts or classes, and folders that hold data sets of their own."""
    inner = {folder: kinds_within(inside) for folder, inside in filled.items() if not inside.has_images}
    sets = [folder for folder, kinds in inner.items() if Kind.train in kinds and len(kinds) > 1]
    if sets and not (len(sets) == len(filled) > 1 and all(look(f).has_images for f in filled[sets[0]].folders)):
        raise Refusal(
            "photographs.sets-inside",
            f"dataset.root={root}: {_listed(sets)} each hold a data set with parts of its own; name one, as "
            f"`{override('dataset.root', sets[0])}`",
            key="dataset.root",
            sets=[folder.name for folder in sets],
        )
    if sets:
        return
    shared = set.intersection(*(inside.names for inside in filled.values())) if len(filled) > 1 else set[str]()
    if len(shared) > 1:
        first, second = _train_first([folder.name for folder in filled])[:2]
        raise Refusal(
            "photographs.like-parts",
            f"dataset.root={root}: {_listed(filled)} look like parts, not classes: each holds the same folders "
            f"({', '.join(sorted(shared)[:5])}). Train on one and test on another, as `{train_on(first, second)}`, "
            f"or use `{AS_CLASSES}` if they are classes",
            key="dataset.root",
            folders=[folder.name for folder in filled],
            shared=sorted(shared),
        )
    if split:
        raise Refusal(
            "photographs.part-beside-classes",
            f"dataset.root={root}: {split[0].name} is called as a part and holds folders of classes, but lies beside "
            f"{_listed(folder for folder in filled if folder not in split)}; use `{train_on(split[0].name, None)}` "
            f"to read it alone, or `{AS_CLASSES}` if all are classes",
            key="dataset.root",
            part=split[0].name,
            folders=[folder.name for folder in filled],
        )


def _train_first(names: Iterable[str]) -> list[str]:
    """The names with that of a part to train on first, and those of parts to test on last."""

    def place(name: str) -> int:
        part = part_names.parsed(name)
        if part is None:
            return 1
        return 0 if part.kind is Kind.train else 2

    return sorted(names, key=place)


def _listed(folders: Iterable[Path]) -> str:
    names = [folder.name for folder in folders]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"


def kinds_within(inside: Look) -> set[Kind]:
    """The kinds of parts that the folders of a folder are called as."""
    return {part.kind for part in part_names.named(inside.names).values()}


def _parts_within_classes(root: Path, filled: dict[Path, Look]) -> Source | None:
    """Parts of data that have them within each class: cat/train, cat/test, dog/train. None of other data."""
    if not filled or not all(len(kinds_within(inside)) > 1 for inside in filled.values()):
        return None
    names = {name.lower() for inside in filled.values() for name in part_names.named(inside.names)}
    parts = []
    for name in sorted(names, key=order_of_tests):
        own = {
            folder.name: within
            for folder, inside in filled.items()
            for within in inside.folders
            if within.name.lower() == name
        }
        part = part_names.parsed(name)
        assert part is not None
        parts.append(Part(name, part.kind, partial(read_folders, root, own, Counter[str]())))
    ignored = beside(root)
    for inside in filled.values():
        ignored += Counter(
            {f"{each.name}/": count_files(each) for each in inside.folders if each.name.lower() not in names}
        )
    return Source(parts, ignored)


def _chosen(root: Path, chosen: Sequence[str]) -> Source:
    """The folders that `dataset.parts` names, as parts; without a name, all folders as classes."""
    if not chosen:
        return Source([Part(WHOLE, None, partial(read_classes, root))])
    by_name = {folder.name.lower(): folder for folder in class_folders(root)}
    folders = [path if (path := root / name).is_dir() else by_name.get(name.lower(), path) for name in chosen]
    absent = [name for name, folder in zip(chosen, folders, strict=True) if not folder.is_dir()]
    if absent:
        names = [folder.name for folder in class_folders(root)]
        raise Refusal(
            "photographs.no-folder-of-part",
            f"dataset.parts=[{','.join(chosen)}]: no folder {absent[0]} in {root}; it has {', '.join(names) or 'none'}",
            key="dataset.parts",
            absent=absent,
            parts=names,
        )
    ignored = beside(root)
    for folder in class_folders(root):
        if not any(folder == each or folder in each.parents for each in folders):
            ignored[f"{folder.name}/"] += count_files(folder)
    parts = zip(chosen, (Kind.train, Kind.test), folders, strict=False)
    return Source([Part(name, kind, partial(read_classes, folder)) for name, kind, folder in parts], ignored)


# ---- the images of a part


def read_classes(folder: Path) -> Samples:
    """Classes and files in the order of their names, as torchvision's ImageFolder has them, but for hidden ones."""
    top, folder = folder, unwrapped(folder)
    classes = class_folders(folder)
    if not classes:
        raise no_classes(folder)
    ignored = sum((beside(each) for each in (folder, *folder.parents) if each.is_relative_to(top)), Counter[str]())
    return read_folders(folder, {each.name: each for each in classes}, ignored)


def read_folders(place: Path, folders: dict[str, Path], ignored: Counter[str]) -> Samples:
    """The images of classes, each below a folder of its own.

    Args:
        place: that refusals name. folders: by class. ignored: what is known not to be read.
    """
    samples = Samples([], [], sorted(folders), Counter(ignored))
    for name in samples.classes:
        images, others = images_in(folders[name])
        if not images:
            found = f", but {in_words(others)}" if others else ""
            raise Refusal(
                "photographs.empty-class",
                f"dataset.root={place}: no image in {name}/{found}; put its images there, or remove the folder",
                key="dataset.root",
                name=name,
                found=dict(others),
            )
        samples.images.extend(images)
        samples.labels.extend([name] * len(images))
        samples.ignored.update(others)
    return samples


def images_in(folder: Path) -> tuple[list[Path], Counter[str]]:
    """All images below `folder` that neither are hidden nor lie in a hidden folder, by folder and name; and how many
    other files lie there, by kind.

    Circles of links and pipes are refused; an OSError is of a folder that cannot be read.
    """
    images, others, seen, folders = [], Counter[str](), set(), [os.fspath(folder)]
    while folders:
        part = folders.pop()
        real = os.path.realpath(part)
        if real in seen:
            raise Refusal(
                "photographs.circle",
                f"{part}: leads to a folder of {folder} that is read already; remove this link",
                path=part,
                folder=str(folder),
            )
        seen.add(real)
        with os.scandir(part) as entries:  # tells files without a call for each
            for entry in entries:
                if is_hidden(entry.name):
                    others["hidden"] += entry.name != OWN
                elif entry.is_dir():
                    folders.append(entry.path)
                elif not entry.name.lower().endswith(SUFFIXES):
                    others[kind_of_file(entry.name)] += 1
                elif entry.is_file():
                    images.append((part, entry.name))
                else:
                    raise Refusal(
                        "photographs.no-file",
                        f"{entry.path}: is no file, or a link that leads nowhere; remove it",
                        path=entry.path,
                    )
    return [Path(*image) for image in sorted(images)], +others


def holds_images(folder: Path) -> bool:
    """True where an image lies anywhere below a folder."""
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        if any(name.lower().endswith(SUFFIXES) and not is_hidden(name) for name in files):
            return True
    return False


def beside(folder: Path) -> Counter[str]:
    """The files directly in a folder, beside its folders, by kind."""
    found = Counter[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                found["hidden"] += entry.name != OWN
            elif not entry.is_dir():
                kind = kind_of_file(entry.name)
                found[f"{kind} outside of classes" if kind in SUFFIXES else kind] += 1
    return +found


def count_files(folder: Path) -> int:
    """The files below a folder that is not read."""
    return sum(len(files) for _, _, files in os.walk(folder))


def in_words(counts: Counter[str]) -> str:
    """What is not read: "50 .heic, 3 .txt"."""
    return ", ".join(f"{number:,} {kind}" for kind, number in counts.most_common())


def no_classes(folder: Path) -> Refusal:
    """The refusal of a folder without folders of classes, with the one above that has them."""
    above = _data_above(folder)
    remedy = FORMS if above is None else f"use `{override('dataset.root', above)}`, which has them"
    inside = "images, and no folders of classes" if look(folder).has_images else "no folders of classes in it"
    return Refusal(
        "photographs.no-classes",
        f"dataset.root={folder}: {inside}; {remedy}",
        key="dataset.root",
        folder=str(folder),
        above=None if above is None else str(above),
    )


def _data_above(folder: Path) -> Path | None:
    """The folder above an all too deep one that holds the data: classes, or parts of which this is within one."""
    if not look(folder).has_images:
        return None
    above = folder.absolute().parent
    if len(above.parts) < 2 or len(class_folders(above)) < 2:
        return None
    return parts_above(above) or above


def parts_above(folder: Path) -> Path | None:
    """The folder above one that is a part of it, as its name and those beside it say."""
    folder = folder.absolute()
    for within in (folder, folder.parent):  # seg_train/seg_train
        above = within.parent
        if part_names.parsed(within.name) is None or len(within.parts) < 2:
            return None
        names = part_names.named(each.name for each in class_folders(above))
        kinds = {part.kind for part in names.values()}
        if within.name in names and Kind.train in kinds and len(kinds) > 1:
            return above
    return None
