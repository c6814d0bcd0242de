"""Where the samples of `dataset=images` are: folders of classes, a table of paths and labels, or parquet or Arrow files
that hold the images. Of each come parts by name, and of a part the encoded images and their classes.

What cannot be used is refused by its key, or its file.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from multicard.messages import Message, Refusal

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jfif", ".avif")
STREAM = ".arrow"  # ends the files of `save_to_disk`
WHOLE, TRAIN = "all", "train"  # WHOLE: samples that are not split into parts
TESTS = ("validation", "valid", "val", "test")  # the first that is there is tested on
PATHS = ("path", "file", "filename", "file_name", "image", "img")  # names of columns, in any case
LABELS = ("label", "labels", "class", "target")
FORMS = "give a folder of train/<class>/ and val/<class>/, or another form of docs/own.md (images)"


# ---- encoded images in files of Hugging Face's `datasets`: struct<bytes, path>, or bytes


def opened(paths: list[Path], form: Any = "parquet") -> Any:
    """A pyarrow `Dataset` of files, of which no row is read yet; Arrow's streams, of `save_to_disk`, are mapped."""
    from pyarrow import concat_tables, dataset, ipc, memory_map

    if paths[0].suffix == STREAM:
        return dataset.dataset(concat_tables(ipc.open_stream(memory_map(str(path))).read_all() for path in paths))
    return dataset.dataset([str(path) for path in paths], format=form)


class ImageFile:
    """One such file and its field of images, read when the first is asked for and held once in a process."""

    def __init__(self, path: Path, field: Any) -> None:
        self.path, self.field, self._lock = path, field, Lock()
        self._images: Any = None

    def load(self) -> Any:
        """The encoded images, a `ChunkedArray`."""
        from pyarrow import dataset

        with self._lock:  # threads decode
            if self._images is None:
                nested = ("bytes",) if self.field.type.num_fields else ()
                column = {"bytes": dataset.field(self.field.name, *nested)}
                self._images = opened([self.path]).to_table(column)["bytes"]
            return self._images

    def release(self) -> None:
        self._images = None


@dataclass(frozen=True, slots=True)
class Row:
    """An image in such a file, opened as a `Path` is."""

    file: ImageFile
    index: int

    def __repr__(self) -> str:
        return f"{self.file.path} row {self.index + 1}"

    def open(self, _: str = "rb") -> BytesIO:
        encoded = self.file.load()[self.index].as_py()
        if encoded is None:
            raise Refusal("photographs.no-bytes", "its bytes are not in the file")
        return BytesIO(encoded)


Encoded = Path | Row  # an image that is still to be decoded


def path_of(image: Encoded) -> Path:
    """The file on disk that holds an image."""
    return image if isinstance(image, Path) else image.file.path


def files_of(images: Iterable[Any]) -> dict[ImageFile, int]:
    """The files of `datasets` that hold these images, each with the index of the last image that it holds."""
    return {image.file: index for index, image in enumerate(images) if isinstance(image, Row)}


# ---- the parts of the data


class Samples(NamedTuple):
    """The samples of a part: images, the class of each, and all classes in the order of their numbers."""

    images: list[Encoded]
    labels: list[str]
    classes: list[str]


Parts = dict[str, Callable[[], Samples]]  # WHOLE, or TRAIN and those of TESTS that are there, each read when asked for


def find(root: Path) -> Parts:
    """The parts of the data at a folder or file; OSError for what cannot be read."""
    if not root.exists():
        raise Refusal(
            "photographs.absent",
            f"dataset.root={root}: no such file or folder; {FORMS}",
            key="dataset.root",
            root=str(root),
        )
    if root.is_dir():
        return _in_stored_folder(root) or _in_folders(root)
    if root.suffix.lower() not in (".csv", ".tsv", ".parquet"):
        raise Refusal(
            "photographs.no-table",
            f"dataset.root={root}: is neither a folder nor a .csv, .tsv or .parquet file; {FORMS}",
            key="dataset.root",
            root=str(root),
        )
    return _in_table([root])


def folder_of(root: Path) -> Path:
    """The folder that holds the data: `root`, or that of its table."""
    return root.parent if root.is_file() else root


