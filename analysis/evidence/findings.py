"""What a step showed: findings, each a claim or a figure, its verdict,
and what it stands beside.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from multicard.config.job import count
from multicard.measure.repeated_runs import Ratio
from multicard.messages import Message
from multicard.records import limits
from multicard.records.limits import Forbids
from multicard.records.text_table import in_bytes

from ..claims.comparison import FAILS, HOLDS, UNDECIDED
from ..runs import grouping, load
from ..runs.grouping import Cell
from ..runs.load import Run
from ..stats import intervals
from ..stats.between_runs import RepeatedRuns
from ..stats.intervals import times

SLOWEST = 8  # kernels that are listed
TRAINING = (60_000, 10_000, 20)  # images, test images and epochs of the papers
PAPERS_TOTAL_S = {"fp64": 6234, "fp32": 3721, "fp16": 2477}  # on one H100: 2503.15252, Table 2
STEP_S = "step_s"
PEAK = "peak_memory_bytes"


@dataclass(frozen=True)
class Finding:
    """A figure of a step, or a claim that its runs test.

    what: the claim, or what was measured. value: the figure, for a person to read.
    gain: how many times as fast it is as what it is compared with, or why that cannot be told.
    verdict: of a claim (`analysis.claims.comparison`); empty where a figure tests none.
    beside: what others measured, or what was expected. runs: how many a figure is made of; 0 where
    it is of no run.
    is_failure: something went wrong, which the exit code says. is_refusal: the machine lacks what
    was asked for, which is an answer; its command ends with exit code 1 all the same.
    """

    what: str
    value: str
    gain: str = ""
    verdict: str = ""
    beside: str = ""
    runs: int = 0
    is_failure: bool = False
    is_refusal: bool = False


Read = Callable[[Path, str], list[Finding]]  # of a step's folder of runs, and its log


@dataclass(frozen=True)
class ComparedRates:
    """A claim on the values of an axis: that each does more work in a second than the base.

    axis: a column of runs. base: its value that the others are compared with.
    claim: in a few words, what the others are expected to be ("faster than ddp").
    rate: the column of work a second. by: further columns that tell settings apart, of which each
    combination has a base of its own. beside: what others measured on a GPU.
    names: what values of the axis are called, where they stand for more, as for a preset.
    """

    axis: str
    base: Any
    claim: str
    rate: str
    by: Sequence[str] = ()
    beside: str = ""
    names: Mapping[Any, str] = field(default_factory=dict)

    def read(self, folder: Path, _: str) -> list[Finding]:
        runs = runs_of(folder)
        repeated = RepeatedRuns(runs)
        found = []
        keys = [*self.by, self.axis]
        settings = grouping.group(grouping.ok_runs(runs), keys)
        # The base first, then the others, as they are typed
        for cell in sorted(settings, key=lambda cell: self._order(dict(cell))):
            at_base = {**dict(cell), self.axis: self.base}
            base = next((own for other, own in settings.items() if dict(other) == at_base), None)
            is_base = dict(cell) == at_base
            found.append(self._finding(repeated, cell, settings[cell], None if is_base else base))
        return found + not_ended(runs, keys)

    def _order(self, cell: Mapping[str, Any]) -> tuple[Any, ...]:
        value = cell[self.axis]
        number = value if isinstance(value, int | float) else 0
        return (*(str(cell[key]) for key in self.by), value != self.base, number, str(value))

    def _finding(
        self, repeated: RepeatedRuns, cell: Cell, runs: Sequence[Run], base: Sequence[Run] | None
    ) -> Finding:
        label = self._label(cell)
        shown = figures_of(repeated, runs, self.rate)
        counted = len(grouping.counting(runs, self.rate))
        beside = "" if runs[0]["cpu_ranks"] else self.beside
        if base is None:
            return Finding(label, shown, beside=beside, runs=counted)
        claim = f"{label}: {self.claim}"
        untold = why_untold([*grouping.undisturbed(runs), *grouping.undisturbed(base)])
        if untold is not None:
            return Finding(claim, shown, f"not told: {untold}", UNDECIDED, beside, counted)
        if any(run[self.rate] is None for run in (*base, *runs)):
            return Finding(claim, shown, "not told: a run has no rate", UNDECIDED, beside, counted)
        ratio = repeated.ratio(self.rate, base, runs)
        return Finding(claim, shown, in_words(ratio), verdict_of(ratio), beside, counted)

    def _label(self, cell: Cell) -> str:
        name = self.names.get(dict(cell)[self.axis])
        if name is None:
            return grouping.label(cell, [*self.by, self.axis])
        return f"{grouping.label(cell, self.by)} {name}".strip()


def verdict_of(ratio: Ratio) -> str:
    """HOLDS where the whole interval is above 1, FAILS where it is below."""
    bounds = ratio.bounds()
    if bounds is None:
        return UNDECIDED
    low, high = bounds
    if low > 1:
        return HOLDS
    return FAILS if high < 1 else UNDECIDED


def in_words(ratio: Ratio) -> str:
    """A ratio with its interval: "1.85x (1.80x to 1.90x)", and whether runs were repeated."""
    bounds = ratio.bounds()
    if bounds is None:
        return times(ratio.ratio)
    assumed = "" if ratio.repeated else ", one run each"
    return f"{times(ratio.ratio)} ({times(bounds[0])} to {times(bounds[1])}{assumed})"


def why_untold(runs: Sequence[Run]) -> str | None:
    """Why the settings of these runs cannot be compared; None where they can."""
    forbidden = [Forbids.verdict, Forbids.rate]
    if len({grouping.ranks(run) for run in runs}) > 1:
        forbidden.append(Forbids.speed_up)
    found = limits.forbidding(grouping.limits_of(runs), *forbidden)
    return found[0].says if found else None


def runs_of(folder: Path) -> list[Run]:
    """The runs of a step; none before the first has ended."""
    try:
        return load.read([folder]).runs if folder.is_dir() else []
    except ValueError:
        return []


def not_ended(runs: Sequence[Run], keys: Sequence[str]) -> list[Finding]:
    """A finding for each run that did not end ok. Out of memory, and a refusal of what this machine
    has not, are answers; all else is a failure. What was interrupted is measured another time."""
    found = []
    for run in runs:
        status = run["status"]
        if status in ("ok", "interrupted"):
            continue
        label = grouping.label(tuple((key, run[key]) for key in keys if run[key] is not None), keys)
        value = f"{status}: {run['cause'] or 'no cause'}"
        is_refusal = status == "refused"
        is_failure = status != "oom" and not is_refusal
        found.append(Finding(label, value, is_failure=is_failure, is_refusal=is_refusal))
    return found


def figures_of(repeated: RepeatedRuns, runs: Sequence[Run], rate: str) -> str:
    """Speed with its interval, and the peak of a device's memory."""
    speed = repeated.figure(runs, rate)
    peak = grouping.of_setting(runs, PEAK)
    parts = [] if speed is None else [f"{intervals.text(rate, speed)} {UNITS[rate]}"]
    parts += [] if peak is None else [in_bytes(peak)]
    return ", ".join(parts) or "no time"


