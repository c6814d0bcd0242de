"""Images in tables: of paths and classes, and parquet or Arrow files of Hugging Face's `datasets` that hold them."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from multicard.config.shards import missing_shards
from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.records.separated_text import separated_text
from multicard.vision.data import class_names, table_images
from multicard.vision.data.data_parts import FORMS, WHOLE, Part, Samples, Source, order_of_tests
from multicard.vision.data.folder_contents import beside, class_folders, count_files, holds_images
from multicard.vision.data.stored_images import STREAM, Encoded, ImageFile, Row, opened

PATHS = ("path", "file", "filename", "file_name", "image", "img")  # names of columns, in any case
IDS = ("image_id", "id_code", "image_name", "imageid", "id", "filepath")  # of images, where no such column is there
LABELS = ("label", "labels", "class", "target")
# Columns that name the part of a row. All but the first do so only where each value is the name of a part, or a boolean
SPLITS = ("split", "set", "subset", "partition", "is_valid", "is_val", "is_test")
BOOLEANS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
HOLDS_BYTES = re.compile("struct<.*bytes: |(large_)?binary")  # types of encoded images
PARQUET = ".parquet"
LINES = ".jsonl"
ABOUT = {"state.json", "dataset_info.json", "dataset_dict.json"}  # what `datasets` writes of its files


# ---- files of `datasets`


def stored_parts(root: Path, whole: bool = False, any_name: bool = False) -> Source | None:
    """Parts by the names of files, as train-00000-of-00002.parquet, else of their folders, as train/data-*.arrow. They
    are in the folder and those of parts, its only one, or its `data/`. None where there is no such file.

    Files of one name, or of none that is a part's, have parts by a column as a table has (`table_parts`).

    Args:
        whole: take all files together, whatever they are called. any_name: as `table_parts` has it.
    """
    files, ignored = dict[str, list[Path]](), Counter[str]()
    folders = class_folders(root)
    named = part_names.named(folder.name for folder in folders)
    within = [folder for folder in folders if folder.name in named] or folders[: len(folders) == 1]
    places = [root, *(within or [root / "data"])]
    for place in filter(Path.is_dir, places):
        taken, others = _stored_files(place)
        _require_all_shards(place, taken)
        ignored += others
        for path in taken:
            files.setdefault(_part_of(path), []).append(path)
    if not files:
        return None
    known = [name for name in files if part_names.parsed(name) is not None]
    if not known and any(holds_images(folder) for folder in folders):
        return None  # a table beside folders of classes
    for folder in folders:
        if folder not in places:
            ignored[f"{folder.name}/"] += count_files(folder)
    every = sorted(path for paths in files.values() for path in paths)
    if whole:
        return Source([Part(WHOLE, None, partial(_read_files, every))], ignored)
    if not known or (len(files) == 1 and _splits_rows(every)):
        found = table_parts(every, any_name=any_name)
        return Source(found.parts, ignored + found.ignored)
    for name in files.keys() - known:
        ignored.update(f"{path.name}, of no part" for path in files[name])
    parts = []
    for name in sorted(known, key=order_of_tests):
        part = part_names.parsed(name)
        assert part is not None
        parts.append(Part(name, part.kind, partial(_read_files, files[name])))
    return Source(parts, ignored)


def _stored_files(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The files of one data set in a folder, and what else lies there, by kind.

    `datasets` leaves cache-*.arrow of what was computed beside its files, which state.json lists. Without such a list,
    files of one ending are taken, parquet before Arrow.
    """
    others = Counter({kind: count for kind, count in beside(folder).items() if kind not in (PARQUET, STREAM, ".json")})
    found = {ending: sorted(folder.glob(f"*{ending}")) for ending in (PARQUET, STREAM, ".json")}
    others[".json"] = sum(path.name not in ABOUT for path in found.pop(".json"))
    listed = _listed_files(folder)
    taken = [path for path in found[STREAM] if path.name in listed]
    taken = taken or found[PARQUET] or found[STREAM]
    for ending, paths in found.items():
        left = sum(path not in taken for path in paths)
        others[f"{ending} not in state.json" if listed and ending == STREAM else ending] += left
    return taken, +others


