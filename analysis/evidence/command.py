"""Measure what the GPUs of this machine do, as much as fits into the time, and write a page and a
file to share.

Called again, the command goes on where it stopped. A step that takes longer than the time that is
left waits for the next call. Once all have been measured, they are measured again, so that figures
have a spread. Without a GPU everything runs shrunk, on CPU ranks: that tests the code, and its
figures say nothing of GPUs.

--data: a folder with MNIST/raw, alpaca*.jsonl and Llama's tokenizer.model, or with folders that
hold these. Without them, images are made of scikit-learn's digits, and rows are generated.
"""

import argparse
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from rich.console import Console

from multicard.config.job import count
from multicard.machine import devices, environment
from multicard.measure.timing import clock_s
from multicard.messages import Message, Parser, Refusal, say, typed, usage
from multicard.ranks.failures import unwritable
from multicard.records import run_folder
from multicard.records.text_table import terminal_width

from .. import cli
from . import drive, job, page
from .drive import StepProgress, StepRecord
from .place import IMAGES, ROWS, TOKENIZER, Circumstances
from .steps import STEPS, Step

MINUTES = 30.0
FOLDER = Path("multirun/evidence")
MACHINE = "here.json"  # what the folder's figures are of


class EvidenceMachine(msgspec.Struct):
    """What figures of one folder have in common."""

    hardware: str
    gpus: int
    commit: str | None
    changes: str | None


class ProgressLine(StepProgress):
    """One line of progress: it changes in place in a terminal,
    and is printed at each step elsewhere.
    """

    def __init__(self, console: Console, steps: int, minutes: float) -> None:
        self._status = console.status("") if console.is_terminal else None
        self._steps = steps
        self._minutes = minutes
        self._started_s = clock_s()
        self._number = 0
        self._what = ""

    def __enter__(self) -> "ProgressLine":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def began(self, step: Step, repeat: int) -> None:
        again = "" if repeat == 1 else f", {repeat} times"
        self._what = f"{step.name}: {step.title}{again}"
        if self._status is None:
            say(f"[{self._elapsed()}] {self._what}")
        self.tick()

    def tick(self) -> None:
        if self._status is not None:
            self._status.update(
                f"[{self._elapsed()}] {self._number} of {self._steps} steps done, {self._what}"
            )

    def ended(self, step: Step, record: StepRecord) -> None:
        self._number = min(self._number + 1, self._steps)
        if record.status == drive.LEFT:
            return  # a line at the end names them all
        why = f" ({record.why})" if record.why else ""
        say(f"{step.name}: {record.status}{why}, {record.seconds:.0f} s")

    def _elapsed(self) -> str:
        passed_s = clock_s() - self._started_s
        return f"{int(passed_s) // 60}:{int(passed_s) % 60:02} of {self._minutes:g} min"


def main(words: Sequence[str] | None = None) -> int:
    """Gather evidence; the exit code is 1 where something failed."""
    options = parser().parse_args(words)
    try:
        if options.slurm is not None:
            require_minutes(options.minutes)
            out = options.out.resolve()
            say(job.submit(out, options.minutes, options.slurm, words_of(options)))
            return 0
        place = place_of(options)
        steps = [step for step in STEPS if step.name in (options.only or step.name)]
        if options.list:
            return listed(place, steps)
        return gathered(place, steps, options)
    except ValueError as error:
        say(Message("evidence.refused", f"refused: {error}", reason=str(error)), error=True)
        return 1


def words_of(options: argparse.Namespace) -> list[str]:
    """The words of the command that a job runs: those of this one, without the job's."""
    named = {
        "--minutes": f"{options.minutes:g}",
        "--out": options.out,
        "--data": options.data,
        "--gpus": options.gpus,
    }
    words = []
    for flag, value in named.items():
        if value is not None:
            words.extend((flag, str(value)))
    return [*words, *(["--only", *options.only] if options.only else [])]


def require_minutes(minutes: float) -> None:
    if not 0 < minutes < math.inf:
        said = f"--minutes {minutes:g}: give some, as `--minutes 15`"
        raise Refusal("evidence.minutes", said, key="--minutes", value=minutes)


def parser() -> Parser:
    names = [step.name for step in STEPS]
    raw = argparse.RawDescriptionHelpFormatter
    made = Parser(
        f"{typed('-m multicard')} evidence",
        description=usage(__doc__, __file__),
        formatter_class=raw,
    )
    made.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"that this call may take; default: {MINUTES:g}",
    )
    made.add_argument(
        "--gpus", type=cli.count, help="how many to use; default: all that are visible"
    )
    made.add_argument(
        "--data", type=Path, metavar="FOLDER", help="images, rows and tokenizer: see above"
    )
    made.add_argument(
        "--out", type=Path, metavar="FOLDER", default=FOLDER, help=f"default: {FOLDER}"
    )
    made.add_argument("--only", nargs="+", choices=names, metavar="STEP", help="some of the steps")
    made.add_argument(
        "--slurm", nargs="+", metavar="OPTION", help=f"submit it as one job: {job.HINT}"
    )
    made.add_argument(
        "--list", action="store_true", help="the steps and their state; measure nothing"
    )
    return made


