"""Keep segmentation masks, which lie beside the images they belong to, out of the samples.

A mask is recognized by the name of its folder, or by a file name that extends the name of an image
beside it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from multicard.messages import Refusal
from multicard.vision.data.data_parts import OR_USE_A_TABLE
from multicard.vision.data.folder_contents import holds_images, list_folder, visible_folders

# Folder names in lower case, with a blank between words.
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
# Words in the names of parts, such as train_masks. `seg` is missing: seg_train holds no masks.
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
MASK_WORDS |= {"gt", "trimaps"}
MASK_PATTERN = (
    "masks?|seg|segmentations?|labels?|gt|ground[ _-]?truth|annotations?|superpixels|trimap"
)
# Matches cat_mask_1.
MASK_WORD_LAST = re.compile(
    rf"(?P<image>.+?)[ ._-]+({MASK_PATTERN})([ ._-]*\(?\d+\)?)?", re.IGNORECASE
)
MASK_WORD_FIRST = re.compile(rf"({MASK_PATTERN})[ ._-]+(?P<image>.+)", re.IGNORECASE)  # mask_cat
# Names that the image itself may have beside `cat_mask` or `mask_cat`.
IMAGE_NAME_FORMS = ("{}", "{}_image", "{}_img", "image_{}", "img_{}")
MASKS_BY_NAME = "masks, by their names"


# ---- folders


def is_image_folder(folder: Path) -> bool:
    return _spaced_words(folder.name) in IMAGE_FOLDERS


def is_mask_folder(folder: Path) -> bool:
    return _spaced_words(folder.name) in MASK_FOLDERS


def _spaced_words(name: str) -> str:
    return " ".join(re.split(r"[ ._-]+", name.lower()))


def images_beside_masks(folder: Path) -> Path | None:
    """Return the only subfolder named as images, if one named as masks lies beside it.

    Return None if there is none, or if other subfolders hold images too.
    """
    folders = visible_folders(folder)
    images = [subfolder for subfolder in folders if is_image_folder(subfolder)]
    masks = [subfolder for subfolder in folders if is_mask_folder(subfolder)]
    if len(images) != 1 or not masks:
        return None
    others = [subfolder for subfolder in folders if subfolder not in (*images, *masks)]
    return None if any(holds_images(subfolder) for subfolder in others) else images[0]


def require_no_masks(folder: Path, classes: Sequence[Path]) -> None:
    """Refuse folders named as images and as masks in the place of folders of classes."""
    folder_names = [
        subfolder.name
        for subfolder in classes
        if is_image_folder(subfolder) or is_mask_folder(subfolder)
    ]
    if any(is_image_folder(subfolder) for subfolder in classes) and any(
        is_mask_folder(subfolder) for subfolder in classes
    ):
        raise _masks_refusal(folder, folder_names)


def require_no_masks_of_parts(root: Path, parts: Sequence[Path]) -> None:
    """Refuse parts that hold images without classes if masks lie beside them.

    The masks may be parts, such as train_masks/, or lie in a masks/ folder beside `root`.

    Args:
        root: The folder of the parts. It may itself be named as images.
    """
    masks = [
        part.name
        for part in parts
        if not {*_spaced_words(part.name).split()}.isdisjoint(MASK_WORDS)
    ]
    if masks:
        raise _masks_refusal(root, [part.name for part in parts])
    above = root.absolute().parent
    mask_folders = list[str]()
    if is_image_folder(root):
        with suppress(OSError):  # If the folder may not be listed, no masks are known.
            mask_folders = [
                subfolder.name for subfolder in visible_folders(above) if is_mask_folder(subfolder)
            ]
    if mask_folders:
        raise _masks_refusal(above, [root.name, *mask_folders])


def _masks_refusal(folder: Path, folder_names: Sequence[str]) -> Refusal:
    return Refusal(
        "photographs.masks",
        f"dataset.root={folder}: {' and '.join(folder_names)} look like images and their masks or"
        " boxes (segmentation or detection), not like classes; put the images of each class into a"
        f" folder of that class, {OR_USE_A_TABLE}",
        key="dataset.root",
        folder=str(folder),
        folders=[*folder_names],
    )


# ---- images


def separate_masks(folder: Path, images: Sequence[Path]) -> tuple[list[Path], Counter[str]]:
    """Separate the images below a class's folder from masks, and count the masks by place.

    Folders named as masks are left out only if other images lie beside them: a class may consist
    of masks alone.
    """
    by_folder = dict[Path, list[Path]]()
    for image in images:
        by_folder.setdefault(image.parent, []).append(image)
    names = {path: _mask_folder(path.relative_to(folder)) for path in by_folder}
    some_are_masks = 0 < sum(name is not None for name in names.values()) < len(names)
    kept_images = list[Path]()
    masks = Counter[str]()
    for path, listing in by_folder.items():
        name = names[path]
        if name is not None and some_are_masks:
            masks[f"{name}/"] += len(listing)
            continue
        by_name = _masks_by_name(listing)
        masks[MASKS_BY_NAME] += len(by_name)
        kept_images += [image for image in listing if image not in by_name]
    return kept_images, +masks


def _mask_folder(below: Path) -> str | None:
    """Return the first folder of a path that is named as a folder of masks."""
    return next((name for name in below.parts if _spaced_words(name) in MASK_FOLDERS), None)


def _masks_by_name(images: Sequence[Path]) -> set[Path]:
    """Find images of one folder that are named as the mask of another image in it.

    If most images with such names have their image beside them, the others have only lost theirs,
    and count as masks too.
    """
    stems = {image.stem.lower() for image in images}
    paired = set[Path]()
    unpaired = set[Path]()
    for image in images:
        stem = image.stem.lower()
        match = MASK_WORD_LAST.fullmatch(stem) or MASK_WORD_FIRST.fullmatch(stem)
        if match is None:
            continue
        image_stems = {form.format(match["image"]) for form in IMAGE_NAME_FORMS} - {stem}
        if image_stems & stems:
            paired.add(image)
        else:
            unpaired.add(image)
    return paired | unpaired if len(paired) > len(unpaired) else paired


# ---- folders around the data


def only_folder(folder: Path) -> Path | None:
    """Return the only subfolder if it holds folders, and neither level holds images directly."""
    listing = list_folder(folder)
    if listing.has_images or len(listing.folders) != 1:
        return None
    below = list_folder(listing.folders[0])
    return listing.folders[0] if below.folders and not below.has_images else None


def inner_folder(folder: Path) -> Path | None:
    """Return the subfolder that holds all data: the only one, or images beside their masks."""
    only_subfolder = only_folder(folder)
    if only_subfolder is not None:
        return only_subfolder
    images = images_beside_masks(folder)
    return images if images is not None and visible_folders(images) else None


def innermost_folder(folder: Path, past_masks: bool = True) -> Path:
    """Descend while a single subfolder holds all data, as in seg_train/seg_train.

    Args:
        past_masks: Also enter folders of images that lie beside folders of masks.
    """
    next_folder = inner_folder if past_masks else only_folder
    while (below := next_folder(folder)) is not None:
        folder = below
    return folder
