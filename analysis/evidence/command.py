"""Measure what the GPUs of this machine can do, as much as fits into the time, and write a page and
a file to share.

Called again, the command continues where it stopped. A step that would take longer than the time
that is left waits for the next call. Once all steps have been measured, they are repeated, so that
figures have a spread. Without a GPU, everything runs shrunk on CPU ranks: this tests the code, and
the figures say nothing about GPUs.

--data: a folder with MNIST/raw, alpaca*.jsonl and Llama's tokenizer.model, or with folders that
hold these. Without them, images are made from scikit-learn's digits, and rows are generated.
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
MACHINE = "here.json"  # The file that names the machine and code behind the folder's figures.


class EvidenceMachine(msgspec.Struct):
    """The machine and the code that all figures of a folder come from."""

    hardware: str
    gpus: int
    commit: str | None
    changes: str | None


class ProgressLine(StepProgress):
    """Shows one line of progress.

    In a terminal, the line changes in place. Elsewhere, a line is printed for each step.
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
            return  # A line at the end names all steps that are left.
        reason = f" ({record.why})" if record.why else ""
        say(f"{step.name}: {record.status}{reason}, {record.seconds:.0f} s")

    def _elapsed(self) -> str:
        passed_s = clock_s() - self._started_s
        return f"{int(passed_s) // 60}:{int(passed_s) % 60:02} of {self._minutes:g} min"


def main(words: Sequence[str] | None = None) -> int:
    """Gather evidence, and return the exit code: 1 if something failed."""
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
            return list_steps(place, steps)
        return gather(place, steps, options)
    except ValueError as error:
        say(Message("evidence.refused", f"refused: {error}", reason=str(error)), error=True)
        return 1


def words_of(options: argparse.Namespace) -> list[str]:
    """Return this command's words without --slurm, for the command that the job runs."""
    options_by_flag = {
        "--minutes": f"{options.minutes:g}",
        "--out": options.out,
        "--data": options.data,
        "--gpus": options.gpus,
    }
    words = []
    for flag, value in options_by_flag.items():
        if value is not None:
            words.extend((flag, str(value)))
    return [*words, *(["--only", *options.only] if options.only else [])]


def require_minutes(minutes: float) -> None:
    """Refuse a time that is not positive and finite."""
    if not 0 < minutes < math.inf:
        text = f"--minutes {minutes:g}: give a positive number, as `--minutes 15`"
        raise Refusal("evidence.minutes", text, key="--minutes", value=minutes)


def parser() -> Parser:
    names = [step.name for step in STEPS]
    keep_lines = argparse.RawDescriptionHelpFormatter
    new_parser = Parser(
        f"{typed('-m multicard')} evidence",
        description=usage(__doc__, __file__),
        formatter_class=keep_lines,
    )
    new_parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"the minutes that this call may take; default: {MINUTES:g}",
    )
    new_parser.add_argument(
        "--gpus", type=cli.count, help="the number of GPUs to use; default: all that are visible"
    )
    new_parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="images, rows and tokenizer, as said above"
    )
    new_parser.add_argument(
        "--out", type=Path, metavar="FOLDER", default=FOLDER, help=f"default: {FOLDER}"
    )
    new_parser.add_argument(
        "--only", nargs="+", choices=names, metavar="STEP", help="some of the steps"
    )
    new_parser.add_argument(
        "--slurm", nargs="+", metavar="OPTION", help=f"submit it as one job: {job.HINT}"
    )
    new_parser.add_argument(
        "--list", action="store_true", help="list the steps and their state; measure nothing"
    )
    return new_parser


def place_of(options: argparse.Namespace) -> Circumstances:
    """Return the circumstances of all steps, from the options.

    Raises:
        Refusal: the machine has fewer GPUs, or the folder of data holds none of the files.
    """
    visible_gpus = len(devices.visible_gpus())
    gpus = options.gpus or visible_gpus or min(2, environment.cores())
    if visible_gpus and gpus > visible_gpus:
        text = f"--gpus {gpus}: {count(visible_gpus, 'GPU')} can be seen here"
        raise Refusal(
            "evidence.too-many-gpus", text, key="--gpus", value=gpus, visible=visible_gpus
        )
    require_minutes(options.minutes)
    data = None if options.data is None else options.data.resolve()
    place = Circumstances(
        options.out.resolve(), gpus, bool(visible_gpus), least_memory_bytes(), data
    )
    if data is not None and not place.holds_data():
        text = (
            f"--data {options.data}: holds no {IMAGES}, {ROWS} or {TOKENIZER}; name a folder that"
            " does"
        )
        raise Refusal("evidence.no-data", text, key="--data", value=str(options.data))
    return place


