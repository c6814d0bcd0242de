"""Divide folders of classes by lists of paths, such as train.txt and test.txt in Food-101's meta/.

Each line is the path of an image, with or without its ending: "apple_pie/1005649". Its folder is
its class.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from multicard.config.job import count
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import (
    FOLDERS_AS_CLASSES,
    DataPart,
    FoundParts,
    PartSamples,
    test_order,
)
from multicard.vision.data.folder_contents import (
    IMAGE_SUFFIXES,
    is_hidden,
    is_note_folder,
    visible_folders,
)
from multicard.vision.data.known_layouts import overrides_to_read_alone

LISTS = "*.txt"
LEAST_FOUND = 0.5  # A list that names fewer of the images is of other images.
NOT_LISTED = "images that no list names"


def parts_by_lists(root: Path, samples: PartSamples, ignored: Counter[str]) -> FoundParts | None:
    """Return the parts that lists in a folder, or in a folder of notes, divide its images into.

    Return None if there are no lists to train and to test by.

    Args:
        samples: All images in the folder, with the classes of their folders.
        ignored: What lies beside them. The lists are among these files.

    Raises:
        Refusal: Some lines of a list name no image.
    """
    lists_by_place = {place: _lists_of_parts(place) for place in _places_of_lists(root)}
    if not any(lists_by_place.values()):
        return None
    place_of_image = _places_by_path(samples)
    for place, lists in lists_by_place.items():
        lines_of_part = {name: _lines(path) for name, path in lists.items()}
        if not lists or not all(
            _name_images(lines, place_of_image) for lines in lines_of_part.values()
        ):
            continue
        kind = f"{place.name}/" if is_note_folder(place) else ".txt"
        rest = ignored - Counter({kind: len(lists)})
        for name, lines in lines_of_part.items():
            _require_images(lines, place_of_image, lists[name], root, samples)
        places = {
            name: [place_of_image[_key(line)] for line in lines]
            for name, lines in lines_of_part.items()
        }
        listed = set[int]().union(*places.values())
        rest[NOT_LISTED] = len(samples.images) - len(listed)
        names = part_names.named(lists)
        return FoundParts(
            [
                DataPart(name, names[name].kind, partial(_chosen, samples, places[name]))
                for name in sorted(lists, key=test_order)
            ],
            +rest,
        )
    return None


def _places_of_lists(root: Path) -> Iterator[Path]:
    """Yield the folders that may have lists. An archive may hold a single folder."""
    folder = root
    while True:
        folders = visible_folders(folder)
        yield folder
        yield from (path for path in folders if is_note_folder(path))
        if len(folders) != 1:
            return
        (folder,) = folders


def _lists_of_parts(folder: Path) -> dict[str, Path]:
    """Return the lists by the names of their parts; none if there is not one to train by."""
    by_name = {path.stem: path for path in sorted(folder.glob(LISTS)) if not is_hidden(path.name)}
    names = part_names.named(by_name)
    kinds = {name.kind for name in names.values()}
    if PartKind.train not in kinds or len(kinds) == 1:
        return {}
    return {name: by_name[name] for name in names}


def _lines(path: Path) -> list[str]:
    """Return the different lines of a list, in their order; none if it is not text."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return []
    return [*dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())]


def _key(path: str) -> str:
    """Return the folder and the name of an image without its ending."""
    image = PurePosixPath(path.replace("\\", "/"))
    name = image.stem if image.suffix.lower() in IMAGE_SUFFIXES else image.name
    return f"{image.parent.name}/{name}"


def _places_by_path(samples: PartSamples) -> dict[str, int]:
    """Return the place of each image by its key. Keys that several images share are left out."""
    paths = [str(image) for image in samples.images if isinstance(image, Path)]
    keys = [_key(path) for path in paths]
    counts = Counter(keys)
    return {key: place for place, key in enumerate(keys) if counts[key] == 1}


def _name_images(lines: Sequence[str], place_of_image: dict[str, int]) -> bool:
    found = sum(_key(line) in place_of_image for line in lines)
    return found > LEAST_FOUND * len(lines)


def _require_images(
    lines: Sequence[str],
    place_of_image: dict[str, int],
    path: Path,
    root: Path,
    samples: PartSamples,
) -> None:
    """Refuse a list with a line that names no image."""
    missing = [line for line in lines if _key(line) not in place_of_image]
    if not missing:
        return
    folders = {image.parent.parent for image in samples.images if isinstance(image, Path)}
    without_lists = FOLDERS_AS_CLASSES
    if len(folders) == 1 and folders != {path.parent}:
        without_lists = overrides_to_read_alone(folders.pop())
    raise Refusal(
        "photographs.line-without-image",
        f"dataset.root={root}: {missing[0]} of {path.relative_to(root).as_posix()} is no image in a"
        f" folder of a class ({count(len(missing), 'such line')} of {len(lines)}); complete the"
        f" images, or use `{without_lists}` to read the folders without the lists",
        key="dataset.root",
        file=str(path),
        line=missing[0],
        missing=len(missing),
    )


def _chosen(samples: PartSamples, places: Sequence[int]) -> PartSamples:
    labels = [samples.labels[place] for place in places]
    present = {*labels}
    classes = [name for name in samples.classes if name in present]
    return PartSamples([samples.images[place] for place in places], labels, classes, Counter())
