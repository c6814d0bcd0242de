"""Fetch data sets of the Hugging Face hub, or read them from the cache of the `datasets` library.

Imports no torch.
"""

import os
from itertools import chain
from pathlib import Path
from typing import Any

from multicard.config.llm_texts import StoredTextConfig
from multicard.llm.data.files import without_nulls
from multicard.machine import network
from multicard.messages import Refusal

Row = dict[str, Any]

UNFINISHED = ".incomplete"  # Ends the name of a revision's folder while the library fetches it.


def check_source(data: StoredTextConfig) -> None:
    """Refuse a data set that is neither a file nor on the hub."""
    if data.source is None:
        raise Refusal(
            "llm.no-data-source",
            f"dataset={data.name}: names neither a file nor a data set of the hub; "
            "set `dataset.data_files=FILE` (.json, .jsonl or .parquet), or `dataset.source=NAME`",
            key="dataset",
            value=data.name,
        )


def revision(source: str) -> str | None:
    """Return the latest cached revision of a data set of the hub; None if none is cached."""
    folder = folder_of(source)
    return None if folder is None else folder.name


def folder_of(source: str) -> Path | None:
    home = (
        os.environ.get("HF_HOME")
        or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    )
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()
    # The library changes the name of a folder: "org/My-Set" becomes "org___my-set".
    wanted = _comparable_name(source)
    folders = [folder for folder in cache.glob("*") if _comparable_name(folder.name) == wanted]
    revisions = chain.from_iterable(folder.glob("*/*/*") for folder in folders)
    finished = [path for path in revisions if path.is_dir() and path.suffix != UNFINISHED]
    return max(finished, key=lambda path: path.stat().st_mtime) if finished else None


def _comparable_name(name: str) -> str:
    return name.replace("/", "").replace("_", "").lower()


def fetch(data: StoredTextConfig, count: int | None = None) -> list[Row]:
    """Return the training rows of a data set of the hub, from the library's cache if possible."""
    check_source(data)
    import datasets
    import datasets.config
    from huggingface_hub import constants, logging

    datasets.logging.set_verbosity_error()  # Otherwise it reports each retry, and its cache.
    logging.set_verbosity_error()
    source = str(data.source)
    offline_before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    offline = any(offline_before) or revision(source) is not None
    problem = None if offline else network.problem(constants.ENDPOINT)
    if problem is not None:
        raise _unfetched_refusal(source, problem, f"{constants.ENDPOINT}: ")
    try:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
        rows: Any = datasets.load_dataset(source, revision=data.revision, split="train")
        return without_nulls(
            (rows if count is None else rows.select(range(min(count, len(rows))))).to_list()
        )
    except Exception as error:  # Several libraries raise here, without a common base class.
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _unfetched_refusal(source, cause) from None
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = offline_before


def _unfetched_refusal(source: str, reason: str, place: str = "") -> Refusal:
    return Refusal(
        "llm.data-unfetched",
        f"dataset.source={source}: could not be fetched ({place}{reason}); "
        "check that the machine has network, or set `dataset.data_files=FILE`",
        key="dataset.source",
        value=source,
        reason=reason,
    )
