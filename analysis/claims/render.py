"""Verdicts as a table for the terminal, as one claim at length, and as JSON for programs."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.claims.comparison import FAILS, HOLDS, UNDECIDED, UNMEASURED
from analysis.claims.verdicts import ClaimFigure, Verdict, labels
from analysis.runs.columns import legend
from analysis.runs.load import Skipped
from analysis.stats.between_runs import REMEDY
from multicard.config.job import count
from multicard.records import text_table
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.run_folder import write_json
from multicard.records.text_table import clean

WIDTH, LEAST_WIDTH = 120, 80  # columns where the output is no terminal, and of a narrow terminal
UNLIKE = "~"  # marks what was measured in another setting than the paper's
MAX_LISTED = 4  # figures of a rule that the table lists; of more, it lists the least and the greatest
SUMMARISED = {HOLDS: "hold", FAILS: "do not hold", UNDECIDED: "undecided", UNMEASURED: "not measured"}
COUNTED = {HOLDS: "hold", FAILS: "do not", UNDECIDED: "undecided"}
HEADINGS = ("claim", "source", "printed", "measured", "verdict")
CLAIM_SHARE, PRINTED_SHARE = 0.26, 0.14  # of the width, that these columns of the terminal take at most
PLACE_WIDTH, VERDICT_WIDTH = 14, 13


def table(verdicts: Sequence[Verdict], limit: int | None) -> list[str]:
    """A row for each measured claim, by section; the names of the rest, and the commands that would measure those."""
    width = WIDTH if limit is None else max(LEAST_WIDTH, limit)
    judged = [verdict for verdict in verdicts if verdict.verdict != UNMEASURED]
    rest = [verdict for verdict in verdicts if verdict.verdict == UNMEASURED]
    lines = _by_section(judged, width) if judged else []
    if rest:
        names = [verdict.claim.name + f" ({verdict.why})" * (not verdict.why.startswith("no runs")) for verdict in rest]
        lines += ["", *_wrapped(f"not measured: {'; '.join(names)}", width)]
    return [*lines, "", *_notes(verdicts, width)]


def _by_section(verdicts: Sequence[Verdict], width: int) -> list[str]:
    """One table, in which a line over the claims of a section has its title and the papers' sections."""
    rows, titles = [], []
    for title, of_section in sections(verdicts):
        for number, verdict in enumerate(of_section):
            rows += [[""] * len(HEADINGS), _narrowed(_row(verdict), width)]
            titles.append(["", *([title, ""] if number == 0 else [])])
    above = iter(titles)
    lines = text_table.text(HEADINGS, rows, width, wrap=True)
    return [text for line in lines for text in ([line] if line else next(above))]


def sections(verdicts: Sequence[Verdict]) -> list[tuple[str, list[Verdict]]]:
    """The verdicts by their claims' section, in the order of the claims."""
    by_title: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_title.setdefault(verdict.claim.section, []).append(verdict)
    return list(by_title.items())


def at_length(verdicts: Sequence[Verdict], limit: int | None) -> list[str]:
    """A block for each claim: its test, every figure, and the other settings."""
    width = WIDTH if limit is None else max(LEAST_WIDTH, limit)
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.claim.name}: {marked(verdict)}")
        for name, texts in fields(verdict).items():
            for index, text in enumerate(texts):
                lines += _wrapped(text, width, f"  {'' if index else name:<9} ")
        lines.append("")
    return [*lines, *_notes(verdicts, width)]


def _notes(verdicts: Sequence[Verdict], width: int) -> list[str]:
    notes = [line for note in _explained(verdicts) for line in _wrapped(note, width)]
    commands = _commands(verdicts)
    return [*notes, *(["", "to measure the rest:", *(f"  {command}" for command in commands)] if commands else [])]


def write_verdicts(path: Path, verdicts: Sequence[Verdict], skipped: Sequence[Skipped]) -> None:
    """All figures as JSON, and the records that could not be used; a missing bound is null."""
    content = {
        "claims": [_as_dict(verdict) for verdict in verdicts],
        "summary": summary(verdicts)[0],
        "skipped": [{"folder": str(one.folder), "why": one.why} for one in skipped],
    }
    write_json(path, content)