def place_of(options: argparse.Namespace) -> Circumstances:
    """The circumstances of all steps, by the options.

    Raises:
        Refusal: the machine has fewer GPUs, or the folder of data holds none.
    """
    there = len(devices.visible_gpus())
    gpus = options.gpus or there or min(2, environment.cores())
    if there and gpus > there:
        said = f"--gpus {gpus}: {count(there, 'GPU')} can be seen here"
        raise Refusal("evidence.too-many-gpus", said, key="--gpus", value=gpus, visible=there)
    require_minutes(options.minutes)
    data = None if options.data is None else options.data.resolve()
    place = Circumstances(options.out.resolve(), gpus, bool(there), least_memory_bytes(), data)
    if data is not None and not place.holds_data():
        said = (
            f"--data {options.data}: holds no {IMAGES}, {ROWS} or {TOKENIZER}; name the folder that"
            " does"
        )
        raise Refusal("evidence.no-data", said, key="--data", value=str(options.data))
    return place


def least_memory_bytes() -> float:
    """The memory of the smallest GPU that can be seen; 0 without one."""
    return min((float(gpu.get("memory_bytes") or 0) for gpu in environment.gpus()), default=0.0)


def listed(place: Circumstances, steps: Sequence[Step]) -> int:
    for step in steps:
        record = drive.record_of(place, step)
        state = step.skip(place) or f"{drive.estimate_s(place, step):.0f} s, {record.status}"
        say(f"{step.name:16} {step.title:44} {state}")
    return 0


def gathered(place: Circumstances, steps: Sequence[Step], options: argparse.Namespace) -> int:
    """Measure, and write page and file, also where this process is told to stop."""
    try:
        place.out.mkdir(parents=True, exist_ok=True)
        lock = locked(place)
    except OSError as error:
        raise Refusal.of(unwritable(place.out, error, "--out")) from None
    with lock:
        require_same_machine(place)
        # Exit by an exception, so that the page is written all the same
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        if not place.is_cuda:
            say(page.NO_GPU)
        try:
            with ProgressLine(Console(stderr=True), len(steps), options.minutes) as line:
                drive.take_all(place, steps, options.minutes, line)
        except KeyboardInterrupt:
            say(Message("evidence.interrupted", "interrupted: what was measured so far is below"))
        finally:
            code = shown(place, steps)
    return code


def locked(place: Circumstances) -> Any:
    """Held by one command of a folder at a time."""
    lock = FileLock(place.out / ".lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        said = (
            f"--out {place.out}: another command gathers evidence there; name another folder, or"
            " wait"
        )
        raise Refusal("evidence.locked", said, key="--out", value=str(place.out)) from None
    return lock


def require_same_machine(place: Circumstances) -> None:
    """Refuse a folder whose figures are of another machine, or of other code."""
    git = environment.git(Path(drive.__file__).parent) or {}
    names = (
        sorted({str(gpu["name"]) for gpu in environment.gpus()})
        if place.is_cuda
        else [environment.cpu_model()]
    )
    here = EvidenceMachine(
        ", ".join(map(str, names)), place.gpus, git.get("commit"), git.get("changes")
    )
    file = place.out / MACHINE
    if not file.exists():
        run_folder.write_text(file, msgspec.json.encode(here).decode() + "\n")
        return
    before = msgspec.json.decode(file.read_bytes(), type=EvidenceMachine)
    if before != here:
        kept = {name: getattr(before, name) for name in EvidenceMachine.__struct_fields__}
        other = [name for name, value in kept.items() if value != getattr(here, name)]
        said = (
            f"--out {place.out}: holds figures of another {' and '.join(other)}; name another"
            " folder"
        )
        raise Refusal(
            "evidence.other-machine", said, key="--out", value=str(place.out), other=other
        )


def shown(place: Circumstances, steps: Sequence[Step]) -> int:
    """Print the table, write page and file, and name what failed and what is left;
    the exit code.
    """
    evidence = page.collected(place, steps)
    records = evidence.records
    for line in ["", *page.table(evidence, terminal_width())]:
        say(line)
    for record in records:
        if record.status == drive.FAILED:
            log = place.log(record.step)
            said = f"{record.step}: {record.why}; its log: {log}"
            say(
                Message(
                    "evidence.step-failed", said, step=record.step, why=record.why, log=str(log)
                )
            )
    left = [record.step for record in records if record.status in (drive.LEFT, drive.STOPPED)]
    if left:
        said = f"left for another call: {', '.join(left)}"
        say(Message("evidence.left", said, steps=left))
    for line in page.write_shared(place):
        say(line)
    path = page.write(evidence, f"Evidence: {os.path.relpath(place.out)}")
    summary = page.summary(evidence)
    say(Message("evidence.written", f"{path}: {summary}", file=str(path), summary=summary))
    return 1 if any(record.status == drive.FAILED for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
