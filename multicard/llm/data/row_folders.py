"""Find the files with the rows that `dataset.data_files` or `dataset.test_files` names.

A value is a file, a pattern, or a folder. In a folder the training split is read, or the split to
test on for `dataset.test_files`. Files of a folder that are not read are counted.
"""

import filecmp
import glob
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.config.shards import missing_shards
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind, PartName

KEY = "dataset.data_files"
TEST_KEY = "dataset.test_files"  # Takes the same values; refusals name it in place of KEY.
KINDS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
GLOB = re.compile(r"[*?\[]")
HASH = re.compile(r"-[0-9a-f]{16}$")  # As in train-00000-of-00002-a09b74b3ef9c3b56.parquet.
ARROW_STATE = "state.json"  # Lists the files of a data set that `save_to_disk` wrote.
NO_ROWS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", ARROW_STATE)


class FoundFiles(NamedTuple):
    """The files to read, in their order, and the number of other files by name or suffix."""

    files: tuple[Path, ...]
    ignored: dict[str, int]


def kind_of(file: Path) -> str | None:
    """Return a file's suffix among KINDS; None if it cannot be read."""
    suffix = file.suffix.lower()
    if suffix in COMPRESSED:
        suffix = Path(file.stem).suffix.lower()
    return suffix if suffix in KINDS else None


def _kinds() -> str:
    return f"a file of {', '.join(KINDS)}, also as {', '.join(COMPRESSED)}"


def found_files(typed: Sequence[str], to_test: bool = False) -> FoundFiles:
    """Find the files of each value in the command.

    A file that several links name is read once, and so are files with the same bytes.
    """
    files = dict[Path, None]()
    ignored = Counter[str]()
    for value in typed:
        place = Path(value).expanduser()
        if place.is_dir():
            value_files, ignored_in_folder = _files_of_folder(value, place, to_test)
            ignored.update(ignored_in_folder)
        elif place.exists():
            value_files = [place]
        else:
            matching = sorted(glob.glob(str(place), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute patterns)
            value_files = [Path(name) for name in matching if Path(name).is_file()]
            _require_all_shards(value, value_files)
        if not value_files:
            pattern = ", and no file matches it" if GLOB.search(value) else ""
            raise Refusal(
                "llm.data-file-absent",
                f"{KEY}={value}: no such file{pattern}; give {_kinds()}, or a folder of them",
                key=KEY,
                value=value,
            )
        for file in value_files:
            if kind_of(file) is None:
                is_text = file.suffix.lower() in (".txt", ".md")
                hint = '; write each text as a line {"text": "..."} of a .jsonl' if is_text else ""
                raise Refusal(
                    "llm.data-file-suffix",
                    f"{KEY}={file}: must be {_kinds()}{hint}",
                    key=KEY,
                    value=str(file),
                )
        files |= dict.fromkeys(value_files)
    for file, label in _repeated_files(files).items():
        del files[file]
        ignored[label] += 1
    return FoundFiles(tuple(files), dict(ignored))


def _repeated_files(files: Iterable[Path]) -> dict[Path, str]:
    """Return the paths that lead to the same file as another one, or to a copy of it.

    The values are names under which they are counted.
    """
    seen = set[tuple[int, int]]()
    kept_by_size = dict[int, list[Path]]()
    repeated = dict[Path, str]()
    for file in sorted(files, key=Path.is_symlink):  # The file is kept, and links to it are not.
        status = file.stat()
        identity = (status.st_dev, status.st_ino)
        kept = kept_by_size.setdefault(status.st_size, [])
        if identity in seen:
            repeated[file] = file.name
        elif status.st_size and any(filecmp.cmp(file, other, shallow=False) for other in kept):
            repeated[file] = f"{file.name} (a copy)"
        else:
            kept.append(file)
        seen.add(identity)
    return repeated


class NamedSplit(NamedTuple):
    """The split that a path's name gives.

    Fields:
        part: the split, as it was parsed from the name.
        name: the name of the file or folder that gives the split.
        place: the folder that contains it.
        form: the file's suffix, if its own name gives the split. The same split may be stored in
            two forms.
    """

    part: PartName
    name: str
    place: Path
    form: str | None


def _files_of_folder(value: str, folder: Path, to_test: bool) -> tuple[list[Path], Counter[str]]:
    """Return the files of a folder's training split, or of its split to test on.

    All files are read if no name gives a split. The second value counts the other files.
    """
    all_files = sorted(
        path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path, folder)
    )
    arrow_files = _arrow_files(folder, all_files)
    files = [path for path in all_files if kind_of(path) is not None and path.name not in NO_ROWS]
    files = [path for path in files if arrow_files is None or path in arrow_files]
    if not files:
        raise Refusal(
            "llm.data-folder-empty",
            f"{KEY}={value}: is a folder without {_kinds()}; give one of these files, or a folder"
            " of them",
            key=KEY,
            value=value,
        )
    splits = _split_of_each([path.relative_to(folder) for path in files])
    split_of_file = {
        path: splits[path.relative_to(folder)]
        for path in files
        if path.relative_to(folder) in splits
    }
    read_files = (
        _test_files(split_of_file)
        if to_test
        else [path for path, split in split_of_file.items() if split.part.kind is PartKind.train]
    )
    other_files = [path for path in split_of_file if path not in read_files]
    if other_files and not read_files and len(other_files) == len(files):
        remedy = override(KEY, str(other_files[0]))
        split_names = sorted({split_of_file[path].part.word for path in other_files})
        wanted = "split to test on" if to_test else "training split"
        raise Refusal(
            "llm.data-folder-splits",
            f"{KEY}={value}: holds no {wanted}, only {', '.join(split_names)}; name the files to"
            f" read, as `{remedy}`",
            key=KEY,
            value=value,
            splits=split_names,
            remedy=remedy,
        )
    _refuse_several_splits(value, folder, {path: split_of_file[path] for path in read_files})
    if read_files and not other_files:
        _refuse_unclear(value, folder, files, {path: split_of_file[path] for path in read_files})
    read_files = read_files or [path for path in files if path not in other_files]
    _refuse_copies(value, read_files)
    _require_all_shards(value, read_files)
    ignored = _unreachable(folder)
    for path in all_files:
        if path not in read_files:
            name = str(path.relative_to(folder))
            ignored[name if path in files else f"*{path.suffix}"] += 1
    return read_files, ignored


