"""The first two sections: what the runs ran on, and their answers in words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from analysis import formatting
from analysis.commands import best
from analysis.report.blocks import Answer, Facts, Fold, Line, Part, Section, Words
from analysis.report.run_details import Read, mapping
from analysis.runs import grouping
from analysis.runs.caveats import MARKS
from analysis.runs.load import Run
from multicard.records.table import in_bytes
from multicard.records.text_table import clean

FIRST_WORKS, MOST_WORKS = 4, 16  # of which the best settings are told: in sight, and at all
MOST_SENTENCES = 6  # of diagnoses
MOST_VALUES = 8  # of a fact
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")
GOALS = {"time": "Fastest", "memory": "Least memory", "energy": "Least energy"}


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What must be said of the runs before their figures: each mark that occurs, and of how many."""
    told = []
    for mark in MARKS:
        count = sum(bool(run[mark.column]) for run in runs)
        if count:
            share = f"All {count:,}" if count == len(runs) else f"{count:,} of {len(runs):,}"
            told.append((mark.sign, f"{share} run{'s' * (len(runs) > 1)}: {mark.meaning}"))
    return told


def machines(read: Sequence[Read]) -> Section:
    """Hardware, versions and commits."""
    rows: dict[str, Counter[str]] = {}
    for one in read:
        for name, value in _facts(one):
            rows.setdefault(name, Counter())[clean(str(value))] += 1
    told = [(name, [*values][:MOST_VALUES] + _more(len(values))) for name, values in rows.items()]
    question = "What were the figures measured on? They hold for this hardware, these versions and this code."
    return Section("machine", "Machine and code", question, [Facts(told)])


def _more(count: int) -> list[str]:
    return [f"and {count - MOST_VALUES} more"] if count > MOST_VALUES else []


def _facts(one: Read) -> Iterator[tuple[str, Any]]:
    machine = one.environment
    gpus = [mapping(gpu) for gpu in _list(machine.get("gpus"))]
    if one.run["device"] == "cpu":
        yield "Computed on", "CPU ranks"
    if gpus:
        sizes = sorted({in_bytes(gpu["memory_bytes"]) for gpu in gpus if isinstance(gpu.get("memory_bytes"), int)})
        names = sorted({str(gpu.get("name")) for gpu in gpus})
        yield "GPUs", f"{len(gpus)} x {', '.join(names)}" + (f", {', '.join(sizes)} each" if sizes else "")
    for gpu in gpus:
        if gpu.get("driver") is not None:
            yield "Driver", gpu["driver"]
    links = _links(mapping(machine.get("topology")))
    if links:
        yield "Links", links
    cpu = mapping(machine.get("cpu"))
    if cpu.get("model") is not None:
        yield "CPU", f"{cpu['model']}, {cpu.get('cores_online', '?')} cores"
    if isinstance(cpu.get("memory_bytes"), int):
        yield "Memory", in_bytes(cpu["memory_bytes"])
    if one.run["hosts"] is not None:
        yield "Host", one.run["hosts"]
    yield "Commit", grouping.commit(one.run)
    packages = mapping(machine.get("packages"))
    versions = [f"{name} {packages[name]}" for name in PACKAGES if packages.get(name) is not None]
    if versions:
        yield "Versions", ", ".join([*versions, f"Python {machine.get('python', '?')}"])


def _links(topology: dict[str, Any]) -> str:
    """How the GPUs are joined, as nvidia-smi names it: "6 pairs by NV18"."""
    kinds = Counter(str(mapping(link).get("link") or "an unknown path") for link in _list(topology.get("links")))
    return ", ".join(f"{count} pair{'s' * (count > 1)} by {kind}" for kind, count in kinds.items())


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def answers(read: Sequence[Read], mix: bool, claims: Sequence[str]) -> Section:
    """In short: the best settings, what bounds the runs, and how many claims hold.

    Args:
        claims: how many hold, in sentences.
    """
    runs = [one.run for one in read]
    parts: list[Part] = [*_best(runs, mix), _bounds(read)]
    if claims:
        parts.append(Answer("The papers' claims", [Line("Verdicts", beside=sentences(claims))]))
    question = "Which setting should I choose, and what holds it back?"
    return Section("answers", "In short", question, parts)


def _best(runs: Sequence[Run], mix: bool) -> list[Part]:
    """The best settings of each work, that with most settings first."""
    found: dict[str, list[Line]] = {}
    sizes: dict[str, int] = {}
    for goal, name in GOALS.items():
        for ranking in _rankings(runs, goal, mix):
            title = ", ".join(text for text in (ranking.work or _only(ranking.runs), ranking.amount) if text)
            line = Line(name, ranking.figures, ranking.label, " ".join(ranking.others), ranking.marks)
            found.setdefault(title, []).append(line)
            sizes[title] = max(sizes.get(title, 0), len(ranking.rows))
    if not found:
        return [Words("No run ended ok: nothing can be ranked. The causes are below.")]
    works = [Answer(title, found[title]) for title in sorted(found, key=lambda title: -sizes[title])]
    told: list[Part] = [*works[:FIRST_WORKS]]
    folded, rest = works[FIRST_WORKS:MOST_WORKS], len(works) - MOST_WORKS
    if folded:
        told.append(Fold(f"{len(folded)} more works, of fewer settings", folded))
    if rest > 0:
        told.append(Words(f"And {rest} others: python -m analysis best --goal time", "quiet"))
    return told


def _rankings(runs: Sequence[Run], goal: str, mix: bool) -> list[best.Ranking]:
    try:
        return best.rankings(runs, goal, best.Limits(), mix)
    except ValueError:  # no run has the figure
        return []


def _only(runs: Sequence[Run]) -> str:
    """The work of all runs, where there is one alone."""
    first = runs[0]
    size = f" at {first['image_size']} px" if first["image_size"] is not None else ""
    return f"{first['kind']}: {formatting.value('', first['model'])} on {formatting.value('', first['dataset'])}{size}"


def _bounds(read: Sequence[Read]) -> Answer:
    """What the diagnosed runs are bound by, and what they should try."""
    told = [(one, one.bound, one.diagnosis) for one in read if one.bound is not None and one.diagnosis is not None]
    title = "What bounds the runs"
    if not told:
        return Answer(title, [Line("Unknown", beside="No run was diagnosed: add diagnose=true to a command.")])
    lines = []
    for bound, count in Counter(bound for _, bound, _ in told).most_common(MOST_SENTENCES):
        one, _, sentence = next(found for found in told if found[1] == bound)
        which = f"{count} of {len(told)} diagnosed" if len(told) > 1 else ""
        lines.append(Line(bound.capitalize(), which, _place(one.run), sentence, one.run["marks"]))
    return Answer(title, lines)


def _place(run: Run) -> str:
    return clean(run.folder.name)


def signs(runs: Iterable[Run]) -> dict[str, str]:
    """The legend of the marks that occur."""
    shown = set("".join(run["marks"] for run in runs))
    return {mark.sign: mark.meaning for mark in MARKS if mark.sign in shown}


def sentences(lines: Iterable[str]) -> str:
    """Lines of a terminal as sentences."""
    return " ".join(f"{line[:1].upper()}{line[1:].rstrip('.')}." for line in lines)