def least_memory_bytes() -> float:
    """Return the memory of the smallest visible GPU, or 0 without a GPU."""
    return min((float(gpu.get("memory_bytes") or 0) for gpu in environment.gpus()), default=0.0)


def list_steps(place: Circumstances, steps: Sequence[Step]) -> int:
    """Print the steps and their states; return the exit code."""
    for step in steps:
        record = drive.record_of(place, step)
        state = step.skip(place) or f"{drive.estimate_s(place, step):.0f} s, {record.status}"
        say(f"{step.name:16} {step.title:44} {state}")
    return 0


def gather(place: Circumstances, steps: Sequence[Step], options: argparse.Namespace) -> int:
    """Measure, then write the page and the file, also if this process is interrupted.

    Return the exit code.
    """
    try:
        place.out.mkdir(parents=True, exist_ok=True)
        lock = locked(place)
    except OSError as error:
        raise Refusal.of(unwritable(place.out, error, "--out")) from None
    with lock:
        require_same_machine(place)
        # End by an exception, so that the page is still written.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        if not place.is_cuda:
            say(page.NO_GPU)
        try:
            with ProgressLine(Console(stderr=True), len(steps), options.minutes) as line:
                drive.take_all(place, steps, options.minutes, line)
        except KeyboardInterrupt:
            say(Message("evidence.interrupted", "interrupted: what was measured so far is below"))
        finally:
            code = report_results(place, steps)
    return code


def locked(place: Circumstances) -> Any:
    """Lock the folder of evidence, so that only one command at a time measures there."""
    lock = FileLock(place.out / ".lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        text = (
            f"--out {place.out}: another command is gathering evidence there; name another folder,"
            " or wait"
        )
        raise Refusal("evidence.locked", text, key="--out", value=str(place.out)) from None
    return lock


def require_same_machine(place: Circumstances) -> None:
    """Refuse a folder whose figures come from another machine or from other code."""
    git = environment.git(Path(drive.__file__).parent) or {}
    names = (
        sorted({str(gpu["name"]) for gpu in environment.gpus()})
        if place.is_cuda
        else [environment.cpu_model()]
    )
    this_machine = EvidenceMachine(
        ", ".join(map(str, names)), place.gpus, git.get("commit"), git.get("changes")
    )
    file = place.out / MACHINE
    if not file.exists():
        run_folder.write_text(file, msgspec.json.encode(this_machine).decode() + "\n")
        return
    recorded_machine = msgspec.json.decode(file.read_bytes(), type=EvidenceMachine)
    if recorded_machine != this_machine:
        recorded_values = {
            name: getattr(recorded_machine, name) for name in EvidenceMachine.__struct_fields__
        }
        differing = [
            name for name, value in recorded_values.items() if value != getattr(this_machine, name)
        ]
        text = (
            f"--out {place.out}: holds figures with another {' and '.join(differing)}; name another"
            " folder"
        )
        raise Refusal(
            "evidence.other-machine", text, key="--out", value=str(place.out), other=differing
        )


def report_results(place: Circumstances, steps: Sequence[Step]) -> int:
    """Print the table, write the page and the file, and name what failed and what is left.

    Return the exit code.
    """
    evidence = page.collect(place, steps)
    records = evidence.records
    for line in ["", *page.evidence_table(evidence, terminal_width())]:
        say(line)
    for record in records:
        if record.status == drive.FAILED:
            log = place.log(record.step)
            text = f"{record.step}: {record.why}; its log: {log}"
            say(
                Message(
                    "evidence.step-failed", text, step=record.step, why=record.why, log=str(log)
                )
            )
    steps_left = [record.step for record in records if record.status in (drive.LEFT, drive.STOPPED)]
    if steps_left:
        text = f"left for another call: {', '.join(steps_left)}"
        say(Message("evidence.left", text, steps=steps_left))
    for line in page.write_shared(place):
        say(line)
    path = page.write(evidence, f"Evidence: {os.path.relpath(place.out)}")
    summary = page.summary(evidence)
    say(Message("evidence.written", f"{path}: {summary}", file=str(path), summary=summary))
    return 1 if any(record.status == drive.FAILED for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
