"""Read images from folders of classes, and find the parts (train, test) by folder names.

The layout is ambiguous at times: cat/train may be a class with parts, or a part of classes. If the
names do not decide it, the data are refused with overrides for either reading. Files that are not
read are counted by kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import (
    ALL_SAMPLES,
    DATA_FORMS_HINT,
    OR_USE_A_TABLE,
    DataPart,
    FoundParts,
    PartSamples,
    test_order,
)
from multicard.vision.data.folder_contents import (
    FolderListing,
    count_files,
    count_loose_files,
    count_unread_beside,
    format_counts,
    holds_images,
    holds_notes,
    images_in,
    is_note_folder,
    list_folder,
    names_with_images,
    visible_folders,
)
from multicard.vision.data.masks import (
    inner_folder,
    innermost_folder,
    require_no_masks,
    require_no_masks_of_parts,
    separate_masks,
)
from multicard.vision.data.not_classes import (
    only_wraps_images,
    part_kinds_in,
    require_classes,
    require_classes_not_parts,
)

# ---- the parts


def parts_of(root: Path, chosen: Sequence[str] | None = None) -> FoundParts:
    """Find the parts in a folder by the names of its subfolders.

    If the subfolders are classes, there is a single part. A folder that only wraps another folder
    is passed through.

    Args:
        chosen: `dataset.parts`.
    """
    if chosen is not None:
        return _chosen_parts(root, chosen)
    ignored = Counter[str]()
    while (below := inner_folder(root)) is not None and part_names.parsed(below.name) is None:
        ignored += count_unread_beside(root, below)
        root = below
    found_parts = _find_parts(root)
    return replace(found_parts, ignored=ignored + found_parts.ignored)


def _find_parts(root: Path) -> FoundParts:
    folders = visible_folders(root)
    if not folders:
        raise no_classes_refusal(root)
    listings = {folder: list_folder(folder) for folder in folders}
    names = part_names.named(folder.name for folder in folders)
    part_kinds = {folder: names[folder.name].kind for folder in folders if folder.name in names}
    kinds = {*part_kinds.values()}
    if len(part_kinds) == len(folders) or (PartKind.train in kinds and len(kinds) > 1):
        return _parts_by_name(root, part_kinds, listings)
    filled_folders = {
        folder: listing
        for folder, listing in listings.items()
        if listing.has_images or holds_images(folder)
    }
    split_folders = {folder: kind for folder, kind in part_kinds.items() if _holds_classes(folder)}
    if len(filled_folders) == 1:
        (only_filled,) = filled_folders
        if only_filled in split_folders:
            return _parts_by_name(root, split_folders, listings)
        others = [folder for folder in folders if folder != only_filled]
        # This folder is the data set itself, and the others hold something else.
        if _holds_parts(only_filled) or (
            _holds_classes(only_filled) and others and all(map(holds_notes, others))
        ):
            inner_parts = _find_parts(only_filled)
            return replace(
                inner_parts, ignored=inner_parts.ignored + count_unread_beside(root, only_filled)
            )
    require_classes_not_parts(root, filled_folders, [*split_folders])
    by_class = _parts_within_classes(root, filled_folders)
    return by_class or FoundParts([DataPart(ALL_SAMPLES, None, partial(read_classes, root))])


def _holds_classes(folder: Path) -> bool:
    """Tell whether a folder, or the only folder within it, seems to hold classes.

    It needs several subfolders. If images lie beside them, several subfolders must hold images.
    """
    listing = list_folder(innermost_folder(folder))
    return len(listing.folders) > 1 or (
        listing.has_images and len(names_with_images(innermost_folder(folder))) > 1
    )


def _holds_parts(folder: Path) -> bool:
    """Tell whether subfolders are named as parts of several kinds, whatever lies beside them."""
    names = part_names.named(subfolder.name for subfolder in visible_folders(folder))
    return len({part.kind for part in names.values()}) > 1


def _parts_by_name(
    root: Path, part_kinds: dict[Path, PartKind], listings: dict[Path, FolderListing]
) -> FoundParts:
    """Make a part of each folder that is named as one.

    A part to test on is not read if it holds images without classes.
    """
    with_images = _folders_without_classes(
        [folder for folder in listings if listings[folder].has_images], listings, part_kinds
    )
    with_images += [folder for folder in part_kinds if only_wraps_images(folder)]
    if any(part_kinds.get(folder) is PartKind.train for folder in with_images):
        require_no_masks_of_parts(root, with_images)
        raise _part_without_classes_refusal(root, with_images)
    part_folders = sorted(
        {*part_kinds} - {*with_images}, key=lambda folder: test_order(folder.name)
    )
    ignored = count_loose_files(root)
    for folder in listings:
        if folder not in part_folders:
            ignored[f"{folder.name}/"] += count_files(folder)
    require_classes(root, {folder: part_kinds[folder] for folder in part_folders})
    parts = [
        DataPart(folder.name, part_kinds[folder], partial(read_classes, folder))
        for folder in part_folders
    ]
    return FoundParts(
        parts, ignored, tuple(folder.name for folder in with_images if folder in part_kinds)
    )


def _folders_without_classes(
    with_images: list[Path],
    listings: Mapping[Path, FolderListing],
    part_kinds: Mapping[Path, PartKind],
) -> list[Path]:
    """Return the given folders that hold their images directly instead of in classes.

    A part to test on may hold a single subfolder beside its images. It is a class if another part
    has a class of that name.
    """
    classes = {folder: names_with_images(folder) for folder in with_images}
    other_names = [listing.names for folder, listing in listings.items() if folder not in classes]
    trained_names = [
        names for folder, names in classes.items() if part_kinds.get(folder) is PartKind.train
    ]
    known_classes = set[str]().union(*other_names, *trained_names)
    return [
        folder for folder, names in classes.items() if len(names) < 2 and not names & known_classes
    ]


def _part_without_classes_refusal(root: Path, parts: Sequence[Path]) -> Refusal:
    names = [folder.name for folder in parts]
    both = len(names) > 1
    return Refusal(
        "photographs.part-without-classes",
        f"dataset.root={root}: {' and '.join(names)} {'hold' if both else 'holds'} images"
        " directly, without folders of classes; put the images of each class of a part into a"
        f" folder of that class, {OR_USE_A_TABLE}",
        key="dataset.root",
        parts=names,
    )


def _parts_within_classes(
    root: Path, filled_folders: dict[Path, FolderListing]
) -> FoundParts | None:
    """Find parts that lie within each class: cat/train, cat/test, dog/train.

    Return None if the data have another layout.
    """
    if not filled_folders or not all(
        len(part_kinds_in(listing)) > 1 for listing in filled_folders.values()
    ):
        return None
    names = set[str]()
    for listing in filled_folders.values():
        names.update(name.lower() for name in part_names.named(listing.names))
    parts = []
    for name in sorted(names, key=test_order):
        folder_by_class = dict[str, Path]()
        for folder, listing in filled_folders.items():
            for part_folder in listing.folders:
                if part_folder.name.lower() == name:
                    folder_by_class[folder.name] = part_folder
        part = part_names.parsed(name)
        assert part is not None
        parts.append(
            DataPart(name, part.kind, partial(read_folders, root, folder_by_class, Counter[str]()))
        )
    ignored = count_loose_files(root)
    for listing in filled_folders.values():
        ignored += Counter(
            {
                f"{subfolder.name}/": count_files(subfolder)
                for subfolder in listing.folders
                if subfolder.name.lower() not in names
            }
        )
    return FoundParts(parts, ignored)


def _chosen_parts(root: Path, chosen: Sequence[str]) -> FoundParts:
    """Return the folders that `dataset.parts` names. If it is empty, all folders are classes.

    The search enters wrapping folders as `parts_of` does: the only folder, or the only one that
    holds parts.
    """
    ignored = Counter[str]()
    below = root
    while not any(path.is_dir() for path in _folders_called(below, chosen)):
        inner = inner_folder(below) or _only_folder_with_parts(below)
        if inner is None:
            break
        ignored += count_unread_beside(below, inner)
        below = inner
    if not chosen:
        return FoundParts(
            [DataPart(ALL_SAMPLES, None, partial(read_classes, below, whatever_named=True))],
            ignored,
        )
    if any(path.is_dir() for path in _folders_called(below, chosen)):
        root = below
    folders = _folders_called(root, chosen)
    absent_names = [
        name for name, folder in zip(chosen, folders, strict=True) if not folder.is_dir()
    ]
    if absent_names:
        names = [folder.name for folder in visible_folders(root)]
        raise Refusal(
            "photographs.no-folder-of-part",
            f"dataset.parts=[{','.join(chosen)}]: there is no folder {absent_names[0]} in {root},"
            f" which has {', '.join(names) or 'none'}",
            key="dataset.parts",
            absent=absent_names,
            parts=names,
        )
    ignored += count_loose_files(root)
    for folder in visible_folders(root):
        if not any(
            folder == part_folder or folder in part_folder.parents for part_folder in folders
        ):
            ignored[f"{folder.name}/"] += count_files(folder)
    parts = zip(chosen, (PartKind.train, PartKind.test), folders, strict=False)
    return FoundParts(
        [DataPart(name, kind, partial(read_classes, folder)) for name, kind, folder in parts],
        ignored,
    )


def _folders_called(root: Path, names: Sequence[str]) -> list[Path]:
    """Return the subfolders with these names, ignoring case if none matches exactly."""
    by_name = {folder.name.lower(): folder for folder in visible_folders(root)}
    folders = list[Path]()
    for name in names:
        exact = root / name
        folders.append(exact if exact.is_dir() else by_name.get(name.lower(), exact))
    return folders


def _only_folder_with_parts(folder: Path) -> Path | None:
    """Return the only subfolder with images, if these are divided into parts."""
    filled_folders = [subfolder for subfolder in visible_folders(folder) if holds_images(subfolder)]
    return (
        filled_folders[0] if len(filled_folders) == 1 and _holds_parts(filled_folders[0]) else None
    )


# ---- the images of a part


def read_classes(folder: Path, whatever_named: bool = False) -> PartSamples:
    """Read classes and files sorted by name, like torchvision's ImageFolder without hidden ones.

    Args:
        whatever_named: Also take folders named as images, masks or notes for classes.
    """
    inner = innermost_folder(folder, past_masks=not whatever_named)
    classes = visible_folders(inner)
    if not classes:
        raise no_classes_refusal(inner)
    if not whatever_named:
        require_no_masks(inner, classes)
    notes = [class_folder for class_folder in classes if is_note_folder(class_folder)]
    if whatever_named or len(notes) == len(classes):
        notes = []
    ignored = count_loose_files(inner) + Counter(
        {f"{class_folder.name}/": count_files(class_folder) for class_folder in notes}
    )
    level = inner
    while level != folder:
        ignored += count_unread_beside(level.parent, level)
        level = level.parent
    return read_folders(
        inner,
        {class_folder.name: class_folder for class_folder in classes if class_folder not in notes},
        ignored,
    )


def read_folders(place: Path, folders: dict[str, Path], ignored: Counter[str]) -> PartSamples:
    """Read the images of each class from its folder.

    Args:
        place: The folder that refusals name.
        folders: The folder of each class.
        ignored: Counts of what is already known not to be read.
    """
    samples = PartSamples([], [], sorted(folders), Counter(ignored))
    for name in samples.classes:
        all_images, others = images_in(folders[name])
        images, masks = separate_masks(folders[name], all_images)
        others += masks
        if not images:
            found_text = f", but {format_counts(others)}" if others else ""
            raise Refusal(
                "photographs.empty-class",
                f"dataset.root={place}: there is no image in {name}/{found_text}; put its images"
                " there, or remove the folder",
                key="dataset.root",
                name=name,
                found=dict(others),
            )
        samples.images.extend(images)
        samples.labels.extend([name] * len(images))
        samples.ignored.update(others)
    return samples


def no_classes_refusal(folder: Path) -> Refusal:
    """Make the refusal of a folder without classes. Suggest the folder above if it has them."""
    has_images = list_folder(folder).has_images
    above = _data_above(folder) if has_images else None
    if above is not None:
        has_parts = len(parts_of(above).parts) > 1
        remedy = (
            f"use `{override('dataset.root', above)}{'' if has_parts else ' dataset.split=0.2'}`,"
            " which has them"
        )
    elif has_images:
        remedy = f"put the images of each class into a folder of that class, {OR_USE_A_TABLE}"
    else:
        remedy = DATA_FORMS_HINT
    content = "images, and no folders of classes" if has_images else "no folders of classes in it"
    return Refusal(
        "photographs.no-classes",
        f"dataset.root={folder}: {content}; {remedy}",
        key="dataset.root",
        folder=str(folder),
        above=None if above is None else str(above),
    )


def _data_above(folder: Path) -> Path | None:
    """Find the folder that holds the data, if `root` was given one or two levels too deep.

    It holds classes, or it holds the parts of which `folder` lies within one. Return None if it
    cannot be read either.
    """
    above = folder.absolute().parent
    if len(above.parts) < 2 or len(visible_folders(above)) < 2:
        return None
    data_folder = parts_above(above) or above
    return data_folder if _can_be_read(data_folder) else None


def _can_be_read(folder: Path) -> bool:
    """Tell whether parts or classes are found in a folder."""
    try:
        found_parts = parts_of(folder)
    except Refusal:
        return False
    is_whole = any(part.kind is None for part in found_parts.parts)
    return is_whole or {PartKind.train} < {part.kind for part in found_parts.parts}


def parts_above(folder: Path) -> Path | None:
    """Return the folder of which this one is a part, by its name and the names beside it.

    Return None if there is none, or if it cannot be read.
    """
    folder = folder.absolute()
    for candidate in (folder, folder.parent):  # Part folders may be nested: seg_train/seg_train.
        above = candidate.parent
        if part_names.parsed(candidate.name) is None or len(candidate.parts) < 2:
            return None
        names = part_names.named(subfolder.name for subfolder in visible_folders(above))
        kinds = {part.kind for part in names.values()}
        if candidate.name in names and PartKind.train in kinds and len(kinds) > 1:
            return above if _can_be_read(above) else None
    return None