UNITS = {"images_per_s": "images/s", "tokens_per_s": "tokens/s"}


# Findings that compare nothing


def of_machine(_: Path, log: str) -> list[Finding]:
    facts = json.loads(log.splitlines()[-1])
    hardware = (
        f"{count(facts['gpus'], 'GPU')}: {facts['hardware']}"
        if facts["gpus"]
        else f"{facts['hardware']}, no GPU"
    )
    links = ", ".join(sorted({str(link or "unknown") for link in facts["links"]}))
    known = {name: facts["versions"][name] for name in ("torch", "CUDA", "cuDNN", "driver")}
    versions = ", ".join(
        f"{name} {version}" for name, version in known.items() if version is not None
    )
    found = [
        Finding("hardware", f"{hardware}, {count(facts['cores'], 'core')}"),
        Finding("versions", versions),
    ]
    found += [Finding("links between GPUs", links)] if links else []
    return found + [
        Finding(name if "reduce" in name else f"copy {name}", f"{rate / 1e9:,.1f} GB/s")
        for name, rate in facts["bytes_per_s"].items()
    ]


def test_outcomes(log: str) -> dict[str, str]:
    """The last outcome of each test that `pytest -v` names, over all calls."""
    return dict(re.findall(r"^(\S*tests/.+?) (PASSED|FAILED|ERROR|SKIPPED)", log, re.MULTILINE))