def _in_folders(root: Path) -> Parts:
    """Parts by the names of folders, where all, or TRAIN and another, are called so; otherwise folders are classes."""
    folders = class_folders(root)
    if not folders:
        raise _no_classes(root)
    parts = {name: path for path in folders if (name := path.name.lower()) in (TRAIN, *TESTS)}
    is_split = (TRAIN in parts and len(parts) > 1) or 0 < len(parts) == len(folders)
    return {name: partial(_of_folder, path) for name, path in (parts if is_split else {WHOLE: root}).items()}


def _no_classes(folder: Path) -> Refusal:
    return Refusal(
        "photographs.no-classes",
        f"dataset.root={folder}: no folders of classes in it; {FORMS}",
        key="dataset.root",
        folder=str(folder),
    )


def _of_folder(folder: Path) -> Samples:
    """Classes and files in the order of their names, as torchvision's ImageFolder has them, but for hidden ones."""
    samples = Samples([], [], [each.name for each in class_folders(folder)])
    if not samples.classes:
        raise _no_classes(folder)
    for name in samples.classes:
        images = images_in(folder / name)
        if not images:
            raise Refusal(
                "photographs.empty-class",
                f"dataset.root={folder}: no image in {name}/; put its images there, or remove the folder",
                key="dataset.root",
                name=name,
            )
        samples.images.extend(images)
        samples.labels.extend([name] * len(images))
    return samples


def class_folders(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """All images below `folder` that neither are hidden nor lie in a hidden folder, by folder and name.
    Circles of links and pipes are refused; an OSError is of a folder that cannot be read.
    """
    images, seen, folders = [], set(), [os.fspath(folder)]
    while folders:
        part = folders.pop()
        real = os.path.realpath(part)
        if real in seen:
            raise Refusal(
                "photographs.circle",
                f"{part}: leads to a folder of {folder} that is read already; remove this link",
                path=part,
                folder=str(folder),
            )
        seen.add(real)
        with os.scandir(part) as entries:  # tells files without a call for each
            for entry in (entry for entry in entries if not entry.name.startswith(".")):
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.lower().endswith(SUFFIXES):
                    if not entry.is_file():
                        raise Refusal(
                            "photographs.no-file",
                            f"{entry.path}: is no file, or a link that leads nowhere; remove it",
                            path=entry.path,
                        )
                    images.append((part, entry.name))
    return [Path(*image) for image in sorted(images)]


def _in_stored_folder(root: Path) -> Parts:
    """Parts by the names of files, as train-00000-of-00002.parquet, else of their folders, as train/data-*.arrow. They
    are in the folder and those of parts, its only one, or its `data/`."""
    files, folders = dict[str, list[Path]](), class_folders(root)
    parts = [folder for folder in folders if folder.name.lower() in (TRAIN, *TESTS)]
    for place in [root, *(parts or (folders if len(folders) == 1 else [root / "data"]))]:
        for path in sorted(path for suffix in (".parquet", STREAM) for path in place.glob(f"*{suffix}")):
            named = re.split("[^a-z]", path.name.lower())[0], place.name.lower()
            part = next((name for name in named if name in (TRAIN, *TESTS)), "" if folders else WHOLE)
            files.setdefault(part, []).append(path)
    found = [part for part in (TRAIN, *TESTS) if part in files] or [part for part in files if part]
    return {part: partial(lambda paths: _in_table(paths, by_split=False)[WHOLE](), files[part]) for part in found}


def _in_table(paths: list[Path], by_split: bool = True) -> Parts:
    """The rows of a table in one or more files; parts by its column `split`, where there is one."""
    images, labels, parts, declared = _columns(paths)
    parts = [part.lower() for part in parts] if by_split and parts else [WHOLE] * len(images)
    found: dict[str, Samples] = {part: Samples([], [], []) for part in parts}
    wrong: dict[Message, list[int]] = {}
    for row, (image, label, part) in enumerate(zip(images, labels, parts, strict=True)):
        problem = _problem_of_row(image, label, part)
        if problem is not None:
            wrong.setdefault(problem, []).append(row)
        found[part].images.append(image)
        found[part].labels.append(label)
    for problem, rows in wrong.items():
        more = f" and {len(rows) - 1:,} more" if rows[1:] else ""
        raise Refusal(
            "photographs.bad-rows",
            f"dataset.root={paths[0]}: row {rows[0] + 1} ({images[rows[0]]}){more}: {problem}",
            key="dataset.root",
            row=rows[0] + 1,
            rows=len(rows),
            reason=problem,
        )
    if not found:
        raise Refusal("photographs.no-rows", f"dataset.root={paths[0]}: has no rows; {FORMS}", key="dataset.root")
    for samples in found.values():
        present = set(samples.labels)
        value = float if all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in present) else str
        by_value = sorted(sorted(present), key=value)  # by name first: 1 and 01 are of one value
        samples.classes.extend([name for name in declared if name in present] or by_value)
    return {part: partial(Samples, *samples) for part, samples in found.items()}


