"""Recognize folders that hold classes themselves, where folders of classes are expected.

They may be parts, versions or copies of the data. Training on them as classes would be meaningless.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import (
    FOLDERS_AS_CLASSES,
    test_order,
    train_first,
    train_on_overrides,
)
from multicard.vision.data.folder_contents import (
    IMAGE_SUFFIXES,
    FolderListing,
    holds_images,
    list_folder,
    visible_folders,
)
from multicard.vision.data.masks import (
    innermost_folder,
    is_image_folder,
    is_mask_folder,
    require_no_masks,
)


def folders_with_images(folder: Path) -> dict[Path, FolderListing]:
    """List each subfolder that holds images at any depth."""
    listings = {subfolder: list_folder(subfolder) for subfolder in visible_folders(folder)}
    return {
        subfolder: listing
        for subfolder, listing in listings.items()
        if listing.has_images or holds_images(subfolder)
    }


def part_kinds_in(listing: FolderListing) -> set[PartKind]:
    """Return the kinds of parts as which the listed subfolders are named."""
    return {part.kind for part in part_names.named(listing.names).values()}


def only_wraps_images(part: Path) -> bool:
    """Tell whether a part's only subfolder holds its images, and is no class by its name.

    It is named as a part of the same kind (train/train/1.jpg), or as images (test/images/1.jpg).
    """
    inner = innermost_folder(part)
    listing = list_folder(inner)
    if listing.has_images or len(listing.folders) != 1:
        return False
    (subfolder,) = listing.folders
    below = list_folder(subfolder)
    if not below.has_images or below.folders:
        return False
    part_name = part_names.parsed(part.name)
    name = part_names.parsed(subfolder.name)
    is_same_kind = part_name is not None and name is not None and part_name.kind is name.kind
    return is_same_kind or is_image_folder(subfolder)


def shared_folders(filled_folders: Mapping[Path, FolderListing]) -> list[str]:
    """Return the subfolder names that these folders share, if there are at least two.

    They are probably the classes. A folder may lack some of them, such as a patient without
    findings, if it has another one and most folders have them. A folder that only wraps another
    one, such as amazon/images/, is passed through. Folders of images and of masks do not count, as
    a class may hold them.
    """
    if len(filled_folders) < 2:
        return []
    names_by_folder = [
        {
            subfolder.name
            for subfolder in list_folder(innermost_folder(folder)).folders
            if not (is_image_folder(subfolder) or is_mask_folder(subfolder))
        }
        for folder in filled_folders
    ]
    shared_names = set.intersection(*names_by_folder)
    if len(shared_names) > 1:
        return sorted(shared_names)
    counts = Counter[str]()
    for names in names_by_folder:
        counts.update(names)
    usual_names = {name for name, count in counts.items() if count > len(names_by_folder) / 2}
    if len(usual_names) > 1 and all(names & usual_names for names in names_by_folder):
        return sorted(usual_names)
    return []


def copy_of_classes(filled_folders: Mapping[Path, FolderListing]) -> Path | None:
    """Find a folder that repeats its neighbors: augmented/cat and augmented/dog beside cat and dog.

    Return None if there is no such folder.
    """
    names = {folder.name for folder in filled_folders}
    for folder, listing in filled_folders.items():
        inner_names = (
            list_folder(innermost_folder(folder)).names if not listing.has_images else set[str]()
        )
        if len(inner_names & (names - {folder.name})) > 1:
            return folder
    return None


def folders_in_classes(root: Path, samples: Iterable[tuple[Path, str]]) -> dict[str, list[str]]:
    """Find classes whose images all lie in several subfolders of the class's folder.

    These subfolders may be the real classes, such as abbey and airport in a/ of SUN397, or cat and
    dog in data/ beside figures/.

    Args:
        samples: Images, each with its class.

    Returns:
        The names of these subfolders, by class.
    """
    parents = {(image.parent, label) for image, label in samples}
    subfolders = defaultdict[str, set[str]](set)
    for parent, label in parents:
        below = parent.relative_to(root).parts if parent.is_relative_to(root) else ()
        if label in below:
            inner = below[below.index(label) + 1 :]
            subfolders[label].add(inner[0] if inner else "")
    return {
        label: sorted(names)
        for label, names in sorted(subfolders.items())
        if "" not in names and len(names) > 1
    }


def first_names(folders: Iterable[Path]) -> str:
    """Return the first five names of folders as text, and the number of the others."""
    names = [folder.name for folder in folders]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"


def sets_inside_refusal(root: Path, sets: Sequence[Path]) -> Refusal:
    return Refusal(
        "photographs.sets-inside",
        f"dataset.root={root}: {first_names(sets)} holds a data set with its own parts; name one,"
        f" as `{override('dataset.root', sets[0])}`",
        key="dataset.root",
        sets=[folder.name for folder in sets],
    )


def copied_classes_refusal(copy: Path, alone: str) -> Refusal:
    """Make the refusal of a folder that repeats the classes beside it.

    Args:
        alone: The overrides that read only this folder.
    """
    names = sorted(list_folder(innermost_folder(copy)).names)
    return Refusal(
        "photographs.classes-inside",
        f"dataset.root={copy.parent}: {copy.name} is not a class, as it holds the folders that lie"
        f" beside it ({', '.join(names[:5])}). Move it out of {copy.parent.name} to read the"
        f" others, or use `{alone}` to read it alone",
        key="dataset.root",
        folder=copy.name,
        inside=names,
    )


def require_classes_not_parts(
    root: Path, filled_folders: dict[Path, FolderListing], split_folders: Sequence[Path]
) -> None:
    """Refuse folders that could be parts or classes, separate data sets, or masks."""
    require_no_masks(root, visible_folders(root))
    inner = {
        folder: part_kinds_in(listing)
        for folder, listing in filled_folders.items()
        if not listing.has_images
    }
    sets = [folder for folder, kinds in inner.items() if PartKind.train in kinds and len(kinds) > 1]
    if sets and not (
        len(sets) == len(filled_folders) > 1
        and all(list_folder(f).has_images for f in filled_folders[sets[0]].folders)
    ):
        raise sets_inside_refusal(root, sets)
    if sets:
        return
    copy = copy_of_classes(filled_folders)
    if copy is not None and copy not in split_folders:
        raise copied_classes_refusal(copy, f"{override('dataset.root', copy)} dataset.split=0.2")
    shared_names = shared_folders(filled_folders)
    are_parts = any(part_names.parsed(folder.name) is not None for folder in filled_folders)
    if shared_names:
        first, second = train_first([folder.name for folder in filled_folders])[:2]
        as_classes = "" if are_parts else f", or use `{FOLDERS_AS_CLASSES}` if they are classes"
        together = None if are_parts else _all_in_a_table(root, filled_folders)
        alone = train_on_overrides(first, None)
        as_one = ""
        if together is not None:
            command, read_it = together
            as_one = f". To take all together, write a table by `{command}`, and use `{read_it}`"
        raise Refusal(
            "photographs.like-parts",
            f"dataset.root={root}: {first_names(filled_folders)} look like parts, not classes, as"
            f" they hold the same folders ({', '.join(shared_names[:5])}). Train on one and test on"
            f" another, as `{train_on_overrides(first, second)}`, or read one alone, as"
            f" `{alone}`{as_classes}{as_one}",
            key="dataset.root",
            folders=[folder.name for folder in filled_folders],
            shared=shared_names,
            together=together,
        )
    if split_folders:
        raise Refusal(
            "photographs.part-beside-classes",
            f"dataset.root={root}: {split_folders[0].name} is named as a part and holds folders of"
            " classes, but lies beside"
            f" {first_names(folder for folder in filled_folders if folder not in split_folders)};"
            f" use `{train_on_overrides(split_folders[0].name, None)}` to read it alone",
            key="dataset.root",
            part=split_folders[0].name,
            folders=[folder.name for folder in filled_folders],
        )


def _all_in_a_table(
    root: Path, filled_folders: Mapping[Path, FolderListing]
) -> tuple[str, str] | None:
    """Return a command that writes a table of all images, and the overrides that read it.

    The folders may be patients, sessions or domains, which all belong to one data set. Return None
    if their classes lie at different depths, or if something else lies beside them.
    """
    depths = {len(innermost_folder(folder).relative_to(root).parts) for folder in filled_folders}
    table = root / "all.csv"
    if len(depths) > 1 or len(filled_folders) < len(visible_folders(root)) or table.exists():
        return None
    endings = "|".join(ending.removeprefix(".") for ending in IMAGE_SUFFIXES)
    to_row = rf's#^([^/]+/){{{depths.pop()}}}([^/]+)/.*\.({endings})$#"&","\2"#Ip'
    images = "find -L */ -type f -not -path '*/.*' | sort"
    command = (
        f"(cd {shlex.quote(str(root))} && echo path,label && {images} |"
        f" sed -nE {shlex.quote(to_row)}) > {shlex.quote(str(table))}"
    )
    return command, f"{override('dataset.root', table)} dataset.split=0.2"


def require_classes(root: Path, parts: Mapping[Path, PartKind]) -> None:
    """Refuse parts that hold data sets, versions or copies of the data instead of classes.

    Args:
        root: The folder of the parts.
        parts: The parts that are read.
    """
    for part in parts:
        inner = innermost_folder(part)
        filled_folders = folders_with_images(inner)
        kinds = {
            part_name.kind
            for part_name in part_names.named(folder.name for folder in filled_folders).values()
        }
        if PartKind.train in kinds and len(kinds) > 1:
            raise sets_inside_refusal(root, [part])
        copy = copy_of_classes(filled_folders)
        if copy is not None:
            raise copied_classes_refusal(
                copy, _overrides_for_folder(root, parts, copy.relative_to(part), or_whole=True)
            )
        shared_names = shared_folders(filled_folders)
        if shared_names:
            raise _versions_refusal(root, parts, part, inner, filled_folders, shared_names)


def _versions_refusal(
    root: Path,
    parts: Mapping[Path, PartKind],
    part: Path,
    inner: Path,
    filled_folders: Mapping[Path, FolderListing],
    shared_names: Sequence[str],
) -> Refusal:
    names = [folder.name for folder in filled_folders]
    example = _overrides_for_folder(root, parts, (inner / names[0]).relative_to(part))
    return Refusal(
        "photographs.versions-in-part",
        f"dataset.root={root}: in {part.name}, {first_names(filled_folders)} look like versions of"
        f" the data, not classes, as they hold the same folders ({', '.join(shared_names[:5])})."
        f" Read one, as `{example}`, or use `{_overrides_for_folder(root, parts, Path())}` if they"
        " are classes",
        key="dataset.root",
        part=part.name,
        folders=names,
        shared=[*shared_names],
    )


def _overrides_for_folder(
    root: Path, parts: Mapping[Path, PartKind], below: Path, or_whole: bool = False
) -> str:
    """Return the overrides that read the same subfolder of the train part and of a test part.

    Args:
        below: The subfolder's path, relative to a part.
        or_whole: If no test part has this subfolder, test on a whole part. Otherwise a fifth of the
            samples to train on is held out.
    """
    ordered = sorted(parts, key=lambda folder: test_order(folder.name))
    trains = [part for part in ordered if parts[part] is PartKind.train] or ordered
    tests = [part for part in ordered if part not in trains]
    train = next((part for part in trains if (part / below).is_dir()), trains[0])
    test = next((part / below for part in tests if (part / below).is_dir()), None)
    if test is None and or_whole and tests:
        test = tests[0]
    name = (train / below).relative_to(root).as_posix()
    return train_on_overrides(name, None if test is None else test.relative_to(root).as_posix())
