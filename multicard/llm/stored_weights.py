"""Read what safetensors files hold without reading their tensors. Imports no torch."""

import json
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Refusal

Shape = tuple[int, ...]

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
LENGTH_BYTES = 8  # The length of a file's header.
BLOCK = 1 << 20


def stored_shapes(folder_name: str, key: str) -> dict[str, Shape]:
    """Return the shapes of the tensors in a folder's safetensors files, from the files' headers.

    Args:
        folder_name: Path of the folder.
        key: The configuration key that names the folder.

    Raises:
        ValueError: The folder has no readable safetensors files.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder_name).expanduser()
    remedy = "give a folder with *.safetensors and config.json, or `model.weights=random`"
    if not folder.is_dir():
        raise Refusal(
            "llm.weights-absent",
            f"{key}={folder_name}: no such folder; {remedy}",
            key=key,
            value=folder_name,
        )
    _refuse_adapter(folder, folder_name, key)
    files = sorted(folder.glob("*.safetensors"))
    shapes = dict[str, Shape]()
    if not files and any(folder.glob("*.bin")):
        raise Refusal(
            "llm.weights-pickled",
            f"{key}={folder_name}: its weights are pickled, and reading a pickle can run any"
            " program; save them as safetensors (model.save_pretrained)",
            key=key,
            value=folder_name,
        )
    if not files:
        raise Refusal(
            "llm.no-weights",
            f"{key}={folder_name}: holds no weights; {remedy}",
            key=key,
            value=folder_name,
        )
    if (folder / WHOLE).is_file() and _shards(folder):
        raise Refusal(
            "llm.weights-twice",
            f"{key}={folder_name}: holds its weights twice, in {WHOLE} and in the files of {INDEX};"
            " move one of them out of the folder",
            key=key,
            value=folder_name,
        )
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            raise Refusal(
                "llm.weights-cut-off",
                f"{key}={folder_name}: {path.name} is cut off, or not a safetensors file; download"
                " it again",
                key=key,
                value=folder_name,
                file=path.name,
            ) from None
    return shapes


def _refuse_adapter(folder: Path, folder_name: str, key: str) -> None:
    """Refuse a folder with PEFT's adapter: transformers would read the adapter's base instead."""
    if not (folder / ADAPTER).is_file():
        return
    try:
        base = json.loads((folder / ADAPTER).read_text("utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    raise Refusal(
        "llm.weights-adapter",
        f"{key}={folder_name}: holds an adapter ({ADAPTER}) of {base or 'another model'}, whose"
        " weights would be read instead; merge it into them (PEFT's merge_and_unload), or move it"
        " out of the folder",
        key=key,
        value=folder_name,
        base=base,
    )


def _shards(folder: Path) -> list[Path]:
    """Return the files that the index of a folder names, except one that has all weights."""
    try:
        names = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # There is no index, or transformers refuses it.
    return [folder / name for name in {*names} - {WHOLE} if (folder / name).is_file()]


class StoredTensor(NamedTuple):
    """Where the bytes of a tensor are stored."""

    file: Path
    begin: int
    size: int


def hold_the_same(folder_name: str, name: str, other: str) -> bool:
    """Tell whether two tensors of a folder have the same bytes."""
    folder = Path(folder_name).expanduser()
    one, another = (_stored_tensor(folder, tensor) for tensor in (name, other))
    if one.size != another.size:
        return False
    with one.file.open("rb") as first, another.file.open("rb") as second:
        first.seek(one.begin)
        second.seek(another.begin)
        for done in range(0, one.size, BLOCK):
            length = min(BLOCK, one.size - done)
            if first.read(length) != second.read(length):
                return False
    return True


def _stored_tensor(folder: Path, name: str) -> StoredTensor:
    """Find a tensor of a folder by the headers of its files, each after its own length."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stored:
            length = int.from_bytes(stored.read(LENGTH_BYTES), "little")
            header = json.loads(stored.read(length))
        if name in header:
            begin, end = header[name]["data_offsets"]
            return StoredTensor(file, LENGTH_BYTES + length + begin, end - begin)
    raise KeyError(name)
