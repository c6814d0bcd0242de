"""Marks of runs whose figures need a caveat, and their legend."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from multicard.config.base import ProfileWindow
from multicard.config.placement import CROWDED, OVERSUBSCRIBED
from multicard.records.comparable import (
    BUSY_SHARE,
    CROWD,
    DISTURBED,
    LOADED,
    PROFILED,
    PROFILED_MEANING,
    busy_share,
    crowded,
)
from multicard.records.table import MARK


@dataclass(frozen=True)
class Mark:
    sign: str
    column: str  # true or false for every run
    meaning: str
    applies: Callable[[Mapping[str, Any]], bool]


def _loaded(run: Mapping[str, Any]) -> bool:
    return busy_share(run.get("others_cores"), run.get("stolen_cores"), run.get("cores")) > BUSY_SHARE


MARKS = (
    Mark(MARK, "oversubscribed", OVERSUBSCRIBED, lambda run: run["oversubscribed"]),
    Mark("c", "cpu_ranks", "CPU ranks, not GPUs", lambda run: run.get("device") == "cpu"),
    Mark(DISTURBED, "disturbed", "others used its GPUs meanwhile", lambda run: run["disturbed"]),
    Mark(LOADED, "loaded", "others kept over a tenth of its cores busy", _loaded),
    Mark(CROWD, "crowded", CROWDED, lambda run: crowded(run.get("device"), run.get("gpus") or 1, run.get("cores"))),
    Mark("p", "beside_others", "beside other runs on its machine", lambda run: bool(run.get("beside"))),
    Mark("r", "random_weights", "random weights: its loss is no model's", lambda run: run.get("weights") == "random"),
    Mark("s", "smoke", "smoke scale: shrunk to try the code", lambda run: run.get("scale") == "smoke"),
    Mark(PROFILED, "profiled", PROFILED_MEANING, lambda run: run.get("profile.window") == ProfileWindow.start),
    Mark("+", "restarted", "in several segments: stopped and started again", lambda run: run["segments"] > 1),
    Mark("d", "dirty_commit", "of changed code, not of the commit alone", lambda run: bool(run["dirty"])),
)


def legend(signs: Iterable[str]) -> list[str]:
    """A line for each mark among the `marks` of some runs."""
    marked = set("".join(signs))
    return [f"{mark.sign}  {mark.meaning}" for mark in MARKS if mark.sign in marked]