def _problem_of_row(image: Encoded, label: str, part: str) -> Message | None:
    """Why a row of a table cannot be used."""
    if not label:
        return Message("photographs.no-label", "no label; give each image its class")
    if isinstance(image, Path) and not image.is_file():
        return Message(
            "photographs.no-such-image", "no such file; give paths relative to the table, or leave the row out"
        )
    if part not in (WHOLE, TRAIN, *TESTS):
        return Message("photographs.unknown-split", f"no known split; use {TRAIN}, or one of {', '.join(TESTS)}")
    return None


def _columns(paths: list[Path]) -> tuple[list[Encoded], list[str], list[str] | None, list[str]]:
    """Of each row of a table its image, class ("" for none) and, with a column `split`, part; and the classes in order,
    where `datasets` declared them in the file."""
    import pyarrow as pa
    from pyarrow import csv, dataset

    form: Any = "parquet"
    if paths[0].suffix.lower() not in (".parquet", STREAM):
        with paths[0].open(encoding="utf-8", errors="replace") as file:
            header = file.readline()
        text = csv.ConvertOptions(default_column_type=pa.string(), null_values=[""], strings_can_be_null=True)
        form = dataset.CsvFileFormat(csv.ParseOptions(delimiter=max(",;\t", key=header.count)), convert_options=text)
    try:
        stored = opened(paths, form)
        holds_bytes = re.compile("struct<.*bytes: |(large_)?binary").match
        usable = [field for field in stored.schema if not field.type.num_fields or holds_bytes(str(field.type))]
        fields = {field.name.strip().lower(): field for field in usable}
        inside = [name for name in PATHS if name in fields and holds_bytes(str(fields[name].type))]
        image = next((name for name in (*inside, *PATHS) if name in fields), "")
        label = next((name for name in LABELS if name in fields), "")
        if not image or not label:
            shown = list[str]()
            for each in stored.schema:
                kind = "" if each in usable else f" ({str(each.type).partition('<')[0]})"
                shown.append(f"{each.name}{kind}")
            raise Refusal(
                "photographs.columns",
                f"dataset.root={paths[0]}: has the columns {', '.join(shown)}; call that of the "
                f"images (paths, or encoded) one of {', '.join(PATHS)}, that of the classes (text or numbers) one of "
                f"{', '.join(LABELS)}",
                key="dataset.root",
                columns=shown,
            )
        wanted = {label, "split", image} & fields.keys() - inside
        table = stored.to_table([fields[name].name for name in wanted])
        columns = {name: table[fields[name].name].to_pylist() for name in wanted}
        counts = [opened([path]).count_rows() for path in paths] if inside else []
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
    declared = None
    with suppress(ValueError, TypeError, LookupError):  # metadata of others, or of a label without names
        declared = json.loads(stored.schema.metadata[b"huggingface"])["info"]["features"][fields[label].name]["names"]
    if declared:
        columns[label] = [declared[number] if number in range(len(declared)) else None for number in columns[label]]
    texts = {
        name: ["" if value is None or str(value) in ("nan", "NaN") else str(value).strip() for value in columns[name]]
        for name in wanted
    }
    folder = paths[0].parent.absolute()  # as some paths in the table may be
    images: list[Encoded] = [folder / path for path in texts.get(image, ())]
    for path, count in zip(paths, counts, strict=bool(inside)):
        file = ImageFile(path, fields[image])
        images += [Row(file, index) for index in range(count)]
    return images, texts[label], texts.get("split"), declared or []
