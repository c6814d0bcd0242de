"""Findings: what a step of the evidence showed.

Each finding is a claim with its verdict, or a figure, next to what others measured.
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

SLOWEST = 8  # The number of kernels that are listed.
TRAINING = (60_000, 10_000, 20)  # The papers' training images, test images and epochs.
# The papers' training times on one H100 (2503.15252, Table 2).
PAPERS_TOTAL_S = {"fp64": 6234, "fp32": 3721, "fp16": 2477}
STEP_S = "step_s"
PEAK = "peak_memory_bytes"


@dataclass(frozen=True)
class Finding:
    """A figure of a step, or a claim that its runs test.

    what: the claim, or what was measured.
    value: the figure, for a person to read.
    gain: how many times as fast as the base it is, or why that cannot be said.
    verdict: the verdict on a claim (`analysis.claims.comparison`); empty for a mere figure.
    beside: what others measured, or what was expected.
    runs: the number of runs behind the figure; 0 if it does not come from runs.
    is_failure: True if something went wrong, which the exit code reports.
    is_refusal: True if the machine lacks what the step needs. That is an answer, although its
        command ends with exit code 1.
    """

    what: str
    value: str
    gain: str = ""
    verdict: str = ""
    beside: str = ""
    runs: int = 0
    is_failure: bool = False
    is_refusal: bool = False


Read = Callable[[Path, str], list[Finding]]  # Takes the folder of a step's runs, and its log.


@dataclass(frozen=True)
class ComparedRates:
    """A claim that each value of an axis does more work per second than the base value.

    axis: a column of runs.
    base: the value of the axis that the others are compared with.
    claim: what the others are expected to be, in a few words ("faster than ddp").
    rate: the column of work per second.
    by: further columns that distinguish settings. Each combination of them has its own base.
    beside: what others measured on a GPU.
    names: names for values of the axis that stand for more, such as a preset.
    """

    axis: str
    base: Any
    claim: str
    rate: str
    by: Sequence[str] = ()
    beside: str = ""
    names: Mapping[Any, str] = field(default_factory=dict)

    def read(self, folder: Path, _: str) -> list[Finding]:
        """Compare the runs of a step with those of the base."""
        runs = runs_of(folder)
        repeated = RepeatedRuns(runs)
        findings = []
        keys = [*self.by, self.axis]
        settings = grouping.group(grouping.ok_runs(runs), keys)
        # The base comes first, then the others in the order of their values.
        for cell in sorted(settings, key=lambda cell: self._order(dict(cell))):
            at_base = {**dict(cell), self.axis: self.base}
            is_base = dict(cell) == at_base
            base_runs = None if is_base else settings.get(tuple(at_base.items()))
            findings.append(self._finding(repeated, cell, settings[cell], base_runs))
        return findings + not_ended(runs, keys)

    def _order(self, cell: Mapping[str, Any]) -> tuple[Any, ...]:
        value = cell[self.axis]
        number = value if isinstance(value, int | float) else 0
        return (*(str(cell[key]) for key in self.by), value != self.base, number, str(value))

    def _finding(
        self, repeated: RepeatedRuns, cell: Cell, runs: Sequence[Run], base: Sequence[Run] | None
    ) -> Finding:
        label = self._label(cell)
        figures_text = figures_of(repeated, runs, self.rate)
        run_count = len(grouping.counting(runs, self.rate))
        beside = "" if runs[0]["cpu_ranks"] else self.beside
        if base is None:
            return Finding(label, figures_text, beside=beside, runs=run_count)
        claim = f"{label}: {self.claim}"
        not_comparable = why_not_comparable(
            [*grouping.undisturbed(runs), *grouping.undisturbed(base)]
        )
        if not_comparable is not None:
            return Finding(
                claim, figures_text, f"not known: {not_comparable}", UNDECIDED, beside, run_count
            )
        if any(run[self.rate] is None for run in (*base, *runs)):
            return Finding(
                claim, figures_text, "not known: a run has no rate", UNDECIDED, beside, run_count
            )
        ratio = repeated.ratio(self.rate, base, runs)
        return Finding(claim, figures_text, in_words(ratio), verdict_of(ratio), beside, run_count)

    def _label(self, cell: Cell) -> str:
        name = self.names.get(dict(cell)[self.axis])
        if name is None:
            return grouping.label(cell, [*self.by, self.axis])
        return f"{grouping.label(cell, self.by)} {name}".strip()


def verdict_of(ratio: Ratio) -> str:
    """Return HOLDS if the whole interval is above 1, FAILS if it is below, else UNDECIDED."""
    bounds = ratio.bounds()
    if bounds is None:
        return UNDECIDED
    low, high = bounds
    if low > 1:
        return HOLDS
    return FAILS if high < 1 else UNDECIDED


def in_words(ratio: Ratio) -> str:
    """Write a ratio with its interval, as "1.85x (1.80x to 1.90x)", and say if runs are single."""
    bounds = ratio.bounds()
    if bounds is None:
        return times(ratio.ratio)
    single_runs_note = "" if ratio.repeated else ", one run each"
    return f"{times(ratio.ratio)} ({times(bounds[0])} to {times(bounds[1])}{single_runs_note})"


def why_not_comparable(runs: Sequence[Run]) -> str | None:
    """Return why the settings of these runs cannot be compared, or None if they can."""
    forbidden_uses = [Forbids.verdict, Forbids.rate]
    if len({grouping.ranks(run) for run in runs}) > 1:
        forbidden_uses.append(Forbids.speed_up)
    forbidding_limits = limits.forbidding(grouping.limits_of(runs), *forbidden_uses)
    return forbidding_limits[0].says if forbidding_limits else None


def runs_of(folder: Path) -> list[Run]:
    """Return the runs of a step; an empty list before the first one has ended."""
    try:
        return load.read_runs([folder]).runs if folder.is_dir() else []
    except ValueError:
        return []


def not_ended(runs: Sequence[Run], keys: Sequence[str]) -> list[Finding]:
    """Return a finding for each run that did not end ok.

    Running out of memory is an answer, and so is a refusal because this machine lacks something.
    Everything else is a failure. Interrupted runs are left out, because they are measured again.
    """
    findings = []
    for run in runs:
        status = run["status"]
        if status in ("ok", "interrupted"):
            continue
        label = grouping.label(tuple((key, run[key]) for key in keys if run[key] is not None), keys)
        value = f"{status}: {run['cause'] or 'no cause'}"
        is_refusal = status == "refused"
        is_failure = status != "oom" and not is_refusal
        findings.append(Finding(label, value, is_failure=is_failure, is_refusal=is_refusal))
    return findings


def figures_of(repeated: RepeatedRuns, runs: Sequence[Run], rate: str) -> str:
    """Write the speed with its interval, and the peak memory of a device."""
    speed = repeated.figure(runs, rate)
    peak = grouping.of_setting(runs, PEAK)
    parts = [] if speed is None else [f"{intervals.text(rate, speed)} {UNITS[rate]}"]
    parts += [] if peak is None else [in_bytes(peak)]
    return ", ".join(parts) or "no time"


UNITS = {"images_per_s": "images/s", "tokens_per_s": "tokens/s"}


# Findings that do not compare settings.


def of_machine(_: Path, log: str) -> list[Finding]:
    """Describe the hardware and versions, and how fast copies and all-reduces are."""
    facts = json.loads(log.splitlines()[-1])
    hardware = (
        f"{count(facts['gpus'], 'GPU')}: {facts['hardware']}"
        if facts["gpus"]
        else f"{facts['hardware']}, no GPU"
    )
    links = ", ".join(sorted({str(link or "unknown") for link in facts["links"]}))
    versions_by_name = {
        name: facts["versions"][name] for name in ("torch", "CUDA", "cuDNN", "driver")
    }
    versions = ", ".join(
        f"{name} {version}" for name, version in versions_by_name.items() if version is not None
    )
    findings = [
        Finding("hardware", f"{hardware}, {count(facts['cores'], 'core')}"),
        Finding("versions", versions),
    ]
    findings += [Finding("links between GPUs", links)] if links else []
    return findings + [
        Finding(name if "reduce" in name else f"copy {name}", f"{rate / 1e9:,.1f} GB/s")
        for name, rate in facts["bytes_per_s"].items()
    ]


def test_outcomes(log: str) -> dict[str, str]:
    """Return the last outcome of each test that `pytest -v` names in the log of all calls."""
    return dict(re.findall(r"^(\S*tests/.+?) (PASSED|FAILED|ERROR|SKIPPED)", log, re.MULTILINE))


def of_tests(_: Path, log: str) -> list[Finding]:
    """Say whether the tests that need a GPU passed, and name those that failed."""
    outcomes = test_outcomes(log)
    if not outcomes:
        return []
    counts = {
        name: [*outcomes.values()].count(name) for name in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    }
    failed_tests = [name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    counts_text = ", ".join(f"{number} {name.lower()}" for name, number in counts.items() if number)
    if failed_tests:
        verdict = FAILS
    elif counts["PASSED"]:
        verdict = HOLDS
    else:
        verdict = UNDECIDED
    findings = [
        Finding(
            "the tests that need a GPU pass",
            counts_text or "none ran",
            "",
            verdict,
            is_failure=bool(failed_tests),
        )
    ]
    return findings + [Finding(name, "failed", "", FAILS, is_failure=True) for name in failed_tests]


def extrapolated_s(record: Mapping[str, Any]) -> tuple[float, str]:
    """Extrapolate the papers' training from a shorter one, which must have at least two epochs.

    Return the seconds, and the sum that they result from:

    total = once + epochs (epoch + images / (images/s) + test images / (test images/s))

    The images/s leave out the warm-up. `epoch` is the time of the last epoch that does not depend
    on its number of images. `once` is the additional time of the first epoch.
    """
    first_epoch = record["epochs"][0]
    last_epoch = record["epochs"][-1]
    images, test_images, epochs = TRAINING
    images_per_s = record["images_per_s"]
    tested_per_s = last_epoch["test_samples"] / last_epoch["evaluate_s"]
    epoch_s = max(0.0, last_epoch["train_s"] - last_epoch["samples"] / images_per_s)
    once_s = max(0.0, sum(first_epoch[key] - last_epoch[key] for key in ("train_s", "evaluate_s")))
    total_s = once_s + epochs * (epoch_s + images / images_per_s + test_images / tested_per_s)
    parts = (
        f"{epoch_s:.2f} + {images:,} / {images_per_s:,.0f} + {test_images:,} / {tested_per_s:,.0f}"
    )
    return total_s, f"{once_s:.1f} + {epochs} ({parts})"


def extrapolated(folder: Path, _: str) -> list[Finding]:
    """Extrapolate the papers' training for each setting on GPUs, as the mean over its runs.

    Next to it stands the papers' time on one GPU (Table 2).
    """
    images, _tests, epochs = TRAINING
    settings: dict[tuple[str, int], list[tuple[float, str]]] = {}
    for record in records(folder):
        axes = record["axes"]
        if record["status"] == "ok" and axes["device"] != "cpu":
            settings.setdefault((axes["precision"], axes["gpus"]), []).append(
                extrapolated_s(record)
            )
    findings = []
    for (precision, gpus), extrapolations in settings.items():
        printed_s = PAPERS_TOTAL_S.get(precision) if gpus == 1 else None
        beside = "" if printed_s is None else f"{printed_s:,} s (papers, one H100)"
        what = f"{precision}, gpus={gpus}: {epochs} epochs of {images:,} images, extrapolated"
        mean_s = fmean(total_s for total_s, _ in extrapolations)
        terms = (
            f" = {extrapolations[0][1]}"
            if len(extrapolations) == 1
            else f", the mean of {len(extrapolations)} runs; the first: {extrapolations[0][1]}"
        )
        findings.append(
            Finding(what, f"{mean_s:,.0f} s{terms}", beside=beside, runs=len(extrapolations))
        )
    return findings


def whole(folder: Path, _: str) -> list[Finding]:
    """Report the full training of the papers, next to the papers' time."""
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
    """Return the milliseconds that a profiled step spends in each of its slowest kernels."""
    findings = []
    for record in records(folder):
        profile = record.get("profile") or {}
        rows = [
            row
            for row in profile.get("rows", [])
            if row["group"] == "kernel" and row["rank"] is not None
        ]
        slowest = sorted(rows, key=lambda row: -row["total_s"])[:SLOWEST]
        kernel_times = [
            f"{row['metric'][:40]} {1000 * row['total_s'] / profile['steps']:.2f} ms"
            for row in slowest
        ]
        value = "; ".join(kernel_times) or profile.get("error") or "no kernels: CPU ranks have none"
        findings.append(Finding("the slowest kernels of a step", value, runs=1))
    return findings


