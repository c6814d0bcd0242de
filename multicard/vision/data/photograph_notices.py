"""Notices about photographs before training: what is not read, and what may be unintended."""

from pathlib import Path

from multicard.config.pasting import override
from multicard.config.vision_data import ImagesConfig
from multicard.messages import Message, in_one_line
from multicard.records.schema_data import Ignored
from multicard.vision.data import class_names, not_classes, pixel_values
from multicard.vision.data.splits import DataSplits

SHOWN_KINDS = 8  # A notice lists at most this many kinds, classes or groups.


def notices_of_data(data: DataSplits, config: ImagesConfig) -> list[Message]:
    """Return all notices about data that were read."""
    notices = list[Message]()
    if data.ignored:
        notices.append(_ignored_notice(data.ignored, config))
    similar_names = class_names.group_similar_names(data.class_names)
    if similar_names:
        notices.append(_similar_classes_notice(similar_names, config))
    if config.parts != []:  # With `dataset.parts=[]`, the user declared the folders to be classes.
        folders_by_class = _folders_in_classes(data, config)
        if folders_by_class:
            notices.append(_folders_in_classes_notice(folders_by_class, config))
    return [*notices, *pixel_values.notices_of_images(data, config)]


def _folders_in_classes(data: DataSplits, config: ImagesConfig) -> dict[str, list[str]]:
    root = Path(str(config.root)).expanduser()
    if not root.is_dir():  # A table gives the classes.
        return {}
    splits = [data.train]
    if config.split is not None:  # Both splits come from the same folders.
        splits.append(data.test)
    files = list[tuple[Path, str]]()
    for split in splits:
        for image, label in zip(split.images, split.labels, strict=True):
            if isinstance(image, Path):
                files.append((image, data.class_names[label]))
    return not_classes.folders_in_classes(root, files)


def _folders_in_classes_notice(
    folders_by_class: dict[str, list[str]], config: ImagesConfig
) -> Message:
    """Say that the folder of a class holds folders that may be the real classes."""
    shown = [
        f"{name} (with the folders {', '.join(folders[:3])})"
        for name, folders in folders_by_class.items()
    ]
    more_text = f" and {len(shown) - SHOWN_KINDS} more" if len(shown) > SHOWN_KINDS else ""
    class_folder = Path(str(config.root)).expanduser() / next(iter(folders_by_class))
    remedy = None
    if len(folders_by_class) == 1 and class_folder.is_dir():
        remedy = override("dataset.root", class_folder)
    use = "" if remedy is None else f", or use `{remedy}` to read them alone"
    return Message(
        "photographs.folders-in-classes",
        in_one_line(
            f"dataset.root={config.root}: trains {', '.join(shown[:SHOWN_KINDS])}{more_text} as one"
            f" class each; if the folders are the classes, put all classes side by side{use}"
        ),
        key="dataset.root",
        root=str(config.root),
        classes={name: folders[:20] for name, folders in [*folders_by_class.items()][:20]},
        remedy=remedy,
    )


def _similar_classes_notice(groups: list[list[str]], config: ImagesConfig) -> Message:
    """Say that the names of some classes differ only in spelling and may mean one class."""
    shown = "; ".join(" and ".join(group) for group in groups[:SHOWN_KINDS])
    return Message(
        "photographs.alike-classes",
        in_one_line(
            f"dataset.root={config.root}: trains {shown} as separate classes, although their names"
            " differ only in case, blanks, dashes or accents; give them one name if they are one"
            " class"
        ),
        key="dataset.root",
        root=str(config.root),
        classes=groups,
    )


def _ignored_notice(ignored: list[Ignored], config: ImagesConfig) -> Message:
    """Say what is not read: the most frequent kinds, and the number of all others."""
    kinds = [f"{part.count:,} {part.what}" for part in ignored[:SHOWN_KINDS]]
    others = sum(part.count for part in ignored[SHOWN_KINDS:])
    more_text = [f"{others:,} of other kinds"] if others else []
    return Message(
        "photographs.ignored",
        in_one_line(f"dataset.root={config.root}: not read: {', '.join([*kinds, *more_text])}"),
        key="dataset.root",
        root=str(config.root),
        ignored={part.what: part.count for part in ignored},
    )
