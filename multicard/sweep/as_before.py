"""What a resumed sweep does as it began, where the defaults have changed since.

A share of one's own rows is held out by default (`dataset.split`). A sweep whose records have none
goes on without: its cells would otherwise be measured again,
or be compared with others that trained on more rows.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.llm_texts import HELD_OUT, StoredTextConfig
from multicard.messages import Message
from multicard.records import run_folder


def trains_on_all_rows(config: RunConfig, sweep: Path) -> bool:
    """True where a configuration holds rows out by default alone,
    in a sweep whose records hold none out.
    """
    if (
        not isinstance(config, LlmConfig)
        or not config.dataset.is_split_by_default
        or config.dataset.split is None
    ):
        return False
    try:
        changed_ns = sweep.stat().st_mtime_ns
    except OSError:
        return False
    return _has_records_without_split(sweep, changed_ns)


@lru_cache(maxsize=4)  # every cell of a command asks
def _has_records_without_split(sweep: Path, changed_ns: int) -> bool:
    del changed_ns
    return any(
        _is_without_split(run_folder.read_json(path))
        for path in sorted(sweep.glob(f"*/{run_folder.RESULT}"))
    )


def _is_without_split(record: Any) -> bool:
    """True of the record of a finished run that could have held rows out and did not."""
    config = (
        record.get("config")
        if isinstance(record, dict) and record.get("status") in run_folder.DONE
        else None
    )
    data = (
        config.get("dataset")
        if isinstance(config, dict) and record.get("kind") == LlmConfig.kind
        else None
    )
    if (
        not isinstance(data, dict)
        or data.get("split") is not None
        or data.get("test_files") is not None
    ):
        return False
    own = StoredTextConfig(
        name=str(data.get("name")), data_files=data.get("data_files"), split=None
    )
    return own.is_of_ones_own


def leave_split_out(*configs: Any) -> None:
    """Have composed configurations hold no row out."""
    for config in configs:
        OmegaConf.update(config, "dataset.split", None)


def said(sweep: Path) -> Message:
    return Message(
        "sweep.as-before",
        f"{sweep.name}: its records have no held-out rows, and its other cells are measured as they"
        f" were; `dataset.split={HELD_OUT}` holds rows out",
        key="dataset.split",
        sweep=sweep.name,
    )
