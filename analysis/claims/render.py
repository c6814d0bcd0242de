"""Verdicts for people: a table for the terminal, one claim at length, and Markdown; and JSON for programs.

Text from runs is cleaned, and escaped in Markdown.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.claims.rules import FAILS, HOLDS, UNDECIDED, UNMEASURED
from analysis.claims.verdicts import Figure, Verdict, labels
from analysis.runs.caveats import legend
from analysis.runs.load import Skipped
from multicard.records.run_folder import write_json, write_text
from multicard.records.text_table import clean

WIDTH, LEAST = 120, 80  # columns where the output is no terminal; and of a terminal
UNLIKE = "~"  # the mark of what was measured in another setting than the papers'
LISTED = 4  # figures of a part of a claim that the table names; of more, the least and the greatest
ORDER = (HOLDS, FAILS, UNDECIDED, UNMEASURED)
COUNTED = {HOLDS: "hold", FAILS: "do not hold", UNDECIDED: "undecided", UNMEASURED: "not measured"}
EACH = {HOLDS: "hold", FAILS: "do not", UNDECIDED: "undecided", UNMEASURED: "without a figure"}
HEADINGS = ("claim", "says", "verdict", "your figures", "the paper's")


def table(verdicts: Sequence[Verdict], limit: int | None) -> list[str]:
    """All claims, a row each: those measured with their figures, the rest by their names; and what to run for them."""
    width = WIDTH if limit is None else max(LEAST, limit)
    judged = [one for one in verdicts if one.verdict != UNMEASURED]
    rest = [one for one in verdicts if one.verdict == UNMEASURED]
    told = _grid([_row(one) for one in judged], width) if judged else []
    told += ["", *_wrapped("not measured: " + "; ".join(_short(one) for one in rest), width)] if rest else []
    return [*told, "", *_notes(verdicts, width)]


def at_length(verdicts: Sequence[Verdict], limit: int | None) -> list[str]:
    """A block for each claim: its rule, every figure, and the other settings."""
    width = WIDTH if limit is None else max(LEAST, limit)
    told = []
    for one in verdicts:
        told += [f"{one.claim.name}: {_verdict(one)}", *_fields(one, width), ""]
    return [*told, *_notes(verdicts, width)]


def _notes(verdicts: Sequence[Verdict], width: int) -> list[str]:
    notes = [*summary(verdicts), *explained(verdicts)]
    return [*(line for note in notes for line in _wrapped(note, width)), *_commands(verdicts)]


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The same as a document."""
    rows = [["<br>".join(map(_escaped, cell.split("\n"))) for cell in (*_row(one), one.claim.test)] for one in verdicts]
    head = (*HEADINGS, "tested by")
    told = ["# Claims of the papers", "", _line(head), _line(["---"] * len(head)), *map(_line, rows), ""]
    for one in verdicts:
        if one.figures:
            told += [f"- `{one.claim.name}`: {_escaped(measured(one))}"]
            told += [f"  - {_escaped(line)}" for line in _others(one)]
    notes = [*summary(verdicts), *explained(verdicts)]
    told += ["", *(f"- {_escaped(note)}" for note in notes), ""]
    commands = list(_needed(verdicts))
    told += ["What is not measured:", "", "```", *commands, "```", ""] if commands else []
    return "\n".join(told)


def write_markdown(path: Path, verdicts: Sequence[Verdict]) -> None:
    write_text(path, markdown(verdicts))


def write_verdicts(path: Path, verdicts: Sequence[Verdict], skipped: Sequence[Skipped]) -> None:
    """JSON with all figures, and the records that could not be used; a bound that is not there is null."""
    left_out = [{"folder": str(one.folder), "why": one.why} for one in skipped]
    claims = [as_dict(one) for one in verdicts]
    write_json(path, {"claims": claims, "summary": summary(verdicts)[0], "skipped": left_out})


