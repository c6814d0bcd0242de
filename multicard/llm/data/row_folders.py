"""Which files hold the rows that `dataset.data_files` names: files, patterns, and the training
split of a folder; or `dataset.test_files`, for which a folder's split to test on is read.

What lies in a folder and is not read is counted.
"""

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
TEST_KEY = "dataset.test_files"  # takes the same: refusals name it in KEY's place
KINDS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
GLOB = re.compile(r"[*?\[]")
HASH = re.compile(r"-[0-9a-f]{16}$")  # train-00000-of-00002-a09b74b3ef9c3b56.parquet
ARROW_STATE = "state.json"  # names the files of a data set that `save_to_disk` wrote
NO_ROWS = ("dataset_info.json", "dataset_dict.json", ARROW_STATE)


class FoundFiles(NamedTuple):
    """Files of rows in the order in which they are read, and what is not read, with its count."""

    files: tuple[Path, ...]
    ignored: dict[str, int]


def kind_of(file: Path) -> str | None:
    """Its suffix among KINDS; None of a file that cannot be read."""
    suffix = file.suffix.lower()
    if suffix in COMPRESSED:
        suffix = Path(file.stem).suffix.lower()
    return suffix if suffix in KINDS else None


def _kinds() -> str:
    return f"a file of {', '.join(KINDS)}, also as {', '.join(COMPRESSED)}"


def found_files(typed: Sequence[str], to_test: bool = False) -> FoundFiles:
    """The files of each value that was typed, each file once, by whatever links."""
    files = dict[Path, None]()
    ignored = Counter[str]()
    for value in typed:
        place = Path(value).expanduser()
        if place.is_dir():
            own, beside = _of_folder(value, place, to_test)
            ignored.update(beside)
        elif place.exists():
            own = [place]
        else:
            matching = sorted(glob.glob(str(place), recursive=True))  # noqa: PTH207 (of absolute patterns too)
            own = [Path(name) for name in matching if Path(name).is_file()]
            _require_all_shards(value, own)
        if not own:
            pattern = ", and no file matches it" if GLOB.search(value) else ""
            raise Refusal(
                "llm.data-file-absent",
                f"{KEY}={value}: no such file{pattern}; give {_kinds()}, or a folder of them",
                key=KEY,
                value=value,
            )
        for file in own:
            if kind_of(file) is None:
                raise Refusal(
                    "llm.data-file-suffix",
                    f"{KEY}={file}: must be {_kinds()}",
                    key=KEY,
                    value=str(file),
                )
        files |= dict.fromkeys(own)
    for link in _again(files):
        del files[link]
        ignored[link.name] += 1
    return FoundFiles(tuple(files), dict(ignored))


def _again(files: Iterable[Path]) -> list[Path]:
    """Those that are files before them, by another name."""
    seen = set[tuple[int, int]]()
    again = list[Path]()
    for file in sorted(files, key=Path.is_symlink):  # a link goes, and the file stays
        status = file.stat()
        same = (status.st_dev, status.st_ino)
        if same in seen:
            again.append(file)
        seen.add(same)
    return again


class NamedSplit(NamedTuple):
    """What a path's name says of its split.

    name: of the file or folder that says it. place: the folder of that. form: the file's kind, if
    its own name says
    the split: the same split may be stored in two forms.
    """

    part: PartName
    name: str
    place: Path
    form: str | None


def _of_folder(value: str, folder: Path, to_test: bool) -> tuple[list[Path], Counter[str]]:
    """The files of a folder's training split, or of its split to test on, or all if no name says
    which split a file is of.
    """
    every = sorted(
        path for path in folder.rglob("*") if path.is_file() and not _hidden(path, folder)
    )
    listed = _of_arrow(folder, every)
    files = [path for path in every if kind_of(path) is not None and path.name not in NO_ROWS]
    files = [path for path in files if listed is None or path in listed]
    if not files:
        raise Refusal(
            "llm.data-folder-empty",
            f"{KEY}={value}: is a folder without {_kinds()}; give one of these files, or a folder"
            " of them",
            key=KEY,
            value=value,
        )
    splits = _splits([path.relative_to(folder) for path in files])
    told = {
        path: splits[path.relative_to(folder)]
        for path in files
        if path.relative_to(folder) in splits
    }
    read = (
        _to_test(told)
        if to_test
        else [path for path, split in told.items() if split.part.kind is PartKind.train]
    )
    others = [path for path in told if path not in read]
    if others and not read and len(others) == len(files):
        remedy = override(KEY, str(others[0]))
        found = sorted({told[path].part.word for path in others})
        wanted = "split to test on" if to_test else "training split"
        raise Refusal(
            "llm.data-folder-splits",
            f"{KEY}={value}: holds no {wanted} but {', '.join(found)}; name the files to read, as"
            f" `{remedy}`",
            key=KEY,
            value=value,
            splits=found,
            remedy=remedy,
        )
    _refuse_several(value, folder, {path: told[path] for path in read})
    if read and not others:
        _refuse_unclear(value, folder, files, {path: told[path] for path in read})
    read = read or [path for path in files if path not in others]
    _refuse_copies(value, read)
    _require_all_shards(value, read)
    ignored = _unreachable(folder)
    for path in every:
        if path not in read:
            name = str(path.relative_to(folder))
            ignored[name if path in files else f"*{path.suffix}"] += 1
    return read, ignored


