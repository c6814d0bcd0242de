"""The first two sections, answers in words and what the runs ran on; and the marks of the runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from analysis import formatting
from analysis.commands import best
from analysis.formatting import counted
from analysis.report.blocks import Answer, Block, Facts, Fold, Line, Paragraph, Section
from analysis.report.headlines import headlines
from analysis.runs import grouping
from analysis.runs.caveats import MARKS
from analysis.runs.details import DetailedRun, mapping, objects
from analysis.runs.load import Run
from multicard.records import figures
from multicard.records.text_table import clean, in_bytes

WORKS_IN_SIGHT, MOST_WORKS = 4, 16  # whose best settings are named
MOST_OTHERS = 3  # settings beside the best
MOST_DIAGNOSES = 6
MOST_VALUES = 8  # of a fact
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")
GOALS = {"time": "Fastest", "memory": "Least memory", "energy": "Least energy"}


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each mark of the runs, with how many have it and its meaning."""
    lines = []
    for mark in MARKS:
        count = sum(bool(run[mark.column]) for run in runs)
        if count:
            every = "The run" if len(runs) == 1 else f"All {len(runs):,} runs"
            share = every if count == len(runs) else f"{count:,} of {len(runs):,} runs"
            lines.append((mark.sign, f"{share}: {mark.meaning}"))
    return lines


def answers(runs: Sequence[DetailedRun], mix: bool, claim_summary: Sequence[str]) -> Section:
    """In short: the headlines, the best settings, what bounds the runs, and how many claims hold.

    Args:
        claim_summary: how many claims hold, as lines.
    """
    top = headlines(runs, mix)
    blocks: list[Block] = [top] if top is not None else []
    blocks += [*_best_settings(runs, mix), _bounds(runs)]
    if claim_summary:
        blocks.append(Answer("The papers' claims", [Line("Verdicts", note=sentences(claim_summary))]))
    question = "Which setting should I choose, and what holds it back?"
    return Section("answers", "In short", question, blocks)


def _best_settings(runs: Sequence[Run], mix: bool) -> list[Block]:
    """The best settings of each work, the work with most settings first."""
    lines: dict[str, list[Line]] = {}
    settings: Counter[str] = Counter()
    why: list[str] = []
    for goal, name in GOALS.items():
        try:
            rankings = best.rankings(runs, goal, best.Limits(), mix)
        except ValueError as error:  # no run has the figure, say
            why.append(str(error))
            continue
        for ranking in rankings:
            title = ", ".join(text for text in (ranking.work or _work(ranking.runs[0]), ranking.amount) if text)
            line = Line(name, ranking.figures, ranking.label, _first_few(ranking.others, goal), ranking.marks)
            lines.setdefault(title, []).append(line)
            settings[title] = max(settings[title], len(ranking.rows))
    if not lines:
        causes = "" if any(run["status"] == "ok" for run in runs) else " The causes are below."
        return [Paragraph(f"Nothing can be ranked: {why[0]}.{causes}")]
    works = [
        Answer(title[:1].upper() + title[1:], lines[title])
        for title in sorted(lines, key=lambda title: -settings[title])
    ]
    blocks: list[Block] = [*works[:WORKS_IN_SIGHT]]
    folded, rest = works[WORKS_IN_SIGHT:MOST_WORKS], len(works) - MOST_WORKS
    if folded:
        blocks.append(Fold(f"{counted(len(folded), 'other work')}, of fewer settings", folded))
    if rest > 0:
        blocks.append(Paragraph(f"And {counted(rest, 'other')}: python -m analysis best --goal time", quiet=True))
    return blocks


def _first_few(others: Sequence[str], goal: str) -> str:
    rest = (
        [f"And {len(others) - MOST_OTHERS} more: python -m analysis best --goal {goal}."]
        if len(others) > MOST_OTHERS
        else []
    )
    return " ".join([*others[:MOST_OTHERS], *rest])


def _work(run: Run) -> str:
    """The work of a run, for a report of a single one."""
    size = f" at {run['image_size']} px" if run["image_size"] is not None else ""
    model, dataset = (figures.text("", run[name]) for name in ("model", "dataset"))
    return f"{formatting.kind(run['kind'])}: {model} on {dataset}{size}"


def _bounds(runs: Sequence[DetailedRun]) -> Answer:
    """What bounds the diagnosed runs, and what they should try."""
    title = "What bounds the runs"
    diagnosed = [run for run in runs if run.diagnosis]
    if not diagnosed:
        return Answer(title, [Line("Unknown", note="No run was diagnosed: add diagnose=true to a command.")])
    by_bound: dict[str, list[DetailedRun]] = {}
    for run in diagnosed:
        by_bound.setdefault(run.bound or "no clear bound", []).append(run)
    lines = []
    for bound, bounded in sorted(by_bound.items(), key=lambda item: -len(item[1]))[:MOST_DIAGNOSES]:
        count = f"{len(bounded)} of {len(diagnosed)} diagnosed" if len(diagnosed) > 1 else ""
        first = bounded[0]
        setting, note = clean(first.folder.name), first.diagnosis or ""
        lines.append(Line(bound.capitalize(), count, setting, note, first["marks"]))
    return Answer(title, lines)


def machines(runs: Sequence[DetailedRun]) -> Section:
    """Hardware, versions and commits."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _facts(run):
            rows.setdefault(name, {})[clean(str(value))] = None
    facts = []
    for name, values in rows.items():
        rest = [f"and {len(values) - MOST_VALUES} more"] if len(values) > MOST_VALUES else []
        facts.append((name, [*list(values)[:MOST_VALUES], *rest]))
    question = "What were the figures measured on? They hold for this hardware, these versions and this code."
    return Section("machine", "Machine and code", question, [Facts(facts)])


def _facts(run: DetailedRun) -> Iterator[tuple[str, Any]]:
    environment = run.surroundings
    gpus = objects(environment.get("gpus"))
    if run["device"] == "cpu":
        yield "Computed on", "CPU ranks"
    if gpus:
        sizes = sorted({in_bytes(gpu["memory_bytes"]) for gpu in gpus if isinstance(gpu.get("memory_bytes"), int)})
        names = sorted({str(gpu.get("name")) for gpu in gpus})
        yield "GPUs", f"{len(gpus)} x {', '.join(names)}" + (f", {', '.join(sizes)} each" if sizes else "")
    for gpu in gpus:
        if gpu.get("driver") is not None:
            yield "Driver", gpu["driver"]
    links = [link.get("link") for link in objects(mapping(environment.get("topology")).get("links"))]
    if links:  # as nvidia-smi names them: "6 pairs by NV18"
        counts = Counter(str(link or "an unknown path") for link in links)
        yield "Links", ", ".join(f"{counted(count, 'pair')} by {link}" for link, count in counts.items())
    cpu = mapping(environment.get("cpu"))
    if cpu.get("model") is not None:
        yield "CPU", f"{cpu['model']}, {cpu.get('cores_online', '?')} cores"
    if isinstance(cpu.get("memory_bytes"), int):
        yield "Memory", in_bytes(cpu["memory_bytes"])
    if run["hosts"] is not None:
        yield "Host", run["hosts"]
    yield "Commit", grouping.commit(run)
    packages = mapping(environment.get("packages"))
    versions = [f"{name} {packages[name]}" for name in PACKAGES if packages.get(name) is not None]
    if versions:
        yield "Versions", ", ".join([*versions, f"Python {environment.get('python', '?')}"])


def sentences(lines: Iterable[str]) -> str:
    """Lines for a terminal as sentences."""
    return " ".join(f"{line[:1].upper()}{line[1:].rstrip('.')}." for line in lines)