def _test_files(split_of_file: Mapping[Path, NamedSplit]) -> list[Path]:
    """Return the files of the first split to test on: validation comes before test.

    The list is empty if there is no such split.
    """
    parts = [
        split.part for split in split_of_file.values() if split.part.kind is not PartKind.train
    ]
    if not parts:
        return []
    first = min(parts, key=lambda part: part.order)
    return [path for path, split in split_of_file.items() if split.part.word == first.word]


def _require_all_shards(value: str, files: Sequence[Path]) -> None:
    """Refuse numbered files, such as train-00000-of-00002.jsonl, if some of them are missing."""
    for folder in sorted({file.parent for file in files}):
        names = [file.name for file in files if file.parent == folder]
        missing = missing_shards(names)
        if missing:
            more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
            remedy = override(KEY, [str(folder / name) for name in names])
            raise Refusal(
                "llm.data-missing-shards",
                f"{KEY}={value}: {missing[0]}{more} is missing beside {names[0]}; put it there, or"
                f" name the files to read only these, as `{remedy}`",
                key=KEY,
                value=value,
                missing=missing,
                remedy=remedy,
            )


def _refuse_several_splits(value: str, folder: Path, trains: Mapping[Path, NamedSplit]) -> None:
    """Refuse splits of several data sets, or one split in several forms.

    Together they are not one split.
    """
    groups = dict[tuple[object, ...], list[Path]]()
    for path, split in trains.items():
        groups.setdefault((split.place, split.part.word, split.part.rest, split.form), []).append(
            path
        )
    if len(groups) < 2:
        return
    names = list[str]()
    for paths in groups.values():
        split = trains[paths[0]]
        names.append(paths[0].name if split.form else f"{split.name}/")
        if split.place.name:
            names[-1] = f"{split.place.as_posix()}/{names[-1]}"
    first = next(iter(groups.values()))
    remedy = override(KEY, [str(path) for path in first])
    first_folders = [
        {path.relative_to(folder).parts[0] for path in paths} for paths in groups.values()
    ]
    distinct_folders = set[str]().union(*first_folders)
    is_one_folder_each = all(len(folders) == 1 for folders in first_folders)
    if is_one_folder_each and len(distinct_folders) == len(first_folders):
        # Each is a configuration of the hub, and its folder holds its other splits too.
        remedy = override(KEY, str(folder / first_folders[0].pop()))
    raise Refusal(
        "llm.data-two-trains",
        f"{KEY}={value}: {' and '.join(names)} are several splits of one kind; name the ones to"
        f" read, as `{remedy}`",
        key=KEY,
        value=value,
        splits=names,
        remedy=remedy,
    )


