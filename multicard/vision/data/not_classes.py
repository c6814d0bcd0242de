"""Folders where those of classes are expected that hold classes themselves: parts,
versions and copies of the data.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import order_of_tests, train_on
from multicard.vision.data.folder_contents import FolderListing, class_folders, holds_images, look
from multicard.vision.data.masks import called_as_images, called_as_masks, unwrapped


def filled_looks(folder: Path) -> dict[Path, FolderListing]:
    """A look into each folder in a folder that holds images somewhere below."""
    looks = {each: look(each) for each in class_folders(folder)}
    return {
        each: inside for each, inside in looks.items() if inside.has_images or holds_images(each)
    }


def kinds_within(inside: FolderListing) -> set[PartKind]:
    """The kinds of parts that the folders of a folder are called as."""
    return {part.kind for part in part_names.named(inside.names).values()}


def shared_folders(filled: Mapping[Path, FolderListing]) -> list[str]:
    """The names that folders have in each of these folders,
    where they are several: those of classes, as it seems.

    Where a folder holds nothing but another one, as amazon/images/, it is looked for in that.

    Folders of images and of their masks, which a class may hold, do not count.
    """
    if len(filled) < 2:
        return []
    within = [
        {
            each.name
            for each in look(unwrapped(folder)).folders
            if not (called_as_images(each) or called_as_masks(each))
        }
        for folder in filled
    ]
    shared = sorted(set.intersection(*within))
    return shared if len(shared) > 1 else []


def copy_of_classes(filled: Mapping[Path, FolderListing]) -> Path | None:
    """The folder whose folders are called as several that lie beside it: augmented/cat and
    augmented/dog beside cat and dog. None where there is no such folder.
    """
    names = {folder.name for folder in filled}
    for folder, inside in filled.items():
        own = look(unwrapped(folder)).names if not inside.has_images else set[str]()
        if len(own & (names - {folder.name})) > 1:
            return folder
    return None


def folders_in_classes(root: Path, samples: Iterable[tuple[Path, str]]) -> dict[str, list[str]]:
    """Find classes whose images all lie in folders below the folder of the class,
    and in several of them.

    They may be the classes themselves, as abbey and airport in a/ of SUN397,
    or cat and dog in data/ beside figures/.

    Args:
        samples: images, each with its class.

    Returns:
        The names of these folders, by class.
    """
    parents = {(image.parent, label) for image, label in samples}
    found = defaultdict[str, set[str]](set)
    for parent, label in parents:
        below = parent.relative_to(root).parts if parent.is_relative_to(root) else ()
        if label in below:
            inner = below[below.index(label) + 1 :]
            found[label].add(inner[0] if inner else "")
    return {
        label: sorted(names)
        for label, names in sorted(found.items())
        if "" not in names and len(names) > 1
    }


def listed(folders: Iterable[Path]) -> str:
    """The first names of folders."""
    names = [folder.name for folder in folders]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"


def sets_inside(root: Path, sets: Sequence[Path]) -> Refusal:
    return Refusal(
        "photographs.sets-inside",
        f"dataset.root={root}: in {listed(sets)} lies a data set with parts of its own; name one,"
        f" as `{override('dataset.root', sets[0])}`",
        key="dataset.root",
        sets=[folder.name for folder in sets],
    )


def copy_inside(copy: Path, alone: str) -> Refusal:
    """The refusal of a folder that holds the classes that lie beside it.

    Args:
        alone: the overrides that read this folder.
    """
    names = sorted(look(unwrapped(copy)).names)
    return Refusal(
        "photographs.classes-inside",
        f"dataset.root={copy.parent}: {copy.name} is no class: it holds the folders that lie beside"
        f" it ({', '.join(names[:5])}). Move it out of {copy.parent.name} to read the others, or"
        f" use `{alone}` to read it alone",
        key="dataset.root",
        folder=copy.name,
        inside=names,
    )


def require_classes(root: Path, parts: Mapping[Path, PartKind]) -> None:
    """Refuse parts in which there are no classes, but parts, versions or copies of the data.

    Args:
        root: the folder in which the parts are. parts: those that are read.
    """
    for part in parts:
        inner = unwrapped(part)
        filled = filled_looks(inner)
        kinds = {
            found.kind for found in part_names.named(folder.name for folder in filled).values()
        }
        if PartKind.train in kinds and len(kinds) > 1:
            raise sets_inside(root, [part])
        copy = copy_of_classes(filled)
        if copy is not None:
            raise copy_inside(
                copy, _same_in_parts(root, parts, copy.relative_to(part), or_whole=True)
            )
        shared = shared_folders(filled)
        if shared:
            raise _versions(root, parts, part, inner, filled, shared)


def _versions(
    root: Path,
    parts: Mapping[Path, PartKind],
    part: Path,
    inner: Path,
    filled: Mapping[Path, FolderListing],
    shared: Sequence[str],
) -> Refusal:
    names = [folder.name for folder in filled]
    alone = _same_in_parts(root, parts, (inner / names[0]).relative_to(part))
    return Refusal(
        "photographs.versions-in-part",
        f"dataset.root={root}: in {part.name}, {listed(filled)} look like versions of the data, not"
        f" classes: each holds the same folders ({', '.join(shared[:5])}). Read one, as `{alone}`,"
        f" or use `{_same_in_parts(root, parts, Path())}` if they are classes",
        key="dataset.root",
        part=part.name,
        folders=names,
        shared=[*shared],
    )


def _same_in_parts(
    root: Path, parts: Mapping[Path, PartKind], below: Path, or_whole: bool = False
) -> str:
    """The overrides that read one folder in the part to train on, and in one to test on.

    Args:
        below: the folder, from that of a part on.
        or_whole: test on a part as it is where it has no such folder;
            otherwise on a fifth of what is trained on.
    """
    ordered = sorted(parts, key=lambda folder: order_of_tests(folder.name))
    trains = [part for part in ordered if parts[part] is PartKind.train] or ordered
    tests = [part for part in ordered if part not in trains]
    train = next((part for part in trains if (part / below).is_dir()), trains[0])
    test = next((part / below for part in tests if (part / below).is_dir()), None)
    if test is None and or_whole and tests:
        test = tests[0]
    name = (train / below).relative_to(root).as_posix()
    return train_on(name, None if test is None else test.relative_to(root).as_posix())
