"""Findings of the steps of `benchmarks.on_gpu`, read from their logs and run folders, with figures of others."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.records.text_table import in_bytes

IMAGES, TEST_IMAGES, EPOCHS = 60_000, 10_000, 20  # the papers' training
PAPERS_TOTAL_S = {"fp64": 6234, "fp32": 3721, "fp16": 2477}  # on one H100: 2503.15252, Table 2 (fp64, fp32 derived)
CEILING = "memory's ceiling, images/s"  # a heading of `benchmarks.step`
Read = Callable[[Path, str], list["Finding"]]  # of the step's folder and its log


@dataclass(frozen=True)
class Finding:
    """A figure of a step.

    against: what others measured, or the goal.
    passed: of a check; None where a figure is no check.
    """

    what: str
    value: str
    against: str = ""
    passed: bool | None = None


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of a step's runs, each with its `folder`."""
    paths = sorted(folder.glob("*/result.json"))
    return [json.loads(path.read_text()) | {"folder": path.parent} for path in paths]


def of_machine(_: Path, log: str) -> list[Finding]:
    figures = json.loads(log.splitlines()[-1])
    versions = ", ".join(f"{name} {figures['versions'][name]}" for name in ("torch", "CUDA", "cuDNN", "driver"))
    against = {"within the device": "4,300 GB/s (H200)"}
    rates = figures["bytes_per_s"].items()
    return [
        Finding("hardware", figures["hardware"]),
        Finding("versions", versions),
        *(Finding(f"copy {what}", f"{rate / 1e9:,.1f} GB/s", against.get(what, "")) for what, rate in rates),
    ]


def test_outcomes(log: str) -> dict[str, str]:
    """The last outcome of each test that `pytest -v` names, over all calls."""
    return dict(re.findall(r"^(tests/.+?) (PASSED|FAILED|ERROR|SKIPPED)", log, re.MULTILINE))


