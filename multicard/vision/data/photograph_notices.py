"""Notices of photographs before the start: what is not read, and what may be meant otherwise."""

from pathlib import Path

from multicard.config.pasting import override
from multicard.config.vision_data import ImagesConfig
from multicard.messages import Message, in_one_line
from multicard.records.schema_parts import Ignored
from multicard.vision.data import class_names, not_classes, pixel_values
from multicard.vision.data.splits import DataSplits

SHOWN_KINDS = 8  # of what is not read, in a line


def of_data(data: DataSplits, config: ImagesConfig) -> list[Message]:
    """All that there is to say of data that are read."""
    notices = list[Message]()
    if data.ignored:
        notices.append(_not_read(data.ignored, config))
    alike = class_names.alike(data.class_names)
    if alike:
        notices.append(_alike(alike, config))
    if config.parts != []:  # by which folders are said to be classes
        inside = _folders_in_classes(data, config)
        if inside:
            notices.append(_of_several_folders(inside, config))
    return [*notices, *pixel_values.of_images(data, config)]


def _folders_in_classes(data: DataSplits, config: ImagesConfig) -> dict[str, list[str]]:
    root = Path(str(config.root)).expanduser()
    if not root.is_dir():  # a table says which classes there are
        return {}
    splits = [data.train]
    if config.split is not None:  # of the same folders
        splits.append(data.test)
    files = list[tuple[Path, str]]()
    for split in splits:
        for image, label in zip(split.images, split.labels, strict=True):
            if isinstance(image, Path):
                files.append((image, data.class_names[label]))
    return not_classes.folders_in_classes(root, files)


def _of_several_folders(inside: dict[str, list[str]], config: ImagesConfig) -> Message:
    """That folders lie in the folder of a class, and may be meant as classes."""
    shown = [
        f"{name} (with the folders {', '.join(folders[:3])})" for name, folders in inside.items()
    ]
    more = f" and {len(shown) - SHOWN_KINDS} more" if len(shown) > SHOWN_KINDS else ""
    alone = Path(str(config.root)).expanduser() / next(iter(inside))
    remedy = None
    if len(inside) == 1 and alone.is_dir():
        remedy = override("dataset.root", alone)
    use = "" if remedy is None else f", or use `{remedy}` to read them alone"
    return Message(
        "photographs.folders-in-classes",
        in_one_line(
            f"dataset.root={config.root}: trains {', '.join(shown[:SHOWN_KINDS])}{more} as one"
            f" class each; if the folders are the classes, put all classes beside one another{use}"
        ),
        key="dataset.root",
        root=str(config.root),
        classes={name: folders[:20] for name, folders in [*inside.items()][:20]},
        remedy=remedy,
    )


def _alike(groups: list[list[str]], config: ImagesConfig) -> Message:
    """That names of classes differ only by case or blanks, and may be meant as one."""
    shown = "; ".join(" and ".join(group) for group in groups[:SHOWN_KINDS])
    return Message(
        "photographs.alike-classes",
        in_one_line(
            f"dataset.root={config.root}: trains {shown} as classes of their own, whose names"
            " differ only by case, blanks, dashes or accents; give them one name if they are one"
        ),
        key="dataset.root",
        root=str(config.root),
        classes=groups,
    )


def _not_read(ignored: list[Ignored], config: ImagesConfig) -> Message:
    """That there is more than what is read; the kinds that are most, the others together."""
    kinds = [f"{part.count:,} {part.what}" for part in ignored[:SHOWN_KINDS]]
    others = sum(part.count for part in ignored[SHOWN_KINDS:])
    more = [f"{others:,} of other kinds"] if others else []
    return Message(
        "photographs.ignored",
        in_one_line(f"dataset.root={config.root}: not read: {', '.join([*kinds, *more])}"),
        key="dataset.root",
        root=str(config.root),
        ignored={part.what: part.count for part in ignored},
    )
