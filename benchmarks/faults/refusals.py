"""What is typed wrong, or hostile: keys, values, names, expressions, records and traces of others. Each is one line."""

import json
import shutil
from dataclasses import replace

from benchmarks.common import ROOT
from benchmarks.faults.data import write
from benchmarks.faults.fault import RUN, Act, Fault, Trial

RECORDS = ROOT / "tests" / "fixtures" / "records_v1" / "vision"
NAMED = ("hydra.run.dir={trial}/runs/${name}", *RUN[1:])


def starts_nothing(trial: Trial) -> str | None:
    """A refusal leaves no folder."""
    made = sorted(path.name for path in trial.folder.iterdir() if path.name in ("sweep", "runs"))
    return f"it made {', '.join(made)}" if made else None


def record_with(**changes: object) -> Act:
    """Two records of somebody else, the second with some of its keys changed."""

    def act(trial: Trial) -> None:
        for name in ("whole", "changed"):
            shutil.copytree(next(RECORDS.glob("*/result.json")).parent, trial.folder / "records" / "sweep" / name)
        path = trial.folder / "records" / "sweep" / "changed" / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return act


_REFUSED = Fault(
    "",
    "",
    program=("train_vision.py",),
    lines=1,
    statuses=(),
    ends=None,
    check=starts_nothing,
    within_s=30.0,
)
TYPED = {  # what is typed: the word, and what the line says
    "no-ranks": ((*RUN, "gpus=0"), r"^refused: gpus=0: "),
    "no-ranks-dry": ((*RUN, "dry_run=true", "gpus=0"), r"^refused: gpus=0: "),
    "no-epochs": ((*RUN, "epochs=0"), r"^refused: epochs=0: "),
    "no-epochs-dry": ((*RUN, "dry_run=true", "epochs=0"), r"^refused: epochs=0: "),
    "seed-too-large": ((*RUN, "seed=99999999999999999999"), r"^refused: seed=9+: "),
    "key-mistyped": ((*RUN, "precison=fp32"), r"^refused: precison: no such key here; nearest: precision"),
    "key-added": ((*RUN, "+epoch=3"), r"^refused: epoch: no such key here"),
    "option-unknown": ((*RUN, "precision=fp8"), r"^refused: precision=fp8: no such option"),
    "sweep-without-m": ((*RUN, "gpus=1,2"), r"^refused: gpus=1,2: several values are a sweep"),
    "name-above": ((*NAMED, "name=.."), r"^refused: name="),
    "name-of-two-lines": ((*NAMED, "name='a\nb'"), r"^refused: name="),
    "name-with-escapes": ((*NAMED, "name='a\x1b[2Jb'"), r"^refused: name=[^\x1b]*$"),
    "name-not-ascii": ((*NAMED, "gpus=0", "name=žluť"), r"^refused: (name=|gpus=0)"),
}
_ANALYSIS = replace(_REFUSED, program=("-m", "analysis"), check=lambda _: None, prepare=record_with())

FAULTS = (
    *(
        replace(_REFUSED, name=name, what=f"{words[-1]!r} is typed", words=words, says=says)
        for name, (words, says) in TYPED.items()
    ),
    replace(
        _ANALYSIS,
        name="where-injected",
        what="--where closes a bracket of the query",
        words=("list", "{trial}/records", "--where", "1=1) union all (select 99"),
        says=r"--where",
        code=None,
        check=lambda trial: None if trial.command.process.returncode else "it is accepted",
    ),
    replace(
        _ANALYSIS,
        name="where-endless",
        what="--where never ends",
        words=(
            *("list", "{trial}/records", "--where"),
            "(with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n) > 0",
        ),
        says=r"--where",
        code=None,
        check=lambda trial: None if trial.command.process.returncode else "it is accepted",
    ),
    replace(
        _ANALYSIS,
        name="record-broken",
        what="phases_s of a record is text",
        words=("list", "{trial}/records"),
        prepare=record_with(phases_s={"forward": "x"}),
        code=0,
        says=r"^skipped .*changed: .*phases_s",
        lines=9,
    ),
    replace(
        _ANALYSIS,
        name="record-odd",
        what="a record has phases that nobody knows, in a report",
        words=("report", "{trial}/records", "--out", "{trial}/page.html"),
        prepare=record_with(phases_s={"": 1e300, "sleep": -1.0}),
        code=0,
        says=r"page\.html: ",
        lines=9,
    ),
    replace(
        _ANALYSIS,
        name="record-hostile",
        what="a record's name drives the terminal",
        words=("list", "{trial}/records"),
        prepare=record_with(name="\x1b[2J\x1b]0;title\x07<script>", hardware="\x1b[31m\u202eUPC"),
        code=0,
        lines=None,
        check=lambda trial: "escapes reach the terminal" if "\x1b" in trial.command.output else None,
    ),
    replace(
        _ANALYSIS,
        name="trace-nested",
        what="a trace is nested 100,000 times",
        program=("-m", "multicard", "profile"),
        words=("{trial}/trace.json",),
        prepare=write("trace.json", b'{"traceEvents": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        says=r"trace\.json",
    ),
)
