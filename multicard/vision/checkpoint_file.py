"""What a file of weights holds: tensors by name, wherever a training script put them;
or why it holds none.

Nothing is unpickled but tensors and plain values. An object of any other class, as the
hyperparameters in a checkpoint of Lightning or a whole pickled model,
becomes an `Inert` one: none of its code is run.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from multicard.config.pasting import override
from multicard.messages import Message, Refusal

State = dict[str, torch.Tensor]
# Segments of names that wrappers of torch put in: compile, Lightning,
# FSDP and activation checkpointing
WRAPPERS = {"_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
UNSUPPORTED = re.compile(r"Unsupported global: GLOBAL ([\w.]+)|Unsupported class ([\w.]+)")
MOST_CLASSES = 200  # of which a file may hold objects
# of torch, pickle, safetensors
CUT_OFF = ("EOF", "Ran out of input", "incomplete metadata", "invalid header length")
MOST_HEADER_BYTES = 100 << 20  # of a safetensors file
DEEPEST = 20  # dictionaries within one another, and modules

# What people have in place of weights, by the first bytes: what it is, and what to do
NO_WEIGHTS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file itself by `git lfs pull`"),
    (b"<!doctype html", "a web page", "download the file itself, not the page that shows it"),
    (b"<html", "a web page", "download the file itself, not the page that shows it"),
    (b"<?xml", "an answer in XML", "download it again"),
    (b"\x89hdf", "a file of Keras (HDF5)", "save the weights from PyTorch"),
    (b"\x1f\x8b", "an archive (gzip)", "unpack it"),
    (b"bzh", "an archive (bzip2)", "unpack it"),
    (b"\xfd7zxz", "an archive (xz)", "unpack it"),
    (b"7z\xbc\xaf", "an archive (7-Zip)", "unpack it"),
    (b"rar!", "an archive (RAR)", "unpack it"),
)


class Inert(dict[Any, Any]):
    """In place of an object of any class: it keeps items and attributes, and has no code."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__.update({str(name): value for name, value in part.items()})


def read(path: Path, weights: str) -> State:
    """All tensors of a file by their names, with a dot between
    the names of dictionaries within one another.

    Args:
        weights: the value of `model.weights`, which refusals begin with.
    """
    _refuse_other_files(path, weights)
    try:
        content = _safetensors(path) if _is_safetensors(path) else _torch_file(path)
    except Exception as error:  # of several libraries, which have no common base
        if _is_cut_off(path, error):
            _refuse(path, weights, "cut off", "download or copy it again")
        why = f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0]
        raise _unreadable(path, weights, why) from None
    state = dict(_tensors(content))
    if not state:
        raise _unreadable(path, weights, "it holds no tensor with a name")
    return state


def _unreadable(path: Path, weights: str, why: str) -> Refusal:
    return Refusal(
        "weights.unreadable",
        f"model.weights={weights}: cannot be read as tensors by name ({why}); save"
        " model.state_dict()",
        key="model.weights",
        file=str(path),
        why=why,
    )


def _refuse(path: Path, weights: str, what: str, remedy: str) -> NoReturn:
    raise Refusal(
        "weights.other-file",
        f"model.weights={weights}: is {what}, and no whole file of weights; {remedy}",
        key="model.weights",
        file=str(path),
        what=what,
    )


def _refuse_other_files(path: Path, weights: str) -> None:
    """Refuse what is known by its first bytes to hold no weights."""
    with path.open("rb") as file:
        first = file.read(512)
    if not first:
        _refuse(path, weights, "empty", "download or copy it again")
    begin = first.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for magic, what, remedy in NO_WEIGHTS:
        if begin.startswith(magic):
            _refuse(path, weights, what, remedy)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any("/code/" in name or name.startswith("code/") for name in names):
            _refuse(
                path,
                weights,
                "a TorchScript program",
                "save the state_dict() of what torch.jit.load gives",
            )
        if not any(name.endswith("data.pkl") for name in names):
            _refuse(path, weights, "an archive (zip)", "unpack it")
    elif not _is_safetensors(path) and all(byte in b"\r\n\t" or 32 <= byte < 127 for byte in first):
        _refuse(
            path,
            weights,
            "a text",
            "give the file of weights itself: .safetensors, .pth, .pt, .ckpt or .bin",
        )


def _is_safetensors(path: Path) -> bool:
    """By its content: the length of its header, and the JSON that the header is."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        brace = file.read(1)
    return 2 <= length <= MOST_HEADER_BYTES and brace == b"{"


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    return load_file(path)


def _torch_file(path: Path) -> Any:
    """The content of a file of torch.save, with `Inert` objects for
    those of classes that torch does not allow.
    """
    classes: dict[str, type[Inert]] = {}
    while True:
        try:
            with torch.serialization.safe_globals([(kind, name) for name, kind in classes.items()]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            found = UNSUPPORTED.search(str(error))
            name = found and (found[1] or found[2]).rstrip(".")
            if not name or name in classes or len(classes) >= MOST_CLASSES:
                raise
            classes[name] = type(name.rpartition(".")[2], (Inert,), {})


def _is_cut_off(path: Path, error: Exception) -> bool:
    """True where the end of a file is missing."""
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        return not zipfile.is_zipfile(path)
    said = f"{type(error).__name__} {error}"
    return any(words in said for words in CUT_OFF)


def _tensors(content: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of dictionaries within one another, and of whole pickled modules. Keys that are
    no names, as the numbers of parameters in an optimiser, lead to none.
    """
    if isinstance(content, torch.Tensor):
        if place:
            yield ".".join(name for name in place if name not in WRAPPERS), content.detach()
        return
    if len(place) > DEEPEST:
        return
    if isinstance(content, Inert):
        inside = content.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if isinstance(inside.get(kind), Mapping):
                yield from _tensors(inside[kind], place)
    if isinstance(content, Mapping):
        for name, value in content.items():
            if isinstance(name, str):
                yield from _tensors(value, (*place, *name.split(".")))


def note_of_choice(weights: str, taken: str, others: list[str], left: list[str]) -> Message:
    """Which weights of a file are taken, where it holds several, or others beside them.

    Args:
        taken, others: as `model.weights_from` names them.
        left: names of tensors that belong to none of them.
    """
    several = (
        f", not {' or '.join(others)} (`{override('model.weights_from', others[0])}` takes that)"
        if others
        else ""
    )
    more = f" and {len(left) - 2} more" if len(left) > 2 else ""
    beside = f"; not read: {', '.join(left[:2])}{more}" if left else ""
    return Message(
        "weights.taken",
        f"model.weights={weights}: takes those called {taken}{several}{beside}",
        key="model.weights",
        taken=taken,
        others=others,
        left=left[:20],
        left_count=len(left),
    )
