"""Write verdicts as a table for the terminal, as one claim at length, and as JSON for programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from multicard.config.job import count
from multicard.messages import Message, typed
from multicard.records import limits, text_table
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.output import Output
from multicard.records.text_table import clean, first_few

from ..runs.columns import KINDS
from ..runs.grouping import grouped
from ..stats.between_runs import REMEDY
from .comparison import EXCEEDS, FAILS, HALF, HOLDS, ILLUSTRATED, UNDECIDED, UNMEASURED
from .reasons import NO_RUNS, labels
from .verdicts import ClaimVerdict

# The width of the output if it is not a terminal, and the least width on a terminal.
WIDTH = 120
LEAST_WIDTH = 80
BEYOND = ", in cells that the papers lack"
UNLIKE = "~"  # Marks figures that were measured in another setting than the paper's.
MAX_UNLIKE = 8  # The most differences from the papers' setting that a note below the table names.
# If a rule has more figures, the table lists only the least and the greatest.
MAX_LISTED = 4
PLURALS = {
    verdict: verdict
    for verdict in (HOLDS, EXCEEDS, FAILS, UNDECIDED, HALF, ILLUSTRATED, UNMEASURED)
}
PLURALS |= {HOLDS: "hold", EXCEEDS: "exceed", FAILS: "do not hold"}
HEADINGS = ("claim", "printed", "measured", "verdict")


def verdict_table(verdicts: Sequence[ClaimVerdict], limit: int | None) -> list[str]:
    """Return a table of the measured claims of each section.

    Below stand the names of the other claims, and the commands that measure them.
    """
    width = _width(limit)
    lines = list[str]()
    measured = [verdict for verdict in verdicts if verdict.verdict != UNMEASURED]
    unmeasured = [verdict for verdict in verdicts if verdict.verdict == UNMEASURED]
    if not measured:
        return _none_measured(verdicts)
    for title, of_section in sections(measured):
        rows = []
        for verdict in of_section:
            rows.extend((_row(verdict), [""] * len(HEADINGS)))
        lines += [title, "", *text_table.text(HEADINGS, rows, width, wrap=True)]
    if unmeasured:
        names = map(_name_with_reason, unmeasured)
        lines += text_table.folded([clean(f"not measured: {'; '.join(names)}")], width, "")
    return [*lines, "", *_notes(verdicts, width)]


def _none_measured(verdicts: Sequence[ClaimVerdict]) -> list[str]:
    """Say that the runs measure no claim, and which commands measure all of them."""
    number = len(verdicts)
    lines: list[str] = [
        Message(
            "claim.none-measured", f"{number} claims, and these runs measure none of them", n=number
        )
    ]
    for kind in ("vision", "llm"):
        subject = KINDS[kind].title
        command = _command_for_all(kind)
        text = f"`{command}` measures those on {subject}; with `scale=smoke`, in minutes, to try it"
        lines.append(Message("claim.measured-by", text, command=command))
    return lines


def _command_for_all(kind: str) -> str:
    """Return the command that measures all experiments of a kind of runs."""
    run_kind = KINDS[kind]
    return f"{typed(run_kind.entry)} experiment=all name=papers-{run_kind.title}"


def _name_with_reason(verdict: ClaimVerdict) -> str:
    """Name a claim that was not measured, with the reason if it has runs."""
    name = verdict.claim.name
    return name if verdict.why == NO_RUNS else f"{name} ({verdict.why})"


def _width(limit: int | None) -> int:
    return WIDTH if limit is None else max(LEAST_WIDTH, limit)


def sections(verdicts: Sequence[ClaimVerdict]) -> list[tuple[str, list[ClaimVerdict]]]:
    """Group the verdicts by the section of their claims."""
    return list(grouped(verdicts, lambda verdict: verdict.claim.section).items())


def at_length(verdicts: Sequence[ClaimVerdict], limit: int | None) -> list[str]:
    """Return all that is known of each claim, in lines."""
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
    """Explain the verdicts and their signs, and list the commands that measure the rest."""
    notes = text_table.folded([*map(clean, _explanations(verdicts))], width, "")
    commands = dict.fromkeys(verdict.command for verdict in verdicts if verdict.command is not None)
    if commands:
        notes += ["", "to measure the rest:", *(f"  {command}" for command in commands)]
    return notes


def output(verdicts: Sequence[ClaimVerdict], at_full_length: bool) -> Output:
    """Return the claims as a table, or at length if `whole`.

    CSV has a line for each claim. JSON also has all figures; a missing bound is null.
    """
    claims = [_as_dict(verdict) for verdict in verdicts]
    rows = [
        {key: value for key, value in claim.items() if not isinstance(value, list | tuple | dict)}
        for claim in claims
    ]
    tables = [
        text_table.TextTable(HEADINGS, [*map(_row, of_one)], [title])
        for title, of_one in sections(verdicts)
    ]
    counts_line = summary(verdicts)[0]
    lines = partial(at_length if at_full_length else verdict_table, verdicts)
    return Output(
        lines, lambda: tables, rows, content=lambda _: {"claims": claims, "summary": counts_line}
    )


def _as_dict(verdict: ClaimVerdict) -> dict[str, Any]:
    claim = verdict.claim
    keys = ("name", "section", "says", "source", "counted", "note", "printed", "test", "experiment")
    about = {"claim" if key == "says" else key: getattr(claim, key) for key in keys}
    judged = {key: value for key, value in asdict(verdict).items() if key != "claim"}
    return about | judged | {"decides": verdict.decides}


def summary(verdicts: Sequence[ClaimVerdict]) -> Sequence[str]:
    """Count the claims by verdict, and say what illustrated and counted claims are."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    phrases = [
        f"{counts[kind]} {kind if counts[kind] == 1 else plural}"
        for kind, plural in PLURALS.items()
    ]
    text = f"{count(len(verdicts), 'claim')}: {', '.join(phrases)}"
    lines = [Message("claim.counts", text, counts={kind: counts[kind] for kind in PLURALS})]
    if counts[ILLUSTRATED]:
        text = (
            "illustrated: by runs without the papers' setting (CPU ranks, shrunk, other keys);"
            " they neither "
        )
        text += "confirm nor refute the papers"
        lines.append(Message("claim.illustrated", text))
    counted_claims = [
        verdict.claim.name
        for verdict in verdicts
        if verdict.claim.counted and verdict.n and verdict.unlike
    ]
    if counted_claims:
        text = (
            "decided in any setting, because they compare counted figures:"
            f" {', '.join(counted_claims)}"
        )
        lines.append(Message("claim.counted", text, claims=counted_claims))
    return lines


