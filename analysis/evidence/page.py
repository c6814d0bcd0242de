"""The page and the file of evidence: what each step showed, then the report on all runs;
and the rows to share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.config.job import count
from multicard.messages import Message
from multicard.records import text_table
from multicard.records.text_table import capital

from .. import report
from ..claims.comparison import FAILS, HOLDS
from ..commands import share
from ..report import page
from ..report.blocks import Fold, Paragraph, PlainTable, Section
from ..runs import load
from ..runs.load import FoundRuns
from . import drive
from .drive import StepRecord
from .findings import Finding
from .place import Circumstances
from .steps import Step

PAGE = "evidence.html"
SHARED = "evidence.json"
HEADINGS = (
    "step",
    "claim or figure",
    "measured",
    "times as fast",
    "verdict",
    "runs",
    "measured elsewhere",
)
STATES = ("step", "what is measured", "status", "times", "seconds", "why")
WIDTH = 120
NO_GPU = Message(
    "evidence.no-gpu",
    "no GPU is visible: everything runs shrunk, on CPU ranks; its figures say nothing of GPUs",
)
QUESTION = Message(
    "evidence.question", "What do the GPUs of this machine do? Each step tests a claim."
)


@dataclass(frozen=True)
class Evidence:
    """What the steps of a place have shown, read once.

    findings: each beside the name of its step.
    """

    place: Circumstances
    records: list[StepRecord]
    findings: list[tuple[str, Finding]]


def collected(place: Circumstances, steps: Sequence[Step]) -> Evidence:
    records = [drive.record_of(place, step) for step in steps]
    findings = list[tuple[str, Finding]]()
    for step in steps:
        findings.extend((step.name, finding) for finding in drive.findings_of(place, step))
    return Evidence(place, records, findings)


def filled(evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the findings, without the columns that are empty. A step's name stands
    once.
    """
    texts = list[list[str]]()
    last = ""
    for step, finding in evidence.findings:
        name = "" if step == last else step
        runs = str(finding.runs) if finding.runs else ""
        texts.append(
            [name, finding.what, finding.value, finding.gain, finding.verdict, runs, finding.beside]
        )
        last = step
    kept = [at for at in range(len(HEADINGS)) if any(row[at] for row in texts)]
    return [HEADINGS[at] for at in kept], [[row[at] for at in kept] for row in texts]


def table(evidence: Evidence, width: int | None) -> list[str]:
    """The findings in lines for a terminal."""
    headings, texts = filled(evidence)
    align = "".join("r" if heading == "runs" else "l" for heading in headings)
    return text_table.text(headings, texts, width or WIDTH, align=align, wrap=True)


def summary(evidence: Evidence) -> Message:
    """How many steps were measured, and how many claims hold."""
    steps = len(evidence.records)
    measured = sum(record.status == drive.OK for record in evidence.records)
    judged = [finding.verdict for _, finding in evidence.findings if finding.verdict]
    hold = judged.count(HOLDS)
    fail = judged.count(FAILS)
    open_claims = len(judged) - hold - fail
    said = f"{measured} of {count(steps, 'step')} measured"
    if judged:
        said += (
            f"; of {count(len(judged), 'claim')} {hold} hold, {fail} do not, {open_claims} are"
            " undecided"
        )
    return Message(
        "evidence.summary",
        said,
        measured=measured,
        steps=steps,
        hold=hold,
        fail=fail,
        open=open_claims,
    )


def section(evidence: Evidence) -> Section:
    """The findings, and folded away what became of each step."""
    states = [
        [
            one.step,
            one.title,
            one.status,
            str(one.repeats or ""),
            f"{one.seconds:.0f}" if one.attempts else "",
            one.why,
        ]
        for one in evidence.records
    ]
    headings, found = filled(evidence)
    small = [] if evidence.place.is_cuda else [Paragraph(f"{capital(NO_GPU)}.")]
    blocks = [
        *small,
        Paragraph(f"{summary(evidence)}."),
        PlainTable("", headings, found, wraps=True),
        Fold("What became of each step", [PlainTable("", STATES, states, wraps=True)]),
    ]
    return Section("evidence", "Evidence", QUESTION, blocks)


def write(evidence: Evidence, title: str) -> Path:
    """Write the page, whatever was measured; return its path."""
    path = evidence.place.out / PAGE
    found = runs(evidence.place)
    own = section(evidence)
    made = (
        report.build(found, title, mix=False, first=[own])
        if found.runs
        else report.bare(title, summary(evidence), [own])
    )
    page.write(path, made)
    return path


def runs(place: Circumstances) -> FoundRuns:
    """All runs of the evidence; none before the first has ended."""
    try:
        return load.read([place.out])
    except ValueError:
        return FoundRuns([], [])


def write_shared(place: Circumstances) -> list[str]:
    """Write the rows to share and check them as `import` does. Returns lines about them: where
    nothing was measured, the reason that there is no file.
    """
    try:
        return share.export(runs(place).runs, place.out / SHARED)
    except ValueError as error:
        return [str(error)]
