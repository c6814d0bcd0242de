"""Paths in the place of options: `dataset=./photos` and `model=./llama` as the words that they mean
in each entry.

A path that can mean one thing is taken for it. What is not on this disk is never fetched unasked.
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
TABLES = (".csv", ".tsv", ".parquet")  # of images in one entry, of texts in the other
WEIGHTS = (".pth", ".pt", ".ckpt", ".safetensors", ".bin")
CONFIG = "config.json"  # a folder of transformers' models has one
VISION = "train_vision.py"
TUNING = "tune_llm.py"
CONVERSATIONS = ("messages", "conversations")  # columns whose rows are chats
PAIRS = {"chosen", "rejected"}  # columns of preferences


@dataclass(frozen=True)
class PathMeaning:
    """The words that a path stands for.

    entry: whose words they are. fetch: the command that brings what is on the hub, if it is not
    here. is_there: whether something lies at the path. fetches: the words themselves download it.
    """

    words: tuple[str, ...]
    entry: str
    fetch: str | None = None
    is_there: bool = True
    fetches: bool = False

    @property
    def is_here(self) -> bool:
        """True where nothing has to be fetched, or put there."""
        return self.is_there and not self.fetches and self.fetch is None


def is_path(value: str) -> bool:
    """True for what is written as a path, and for what lies there."""
    suffix = Path(value).suffix.lower()
    looks = value.startswith(BEGINS_PATH) or suffix in (*row_folders.KINDS, *WEIGHTS)
    return bool(value) and (looks or Path(value).expanduser().exists())


def is_hub_name(value: str) -> bool:
    """True for `OWNER/NAME`, as the Hugging Face hub has its names."""
    return HUB_NAME.fullmatch(value) is not None and not is_path(value)


def is_model(value: str) -> bool:
    """True for a folder of a model, and for a file of weights."""
    path = Path(value).expanduser()
    return (path / CONFIG).is_file() or path.suffix.lower() in WEIGHTS


def meaning(group: str, value: str, workload: Workload) -> PathMeaning | None:
    """What a value of the group `dataset` or `model` stands for, where it is a path,
    or the name of something on the hub; None of all other values.
    """
    if workload.entry not in (VISION, TUNING):
        return None
    if is_hub_name(value):
        return _of_hub(group, value, workload.entry)
    if not is_path(value):
        return None
    return _of_model(value, workload.entry) if group == "model" else _of_data(value, workload.entry)


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
        return None  # a name of torchvision's or timm's
    if entry == TUNING:  # the library `datasets` fetches what a command names
        return PathMeaning(("dataset=chat", f"dataset.source={name}"), entry, fetches=True)
    here = Path(folder).is_dir()
    fetch = None if here else f"hf download {name} --repo-type dataset --local-dir {folder}"
    return PathMeaning(_images(folder), entry, fetch)


def _cached_model(name: str) -> str | None:
    """The folder of a model of the hub in the cache of its library; None if it has none."""
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
    """True for files that may hold texts, and for folders with some."""
    if path.is_file():
        return row_folders.kind_of(path) is not None
    if not path.is_dir():
        return False
    return any(row_folders.kind_of(file) is not None for file in path.glob("**/*.*"))


def _columns(path: Path) -> Sequence[str]:
    """The columns of the first row of a file of JSON; none of what cannot be read."""
    if not path.is_file() or row_folders.kind_of(path) in (None, *TABLES):
        return ()
    try:
        rows = files.read_file([str(path)]).rows
    except (Refusal, OSError):
        return ()
    return tuple(rows[0]) if rows and isinstance(rows[0], dict) else ()


# ---- what is said


def notice(word: str, words: Sequence[str]) -> Message:
    """For whoever typed a path in the place of an option."""
    return Message(
        "words.path-taken",
        f"{word}: taken as {shlex.join(words)}",
        word=word,
        words=[*words],
    )


def command(entry: str, words: Sequence[str]) -> str:
    """A whole command, as it can be pasted."""
    return shlex.join([*shlex.split(typed(entry)), *words])