def _explanations(verdicts: Sequence[ClaimVerdict]) -> Sequence[str]:
    """Explain how claims are judged, and the signs of these verdicts."""
    if not any(verdict.figures for verdict in verdicts):
        return summary(verdicts)
    lines: list[str] = [
        *summary(verdicts),
        Message(
            "claim.brackets",
            "in brackets: intervals; together they cover the figures of a claim at 95 %"
            " (Bonferroni); counted figures of single runs have none",
        ),
        Message(
            "claim.holds-if",
            "a claim holds if all comparisons of the papers' cells hold (an up-to: if one holds)."
            " A comparison is undecided if its interval contains a bound or is missing, or if a"
            " side did not learn or did less work",
        ),
    ]
    if any(verdict.shows == EXCEEDS for verdict in verdicts):
        text = "exceeds: more than the range, or the up-to, that the papers print"
        lines.append(Message("claim.exceeds", text))
    if any(
        any(figure.estimate is not None and figure.low is None for figure in verdict.figures)
        for verdict in verdicts
    ):
        text = f"figures without brackets: nothing was repeated on the machine: {REMEDY}"
        lines.append(Message("claim.unrepeated", text, remedy=REMEDY))
    return [*lines, *(f"{sign}  {says}" for sign, says in meanings(verdicts))]


