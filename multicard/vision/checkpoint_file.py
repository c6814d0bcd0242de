"""Read a file of weights: find its tensors by name wherever a training script put them.

Only tensors and plain values are unpickled. An object of any other class becomes an `Inert` object,
and none of its code is run. Such objects are the hyperparameters in a checkpoint of Lightning, or a
whole pickled model.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from multicard.config.pasting import override
from multicard.messages import Message, Refusal
from multicard.vision import checkpoint_classes

State = dict[str, torch.Tensor]
# Parts of names that are inserted by torch's wrappers: compile, Lightning, FSDP and activation
# checkpointing.
WRAPPERS = {"_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
UNSUPPORTED = re.compile(r"Unsupported global: GLOBAL ([\w.]+)|Unsupported class ([\w.]+)")
MAX_CLASSES = 200  # A file may hold objects of this number of classes.
# Errors of torch, pickle and safetensors for a file whose end is missing.
CUT_OFF_ERRORS = ("EOF", "Ran out of input", "incomplete metadata", "invalid header length")
MAX_HEADER_BYTES = 100 << 20  # A longer header is not one of safetensors.
MAX_DEPTH = 20  # Dictionaries and modules may be nested to this depth.

# Files that people give in place of weights: their first bytes, what they are, and the remedy.
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
    """Stands in for an object of any class: it keeps items and attributes, and has no code."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__.update({str(name): value for name, value in part.items()})


class Checkpoint(NamedTuple):
    """What a file of weights holds.

    Attributes:
        tensors: All tensors by name. The names of nested dictionaries are joined by dots.
        names: Lists of names that may be the classes.
    """

    tensors: State
    names: checkpoint_classes.SavedNames


def read_checkpoint(path: Path, weights: str) -> Checkpoint:
    """Read a file of weights.

    Args:
        weights: The value of `model.weights`, with which refusals begin.
    """
    _refuse_other_files(path, weights)
    try:
        content = _safetensors(path) if _is_safetensors(path) else _torch_file(path)
    except Exception as error:  # The libraries' errors have no common base.
        if _is_cut_off(path, error):
            _refuse(path, weights, "cut off", "download or copy it again")
        why = f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0]
        raise _unreadable(path, weights, why) from None
    state = dict(_tensors(content))
    if not state:
        raise _unreadable(path, weights, "it holds no named tensor")
    return Checkpoint(state, checkpoint_classes.names_in(content))


def _unreadable(path: Path, weights: str, why: str) -> Refusal:
    return Refusal(
        "weights.unreadable",
        f"model.weights={weights}: cannot be read as named tensors ({why}); save"
        " model.state_dict()",
        key="model.weights",
        file=str(path),
        why=why,
    )


def _refuse(path: Path, weights: str, file_kind: str, remedy: str) -> NoReturn:
    raise Refusal(
        "weights.other-file",
        f"model.weights={weights}: is {file_kind}, not a complete file of weights; {remedy}",
        key="model.weights",
        file=str(path),
        what=file_kind,
    )


def _refuse_other_files(path: Path, weights: str) -> None:
    """Refuse a file whose first bytes show that it holds no weights."""
    with path.open("rb") as file:
        first_bytes = file.read(512)
    if not first_bytes:
        _refuse(path, weights, "empty", "download or copy it again")
    begin = first_bytes.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for magic, file_kind, remedy in NO_WEIGHTS:
        if begin.startswith(magic):
            _refuse(path, weights, file_kind, remedy)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any("/code/" in name or name.startswith("code/") for name in names):
            _refuse(
                path,
                weights,
                "a TorchScript program",
                "save the state_dict() of the module that torch.jit.load returns",
            )
        if not any(name.endswith("data.pkl") for name in names):
            _refuse(path, weights, "an archive (zip)", "unpack it")
    elif not _is_safetensors(path) and all(
        byte in b"\r\n\t" or 32 <= byte < 127 for byte in first_bytes
    ):
        _refuse(
            path,
            weights,
            "a text",
            "give the file of weights itself: .safetensors, .pth, .pt, .ckpt or .bin",
        )


def _is_safetensors(path: Path) -> bool:
    """Return True if the file begins with the length of a header and the header's first brace."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        brace = file.read(1)
    return 2 <= length <= MAX_HEADER_BYTES and brace == b"{"


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    return load_file(path)


def _torch_file(path: Path) -> Any:
    """Load a file of torch.save. Objects of classes that torch does not allow become `Inert`."""
    classes: dict[str, type[Inert]] = {}
    while True:
        try:
            with torch.serialization.safe_globals([(kind, name) for name, kind in classes.items()]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            unsupported = UNSUPPORTED.search(str(error))
            name = unsupported and (unsupported[1] or unsupported[2]).rstrip(".")
            if not name or name in classes or len(classes) >= MAX_CLASSES:
                raise
            classes[name] = type(name.rpartition(".")[2], (Inert,), {})


def _is_cut_off(path: Path, error: Exception) -> bool:
    """Return True if the end of the file is missing."""
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        return not zipfile.is_zipfile(path)
    error_text = f"{type(error).__name__} {error}"
    return any(words in error_text for words in CUT_OFF_ERRORS)


def _tensors(content: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dictionaries and in pickled modules.

    Keys that are not names are skipped, such as the numbers of parameters in an optimizer's state.
    """
    if isinstance(content, torch.Tensor):
        if place:
            yield ".".join(name for name in place if name not in WRAPPERS), content.detach()
        return
    if len(place) > MAX_DEPTH:
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


def note_of_choice(
    weights: str, taken_set: str, other_sets: list[str], unused_names: list[str]
) -> Message:
    """Return the note on which of a file's weights are taken, if it holds several sets or others.

    Args:
        taken_set: The set that is taken, as `model.weights_from` names it.
        other_sets: The other sets, named in the same way.
        unused_names: Names of tensors that belong to none of the sets.
    """
    other_part = (
        f", not {' or '.join(other_sets)}"
        f" (`{override('model.weights_from', other_sets[0])}` takes that)"
        if other_sets
        else ""
    )
    more_unused = f" and {len(unused_names) - 2} more" if len(unused_names) > 2 else ""
    unused_part = f"; not read: {', '.join(unused_names[:2])}{more_unused}" if unused_names else ""
    return Message(
        "weights.taken",
        f"model.weights={weights}: takes the weights called {taken_set}{other_part}{unused_part}",
        key="model.weights",
        taken=taken_set,
        others=other_sets,
        left=unused_names[:20],
        left_count=len(unused_names),
    )
