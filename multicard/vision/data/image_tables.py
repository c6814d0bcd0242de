"""Images in tables: of paths and classes, and parquet or Arrow files
of Hugging Face's `datasets` that hold them.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.records.part_columns import named_parts
from multicard.records.part_names import PartKind
from multicard.vision.data import class_names, class_values, listed_labels, table_images
from multicard.vision.data.data_parts import (
    FORMS,
    WHOLE,
    DataPart,
    FoundParts,
    PartSamples,
    order_of_tests,
)
from multicard.vision.data.image_columns import (
    LABELS,
    NONE_NAMED,
    Named,
    Usable,
    declared,
    no_columns,
    require_bytes,
    require_one_column_of_classes,
    require_same_columns,
    splits_of,
    usable,
)
from multicard.vision.data.stored_images import STREAM, Encoded, ImageFile, StoredImage, opened
from multicard.vision.data.text_tables import text_table

PARQUET = ".parquet"
NO_CLASS = "-1"  # in place of a number of a class


@dataclass(frozen=True)
class TableColumns:
    """What is read of a table, a value a row.

    labels: "" where a row has no class. parts: None without a column of `SPLITS`. classes: in their
    order, where `datasets` declared them in the file. ignored: rows of each other column. several:
    the images of a row whose name several have. notices: what was taken without being named.
    """

    images: list[Encoded]
    labels: list[str]
    parts: list[str] | None
    classes: list[str]
    ignored: Counter[str]
    several: dict[int, list[Path]]
    notices: tuple[Message, ...]


def table_parts(
    paths: list[Path],
    by_split: bool = True,
    any_name: bool = False,
    named: Named = NONE_NAMED,
    to_test: str | None = None,
    own_folders: Sequence[Path] = (),
) -> FoundParts:
    """The rows of a table in one or more files; parts by its column `split`,
    or another of `SPLITS`.

    Of a part to test on, no row need have a class: the hub's are published without.

    Args:
        any_name: take parts of any name, of which `dataset.parts` chooses.
        named: `dataset.columns`.
        to_test: the column of the classes that are trained on, where all rows are to be tested on.
        own_folders: where images that are given by their names alone are looked for first.
    """
    table = _columns(paths, by_split, named, to_test, own_folders)
    parts = [part.lower() for part in table.parts] if table.parts else [WHOLE] * len(table.images)
    found: dict[str, PartSamples] = {
        part: PartSamples([], [], [], Counter(), table.notices) for part in parts
    }
    unlabelled = _without_labels(table.labels, parts, to_test is not None)
    wrong: dict[Message, list[int]] = {}
    for row, (image, label, part) in enumerate(zip(table.images, table.labels, parts, strict=True)):
        if part in unlabelled:
            found[part].images.append(image)
            found[part].labels.append("")
            continue
        problem = _problem_of_row(
            image, label, None if any_name else part, table.several.get(row, [])
        )
        if problem is not None:
            wrong.setdefault(problem, []).append(row)
        found[part].images.append(image)
        found[part].labels.append(label)
    for problem, rows in wrong.items():
        more = f" and {len(rows) - 1:,} more" if rows[1:] else ""
        raise Refusal(
            "photographs.bad-rows",
            f"dataset.root={paths[0]}: row {rows[0] + 1} ({table.images[rows[0]]}){more}:"
            f" {problem}",
            key="dataset.root",
            row=rows[0] + 1,
            rows=len(rows),
            reason=problem,
        )
    if not found:
        raise Refusal(
            "photographs.no-rows",
            f"dataset.root={paths[0]}: has no rows; {FORMS}",
            key="dataset.root",
        )
    made = []
    for name in sorted(found, key=order_of_tests):
        samples = found[name]
        samples.classes.extend(class_names.in_order(samples.labels, table.classes))
        part = part_names.parsed(name)
        kind = None if part is None else part.kind
        made.append(
            DataPart(name, kind, partial(PartSamples, *samples), may_lack_labels=name in unlabelled)
        )
    return FoundParts(made, table.ignored)


def column_of_classes(path: Path, named: Named) -> tuple[str, bool]:
    """The column of a table that holds the classes, in lower case, and whether it is a guess, as
    a column of lists is, which may be tags; "" where none does.
    """
    from pyarrow import dataset

    found = usable(dataset.dataset(text_table(path)).schema, named, f"dataset.root={path}")
    is_list = bool(found.label) and found.fields[found.label].type.num_fields > 0
    return found.label, found.is_guess or is_list


def parts_of_rows(paths: list[Path], named: Named) -> list[str]:
    """The part of each row, by a column; none where none says one."""
    return _columns(paths, True, named, None, ()).parts or []


def _without_labels(labels: Sequence[str], parts: Sequence[str], to_test: bool) -> set[str]:
    """The parts that are not trained on, and none of whose rows has a class: all are empty, or -1.

    Args:
        to_test: all of them are to be tested on; else others must have classes.
    """
    found = dict[str, set[str]]()
    for label, part in zip(labels, parts, strict=True):
        found.setdefault(part, set()).add(label)
    empty = {part for part, own in found.items() if own <= {""} or own == {NO_CLASS}}
    if not to_test and len(empty) == len(found):
        return set()
    names = {part: part_names.parsed(part) for part in empty}
    return {
        part
        for part, name in names.items()
        if to_test or name is None or name.kind is not PartKind.train
    }


def _problem_of_row(
    image: Encoded, label: str, part: str | None, several: Sequence[Path]
) -> Message | None:
    """Why a row of a table cannot be used. Its part may have any name where it is None here."""
    if not label:
        return Message(
            "photographs.no-label",
            "no label (nothing, or -1 beside other numbers); give each image its class, or leave"
            " its row out",
        )
    if isinstance(image, Path) and not image.is_file():
        return table_images.missing(image.parent, several)
    if part not in (None, WHOLE) and part_names.parsed(part) is None:
        return Message(
            "photographs.unknown-split",
            f"no known split ({part}); use train, validation or test, or name two by"
            " `dataset.parts=[TRAIN,TEST]`",
            part=part,
        )
    return None


def _columns(
    paths: list[Path],
    by_split: bool,
    named: Named,
    to_test: str | None,
    own_folders: Sequence[Path],
) -> TableColumns:
    place = f"dataset.root={paths[0]}"
    folder = paths[0].parent.absolute()  # as some paths in the table may be
    with _unreadable_refused(paths[0]):
        stored = _stored(paths, named)
        found = _usable_columns(stored, named, to_test, place, folder)
        fields, inside, image, label, is_guess = found
        if inside:
            require_bytes(paths, {"image": named.get("image")})
        splits = splits_of(found, named) if by_split else []
        rivals = [name for name in LABELS if name in fields] if label in LABELS else []
        wanted = {label, *rivals, *splits, image} & fields.keys() - inside
        texts = _texts(stored, {name: fields[name].name for name in wanted}, place)
        counts = [opened([path]).count_rows() for path in paths] if inside else []
        rows = stored.count_rows()
    if rivals and to_test is None and named.get("label") is None:
        require_one_column_of_classes(found, named, texts, place)
    split, parts = named_parts({name: texts[name] for name in splits}, is_named="split" in named)
    read = {fields[name].name for name in {image, label, split} & fields.keys() - {""}}
    others = [field.name for field in stored.schema if field.name not in read]
    unread = [f"column {name}" if name.strip() else "column without a name" for name in others]
    ignored = Counter(dict.fromkeys(unread, rows))
    if not inside:
        _require_no_addresses(place, fields[image].name, texts[image])
    files = table_images.found(folder, texts.get(image, []), own_folders)
    images: list[Encoded] = [*files.images]
    ignored += files.ignored
    for path, count in zip(paths, counts, strict=bool(inside)):
        file = ImageFile(path, fields[image], is_named="image" in named)
        images += [StoredImage(file, index) for index in range(count)]
    if parts is None and by_split and "split" not in named:
        parts = _parts_by_folder(files.images)
    labels = class_names.without_no_class(texts.get(label, [""] * len(images)))
    classes = declared(stored, found.stored(label))
    if not classes:
        class_values.require_one_label_an_image(place, found.stored(label), labels)
        class_values.require_classes_not_measurements(place, found.stored(label), labels)
    columns = stored.schema.names
    class_values.require_whole_images(place, columns, images, labels, parts or [""] * len(images))
    notices = list[Message]()
    if is_guess:
        guess = class_values.guessed_column(place, found.stored(label), images, labels, named)
        notices.append(guess)
    return TableColumns(images, labels, parts, classes, ignored, files.several, tuple(notices))


def _parts_by_folder(images: Sequence[Path]) -> list[str] | None:
    """The part of each row by the folder of its image, as train/ and test/;
    None where not all images lie in such folders.
    """
    if not images:
        return None
    above = Path(os.path.commonpath([image.parent for image in images]))
    folders = [next(iter(image.parent.relative_to(above).parts), "") for image in images]
    names = part_names.named({*folders})
    kinds = {part.kind for part in names.values()}
    if len(names) < len({*folders}) or PartKind.train not in kinds or len(kinds) < 2:
        return None
    return folders


@contextmanager
def _unreadable_refused(path: Path) -> Iterator[None]:
    """Refuse, by its name, a table that cannot be read."""
    import pyarrow as pa

    try:
        yield
    except Refusal as refusal:
        if refusal.code not in ("table.encoding", "table.nul"):
            raise
        raise Refusal(
            "photographs.table-encoding",
            f"dataset.root={path}: {refusal.message}",
            key="dataset.root",
            file=str(path),
            reason=refusal.message,
        ) from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # else a file that is cut off
            raise
        why = re.split("Invalid: |source '.*?': ", str(error).splitlines()[0])[-1]
        raise Refusal(
            "photographs.unreadable-table",
            f"dataset.root={path}: cannot be read ({why}); save it whole, and in UTF-8",
            key="dataset.root",
            file=str(path),
            why=why,
        ) from None


def _stored(paths: list[Path], named: Named) -> Any:
    """A pyarrow `Dataset` of a table in one or more files."""
    from pyarrow import dataset

    form: Any = "parquet"
    if paths[0].suffix.lower() not in (PARQUET, STREAM):
        return dataset.dataset(text_table(paths[0]))
    if paths[1:]:
        require_same_columns(paths, form, named)
    return opened(paths, form)


def _usable_columns(
    stored: Any, named: Named, to_test: str | None, place: str, folder: Path
) -> Usable:
    """The columns of images and of classes; refused where they are not there.

    Args:
        to_test, named: as `table_parts` has them.
    """
    if to_test is None:
        found = usable(stored.schema, named, place)
        if found.image and found.label:
            return found
    else:
        others = {ours: theirs for ours, theirs in named.items() if ours != "label"}
        if listed_labels.listed(stored.schema, to_test, LABELS) is not None:
            others["label"] = to_test
        found = usable(stored.schema, others, place).with_label_of(to_test)
        if found.image:
            return found
    raise _no_columns(stored, found, named, place, folder)


def _texts(stored: Any, names: Mapping[str, str], place: str) -> dict[str, list[str]]:
    """Columns as texts, by our names for them."""
    table = stored.to_table([*names.values()])
    return {
        ours: class_names.texts(
            listed_labels.alone(table[theirs].to_pylist(), place, theirs), declared(stored, theirs)
        )
        for ours, theirs in names.items()
    }


def _no_columns(stored: Any, found: Usable, named: Named, place: str, folder: Path) -> Refusal:
    """The refusal of a table without a column of images or of classes, by what its values are."""
    if found.holds_images:
        return no_columns(stored.schema, found, named, place, None)
    texts = _texts(stored, {name: field.name for name, field in found.fields.items()}, place)
    paths = list[str]()
    for name, values in texts.items():
        given = [value for value in values if value]
        if any(image.is_file() for image in table_images.found(folder, given).images):
            paths.append(name)
    for name, values in texts.items():
        if not paths:
            _require_no_addresses(place, found.stored(name), values)
    image = found.image if found.image in paths else next(iter(paths), "")
    if image:
        nothing = [""] * len(texts[image])
        class_values.require_whole_images(
            place, stored.schema.names, texts[image], nothing, nothing
        )
    return no_columns(stored.schema, found, named, place, paths)


def _require_no_addresses(place: str, column: str, values: Sequence[str]) -> None:
    if class_values.are_addresses(values):
        raise Refusal(
            "photographs.addresses",
            f"{place}: {column} holds addresses of the network, and nothing is fetched; fetch the"
            " images into a folder beside the table, and give their names in its place",
            key="dataset.root",
            column=column,
        )


def text_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a .csv, .tsv or .jsonl that hold texts or numbers, as texts.

    Raises:
        Refusal, ValueError: it cannot be read.
    """
    table = text_table(path, to_train=False)
    plain = [field.name for field in table.schema if not field.type.num_fields]
    return {name: class_names.texts(table[name].to_pylist(), []) for name in plain}