def as_dict(one: Verdict) -> dict[str, Any]:
    claim = one.claim
    about = {
        "name": claim.name,
        "claim": claim.says,
        "source": claim.source,
        "note": claim.note,
        "printed": claim.printed,
        "test": claim.test,
        "experiment": claim.experiment,
    }
    found = {key: value for key, value in asdict(one).items() if key != "claim"}
    return about | found | {"of_gpus": one.of_gpus}


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """How many of each verdict, and how many of them say nothing of the papers' GPUs."""
    counts = {verdict: sum(one.verdict == verdict for one in verdicts) for verdict in ORDER}
    told = ", ".join(f"{count} {_counted(verdict, count)}" for verdict, count in counts.items())
    lines = [f"{len(verdicts)} claim{'s' * (len(verdicts) != 1)}: {told}"]
    small = sum(one.verdict != UNMEASURED and not one.of_gpus for one in verdicts)
    if small:
        which = "all" if small == len(verdicts) - counts[UNMEASURED] else f"{small}"
        lines.append(
            f"{which} of those measured are of CPU ranks, shared GPUs or shrunk runs (see the marks): such verdicts "
            "neither confirm nor refute the papers"
        )
    return lines


def _counted(verdict: str, count: int) -> str:
    if count == 1:
        return verdict if verdict in (HOLDS, FAILS) else COUNTED[verdict]
    return COUNTED[verdict]


def explained(verdicts: Sequence[Verdict]) -> list[str]:
    """What holds of the figures altogether, and the marks."""
    if not any(one.figures for one in verdicts):
        return []
    told = [
        "in brackets: intervals, which cover the figures of a claim together at 95 % (Bonferroni); counted figures of "
        "single runs have none",
        "a claim holds if all of its comparisons do (`up to`: if one does); undecided: an interval reaches over a "
        "bound, or there is none",
    ]
    bases = {figure.basis for one in verdicts for figure in one.figures}
    if {"steps", "epochs"} & bases:
        told.append("intervals over steps or epochs of single runs do not know how runs differ: repeat with seed=0,1,2")
    if any("rank" in basis for basis in bases):
        told.append("profiled times are of a few steps: their intervals are over ranks (and seeds)")
    unlike = dict.fromkeys(key for one in verdicts for key in one.unlike)
    if unlike:
        told.append(f"{UNLIKE}  the papers had otherwise: {', '.join(unlike)}")
    return [*told, *legend(one.marks for one in verdicts)]


# ---- a claim


def _row(one: Verdict) -> tuple[str, ...]:
    claim = one.claim
    says = f"{claim.says} ({claim.source})" + f"; {claim.note}" * bool(claim.note)
    return claim.name, says, _verdict(one), "\n".join([*_figures(one), *_amount(one)]) or one.why, claim.printed or "-"


def _verdict(one: Verdict) -> str:
    marks = one.marks + UNLIKE * bool(one.unlike)
    return f"{one.verdict} [{marks}]" if marks else one.verdict


def _figures(one: Verdict) -> list[str]:
    """A line for each figure, or for the extremes of many, by the claim's parts."""
    told = []
    for part in sorted({figure.part for figure in one.figures}):
        known = [figure for figure in one.figures if figure.part == part and figure.verdict != UNMEASURED]
        if not known:
            continue
        named = dict(zip(map(id, known), labels(known), strict=True))
        if len({figure.what for figure in known}) == 1 and known[0].where:
            told.append(f"{known[0].what}:")
        shown = known if len(known) <= LISTED else _extremes(known)
        told += [f"{named[id(figure)]}: {figure.text}" for figure in shown]
        if len(shown) < len(known):
            told.append(_rest(known))
    return told


def _amount(one: Verdict) -> list[str]:
    """Of how many runs, and of how much of the claim."""
    measured = sum(figure.verdict != UNMEASURED for figure in one.figures)
    part = f"; {measured} of {one.asked} comparisons" if measured < one.asked else ""
    lost = f"; {len(one.lost)} cell{'s' * (len(one.lost) > 1)} did not end ok" if one.lost else ""
    return [f"n={one.n}{part}{lost}"] if one.figures else []


