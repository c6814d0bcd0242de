"""Content that identifies the data of a tuning run: rows, the tokenizer's files and the weights that it starts from."""

import json
import os
from pathlib import Path

from multicard.config.llm import Llama3TokenizerConfig, LlmConfig, Qwen25TokenizerConfig, SyntheticConfig
from multicard.config.llm import StoredTextConfig as Stored
from multicard.llm.data import templates
from multicard.llm.pretrained import RANDOM
from multicard.records.content import Blob, text_blob

UNFINISHED = ".incomplete"  # ends the name of a revision's folder while the library fetches it
SAMPLE_ROWS = 20  # of each template, which tell one version of the generator from another


def parts(config: LlmConfig) -> dict[str, list[Blob]]:
    """The parts of the data, before any sampling by rows or seed; a part that the run makes itself has no blobs, nor
    has a data set of the hub that is not in the library's cache."""
    return {"dataset": _rows(config), "tokenizer": _tokenizer(config), "weights": _weights(config)}


def _rows(config: LlmConfig) -> list[Blob]:
    data = config.dataset
    if isinstance(data, SyntheticConfig):
        rows = {name: templates.examples(name, SAMPLE_ROWS, seed=0) for name in sorted(templates.TEMPLATES)}
        return [text_blob("synthetic", json.dumps(rows))]
    assert isinstance(data, Stored)
    if data.data_files is not None:
        return [("rows", Path(data.data_files).expanduser())]
    revision = hub_revision(str(data.source))
    return [] if revision is None else [text_blob("hub", f"{data.source}@{revision}")]


def hub_revision(source: str) -> str | None:
    """The revision of a data set of the hub that was fetched last, from the folders of the `datasets` library's cache;
    None where it is not in there."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()
    wanted = _bare(source)  # the library writes a name in its own way: "org/My-Set" as "org___my-set"
    folders = [folder for folder in cache.glob("*") if _bare(folder.name) == wanted]
    fetched = [
        path for folder in folders for path in folder.glob("*/*/*") if path.is_dir() and path.suffix != UNFINISHED
    ]
    return max(fetched, key=lambda path: path.stat().st_mtime).name if fetched else None


def _bare(name: str) -> str:
    return name.replace("/", "").replace("_", "").lower()


def _tokenizer(config: LlmConfig) -> list[Blob]:
    options = config.tokenizer
    if isinstance(options, Llama3TokenizerConfig):
        return [("tokenizer.model", Path(str(options.path)).expanduser())]
    if isinstance(options, Qwen25TokenizerConfig):
        files = {"vocab.json": options.path, "merges.txt": options.merges_file}
        return [(name, Path(str(path)).expanduser()) for name, path in files.items()]
    return []


def _weights(config: LlmConfig) -> list[Blob]:
    if config.model.weights == RANDOM:
        return []
    folder = Path(config.model.weights).expanduser()
    files = [path for pattern in ("*.safetensors", "consolidated.*.pth") for path in folder.glob(pattern)]
    return [(path.name, path) for path in sorted(files)]