def _require_all_shards(folder: Path, files: list[Path]) -> None:
    """Refuse numbered files, as train-00000-of-00002.parquet, of which some are missing."""
    missing = missing_shards(path.name for path in files)
    if missing:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        raise Refusal(
            "photographs.missing-shards",
            f"dataset.root={folder}: {missing[0]}{more} is missing beside {files[0].name}; put it there, or rename the "
            "files, without -of- and the number behind it, to use them alone",
            key="dataset.root",
            folder=str(folder),
            missing=missing,
        )


def _listed_files(folder: Path) -> set[str]:
    """The names of the files that the state.json of a folder lists; none where it has none, or one of others."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        listed = json.loads((folder / "state.json").read_bytes())["_data_files"]
        return {each["filename"] for each in listed}
    return set()


def _part_of(path: Path) -> str:
    """The part that a file is of, by its name, or else by that of its folder: as the record calls it."""
    for name in (path.stem, path.parent.name):
        part = part_names.parsed(name)
        if part is not None:
            return part.word
    return ""


def _read_files(paths: list[Path]) -> Samples:
    source = table_parts(paths, by_split=False)
    (part,) = source.parts
    return part.read()._replace(ignored=source.ignored)


def _splits_rows(paths: list[Path]) -> bool:
    """True where a column splits the rows of these files into parts to train and to test on: `datasets` calls a file
    of all rows train-00000-of-00001.parquet."""
    parts = [part_names.parsed(part) for part in {*(_columns(paths, by_split=True).parts or ())}]
    return None not in parts and len({part.kind for part in parts if part is not None}) > 1


# ---- tables


@dataclass(frozen=True)
class Columns:
    """What is read of a table, a value a row.

    labels: "" where a row has no class. parts: None without a column of `SPLITS`. classes: in their order, where
    `datasets` declared them in the file. ignored: rows of each other column. several: the images of a row whose name
    several have.
    """

    images: list[Encoded]
    labels: list[str]
    parts: list[str] | None
    classes: list[str]
    ignored: Counter[str]
    several: dict[int, list[Path]]


def table_parts(paths: list[Path], by_split: bool = True, any_name: bool = False) -> Source:
    """The rows of a table in one or more files; parts by its column `split`, or another of `SPLITS`.

    Args:
        any_name: take parts of any name, of which `dataset.parts` chooses.
    """
    table = _columns(paths, by_split)
    parts = [part.lower() for part in table.parts] if table.parts else [WHOLE] * len(table.images)
    found: dict[str, Samples] = {part: Samples([], [], [], Counter()) for part in parts}
    wrong: dict[Message, list[int]] = {}
    for row, (image, label, part) in enumerate(zip(table.images, table.labels, parts, strict=True)):
        problem = _problem_of_row(image, label, None if any_name else part, table.several.get(row, []))
        if problem is not None:
            wrong.setdefault(problem, []).append(row)
        found[part].images.append(image)
        found[part].labels.append(label)
    for problem, rows in wrong.items():
        more = f" and {len(rows) - 1:,} more" if rows[1:] else ""
        raise Refusal(
            "photographs.bad-rows",
            f"dataset.root={paths[0]}: row {rows[0] + 1} ({table.images[rows[0]]}){more}: {problem}",
            key="dataset.root",
            row=rows[0] + 1,
            rows=len(rows),
            reason=problem,
        )
    if not found:
        raise Refusal("photographs.no-rows", f"dataset.root={paths[0]}: has no rows; {FORMS}", key="dataset.root")
    made = []
    for name in sorted(found, key=order_of_tests):
        samples = found[name]
        samples.classes.extend(class_names.in_order(samples.labels, table.classes))
        part = part_names.parsed(name)
        made.append(Part(name, None if part is None else part.kind, partial(Samples, *samples)))
    return Source(made, table.ignored)


def _problem_of_row(image: Encoded, label: str, part: str | None, several: Sequence[Path]) -> Message | None:
    """Why a row of a table cannot be used. Its part may have any name where it is None here."""
    if not label:
        return Message("photographs.no-label", "no label; give each image its class")
    if isinstance(image, Path) and not image.is_file():
        return table_images.missing(image.parent, several)
    if part not in (None, WHOLE) and part_names.parsed(part) is None:
        return Message(
            "photographs.unknown-split",
            f"no known split ({part}); use train, validation or test, or name two by `dataset.parts=[TRAIN,TEST]`",
            part=part,
        )
    return None


def _columns(paths: list[Path], by_split: bool) -> Columns:
    import pyarrow as pa
    from pyarrow import dataset

    form: Any = "parquet"
    try:
        if paths[0].suffix.lower() not in (PARQUET, STREAM):
            stored = dataset.dataset(_text_table(paths[0]))
        else:
            if paths[1:]:
                _require_same_columns(paths, form)
            stored = opened(paths, form)
        fields, inside, image, label = _usable(stored.schema)
        if not image or not label:
            shown = list[str]()
            for each in stored.schema:
                kind = "" if each in fields.values() else f" ({str(each.type).partition('<')[0]})"
                shown.append(f"{each.name}{kind}")
            raise Refusal(
                "photographs.columns",
                f"dataset.root={paths[0]}: has the columns {', '.join(shown)}; call that of the "
                f"images (paths, or encoded) one of {', '.join(PATHS)}, that of the classes (text or numbers) one of "
                f"{', '.join(LABELS)}",
                key="dataset.root",
                columns=shown,
            )
        splits = [name for name in SPLITS if by_split and name in fields]
        if inside:
            _require_bytes(paths)
        wanted = {label, *splits, image} & fields.keys() - inside
        table = stored.to_table([fields[name].name for name in wanted])
        columns = {name: table[fields[name].name].to_pylist() for name in wanted}
        counts = [opened([path]).count_rows() for path in paths] if inside else []
        texts = {name: class_names.texts(columns[name], _declared(stored, fields[name].name)) for name in wanted}
        split, parts = _named_parts({name: texts[name] for name in splits})
        read = {fields[name].name for name in {image, label, split} & fields.keys() - {""}}
        others = [field.name for field in stored.schema if field.name not in read]
        named = [f"column {name}" if name.strip() else "column without a name" for name in others]
        ignored = Counter(dict.fromkeys(named, stored.count_rows()))
    except Refusal as refusal:
        if refusal.code not in ("table.encoding", "table.nul"):
            raise
        raise Refusal(
            "photographs.table-encoding",
            f"dataset.root={paths[0]}: {refusal.message}",
            key="dataset.root",
            file=str(paths[0]),
            reason=refusal.message,
        ) from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # else a file that is cut off
            raise
        why = re.split("Invalid: |source '.*?': ", str(error).splitlines()[0])[-1]
        raise Refusal(
            "photographs.unreadable-table",
            f"dataset.root={paths[0]}: cannot be read ({why}); save it whole, and in UTF-8",
            key="dataset.root",
            file=str(paths[0]),
            why=why,
        ) from None
    folder = paths[0].parent.absolute()  # as some paths in the table may be
    found = table_images.found(folder, texts.get(image, []))
    images: list[Encoded] = [*found.images]
    ignored += found.ignored
    for path, count in zip(paths, counts, strict=bool(inside)):
        file = ImageFile(path, fields[image])
        images += [Row(file, index) for index in range(count)]
    return Columns(images, texts[label], parts, _declared(stored, fields[label].name), ignored, found.several)


def _text_table(path: Path) -> Any:
    """The table of a .csv or .tsv, all of whose cells are texts, or of a .jsonl."""
    import pyarrow as pa
    from pyarrow import csv
    from pyarrow import json as json_lines

    if path.suffix.lower() == LINES:
        return json_lines.read_json(path)
    found = separated_text(path.read_bytes())
    convert = csv.ConvertOptions(default_column_type=pa.string(), null_values=[""], strings_can_be_null=True)
    parse = csv.ParseOptions(delimiter=found.delimiter, newlines_in_values=True)
    table = csv.read_csv(pa.BufferReader(found.text.encode()), parse_options=parse, convert_options=convert)
    counted = Counter(name.strip().lower() for name in table.column_names if name.strip())
    twice = [name for name, count in counted.items() if count > 1]
    if twice:
        raise Refusal(
            "photographs.column-twice",
            f"dataset.root={path}: has the column {twice[0]} twice; name each once",
            key="dataset.root",
            file=str(path),
            column=twice[0],
        )
    return table


def _usable(schema: Any) -> tuple[dict[str, Any], set[str], str, str]:
    """The fields of a table that may be read, by name in lower case; those of encoded images; which of them holds the
    images, and which the labels, or ""."""
    usable = [field for field in schema if not field.type.num_fields or HOLDS_BYTES.match(str(field.type))]
    fields = {field.name.strip().lower(): field for field in usable}
    inside = [name for name in PATHS if name in fields and HOLDS_BYTES.match(str(fields[name].type))]
    image = next((name for name in (*inside, *PATHS) if name in fields), "")
    label = next((name for name in LABELS if name in fields), "")
    if not image:
        image = next((name for name in IDS if name in fields), "")
    rest = fields.keys() - {image, *SPLITS, ""}
    if image and not label and len(rest) == 1:  # a table of two columns
        (label,) = rest
    return fields, {*inside}, image, label


def _require_same_columns(paths: list[Path], form: Any) -> None:
    """Refuse files of one part whose images or labels are in columns of other names, or of which some are paths."""
    first: list[Any] = []
    for path in paths:
        schema = opened([path], form).schema
        fields, inside, image, label = _usable(schema)
        found = [fields[name].name if name else "" for name in (image, label)]
        first = first or [*found, image in inside]
        if [*found, image in inside] != first:
            raise Refusal(
                "photographs.other-columns",
                f"dataset.root={path}: has the columns {', '.join(schema.names)}, and {paths[0].name} has its images "
                f"in {first[0] or 'none'} and its classes in {first[1] or 'none'}; give the files of a part the same "
                "columns, of one type",
                key="dataset.root",
                file=str(path),
                columns=schema.names,
                expected=first[:2],
            )


def _require_bytes(paths: list[Path]) -> None:
    """Refuse files of encoded images that hold none: only paths, with the type null in place of bytes."""
    from pyarrow import types

    for path in paths:
        fields, _, image, _ = _usable(opened([path]).schema)
        kind = fields[image].type
        if types.is_null(kind.field("bytes").type if kind.num_fields else kind):
            raise Refusal(
                "photographs.only-paths",
                f"dataset.root={path}: the bytes of its images in {fields[image].name} are all null; save it with "
                "them, as Dataset.to_parquet does, or give a table of paths",
                key="dataset.root",
                file=str(path),
                column=fields[image].name,
            )


def _declared(stored: Any, name: str) -> list[str]:
    """The names that `datasets` declared for the numbers of a column; none where it did not."""
    with suppress(ValueError, TypeError, LookupError):  # metadata of others, or of a column without names
        return [*json.loads(stored.schema.metadata[b"huggingface"])["info"]["features"][name]["names"]]
    return []


def _named_parts(columns: dict[str, list[str]]) -> tuple[str, list[str] | None]:
    """The first of these columns that names the part of each row, and the parts. "" and None where none does."""
    for name, values in columns.items():
        if name == SPLITS[0]:
            return name, values
        if name.startswith("is_") and all(value.lower() in BOOLEANS for value in values):
            kind = name.removeprefix("is_")
            return name, [kind if BOOLEANS[value.lower()] else "train" for value in values]
        if not name.startswith("is_") and all(part_names.parsed(value) for value in {*values}):
            return name, values
    return "", None
