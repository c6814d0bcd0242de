"""Masks: images of the shapes of objects, which lie beside the images of these and are no samples.

They are known by the folder that they lie in, or by a name
that is made of that of an image beside them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from multicard.messages import Refusal
from multicard.vision.data.data_parts import IN_A_TABLE
from multicard.vision.data.folder_contents import class_folders, holds_images, look

# Names of folders in lower case, with blanks for what divides their words
IMAGE_FOLDERS = {
    "images",
    "image",
    "imgs",
    "img",
    "jpegimages",
    "original",
    "originals",
    "photos",
    "pictures",
    "rgb",
}
MASK_FOLDERS = {
    "masks",
    "mask",
    "segmentation",
    "segmentations",
    "segmentationclass",
    "segmentationobject",
    "seg",
}
MASK_FOLDERS |= {
    "labels",
    "label",
    "annotations",
    "annotation",
    "ground truth",
    "groundtruth",
    "gt",
    "trimaps",
}
MASK_FOLDERS |= {"lung masks", "infection masks", "image masks"}
MASK_WORDS = {
    "mask",
    "masks",
    "segmentation",
    "segmentations",
    "labels",
    "annotation",
    "annotations",
    "groundtruth",
}
# in names of parts, as train_masks; `seg` is in others too, as seg_train
MASK_WORDS |= {"gt", "trimaps"}
WORDS = "masks?|seg|segmentations?|labels?|gt|ground[ _-]?truth|annotations?|superpixels|trimap"
# cat_mask_1
BEHIND = re.compile(rf"(?P<image>.+?)[ ._-]+({WORDS})([ ._-]*\(?\d+\)?)?", re.IGNORECASE)
BEFORE = re.compile(rf"({WORDS})[ ._-]+(?P<image>.+)", re.IGNORECASE)  # mask_cat
# How the image itself may be called beside `cat_mask` or `mask_cat`
OF_IMAGES = ("{}", "{}_image", "{}_img", "image_{}", "img_{}")
BESIDE_IMAGES = "masks, by their names"


# ---- folders


def called_as_images(folder: Path) -> bool:
    return _words(folder.name) in IMAGE_FOLDERS


def called_as_masks(folder: Path) -> bool:
    return _words(folder.name) in MASK_FOLDERS


def _words(name: str) -> str:
    return " ".join(re.split(r"[ ._-]+", name.lower()))


def images_beside_masks(folder: Path) -> Path | None:
    """The only folder of images in a folder that has one of their masks beside it;
    None of any other.
    """
    folders = class_folders(folder)
    images = [each for each in folders if called_as_images(each)]
    masks = [each for each in folders if called_as_masks(each)]
    if len(images) != 1 or not masks:
        return None
    others = [each for each in folders if each not in (*images, *masks)]
    return None if any(holds_images(each) for each in others) else images[0]


def require_no_masks(folder: Path, classes: Sequence[Path]) -> None:
    """Refuse folders of images and of their masks where those of classes are to be."""
    found = [each.name for each in classes if called_as_images(each) or called_as_masks(each)]
    if any(called_as_images(each) for each in classes) and any(
        called_as_masks(each) for each in classes
    ):
        raise _of_masks(folder, found)


def require_no_masks_of_parts(root: Path, parts: Sequence[Path]) -> None:
    """Refuse parts of images without classes where masks lie beside them: as train_masks/,
    or as parts of masks/.

    Args:
        root: the folder in which the parts are, perhaps that of images beside one of masks.
    """
    masks = [part.name for part in parts if not {*_words(part.name).split()}.isdisjoint(MASK_WORDS)]
    if masks:
        raise _of_masks(root, [part.name for part in parts])
    above = root.absolute().parent
    beside = list[str]()
    if called_as_images(root):
        with suppress(OSError):  # a folder that may not be listed says nothing
            beside = [each.name for each in class_folders(above) if called_as_masks(each)]
    if beside:
        raise _of_masks(above, [root.name, *beside])


def _of_masks(folder: Path, found: Sequence[str]) -> Refusal:
    return Refusal(
        "photographs.masks",
        f"dataset.root={folder}: {' and '.join(found)} look like images and their masks or boxes"
        " (segmentation, or detection), and no classes; put the images of each class into a folder"
        f" of it, {IN_A_TABLE}",
        key="dataset.root",
        folder=str(folder),
        folders=[*found],
    )


# ---- images


def without_masks(folder: Path, images: Sequence[Path]) -> tuple[list[Path], Counter[str]]:
    """The images below the folder of a class that are no masks, and how many of these there are,
    by where they are.

    Folders called as masks are left out where other images lie beside them.
    A class may consist of masks alone.
    """
    by_folder = dict[Path, list[Path]]()
    for image in images:
        by_folder.setdefault(image.parent, []).append(image)
    names = {path: _mask_folder(path.relative_to(folder)) for path in by_folder}
    some_are_masks = 0 < sum(name is not None for name in names.values()) < len(names)
    kept = list[Path]()
    masks = Counter[str]()
    for path, inside in by_folder.items():
        name = names[path]
        if name is not None and some_are_masks:
            masks[f"{name}/"] += len(inside)
            continue
        by_name = _masks_by_name(inside)
        masks[BESIDE_IMAGES] += len(by_name)
        kept += [image for image in inside if image not in by_name]
    return kept, +masks


def _mask_folder(below: Path) -> str | None:
    """The first folder of a path that is called as one of masks."""
    return next((name for name in below.parts if _words(name) in MASK_FOLDERS), None)


def _masks_by_name(images: Sequence[Path]) -> set[Path]:
    """Images of a folder called as the mask of another one in it.

    Where most that are called as masks have their image, the others have lost it,
    and are masks too.
    """
    stems = {image.stem.lower() for image in images}
    paired = set[Path]()
    alone = set[Path]()
    for image in images:
        stem = image.stem.lower()
        found = BEHIND.fullmatch(stem) or BEFORE.fullmatch(stem)
        if found is None:
            continue
        of_images = {form.format(found["image"]) for form in OF_IMAGES} - {stem}
        (paired if of_images & stems else alone).add(image)
    return paired | alone if len(paired) > len(alone) else paired


# ---- folders around the data


def only_folder(folder: Path) -> Path | None:
    """The only folder in a folder, where it holds folders and neither holds images itself."""
    inside = look(folder)
    if inside.has_images or len(inside.folders) != 1:
        return None
    below = look(inside.folders[0])
    return inside.folders[0] if below.folders and not below.has_images else None


def folder_within(folder: Path) -> Path | None:
    """The folder in a folder that holds all of its data: the only one,
    or that of images beside their masks.
    """
    only = only_folder(folder)
    if only is not None:
        return only
    images = images_beside_masks(folder)
    return images if images is not None and class_folders(images) else None


def unwrapped(folder: Path, past_masks: bool = True) -> Path:
    """The folder itself, or the one within that holds more
    than a single folder: seg_train/seg_train.

    Args:
        past_masks: go into folders of images that lie beside masks, too.
    """
    within = folder_within if past_masks else only_folder
    while (below := within(folder)) is not None:
        folder = below
    return folder