def of_tests(_: Path, log: str) -> list[Finding]:
    outcomes = test_outcomes(log)
    if not outcomes:
        return []
    counts = {
        name: [*outcomes.values()].count(name) for name in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    }
    bad = [name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    said = ", ".join(f"{number} {name.lower()}" for name, number in counts.items() if number)
    verdict = FAILS if bad else HOLDS if counts["PASSED"] else UNDECIDED
    found = [
        Finding(
            "the tests that need a GPU pass", said or "none ran", "", verdict, is_failure=bool(bad)
        )
    ]
    return found + [Finding(name, "failed", "", FAILS, is_failure=True) for name in bad]


def extrapolated_s(record: Mapping[str, Any]) -> tuple[float, str]:
    """The papers' training from a shorter one of at least two epochs: seconds,
    and how they come about.

    total = once + epochs (epoch + images / (images/s) + test images / (test images/s)), where
    images/s leave out the warm-up, `epoch` is what the last epoch took beside its images,
    and `once` is what the first took beside the last.
    """
    first = record["epochs"][0]
    last = record["epochs"][-1]
    images, test_images, epochs = TRAINING
    images_per_s = record["images_per_s"]
    tested_per_s = last["test_samples"] / last["evaluate_s"]
    epoch_s = max(0.0, last["train_s"] - last["samples"] / images_per_s)
    once_s = max(0.0, sum(first[key] - last[key] for key in ("train_s", "evaluate_s")))
    total_s = once_s + epochs * (epoch_s + images / images_per_s + test_images / tested_per_s)
    parts = (
        f"{epoch_s:.2f} + {images:,} / {images_per_s:,.0f} + {test_images:,} / {tested_per_s:,.0f}"
    )
    return total_s, f"{once_s:.1f} + {epochs} ({parts})"


def extrapolated(folder: Path, _: str) -> list[Finding]:
    """The papers' training by each setting on GPUs, the mean of its runs,
    beside Table 2's first column on one GPU.
    """
    images, _tests, epochs = TRAINING
    settings: dict[tuple[str, int], list[tuple[float, str]]] = {}
    for record in records(folder):
        axes = record["axes"]
        if record["status"] == "ok" and axes["device"] != "cpu":
            settings.setdefault((axes["precision"], axes["gpus"]), []).append(
                extrapolated_s(record)
            )
    found = []
    for (precision, gpus), own in settings.items():
        printed_s = PAPERS_TOTAL_S.get(precision) if gpus == 1 else None
        beside = "" if printed_s is None else f"{printed_s:,} s (papers, one H100)"
        what = f"{precision}, gpus={gpus}: {epochs} epochs of {images:,} images, extrapolated"
        mean_s = fmean(total_s for total_s, _ in own)
        terms = (
            f" = {own[0][1]}"
            if len(own) == 1
            else f", the mean of {len(own)} runs; the first: {own[0][1]}"
        )
        found.append(Finding(what, f"{mean_s:,.0f} s{terms}", beside=beside, runs=len(own)))
    return found


def whole(folder: Path, _: str) -> list[Finding]:
    images, _tests, epochs = TRAINING
    return [
        Finding(
            f"{record['axes']['precision']}: {epochs} epochs of {images:,} images at 500 px",
            f"{record['total_s']:.1f} s, accuracy {record['test_accuracy']:.2%}",
            beside=f"{PAPERS_TOTAL_S['fp16']:,} s (papers, one H100)",
            runs=1,
        )
        for record in records(folder)
        if record["status"] == "ok"
    ]


def kernels(folder: Path, _: str) -> list[Finding]:
    """Milliseconds of a profiled step in each of its slowest kernels."""
    found = []
    for record in records(folder):
        profile = record.get("profile") or {}
        rows = [
            row
            for row in profile.get("rows", [])
            if row["group"] == "kernel" and row["rank"] is not None
        ]
        slowest = sorted(rows, key=lambda row: -row["total_s"])[:SLOWEST]
        each = [
            f"{row['metric'][:40]} {1000 * row['total_s'] / profile['steps']:.2f} ms"
            for row in slowest
        ]
        value = "; ".join(each) or profile.get("error") or "no kernels: CPU ranks have none"
        found.append(Finding("the slowest kernels of a step", value, runs=1))
    return found


def slow_steps(folder: Path, _: str) -> list[Finding]:
    """How far the slowest twentieth of the steps are from the
    median: steps that stall are three times as long.
    """
    found = []
    for record in records(folder):
        steps = record.get("iteration_s") or {}
        if record["status"] == "ok" and steps.get("median"):
            value = f"{steps['p95'] / steps['median']:.2f} times the median at the 95th percentile"
            slow = ", ".join(map(str, steps.get("slow_steps") or [])) or "none"
            found.append(
                Finding(
                    f"engine={record['axes']['engine']}: slow steps",
                    f"{value}; slow steps: {slow}",
                    runs=1,
                )
            )
    return found


def diagnosis(folder: Path, _: str) -> list[Finding]:
    found = [record.get("diagnosis") for record in records(folder)]
    return [Finding("what limits it", one["sentence"], runs=1) for one in found if one]


def of_memory(folder: Path, _: str) -> list[Finding]:
    """That a batch which is too large ends as `oom`, in a line."""
    claim = Message("evidence.oom", "a batch that is too large ends as out of memory")
    statuses = [record["status"] for record in records(folder)]
    return [
        Finding(
            claim,
            status,
            "",
            HOLDS if status == "oom" else FAILS,
            runs=1,
            is_failure=status != "oom",
        )
        for status in statuses
    ]


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of a step's runs as JSON, in the order of their folders."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]


def joined(*reads: Read) -> Read:
    """The findings of several readers, one after the other."""

    def read(folder: Path, log: str) -> list[Finding]:
        return list(chain.from_iterable(each(folder, log) for each in reads))

    return read