def meanings(verdicts: Sequence[ClaimVerdict]) -> list[tuple[str, str]]:
    """Return the signs that these verdicts and their figures bear, with what they mean."""
    signs = list[tuple[str, str]]()
    differences = dict.fromkeys(chain.from_iterable(verdict.unlike for verdict in verdicts))
    if differences:
        text = f"differs from the papers: {first_few(list(differences), MAX_UNLIKE)}"
        signs.append((UNLIKE, Message("claim.unlike", text, unlike=[*differences])))
    if any(any(figure.doubtful for figure in verdict.figures) for verdict in verdicts):
        signs.append((DOUBTFUL, DOUBTFUL_MEANING))
    signs_of_runs = limits.meanings(chain.from_iterable(verdict.limits for verdict in verdicts))
    return [*signs, *signs_of_runs]


def _row(verdict: ClaimVerdict) -> list[str]:
    """Return a claim's row of the table."""
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
    failed_cells = f"; {count(len(verdict.lost), 'cell')} did not end ok" if verdict.lost else ""
    is_explained = verdict.shows == HALF or any(figure.doubts for figure in verdict.figures)
    reasons = [verdict.why] if is_explained else []
    measured_lines = (
        [*listed(verdict), *reasons, f"n={verdict.n}{failed_cells}: {verdict.setting}"]
        if verdict.n
        else [verdict.why]
    )
    return [says, claim.printed or "-", "\n".join(measured_lines), marked(verdict)]


def marked(verdict: ClaimVerdict) -> str:
    """Return the verdict with its marks."""
    marks = verdict.marks
    if verdict.unlike:
        marks += UNLIKE
    return f"{verdict.in_words} [{marks}]" if marks else verdict.in_words


def listed(verdict: ClaimVerdict) -> list[str]:
    """List the figures of a claim rule by rule, a line each.

    If a rule has many figures, list the least and the greatest, and count the verdicts.
    """
    measured = [figure for figure in verdict.figures if figure.verdict != UNMEASURED]
    lines = list[str]()
    labelled_figures = list(zip(labels(measured), measured, strict=True))
    for part in sorted({figure.part for figure in measured}):
        rule_figures = shown_figures = [
            (label, figure) for label, figure in labelled_figures if figure.part == part
        ]
        numbers = [
            (figure.estimate, index)
            for index, (_, figure) in enumerate(rule_figures)
            if figure.estimate is not None
        ]
        if len(rule_figures) > MAX_LISTED:
            shown_figures = (
                [rule_figures[index] for _, index in (min(numbers), max(numbers))]
                if numbers
                else rule_figures[:MAX_LISTED]
            )
        for label, figure in shown_figures:
            line = f"{label}: {figure.text}"
            lines.append(line + BEYOND if figure.beyond else line)
        if len(rule_figures) > MAX_LISTED:
            counts = Counter(figure.verdict for _, figure in rule_figures).items()
            phrases = [f"{n} {kind if n == 1 else PLURALS[kind]}" for kind, n in counts]
            text = f"least and greatest of {len(rule_figures)}: {', '.join(phrases)}"
            lines.append(
                Message("claim.least-and-greatest", text, n=len(rule_figures), counts=dict(counts))
            )
    return lines


def fields(verdict: ClaimVerdict) -> dict[str, list[str]]:
    """Return all that is known of a verdict, as lines by field."""
    claim = verdict.claim
    figures = verdict.figures
    shared_what = (
        figures[0].what
        if len({figure.what for figure in figures}) == 1 and figures[0].where
        else ""
    )
    lines = [f"{shared_what}:"] if shared_what else []
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
    """Say what was measured, how it differs from the papers, and why the verdict is so."""
    parts = [verdict.setting, count(verdict.n, "run")]
    if verdict.unlike:
        text = f"differs from the papers: {', '.join(verdict.unlike)}"
        parts.append(Message("claim.measured-unlike", text, unlike=[*verdict.unlike]))
    return "; ".join([*parts, verdict.why])
