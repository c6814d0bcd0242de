"""Verdicts as a table for the terminal, as one claim at length, and as JSON for programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from multicard.config.job import count
from multicard.messages import Message
from multicard.records import limits, text_table
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.output import Output
from multicard.records.text_table import clean, first_few

from ..runs.grouping import grouped
from ..stats.between_runs import REMEDY
from .comparison import EXCEEDS, FAILS, HALF, HOLDS, ILLUSTRATED, UNDECIDED, UNMEASURED
from .verdicts import NO_RUNS, ClaimVerdict, labels

# columns where the output is no terminal, and of a narrow terminal
WIDTH = 120
LEAST_WIDTH = 80
BEYOND = ", beside the papers' cells"
UNLIKE = "~"  # marks what was measured in another setting than the paper's
MOST_UNLIKE = 8  # differences from the papers' setting that a note below the table names
# figures of a rule that the table lists; of more, it lists the least and the greatest
MAX_LISTED = 4
SUMMARISED = {one: one for one in (HOLDS, EXCEEDS, FAILS, UNDECIDED, HALF, ILLUSTRATED, UNMEASURED)}
SUMMARISED |= {HOLDS: "hold", EXCEEDS: "exceed", FAILS: "do not hold"}
HEADINGS = ("claim", "printed", "measured", "verdict")


def table(verdicts: Sequence[ClaimVerdict], limit: int | None) -> list[str]:
    """A table of the measured claims of each section; the names of the rest,
    and the commands that measure these.
    """
    width = _width(limit)
    lines = list[str]()
    judged = [verdict for verdict in verdicts if verdict.verdict != UNMEASURED]
    rest = [verdict for verdict in verdicts if verdict.verdict == UNMEASURED]
    for title, of_section in sections(judged):
        rows = []
        for verdict in of_section:
            rows.extend((_row(verdict), [""] * len(HEADINGS)))
        lines += [title, "", *text_table.text(HEADINGS, rows, width, wrap=True)]
    if rest:
        names = map(_unmeasured, rest)
        lines += text_table.folded([clean(f"not measured: {'; '.join(names)}")], width, "")
    return [*lines, "", *_notes(verdicts, width)]


def _unmeasured(verdict: ClaimVerdict) -> str:
    """The name of a claim that was not measured, with the reason where there are runs."""
    name = verdict.claim.name
    return name if verdict.why == NO_RUNS else f"{name} ({verdict.why})"


def _width(limit: int | None) -> int:
    return WIDTH if limit is None else max(LEAST_WIDTH, limit)


def sections(verdicts: Sequence[ClaimVerdict]) -> list[tuple[str, list[ClaimVerdict]]]:
    return list(grouped(verdicts, lambda verdict: verdict.claim.section).items())


def at_length(verdicts: Sequence[ClaimVerdict], limit: int | None) -> list[str]:
    width = _width(limit)
    lines = list[str]()
    for verdict in verdicts:
        lines.append(f"{verdict.claim.name}: {marked(verdict)}")
        for name, texts in fields(verdict).items():
            for index, text in enumerate(texts):
                lines += text_table.folded(
                    [clean(f"  {'' if index else name:<9} {text}")], width, " " * 12
                )
        lines.append("")
    return [*lines, *_notes(verdicts, width)]


def _notes(verdicts: Sequence[ClaimVerdict], width: int) -> list[str]:
    notes = text_table.folded([*map(clean, _explained(verdicts))], width, "")
    commands = dict.fromkeys(verdict.command for verdict in verdicts if verdict.command is not None)
    return [
        *notes,
        *(
            ["", "to measure the rest:", *(f"  {command}" for command in commands)]
            if commands
            else []
        ),
    ]


def output(verdicts: Sequence[ClaimVerdict], whole: bool) -> Output:
    """The claims as a table, or at length where `whole`; CSV has a line for each, JSON all figures
    too, in which a missing bound is null.
    """
    claims = [_as_dict(verdict) for verdict in verdicts]
    rows = [
        {key: value for key, value in one.items() if not isinstance(value, list | tuple | dict)}
        for one in claims
    ]
    tables = [
        text_table.TextTable(HEADINGS, [*map(_row, of_one)], [title])
        for title, of_one in sections(verdicts)
    ]
    summed = summary(verdicts)[0]
    lines = partial(at_length if whole else table, verdicts)
    return Output(
        lines, lambda: tables, rows, content=lambda _: {"claims": claims, "summary": summed}
    )


def _as_dict(verdict: ClaimVerdict) -> dict[str, Any]:
    claim = verdict.claim
    keys = ("name", "section", "says", "source", "counted", "note", "printed", "test", "experiment")
    about = {"claim" if key == "says" else key: getattr(claim, key) for key in keys}
    judged = {key: value for key, value in asdict(verdict).items() if key != "claim"}
    return about | judged | {"decides": verdict.decides}


def summary(verdicts: Sequence[ClaimVerdict]) -> Sequence[str]:
    counts = Counter(verdict.verdict for verdict in verdicts)
    phrases = [
        f"{counts[kind]} {kind if counts[kind] == 1 else plural}"
        for kind, plural in SUMMARISED.items()
    ]
    said = f"{count(len(verdicts), 'claim')}: {', '.join(phrases)}"
    lines = [Message("claim.counts", said, counts={kind: counts[kind] for kind in SUMMARISED})]
    if counts[ILLUSTRATED]:
        said = (
            "illustrated: by runs that are not of the papers' setting (CPU ranks, shrunk, other"
            " keys); they neither "
        )
        said += "confirm nor refute the papers"
        lines.append(Message("claim.illustrated", said))
    exact = [
        verdict.claim.name
        for verdict in verdicts
        if verdict.claim.counted and verdict.n and verdict.unlike
    ]
    if exact:
        said = f"decided all the same, since what they compare is counted: {', '.join(exact)}"
        lines.append(Message("claim.counted", said, claims=exact))
    return lines


def _explained(verdicts: Sequence[ClaimVerdict]) -> Sequence[str]:
    if not any(verdict.figures for verdict in verdicts):
        return summary(verdicts)
    lines: list[str] = [
        *summary(verdicts),
        Message(
            "claim.brackets",
            "in brackets: intervals, which together cover the figures of a claim at 95 %"
            " (Bonferroni); counted figures of single runs have none",
        ),
        Message(
            "claim.holds-if",
            "a claim holds if all comparisons of the papers' cells do (an up-to: if one does). It"
            " is undecided if an interval contains a bound, there is none, or sides did not learn"
            " or do as much",
        ),
    ]
    if any(verdict.shows == EXCEEDS for verdict in verdicts):
        said = "exceeds: more than the papers print as a range, or as an up-to"
        lines.append(Message("claim.exceeds", said))
    if any(
        any(figure.estimate is not None and figure.low is None for figure in verdict.figures)
        for verdict in verdicts
    ):
        said = f"figures without brackets: nothing was repeated on the machine: {REMEDY}"
        lines.append(Message("claim.unrepeated", said, remedy=REMEDY))
    return [*lines, *(f"{sign}  {says}" for sign, says in meanings(verdicts))]


def meanings(verdicts: Sequence[ClaimVerdict]) -> list[tuple[str, str]]:
    """The signs behind these verdicts and their figures, with what they mean."""
    found = list[tuple[str, str]]()
    unlike = dict.fromkeys(chain.from_iterable(verdict.unlike for verdict in verdicts))
    if unlike:
        said = f"the papers had otherwise: {first_few(list(unlike), MOST_UNLIKE)}"
        found.append((UNLIKE, Message("claim.unlike", said, unlike=[*unlike])))
    if any(any(figure.doubtful for figure in verdict.figures) for verdict in verdicts):
        found.append((DOUBTFUL, DOUBTFUL_MEANING))
    of_runs = limits.meanings(chain.from_iterable(verdict.limits for verdict in verdicts))
    return [*found, *of_runs]


def _row(verdict: ClaimVerdict) -> list[str]:
    claim = verdict.claim
    note = [f"({claim.note})"] if claim.note else []
    says = "\n".join(
        [
            claim.name,
            claim.says,
            *note,
            *(f"{paper}, {place}" for paper, place in claim.cited.items()),
        ]
    )
    lost = f"; {count(len(verdict.lost), 'cell')} did not end ok" if verdict.lost else ""
    is_explained = verdict.shows == HALF or any(figure.doubts for figure in verdict.figures)
    reasons = [verdict.why] if is_explained else []
    measured = (
        [*listed(verdict), *reasons, f"n={verdict.n}{lost}: {verdict.setting}"]
        if verdict.n
        else [verdict.why]
    )
    return [says, claim.printed or "-", "\n".join(measured), marked(verdict)]


def marked(verdict: ClaimVerdict) -> str:
    marks = verdict.marks + UNLIKE * bool(verdict.unlike)
    return f"{verdict.said} [{marks}]" if marks else verdict.said


def listed(verdict: ClaimVerdict) -> list[str]:
    """Rule by rule a line for each figure; of many, the least and the greatest,
    and how many have each verdict.
    """
    known = [figure for figure in verdict.figures if figure.verdict != UNMEASURED]
    lines = list[str]()
    labelled = list(zip(labels(known), known, strict=True))
    for part in sorted({figure.part for figure in known}):
        own = shown = [(label, figure) for label, figure in labelled if figure.part == part]
        numbers = [
            (figure.estimate, index)
            for index, (_, figure) in enumerate(own)
            if figure.estimate is not None
        ]
        if len(own) > MAX_LISTED:
            shown = (
                [own[index] for _, index in (min(numbers), max(numbers))]
                if numbers
                else own[:MAX_LISTED]
            )
        lines += [f"{label}: {figure.text}" + BEYOND * figure.beyond for label, figure in shown]
        if len(own) > MAX_LISTED:
            counts = Counter(figure.verdict for _, figure in own).items()
            phrases = [f"{n} {kind if n == 1 else SUMMARISED[kind]}" for kind, n in counts]
            said = f"least and greatest of {len(own)}: {', '.join(phrases)}"
            lines.append(Message("claim.least-and-greatest", said, n=len(own), counts=dict(counts)))
    return lines


def fields(verdict: ClaimVerdict) -> dict[str, list[str]]:
    """All that is known of a verdict, as lines by name."""
    claim = verdict.claim
    figures = verdict.figures
    same = (
        figures[0].what
        if len({figure.what for figure in figures}) == 1 and figures[0].where
        else ""
    )
    lines = [f"{same}:"] if same else []
    for figure, label in zip(figures, labels(figures), strict=True):
        basis = "; ".join(part for part in (figure.basis, figure.why) if part)
        line = f"{label}: {figure.text}, {figure.verdict}"
        if basis:
            line += f" ({basis})"
        if figure.beyond:
            line += BEYOND
        lines.append(line)
    says = f"{claim.says} ({claim.source})"
    if claim.note:
        says += f"; {claim.note}"
    others = []
    for other in verdict.others:
        line = f"{other.apart or other.setting}: {other.verdict}"
        if other.marks:
            line += f" [{other.marks}]"
        others.append(line)
    return {
        "says": [says],
        "paper": [claim.printed] if claim.printed else [],
        "holds if": [claim.test],
        "measured": [_measured(verdict) if figures else verdict.why],
        "figures": lines,
        "others": others,
    }


def _measured(verdict: ClaimVerdict) -> str:
    parts = [verdict.setting, count(verdict.n, "run")]
    if verdict.unlike:
        said = f"other than the papers': {', '.join(verdict.unlike)}"
        parts.append(Message("claim.measured-unlike", said, unlike=[*verdict.unlike]))
    return "; ".join([*parts, verdict.why])
