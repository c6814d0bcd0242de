"""Keep a resumed sweep consistent if the defaults have changed since it began.

By default, a share of the user's own rows is held out (`dataset.split`). A sweep whose records have
no held-out rows goes on without. Otherwise its cells would be measured again, or compared with
cells that trained on more rows.
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
    """Return True if rows are held out only by default, in a sweep whose records hold none out."""
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


@lru_cache(maxsize=4)  # Every cell of a command asks this.
def _has_records_without_split(sweep: Path, changed_ns: int) -> bool:
    del changed_ns
    return any(
        _is_without_split(run_folder.read_json(path))
        for path in sorted(sweep.glob(f"*/{run_folder.RESULT}"))
    )


def _is_without_split(record: Any) -> bool:
    """Return True for the record of a finished run that could have held rows out but did not."""
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
    dataset = StoredTextConfig(
        name=str(data.get("name")), data_files=data.get("data_files"), split=None
    )
    return dataset.is_of_ones_own


def leave_split_out(*configs: Any) -> None:
    """Change composed configurations so that they hold no rows out."""
    for config in configs:
        OmegaConf.update(config, "dataset.split", None)


def as_before_notice(sweep: Path) -> Message:
    return Message(
        "sweep.as-before",
        f"{sweep.name}: its records have no held-out rows, and its other cells are measured as they"
        f" were; `dataset.split={HELD_OUT}` holds rows out",
        key="dataset.split",
        sweep=sweep.name,
    )
