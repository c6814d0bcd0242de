"""Translates paths in place of options, as in `dataset=./photos` and `model=./llama`, into keys.

A path that can only mean one thing is accepted. Nothing is downloaded unasked.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.llm.data import files, row_folders
from multicard.messages import Message, Refusal, typed
from multicard.run.workload import Workload

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
BEGINS_PATH = ("/", "./", "../", "~/")
TABLES = (".csv", ".tsv", ".parquet")  # Tables of images in one entry, of texts in the other.
WEIGHTS = (".pth", ".pt", ".ckpt", ".safetensors", ".bin")
CONFIG = "config.json"  # The folder of a transformers model has this file.
VISION = "train_vision.py"
TUNING = "tune_llm.py"
CONVERSATIONS = ("messages", "conversations")  # Columns whose rows are conversations.
PAIRS = {"chosen", "rejected"}  # Columns of preference pairs.


@dataclass(frozen=True)
class PathMeaning:
    """The words that a path stands for.

    entry: the entry that the words belong to.
    fetch: the command that downloads it from the hub, if it is not on this disk.
    is_there: whether the path exists.
    fetches: whether the words themselves start a download.
    """

    words: tuple[str, ...]
    entry: str
    fetch: str | None = None
    is_there: bool = True
    fetches: bool = False

    @property
    def is_here(self) -> bool:
        """True if it is on this disk, so that nothing has to be downloaded or created."""
        return self.is_there and not self.fetches and self.fetch is None


def is_path(value: str) -> bool:
    """True for a value that is written like a path, or that names an existing file or folder."""
    suffix = Path(value).suffix.lower()
    looks_like_path = value.startswith(BEGINS_PATH) or suffix in (*row_folders.KINDS, *WEIGHTS)
    return bool(value) and (looks_like_path or Path(value).expanduser().exists())


def is_hub_name(value: str) -> bool:
    """True for `OWNER/NAME`, the form of names on the Hugging Face hub."""
    return HUB_NAME.fullmatch(value) is not None and not is_path(value)


def is_model(value: str) -> bool:
    """True for the folder of a model, and for a file of weights."""
    path = Path(value).expanduser()
    return (path / CONFIG).is_file() or path.suffix.lower() in WEIGHTS


def meaning(group: str, value: str, workload: Workload) -> PathMeaning | None:
    """Return what a value of the group `dataset` or `model` stands for, if it is a path or a hub
    name; None for other values.
    """
    if workload.entry not in (VISION, TUNING):
        return None
    if is_hub_name(value):
        return _of_hub(group, value, workload.entry)
    if not is_path(value):
        return None
    return _of_model(value, workload.entry) if group == "model" else _of_data(value, workload.entry)


def of_a_folder(entry: str) -> PathMeaning:
    """Return what `model=hf` stands for in a command without an engine: TRL alone has such models.

    The command gives the folder itself (`model.path`).
    """
    return PathMeaning(("engine=trl", "model=hf"), entry)


def _of_hub(group: str, name: str, entry: str) -> PathMeaning | None:
    folder = Path(name).name
    if group == "model" and entry == TUNING:
        if (Path(folder) / CONFIG).is_file():
            return PathMeaning(_tuned(folder), entry)
        cached = _cached_model(name)
        if cached is not None:
            return PathMeaning(_tuned(cached), entry)
        return PathMeaning(_tuned(folder), entry, f"hf download {name} --local-dir {folder}")
    if group == "model":
        return None  # Names with a slash are names of models in torchvision or timm.
    if entry == TUNING:  # The library `datasets` downloads what a command names.
        return PathMeaning(("dataset=chat", f"dataset.source={name}"), entry, fetches=True)
    here = Path(folder).is_dir()
    fetch = None if here else f"hf download {name} --repo-type dataset --local-dir {folder}"
    return PathMeaning(_images(folder), entry, fetch)


def _cached_model(name: str) -> str | None:
    """Return the folder of a hub model in the library's cache; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, CONFIG)
    return str(Path(config).parent) if isinstance(config, str) else None


def _of_model(value: str, entry: str) -> PathMeaning:
    path = Path(value).expanduser()
    if path.suffix.lower() in WEIGHTS and entry == VISION:
        return PathMeaning(("model=NAME", f"model.weights={value}"), entry, is_there=path.exists())
    if path.suffix.lower() in WEIGHTS and path.is_file():
        path = path.parent
        value = str(path)
    is_there = (path / CONFIG).is_file()
    return PathMeaning(_tuned(value), TUNING if is_there else entry, is_there=is_there)


def _of_data(value: str, entry: str) -> PathMeaning | None:
    path = Path(value).expanduser()
    is_there = path.exists()
    if (path / "MNIST" / "raw").is_dir():
        return PathMeaning(("dataset=mnist", f"dataset.root={value}"), VISION)
    if path.is_file() and row_folders.kind_of(path) is None:
        return None
    if entry == TUNING and is_there and not _has_rows(path):
        return PathMeaning(_images(value), VISION)
    columns = _columns(path)
    has_chats = bool({*columns} & {*CONVERSATIONS}) or PAIRS <= {*columns}
    if entry == TUNING or has_chats:
        pairs = ("dataset=preference", "method=dpo") if PAIRS <= {*columns} else ("dataset=chat",)
        return PathMeaning((*pairs, f"dataset.data_files={value}"), TUNING, is_there=is_there)
    return PathMeaning(_images(value), VISION, is_there=is_there)


def _tuned(folder: str) -> tuple[str, ...]:
    return "engine=trl", "model=hf", f"model.path={folder}"


def _images(root: str) -> tuple[str, ...]:
    return "dataset=images", f"dataset.root={root}"


def _has_rows(path: Path) -> bool:
    """True for a file that may hold texts, and for a folder with such files."""
    if path.is_file():
        return row_folders.kind_of(path) is not None
    if not path.is_dir():
        return False
    return any(row_folders.kind_of(file) is not None for file in path.glob("**/*.*"))


def _columns(path: Path) -> Sequence[str]:
    """Return the columns of the first row of a JSON file; none if it cannot be read."""
    if not path.is_file() or row_folders.kind_of(path) in (None, *TABLES):
        return ()
    try:
        rows = files.read_file([str(path)]).rows
    except (Refusal, OSError):
        return ()
    return tuple(rows[0]) if rows and isinstance(rows[0], dict) else ()


# ---- messages


def notice(word: str, words: Sequence[str]) -> Message:
    """Return the notice that a path was accepted in place of an option."""
    return Message(
        "words.path-taken",
        f"{word}: taken as {shlex.join(words)}",
        word=word,
        words=[*words],
    )


def command(entry: str, words: Sequence[str]) -> str:
    """Return a whole command that can be pasted."""
    return shlex.join([*shlex.split(typed(entry)), *words])