def slow_steps(folder: Path, _: str) -> list[Finding]:
    """Compare the slowest twentieth of the steps with the median.

    Steps that stall take three times as long as the median.
    """
    findings = []
    for record in records(folder):
        steps = record.get("iteration_s") or {}
        if record["status"] == "ok" and steps.get("median"):
            value = f"{steps['p95'] / steps['median']:.2f} times the median at the 95th percentile"
            slow = ", ".join(map(str, steps.get("slow_steps") or [])) or "none"
            findings.append(
                Finding(
                    f"engine={record['axes']['engine']}: slow steps",
                    f"{value}; slow steps: {slow}",
                    runs=1,
                )
            )
    return findings


def diagnosis(folder: Path, _: str) -> list[Finding]:
    """Report what limits the runs that were diagnosed."""
    diagnoses = [record.get("diagnosis") for record in records(folder)]
    return [
        Finding("what limits it", found_diagnosis["sentence"], runs=1)
        for found_diagnosis in diagnoses
        if found_diagnosis
    ]


def of_memory(folder: Path, _: str) -> list[Finding]:
    """Test that a batch that is too large ends as `oom`."""
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
    """Read the records of a step's runs as JSON, in the order of their folders."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]


def joined(*reads: Read) -> Read:
    """Return a function that joins the findings of several readers."""

    def read(folder: Path, log: str) -> list[Finding]:
        return list(chain.from_iterable(read_findings(folder, log) for read_findings in reads))

    return read