def of_tests(_: Path, log: str) -> list[Finding]:
    outcomes = test_outcomes(log)
    bad = [name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    counts = [f"{[*outcomes.values()].count(name)} {name.lower()}" for name in ("PASSED", "FAILED", "ERROR", "SKIPPED")]
    return [
        Finding("tests", ", ".join(counts), passed=not bad),
        *(Finding(name, "failed", passed=False) for name in bad),
    ]


def of_step(_: Path, log: str) -> list[Finding]:
    """The rows of the tables that `benchmarks.step` printed: its settings come before its figures."""
    findings, headings = dict[str, Finding](), list[str]()
    for line in (line for line in log.splitlines() if line.startswith("| ")):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "step, ms" in cells:
            headings = cells
            continue
        row = dict(zip(headings, cells, strict=True))
        settings = headings[: headings.index("step, ms")]
        what = ", ".join(f"{name} {row[name]}" if name == "compiled" else row[name] for name in settings)
        ceiling = f"{row[CEILING]} images/s (memory's ceiling)"
        findings[what] = Finding(what, f"{row['images/s']} images/s, {row['step, ms']} ms", ceiling)
    return [*findings.values()]


def extrapolated_s(record: dict[str, Any]) -> tuple[float, str]:
    """The papers' training from a shorter one of at least two epochs: seconds, and how they come about.

    total = once + epochs (epoch + images / (images/s) + test images / (test images/s)), where images/s leave out the
    warm-up, `epoch` is what the last epoch took beside its images, and `once` is what the first took beside the last.
    """
    first, last = record["epochs"][0], record["epochs"][-1]
    rate, test_rate = record["images_per_s"], last["test_samples"] / last["evaluate_s"]
    epoch_s = max(0.0, last["train_s"] - last["samples"] / rate)
    once_s = max(0.0, sum(first[key] - last[key] for key in ("train_s", "evaluate_s")))
    total_s = once_s + EPOCHS * (epoch_s + IMAGES / rate + TEST_IMAGES / test_rate)
    parts = f"{epoch_s:.2f} + {IMAGES:,} / {rate:,.0f} + {TEST_IMAGES:,} / {test_rate:,.0f}"
    return total_s, f"{once_s:.1f} + {EPOCHS} ({parts})"


def of_training(folder: Path, _: str) -> list[Finding]:
    """The rate of each training."""
    findings = unfinished(folder)
    for record in finished(folder):
        compiled = f", compiled in {record['compile_s']:.0f} s" if record["compile_s"] else ""
        peak = in_bytes(record["peak_memory_bytes"]["max"])
        value = f"{record['images_per_s']:,.0f} images/s, {peak}, {record['total_s']:.1f} s{compiled}"
        findings.append(Finding(_setting(record, "precision", "loader"), value, "484 images/s (papers, one H100)"))
    return findings


def of_goal(folder: Path, log: str) -> list[Finding]:
    """The rate of a training, and what follows for the whole."""
    return [*of_training(folder, log), *(_whole(record, "300 s (goal)") for record in finished(folder))]


def of_papers(folder: Path, _: str) -> list[Finding]:
    """Table 2's first column, extrapolated."""
    against = {name: f"{total_s:,} s (papers, one H100)" for name, total_s in PAPERS_TOTAL_S.items()}
    whole = [_whole(record, against[record["axes"]["precision"]]) for record in finished(folder)]
    return [*unfinished(folder), *whole]


def _whole(record: dict[str, Any], against: str) -> Finding:
    total_s, formula = extrapolated_s(record)
    what = f"{record['axes']['precision']}, {EPOCHS} x {IMAGES:,} images"
    return Finding(what, f"{total_s:,.0f} s = {formula}", against)


def of_whole(folder: Path, log: str) -> list[Finding]:
    what, goal = f"{EPOCHS} x {IMAGES:,} images", "300 s at 99 % (goal)"
    reached = [f"{record['total_s']:.1f} s, accuracy {record['test_accuracy']:.2%}" for record in finished(folder)]
    return [*of_training(folder, log), *(Finding(what, value, goal) for value in reached)]


def of_tuning(against: str = "") -> Read:
    """Seconds an iteration and tokens per second, beside a figure of others."""

    def read(folder: Path, _: str) -> list[Finding]:
        findings = []
        for record in records(folder):
            what = _setting(record, "method", "precision", "batch_size")
            if record["status"] != "ok":
                findings.append(Finding(what, record["status"], against))
                continue
            rate, peak = record["tokens_per_s"]["non_padding"], in_bytes(record["peak_memory_bytes"]["max"])
            value = f"{rate:,.0f} tokens/s, {record['iteration_s']['mean']:.3f} s/it, {peak}"
            findings.append(Finding(what, value, against))
        return findings

    return read


def of_diagnosis(folder: Path, _: str) -> list[Finding]:
    sentences = [record["diagnosis"]["sentence"] for record in finished(folder)]
    return unfinished(folder) + [Finding("what limits it", sentence) for sentence in sentences]


def of_memory(folder: Path, _: str) -> list[Finding]:
    (record,) = records(folder)
    return [Finding("a batch too large", record["status"], "oom", passed=record["status"] == "oom")]


def of_measuring(_: Path, log: str) -> list[Finding]:
    match = re.search(r"without: (.*?); CPU", log)
    return [Finding("a step, measuring on / off", match[1] + ")" if match else "-", "1.02 (goal)")]


def finished(folder: Path) -> list[dict[str, Any]]:
    """The records of the runs that ended well."""
    return [record for record in records(folder) if record["status"] == "ok"]


def unfinished(folder: Path) -> list[Finding]:
    """The others: a sweep does not fail where a run diverged or ran out of memory."""
    findings = []
    for record in records(folder):
        if record["status"] != "ok":
            message = (record.get("cause") or {}).get("message", "no cause")
            findings.append(Finding(_setting(record, "precision"), f"{record['status']}: {message}", passed=False))
    return findings


def _setting(record: dict[str, Any], *axes: str) -> str:
    return ", ".join(f"batch {record['axes'][axis]}" if axis == "batch_size" else record["axes"][axis] for axis in axes)