def _extremes(figures: Sequence[Figure]) -> list[Figure]:
    """The least and the greatest; those that are no numbers as they come."""
    numbers = [figure for figure in figures if figure.estimate is not None]
    if not numbers:
        return list(figures[:LISTED])
    ordered = sorted(numbers, key=lambda figure: figure.estimate or 0.0)
    return [ordered[0], ordered[-1]]


def _rest(figures: Sequence[Figure]) -> str:
    counts = {verdict: sum(one.verdict == verdict for one in figures) for verdict in ORDER}
    told = ", ".join(f"{count} {EACH[verdict]}" for verdict, count in counts.items() if count)
    return f"least and greatest of {len(figures)}: {told}"


def _fields(one: Verdict, width: int) -> list[str]:
    claim = one.claim
    named = zip(one.figures, labels(one.figures), strict=True)
    alone = len({figure.what for figure in one.figures}) == 1
    fields = {
        "says": [f"{claim.says} ({claim.source})" + f"; {claim.note}" * bool(claim.note)],
        "paper": [claim.printed] * bool(claim.printed),
        "holds if": [claim.test],
        "measured": [measured(one)] if one.figures else [one.why],
        "figures": [
            *([f"{one.figures[0].what}:"] if alone and one.figures[0].where else []),
            *(f"{label}: {figure.text}, {figure.verdict}{_basis(figure)}" for figure, label in named),
        ],
        "others": _others(one),
    }
    lines = []
    for name, texts in fields.items():
        for index, text in enumerate(texts):
            head = f"  {name if not index else '':<9} "
            lines += _wrapped(text, width, head)
    return lines


def _basis(figure: Figure) -> str:
    parts = [part for part in (figure.basis, figure.why) if part]
    return f" ({'; '.join(parts)})" if parts else ""


def measured(one: Verdict) -> str:
    unlike = f"; other than the papers': {', '.join(one.unlike)}" if one.unlike else ""
    return f"{one.setting}; n={one.n} runs{unlike}; {one.why}"


def _others(one: Verdict) -> list[str]:
    told = [
        f"{other.apart or other.setting}: {other.verdict}" + f" [{other.marks}]" * bool(other.marks)
        for other in one.others
    ]
    return [*told, *([f"and {one.unjudged} settings more, not judged"] if one.unjudged else [])]


def _short(one: Verdict) -> str:
    return one.claim.name if one.why.startswith("no runs") else f"{one.claim.name} ({one.why})"


def _commands(verdicts: Sequence[Verdict]) -> list[str]:
    commands = _needed(verdicts)
    return ["", "to measure the rest:", *(f"  {command}" for command in commands)] if commands else []


def _needed(verdicts: Sequence[Verdict]) -> list[str]:
    """Each command once."""
    return list(dict.fromkeys(one.command for one in verdicts if one.command is not None))


# ---- how it is written


def _grid(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table whose cells are wrapped."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), header_style="none")
    for heading, ratio in zip(HEADINGS, (0, 30, 15, 44, 18), strict=True):
        found.add_column(heading, ratio=ratio or None, no_wrap=not ratio, overflow="fold")
    found.expand = True
    for row in rows:
        found.add_row(*(Text("\n".join(map(clean, cell.split("\n")))) for cell in row))
    written = StringIO()
    Console(file=written, width=width, color_system=None, highlight=False).print(found)
    return [line.rstrip() for line in written.getvalue().rstrip().splitlines()]


def _wrapped(text: str, width: int, head: str = "") -> list[str]:
    lines = Text(clean(text)).wrap(Console(file=StringIO(), width=width), max(20, width - len(head)))
    return [(head if not index else " " * len(head)) + line.plain.rstrip() for index, line in enumerate(lines)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """For a cell of a table in Markdown: nothing in it is markup, or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", clean(text))
