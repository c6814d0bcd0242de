"""Images in folders of classes: the parts of the data by the names of folders,
and all that is not read by its kind.

What only looks like parts is refused with the overrides that read it in one way or the other.
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
    AS_CLASSES,
    FORMS,
    IN_A_TABLE,
    WHOLE,
    DataPart,
    FoundParts,
    PartSamples,
    order_of_tests,
    train_first,
    train_on,
)
from multicard.vision.data.folder_contents import (
    FolderListing,
    beside,
    called_as_notes,
    class_folders,
    count_files,
    filled_names,
    holds_images,
    holds_notes,
    images_in,
    in_words,
    look,
)
from multicard.vision.data.masks import (
    folder_within,
    require_no_masks,
    require_no_masks_of_parts,
    unwrapped,
    without_masks,
)
from multicard.vision.data.not_classes import (
    copy_inside,
    copy_of_classes,
    kinds_within,
    listed,
    require_classes,
    sets_inside,
    shared_folders,
)

# ---- the parts


def parts_of(root: Path, chosen: Sequence[str] | None = None) -> FoundParts:
    """The parts in a folder, by the names of its folders; one part where these are classes.

    A folder that holds nothing but another one is passed through.

    Args:
        chosen: `dataset.parts`.
    """
    if chosen is not None:
        return _chosen(root, chosen)
    ignored = Counter[str]()
    while (below := folder_within(root)) is not None and part_names.parsed(below.name) is None:
        ignored += _beside_folder(root, below)
        root = below
    found = _parts(root)
    return replace(found, ignored=ignored + found.ignored)


def _parts(root: Path) -> FoundParts:
    folders = class_folders(root)
    if not folders:
        raise no_classes(root)
    looks = {folder: look(folder) for folder in folders}
    names = part_names.named(folder.name for folder in folders)
    named = {folder: names[folder.name].kind for folder in folders if folder.name in names}
    kinds = {*named.values()}
    if len(named) == len(folders) or (PartKind.train in kinds and len(kinds) > 1):
        return _by_name(root, named, looks)
    filled = {
        folder: inside
        for folder, inside in looks.items()
        if inside.has_images or holds_images(folder)
    }
    split = {folder: kind for folder, kind in named.items() if _holds_classes(folder)}
    if len(filled) == 1:
        (only,) = filled
        if only in split:
            return _by_name(root, split, looks)
        others = [folder for folder in folders if folder != only]
        # the data set itself, beside folders of other things
        if _holds_parts(only) or (
            _holds_classes(only) and others and all(map(holds_notes, others))
        ):
            found = _parts(only)
            return replace(found, ignored=found.ignored + _beside_folder(root, only))
    _refuse_what_looks_like_parts(root, filled, [*split])
    by_class = _parts_within_classes(root, filled)
    return by_class or FoundParts([DataPart(WHOLE, None, partial(read_classes, root))])


def _holds_classes(folder: Path) -> bool:
    """True where a folder holds several folders, or the only one within does; beside images,
    several that hold some.
    """
    inside = look(unwrapped(folder))
    return len(inside.folders) > 1 or (
        inside.has_images and len(filled_names(unwrapped(folder))) > 1
    )


def _holds_parts(folder: Path) -> bool:
    """True where the folders of a folder are called as parts of several kinds,
    whatever files lie beside them.
    """
    names = part_names.named(each.name for each in class_folders(folder))
    return len({part.kind for part in names.values()}) > 1


def _by_name(
    root: Path, named: dict[Path, PartKind], looks: dict[Path, FolderListing]
) -> FoundParts:
    """Parts by the names of their folders. One to test on that
    holds images without classes is not read.
    """
    with_images = _without_classes(
        [folder for folder in looks if looks[folder].has_images], looks, named
    )
    if any(named.get(folder) is PartKind.train for folder in with_images):
        require_no_masks_of_parts(root, with_images)
        raise _images_in_part(root, with_images)
    read = sorted({*named} - {*with_images}, key=lambda folder: order_of_tests(folder.name))
    ignored = beside(root)
    for folder in looks:
        if folder not in read:
            ignored[f"{folder.name}/"] += count_files(folder)
    require_classes(root, {folder: named[folder] for folder in read})
    parts = [DataPart(folder.name, named[folder], partial(read_classes, folder)) for folder in read]
    return FoundParts(
        parts, ignored, tuple(folder.name for folder in with_images if folder in named)
    )


def _without_classes(
    with_images: list[Path], looks: Mapping[Path, FolderListing], named: Mapping[Path, PartKind]
) -> list[Path]:
    """Those of these folders with images that hold no folders of classes beside them.

    Of a part to test on, a single folder is a class where a part without such images has a class of
    that name, or a part to train on has.
    """
    classes = {folder: filled_names(folder) for folder in with_images}
    others = [inside.names for folder, inside in looks.items() if folder not in classes]
    trained = [names for folder, names in classes.items() if named.get(folder) is PartKind.train]
    known = set[str]().union(*others, *trained)
    return [folder for folder, names in classes.items() if len(names) < 2 and not names & known]


def _images_in_part(root: Path, parts: Sequence[Path]) -> Refusal:
    names = [folder.name for folder in parts]
    both = len(names) > 1
    return Refusal(
        "photographs.part-without-classes",
        f"dataset.root={root}: {' and '.join(names)} {'hold' if both else 'holds'} images"
        " themselves, and no folders of classes; put the images of each class of a part into a"
        f" folder of it, {IN_A_TABLE}",
        key="dataset.root",
        parts=names,
    )


def _refuse_what_looks_like_parts(
    root: Path, filled: dict[Path, FolderListing], split: Sequence[Path]
) -> None:
    """Refuse folders that may be parts or classes, and folders that hold data sets of their own,
    or masks.
    """
    require_no_masks(root, class_folders(root))
    inner = {
        folder: kinds_within(inside) for folder, inside in filled.items() if not inside.has_images
    }
    sets = [folder for folder, kinds in inner.items() if PartKind.train in kinds and len(kinds) > 1]
    if sets and not (
        len(sets) == len(filled) > 1 and all(look(f).has_images for f in filled[sets[0]].folders)
    ):
        raise sets_inside(root, sets)
    if sets:
        return
    copy = copy_of_classes(filled)
    if copy is not None and copy not in split:
        raise copy_inside(copy, f"{override('dataset.root', copy)} dataset.split=0.2")
    shared = shared_folders(filled)
    are_parts = any(part_names.parsed(folder.name) is not None for folder in filled)
    if shared:
        first, second = train_first([folder.name for folder in filled])[:2]
        as_classes = "" if are_parts else f", or use `{AS_CLASSES}` if they are classes"
        raise Refusal(
            "photographs.like-parts",
            f"dataset.root={root}: {listed(filled)} look like parts, not classes: each holds the"
            f" same folders ({', '.join(shared[:5])}). Train on one and test on another, as"
            f" `{train_on(first, second)}`{as_classes}",
            key="dataset.root",
            folders=[folder.name for folder in filled],
            shared=shared,
        )
    if split:
        raise Refusal(
            "photographs.part-beside-classes",
            f"dataset.root={root}: {split[0].name} is called as a part and holds folders of"
            " classes, but lies beside"
            f" {listed(folder for folder in filled if folder not in split)}; use"
            f" `{train_on(split[0].name, None)}` to read it alone",
            key="dataset.root",
            part=split[0].name,
            folders=[folder.name for folder in filled],
        )


def _parts_within_classes(root: Path, filled: dict[Path, FolderListing]) -> FoundParts | None:
    """Parts of data that have them within each class: cat/train, cat/test, dog/train.
    None of other data.
    """
    if not filled or not all(len(kinds_within(inside)) > 1 for inside in filled.values()):
        return None
    names = set[str]()
    for inside in filled.values():
        names.update(name.lower() for name in part_names.named(inside.names))
    parts = []
    for name in sorted(names, key=order_of_tests):
        own = dict[str, Path]()
        for folder, inside in filled.items():
            for within in inside.folders:
                if within.name.lower() == name:
                    own[folder.name] = within
        part = part_names.parsed(name)
        assert part is not None
        parts.append(DataPart(name, part.kind, partial(read_folders, root, own, Counter[str]())))
    ignored = beside(root)
    for inside in filled.values():
        ignored += Counter(
            {
                f"{each.name}/": count_files(each)
                for each in inside.folders
                if each.name.lower() not in names
            }
        )
    return FoundParts(parts, ignored)


def _chosen(root: Path, chosen: Sequence[str]) -> FoundParts:
    """The folders that `dataset.parts` names, as parts; without a name, all folders as classes.

    They are looked for where `parts_of` finds parts, too: in the only folder,
    or the only one that holds parts.
    """
    ignored = Counter[str]()
    below = root
    while not any(path.is_dir() for path in _folders_called(below, chosen)):
        found = folder_within(below) or _only_with_parts(below)
        if found is None:
            break
        ignored += _beside_folder(below, found)
        below = found
    if not chosen:
        return FoundParts(
            [DataPart(WHOLE, None, partial(read_classes, below, whatever_named=True))], ignored
        )
    if any(path.is_dir() for path in _folders_called(below, chosen)):
        root = below
    folders = _folders_called(root, chosen)
    absent = [name for name, folder in zip(chosen, folders, strict=True) if not folder.is_dir()]
    if absent:
        names = [folder.name for folder in class_folders(root)]
        raise Refusal(
            "photographs.no-folder-of-part",
            f"dataset.parts=[{','.join(chosen)}]: no folder {absent[0]} in {root}; it has"
            f" {', '.join(names) or 'none'}",
            key="dataset.parts",
            absent=absent,
            parts=names,
        )
    ignored += beside(root)
    for folder in class_folders(root):
        if not any(folder == each or folder in each.parents for each in folders):
            ignored[f"{folder.name}/"] += count_files(folder)
    parts = zip(chosen, (PartKind.train, PartKind.test), folders, strict=False)
    return FoundParts(
        [DataPart(name, kind, partial(read_classes, folder)) for name, kind, folder in parts],
        ignored,
    )


def _folders_called(root: Path, names: Sequence[str]) -> list[Path]:
    """The folders of these names in a folder, in any case where there is none of that very name."""
    by_name = {folder.name.lower(): folder for folder in class_folders(root)}
    return [
        path if (path := root / name).is_dir() else by_name.get(name.lower(), path)
        for name in names
    ]


def _only_with_parts(folder: Path) -> Path | None:
    """The only folder in a folder that holds images, where these are in parts."""
    filled = [each for each in class_folders(folder) if holds_images(each)]
    return filled[0] if len(filled) == 1 and _holds_parts(filled[0]) else None


def _beside_folder(folder: Path, read: Path) -> Counter[str]:
    """What lies in a folder beside the one that is read, by kind."""
    others = Counter(
        {f"{each.name}/": count_files(each) for each in class_folders(folder) if each != read}
    )
    return +others + beside(folder)


# ---- the images of a part


def read_classes(folder: Path, whatever_named: bool = False) -> PartSamples:
    """Classes and files in the order of their names, as torchvision's ImageFolder has them,
    but for hidden ones.

    Args:
        whatever_named: take folders called as images and masks for classes, too.
    """
    inner = unwrapped(folder, past_masks=not whatever_named)
    classes = class_folders(inner)
    if not classes:
        raise no_classes(inner)
    if not whatever_named:
        require_no_masks(inner, classes)
    notes = [each for each in classes if called_as_notes(each)]
    if whatever_named or len(notes) == len(classes):
        notes = []
    ignored = beside(inner) + Counter({f"{each.name}/": count_files(each) for each in notes})
    within = inner
    while within != folder:
        ignored += _beside_folder(within.parent, within)
        within = within.parent
    return read_folders(inner, {each.name: each for each in classes if each not in notes}, ignored)


def read_folders(place: Path, folders: dict[str, Path], ignored: Counter[str]) -> PartSamples:
    """The images of classes, each below a folder of its own.

    Args:
        place: that refusals name. folders: by class. ignored: what is known not to be read.
    """
    samples = PartSamples([], [], sorted(folders), Counter(ignored))
    for name in samples.classes:
        every, others = images_in(folders[name])
        images, masks = without_masks(folders[name], every)
        others += masks
        if not images:
            found = f", but {in_words(others)}" if others else ""
            raise Refusal(
                "photographs.empty-class",
                f"dataset.root={place}: no image in {name}/{found}; put its images there, or remove"
                " the folder",
                key="dataset.root",
                name=name,
                found=dict(others),
            )
        samples.images.extend(images)
        samples.labels.extend([name] * len(images))
        samples.ignored.update(others)
    return samples


def no_classes(folder: Path) -> Refusal:
    """The refusal of a folder without folders of classes, with the one above that has them."""
    has_images = look(folder).has_images
    above = _data_above(folder) if has_images else None
    if above is not None:
        has_parts = len(parts_of(above).parts) > 1
        remedy = (
            f"use `{override('dataset.root', above)}{'' if has_parts else ' dataset.split=0.2'}`,"
            " which has them"
        )
    elif has_images:
        remedy = f"put the images of each class into a folder of it, {IN_A_TABLE}"
    else:
        remedy = FORMS
    inside = "images, and no folders of classes" if has_images else "no folders of classes in it"
    return Refusal(
        "photographs.no-classes",
        f"dataset.root={folder}: {inside}; {remedy}",
        key="dataset.root",
        folder=str(folder),
        above=None if above is None else str(above),
    )


def _data_above(folder: Path) -> Path | None:
    """The folder above an all too deep one that holds the data: classes, or parts of which this is
    within one. None where it cannot be read either.
    """
    above = folder.absolute().parent
    if len(above.parts) < 2 or len(class_folders(above)) < 2:
        return None
    found = parts_above(above) or above
    return found if _is_read(found) else None


def _is_read(folder: Path) -> bool:
    """True of a folder whose parts are found, with classes."""
    try:
        found = parts_of(folder)
    except Refusal:
        return False
    is_whole = any(part.kind is None for part in found.parts)
    return is_whole or {PartKind.train} < {part.kind for part in found.parts}


def parts_above(folder: Path) -> Path | None:
    """The folder above one that is a part of it, as its name and those beside it say,
    if it can be read.
    """
    folder = folder.absolute()
    for within in (folder, folder.parent):  # seg_train/seg_train
        above = within.parent
        if part_names.parsed(within.name) is None or len(within.parts) < 2:
            return None
        names = part_names.named(each.name for each in class_folders(above))
        kinds = {part.kind for part in names.values()}
        if within.name in names and PartKind.train in kinds and len(kinds) > 1:
            return above if _is_read(above) else None
    return None