def _as_dict(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    keys = ("name", "section", "says", "source", "counted", "note", "printed", "test", "experiment")
    about = {"claim" if key == "says" else key: getattr(claim, key) for key in keys}
    judged = {key: value for key, value in asdict(verdict).items() if key != "claim"}
    return about | judged | {"of_gpus": verdict.of_gpus, "decides": verdict.decides}


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """How many claims got each verdict, and how many of these say nothing of the papers' GPUs."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    phrases = [f"{counts[kind]} {kind if counts[kind] == 1 else plural}" for kind, plural in SUMMARISED.items()]
    lines = [f"{count(len(verdicts), 'claim')}: {', '.join(phrases)}"]
    measured_ones = [verdict for verdict in verdicts if verdict.verdict != UNMEASURED]
    undecisive = sum(not verdict.decides for verdict in measured_ones)
    if undecisive:
        which = "all" if undecisive == len(measured_ones) else str(undecisive)
        lines.append(
            f"{which} of those measured are of CPU ranks, shared GPUs or shrunk runs (see the marks): such verdicts "
            "neither confirm nor refute the papers"
        )
    exact = [verdict.claim.name for verdict in measured_ones if verdict.decides and not verdict.of_gpus]
    if exact:
        lines.append(f"decided here as on GPUs, since what they compare is counted: {', '.join(exact)}")
    return lines


def _explained(verdicts: Sequence[Verdict]) -> list[str]:
    """The summary, an explanation of the intervals, and the legend of the marks."""
    if not any(verdict.figures for verdict in verdicts):
        return summary(verdicts)
    lines = [
        *summary(verdicts),
        "in brackets: intervals, which together cover the figures of a claim at 95 % (Bonferroni); counted figures of "
        "single runs have none",
        "a claim holds if all of its comparisons do (an `up to`: if one does); it is undecided if an interval contains "
        "a bound, or there is none",
    ]
    if any(figure.estimate is not None and figure.low is None for verdict in verdicts for figure in verdict.figures):
        lines.append(f"figures without brackets: nothing was repeated on the machine: {REMEDY}")
    unlike = dict.fromkeys(choice for verdict in verdicts for choice in verdict.unlike)
    if unlike:
        lines.append(f"{UNLIKE}  the papers had otherwise: {', '.join(unlike)}")
    if any(figure.doubtful for verdict in verdicts for figure in verdict.figures):
        lines.append(f"{DOUBTFUL}  {DOUBTFUL_MEANING}")
    return [*lines, *legend(verdict.marks for verdict in verdicts)]


def _row(verdict: Verdict) -> list[str]:
    claim = verdict.claim
    places = "\n".join(f"{paper}: {place}" for paper, place in claim.cited.items())
    says = "\n".join(text for text in (claim.name, claim.says, claim.note and f"({claim.note})") if text)
    figures = "\n".join(_listed(verdict)) or verdict.why
    return [says, places or "-", claim.printed or "-", figures, marked(verdict)]


def _narrowed(row: Sequence[str], width: int) -> list[str]:
    """A row whose texts are wrapped, so that the figures have room."""

    def filled(text: str, column_width: int) -> str:
        return "\n".join(textwrap.fill(clean(line), column_width) for line in text.split("\n"))

    says, places, printed, figures, verdict = row
    claim_width, printed_width = round(CLAIM_SHARE * width), round(PRINTED_SHARE * width)
    wrapped = filled(says, claim_width), filled(places, PLACE_WIDTH), filled(printed, printed_width)
    return [*wrapped, figures, filled(verdict, VERDICT_WIDTH)]


def marked(verdict: Verdict) -> str:
    """The verdict with the signs of its marks."""
    marks = verdict.marks + UNLIKE * bool(verdict.unlike)
    return f"{verdict.verdict} [{marks}]" if marks else verdict.verdict


def _listed(verdict: Verdict) -> list[str]:
    """Rule by rule a line for each figure, or for the extremes of many; at last how many runs were compared."""
    lines, same_cell = [], len({figure.where for figure in verdict.figures}) == 1
    for part in sorted({figure.part for figure in verdict.figures}):
        known = [figure for figure in verdict.figures if figure.part == part and figure.verdict != UNMEASURED]
        if not known:
            continue
        if len({figure.what for figure in known}) == 1 and known[0].where and not same_cell:
            lines.append(f"{known[0].what}:")
        names = [figure.what for figure in known] if same_cell else labels(known)
        labelled = list(zip(names, known, strict=True))
        listed = labelled if len(known) <= MAX_LISTED else extremes(labelled)
        lines += [f"{label}: {figure.text}" for label, figure in listed]
        if len(listed) < len(known):
            counts = Counter(figure.verdict for figure in known)
            phrases = ", ".join(f"{counts[kind]} {short}" for kind, short in COUNTED.items() if counts[kind])
            lines.append(f"least and greatest of {len(known)}: {phrases}")
    if verdict.figures:
        measured = sum(figure.verdict != UNMEASURED for figure in verdict.figures)
        share = f"; {measured} of {count(verdict.asked, 'comparison')}" if measured < verdict.asked else ""
        lost = f"; {count(len(verdict.lost), 'cell')} did not end ok" if verdict.lost else ""
        lines.append(f"n={verdict.n}{share}{lost}")
    return lines


def extremes(labelled: Sequence[tuple[str, ClaimFigure]]) -> list[tuple[str, ClaimFigure]]:
    """The least and the greatest; the first few where there are no numbers."""
    numbers = [(figure.estimate, index) for index, (_, figure) in enumerate(labelled) if figure.estimate is not None]
    if not numbers:
        return list(labelled[:MAX_LISTED])
    return [labelled[min(numbers)[1]], labelled[max(numbers)[1]]]


def fields(verdict: Verdict) -> dict[str, list[str]]:
    """All that is known of a verdict, as lines by name."""
    claim, figures = verdict.claim, verdict.figures
    same = figures[0].what if len({figure.what for figure in figures}) == 1 and figures[0].where else ""
    lines = [f"{same}:"] if same else []
    for figure, label in zip(figures, labels(figures), strict=True):
        basis = "; ".join(part for part in (figure.basis, figure.why) if part)
        lines.append(f"{label}: {figure.text}, {figure.verdict}" + f" ({basis})" * bool(basis))
    return {
        "says": [f"{claim.says} ({claim.source})" + f"; {claim.note}" * bool(claim.note)],
        "paper": [claim.printed] if claim.printed else [],
        "holds if": [claim.test],
        "measured": [measured(verdict) if figures else verdict.why],
        "figures": lines,
        "others": _other_settings(verdict),
    }


def measured(verdict: Verdict) -> str:
    """The measured setting, the number of runs, and the reason for the verdict."""
    unlike = f"; other than the papers': {', '.join(verdict.unlike)}" if verdict.unlike else ""
    return f"{verdict.setting}; {count(verdict.n, 'run')}{unlike}; {verdict.why}"


def _other_settings(verdict: Verdict) -> list[str]:
    lines = [
        f"{other.apart or other.setting}: {other.verdict}" + f" [{other.marks}]" * bool(other.marks)
        for other in verdict.others
    ]
    return [*lines, *([f"and {count(verdict.unjudged, 'more setting')}, not judged"] if verdict.unjudged else [])]


def _commands(verdicts: Sequence[Verdict]) -> list[str]:
    """The commands that measure what was not measured, each once."""
    return list(dict.fromkeys(verdict.command for verdict in verdicts if verdict.command is not None))


def _wrapped(text: str, width: int, head: str = "") -> list[str]:
    """Lines of at most `width` cells after `head`, which the further lines are indented by."""
    indent = " " * len(head)
    whole_words = textwrap.TextWrapper(
        width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return whole_words.wrap(clean(text)) or [head.rstrip()]
