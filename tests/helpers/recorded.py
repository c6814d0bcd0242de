"""Parts of a record, as tests of runs read them."""

from pathlib import Path
from typing import Any

import numpy as np

from multicard.records import run_folder


def steps(result: dict[str, Any], column: str, rank: int = 0) -> np.ndarray:
    """A column of the steps of a rank."""
    table = run_folder.read_steps(Path(result["folder"]))
    return table[column].to_numpy()[table["rank"].to_numpy() == rank]


def rows(result: dict[str, Any], group: str) -> dict[str, dict[str, Any]]:
    """The rows of a group of the profile, by their metric, summed over ranks."""
    return {
        row["metric"]: row
        for row in result["profile"]["rows"]
        if row["group"] == group and row["rank"] is None
    }
