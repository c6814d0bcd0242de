"""The artifacts of a run: its record with all that belongs to it, and the fingerprint of the data that it used."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicard.observe.energy.parts import MERGED
from multicard.records import text_table
from multicard.records.run_folder import ENVIRONMENT, MACHINE, RESULT
from multicard.records.steps import STEPS

RECORD, DATASET = "run-record", "dataset"  # types of artifacts
FILES = (RESULT, "config.yaml", ENVIRONMENT, STEPS, MERGED, MACHINE, "torchtune.yaml")
PROFILE_COLUMNS = ("rank", "group", "metric", "calls", "total_s", "mean_s", "share", "bytes", "detail")
SUM = "all"  # for the rank of a row that is the sum over ranks


def record_files(folder: Path, record: Mapping[str, Any]) -> dict[str, Path | str]:
    """The record and what belongs to it, as far as the folder has it, by the names that they get."""
    files: dict[str, Path | str] = {name: folder / name for name in FILES if (folder / name).exists()}
    rows = profile_rows(record)
    if rows:
        files["profile.csv"] = text_table.to_csv(PROFILE_COLUMNS, rows)
    return files


def profile_rows(record: Mapping[str, Any]) -> list[list[Any]]:
    """The metrics of a profile, a row each, as `PROFILE_COLUMNS`; empty without one."""
    rows = (record.get("profile") or {}).get("rows") or []
    return [
        [SUM if row["rank"] is None else str(row["rank"]), *(row[name] for name in PROFILE_COLUMNS[1:])] for row in rows
    ]


def dataset(record: Mapping[str, Any]) -> tuple[str, dict[str, Path | str], dict[str, Any]] | None:
    """Name, files and facts of the artifact that stands for the data; None where it was not identified.

    Its only file is the fingerprint: the same data is the same version, whichever run used it.
    """
    data, name = record.get("data"), (record.get("axes") or {}).get("dataset")
    if not data or not name:
        return None
    facts = {"dataset": name, **data}
    return re.sub(r"[^\w.-]", "-", name), {"fingerprint.json": json.dumps(facts, indent=1) + "\n"}, facts
