"""Write the page and the file of evidence.

The page has what each step showed, then the report on all runs. The file has the rows to share.
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
    "no GPU is visible: everything runs shrunk, on CPU ranks; its figures say nothing about GPUs",
)
QUESTION = Message(
    "evidence.question", "What do the GPUs of this machine do? Each step tests a claim."
)


@dataclass(frozen=True)
class Evidence:
    """What the steps of a place have shown, read once.

    findings: each finding with the name of its step.
    """

    place: Circumstances
    records: list[StepRecord]
    findings: list[tuple[str, Finding]]


def collect(place: Circumstances, steps: Sequence[Step]) -> Evidence:
    """Read the records and findings of the steps."""
    records = [drive.record_of(place, step) for step in steps]
    findings = list[tuple[str, Finding]]()
    for step in steps:
        findings.extend((step.name, finding) for finding in drive.findings_of(place, step))
    return Evidence(place, records, findings)


def headings_and_rows(evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the findings, without empty columns.

    A step's name stands only in its first row.
    """
    texts = list[list[str]]()
    last_step = ""
    for step, finding in evidence.findings:
        name = "" if step == last_step else step
        runs = str(finding.runs) if finding.runs else ""
        texts.append(
            [name, finding.what, finding.value, finding.gain, finding.verdict, runs, finding.beside]
        )
        last_step = step
    filled = [index for index in range(len(HEADINGS)) if any(row[index] for row in texts)]
    return [HEADINGS[index] for index in filled], [
        [row[index] for index in filled] for row in texts
    ]


def evidence_table(evidence: Evidence, width: int | None) -> list[str]:
    """Write the findings as lines for a terminal."""
    headings, texts = headings_and_rows(evidence)
    align = "".join("r" if heading == "runs" else "l" for heading in headings)
    return text_table.text(headings, texts, width or WIDTH, align=align, wrap=True)


def summary(evidence: Evidence) -> Message:
    """Say how many steps were measured, and how many claims hold."""
    steps = len(evidence.records)
    measured = sum(record.status == drive.OK for record in evidence.records)
    verdicts = [finding.verdict for _, finding in evidence.findings if finding.verdict]
    holding = verdicts.count(HOLDS)
    failing = verdicts.count(FAILS)
    open_claims = len(verdicts) - holding - failing
    text = f"{measured} of {count(steps, 'step')} measured"
    if verdicts:
        text += (
            f"; of {count(len(verdicts), 'claim')} {holding} hold, {failing} do not, {open_claims}"
            " are undecided"
        )
    return Message(
        "evidence.summary",
        text,
        measured=measured,
        steps=steps,
        hold=holding,
        fail=failing,
        open=open_claims,
    )


def section(evidence: Evidence) -> Section:
    """Return the section of the findings. The state of each step is folded away."""
    states = [
        [
            record.step,
            record.title,
            record.status,
            str(record.repeats or ""),
            f"{record.seconds:.0f}" if record.attempts else "",
            record.why,
        ]
        for record in evidence.records
    ]
    headings, rows = headings_and_rows(evidence)
    shrunk_note = [] if evidence.place.is_cuda else [Paragraph(f"{capital(NO_GPU)}.")]
    blocks = [
        *shrunk_note,
        Paragraph(f"{summary(evidence)}."),
        PlainTable("", headings, rows, wraps=True),
        Fold("What became of each step", [PlainTable("", STATES, states, wraps=True)]),
    ]
    return Section("evidence", "Evidence", QUESTION, blocks)


def write(evidence: Evidence, title: str) -> Path:
    """Write the page with what was measured so far; return its path."""
    path = evidence.place.out / PAGE
    found_runs = runs(evidence.place)
    evidence_section = section(evidence)
    new_report = (
        report.build(found_runs, title, mix=False, first=[evidence_section])
        if found_runs.runs
        else report.report_without_runs(title, summary(evidence), [evidence_section])
    )
    page.write(path, new_report)
    return path


def runs(place: Circumstances) -> FoundRuns:
    """Read all runs of the evidence; there are none before the first has ended."""
    try:
        return load.read_runs([place.out])
    except ValueError:
        return FoundRuns([], [])


def write_shared(place: Circumstances) -> list[str]:
    """Write the rows to share, check them as `import` does, and return lines about them.

    If nothing was measured, there is no file, and the line says so.
    """
    try:
        return share.export(runs(place).runs, place.out / SHARED)
    except ValueError as error:
        return [str(error)]