def _to_test(told: Mapping[Path, NamedSplit]) -> list[Path]:
    """The files of the first split to test on, validation before test;
    none where there is no such split.
    """
    parts = [split.part for split in told.values() if split.part.kind is not PartKind.train]
    if not parts:
        return []
    first = min(parts, key=lambda part: part.order)
    return [path for path, split in told.items() if split.part.word == first.word]


def _require_all_shards(value: str, files: Sequence[Path]) -> None:
    """Refuse numbered files of a folder or a pattern, as train-00000-of-00002.jsonl,
    of which some are missing.
    """
    for folder in sorted({file.parent for file in files}):
        names = [file.name for file in files if file.parent == folder]
        missing = missing_shards(names)
        if missing:
            more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
            remedy = override(KEY, [str(folder / name) for name in names])
            raise Refusal(
                "llm.data-missing-shards",
                f"{KEY}={value}: {missing[0]}{more} is missing beside {names[0]}; put it there, or"
                f" name the files to read them alone, as `{remedy}`",
                key=KEY,
                value=value,
                missing=missing,
                remedy=remedy,
            )


def _refuse_several(value: str, folder: Path, trains: Mapping[Path, NamedSplit]) -> None:
    """Refuse such splits of several data sets,
    or one in several forms: together they are no split.
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
    within = [{path.relative_to(folder).parts[0] for path in paths} for paths in groups.values()]
    if all(len(each) == 1 for each in within) and len(set[str]().union(*within)) == len(within):
        # a configuration of the hub, with its other splits
        remedy = override(KEY, str(folder / within[0].pop()))
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
    """Refuse files called after what they hold, as train_tickets.jsonl beside code.jsonl: where
    nothing is there to test on, the word need not say a split.
    """
    beside = [path for path in files if path not in trains and path.parent in _folders(trains)]
    if not beside or not all(split.part.rest and split.form for split in trains.values()):
        return
    names = [str(path.relative_to(folder)) for path in trains]
    remedy = override(KEY, [str(path) for path in files])
    alone = override(KEY, [str(path) for path in trains])
    raise Refusal(
        "llm.data-folder-unclear",
        f"{KEY}={value}: {', '.join(names)} may be the training split, or one of all files; name"
        f" all of them, as `{remedy}`, or it alone, as `{alone}`",
        key=KEY,
        value=value,
        names=names,
        remedy=remedy,
    )


def _folders(files: Iterable[Path]) -> set[Path]:
    return {path.parent for path in files}


def _refuse_copies(value: str, read: Sequence[Path]) -> None:
    """Refuse files of one name in several forms: rows.jsonl and rows.parquet are the same rows."""
    forms = dict[tuple[Path, str], list[Path]]()
    for path in read:
        forms.setdefault((path.parent, _stem(path)), []).append(path)
    first = [paths[0] for paths in forms.values()]
    twice = next((paths for paths in forms.values() if len(paths) > 1), None)
    if twice is not None:
        remedy = override(KEY, [str(path) for path in first])
        names = [path.name for path in twice]
        raise Refusal(
            "llm.data-file-twice",
            f"{KEY}={value}: {' and '.join(names)} may hold the same rows; name the files to read,"
            f" as `{remedy}`",
            key=KEY,
            value=value,
            names=names,
            remedy=remedy,
        )


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _unreachable(folder: Path) -> Counter[str]:
    """Files of rows that are hidden, by the hidden file or folder; links to folders,
    and links to nothing.
    """
    found = Counter[str]()
    for path in folder.rglob("*"):
        within = path.relative_to(folder)
        hidden = next(
            (place for place in (within, *within.parents) if place.name.startswith(".")), None
        )
        if hidden is not None:
            if kind_of(path) is not None and path.is_file():
                found[str(within) if hidden == within else f"{hidden}/"] += 1
        elif path.is_symlink() and not path.is_file():
            found[f"{within}/" if path.is_dir() else str(within)] += 1
    return found


def _of_arrow(folder: Path, every: Sequence[Path]) -> set[Path] | None:
    """The Arrow files that a `state.json` of `save_to_disk` lists; beside them may lie the
    library's caches. None where nothing was written by it.
    """
    states = [path for path in every if path.name == ARROW_STATE]
    if not states:
        return None
    listed = set[Path]()
    for state in states:
        try:
            listed |= {
                state.parent / each["filename"]
                for each in json.loads(state.read_text("utf-8"))["_data_files"]
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


def _splits(paths: Sequence[Path]) -> dict[Path, NamedSplit]:
    """The split of each path whose name says one, of its folders from the file up.

    A name with other words is one where the part's word begins or ends it, as my_data_val, or where
    another name has the same words beside another part's: squad_train_v1 and squad_dev_v1.
    """
    stems = {path: _stem(path) for path in paths}
    levels = dict[Path, list[tuple[str, Path]]]()
    for path in paths:
        levels[path] = [
            (stems[path], path.parent),
            *((place.name, place.parent) for place in path.parents),
        ]
    beside = part_names.named({name for name, _ in chain.from_iterable(levels.values())})
    found = dict[Path, NamedSplit]()
    for path, level in levels.items():
        for name, place in level:
            part = part_names.parsed(name)
            if part is not None and (name in beside or part_names.is_outer(name)):
                form = kind_of(path) if name == stems[path] and place == path.parent else None
                found[path] = NamedSplit(part, name, place, form)
                break
    return found


def _stem(path: Path) -> str:
    """The name without the suffixes of its kind,
    and the hub's hash: "wiki.train" of wiki.train.jsonl.gz.
    """
    stem = path.stem
    if path.suffix.lower() in COMPRESSED:
        stem = Path(stem).stem
    return HASH.sub("", stem)