def _refuse_unclear(
    value: str, folder: Path, files: Sequence[Path], trains: Mapping[Path, NamedSplit]
) -> None:
    """Refuse files that may be named after their content, as train_tickets.jsonl beside code.jsonl.

    If there is no split to test on, "train" need not name a split.
    """
    other_files = [path for path in files if path not in trains and path.parent in _folders(trains)]
    if not other_files or not all(split.part.rest and split.form for split in trains.values()):
        return
    names = [str(path.relative_to(folder)) for path in trains]
    remedy = override(KEY, [str(path) for path in files])
    narrow_remedy = override(KEY, [str(path) for path in trains])
    raise Refusal(
        "llm.data-folder-unclear",
        f"{KEY}={value}: {', '.join(names)} may be the training split, or one of all files; name"
        f" all of them, as `{remedy}`, or only this, as `{narrow_remedy}`",
        key=KEY,
        value=value,
        names=names,
        remedy=remedy,
    )


def _folders(files: Iterable[Path]) -> set[Path]:
    return {path.parent for path in files}


def _refuse_copies(value: str, files: Sequence[Path]) -> None:
    """Refuse files that share a name and differ in form.

    rows.jsonl and rows.parquet are likely to hold the same rows.
    """
    forms = dict[tuple[Path, str], list[Path]]()
    for path in files:
        forms.setdefault((path.parent, _stem(path)), []).append(path)
    first = [paths[0] for paths in forms.values()]
    copies = next((paths for paths in forms.values() if len(paths) > 1), None)
    if copies is not None:
        remedy = override(KEY, [str(path) for path in first])
        names = [path.name for path in copies]
        raise Refusal(
            "llm.data-file-twice",
            f"{KEY}={value}: {' and '.join(names)} may hold the same rows; name the files to read,"
            f" as `{remedy}`",
            key=KEY,
            value=value,
            names=names,
            remedy=remedy,
        )


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _unreachable(folder: Path) -> Counter[str]:
    """Count files of rows that are hidden, links to folders, and broken links.

    A hidden file is counted under the name of the hidden file or folder.
    """
    counts = Counter[str]()
    for path in folder.rglob("*"):
        within = path.relative_to(folder)
        hidden = next(
            (place for place in (within, *within.parents) if place.name.startswith(".")), None
        )
        if hidden is not None:
            if kind_of(path) is not None and path.is_file():
                counts[str(within) if hidden == within else f"{hidden}/"] += 1
        elif path.is_symlink() and not path.is_file():
            counts[f"{within}/" if path.is_dir() else str(within)] += 1
    return counts


def _arrow_files(folder: Path, all_files: Sequence[Path]) -> set[Path] | None:
    """Return the Arrow files that a `state.json` of `save_to_disk` lists; None without one.

    The library's caches may lie beside these files.
    """
    states = [path for path in all_files if path.name == ARROW_STATE]
    if not states:
        return None
    listed = set[Path]()
    for state in states:
        try:
            listed |= {
                state.parent / entry["filename"]
                for entry in json.loads(state.read_text("utf-8"))["_data_files"]
            }
        except (ValueError, LookupError, TypeError) as error:
            raise Refusal(
                "llm.data-folder-state",
                f"{KEY}={folder}: {state.name} cannot be read ({error}); give the data files"
                " themselves",
                key=KEY,
                value=str(folder),
                reason=str(error),
            ) from None
    return listed


def _split_of_each(paths: Sequence[Path]) -> dict[Path, NamedSplit]:
    """Return the split of each path whose name, or whose folders' names, give one.

    The file's name comes first, then its folders from the inside out. A name may hold other words
    too. It gives a split if the split's word begins or ends it, as in my_data_val. It also gives
    one if another name has the same words and another split: squad_train_v1 and squad_dev_v1.
    """
    stems = {path: _stem(path) for path in paths}
    levels = dict[Path, list[tuple[str, Path]]]()
    for path in paths:
        levels[path] = [
            (stems[path], path.parent),
            *((place.name, place.parent) for place in path.parents),
        ]
    named = part_names.named({name for name, _ in chain.from_iterable(levels.values())})
    split_of_path = dict[Path, NamedSplit]()
    for path, level in levels.items():
        for name, place in level:
            part = part_names.parsed(name)
            if part is not None and (name in named or part_names.is_outer(name)):
                form = kind_of(path) if name == stems[path] and place == path.parent else None
                split_of_path[path] = NamedSplit(part, name, place, form)
                break
    return split_of_path


def _stem(path: Path) -> str:
    """Return the name without suffixes and the hub's hash: "wiki.train" for wiki.train.jsonl.gz."""
    stem = path.stem
    if path.suffix.lower() in COMPRESSED:
        stem = Path(stem).stem
    return HASH.sub("", stem)
