"""Measurements on a GPU that is there for ten minutes: as many as fit, the most valuable first.

    python -m benchmarks.on_gpu --minutes 9 [--data FOLDER] [--out FOLDER] [--only STEP ...]
    python -m benchmarks.on_gpu --list

Each step is a command of its own. Its record (FOLDER/<step>.json: command, seconds, exit code, findings, the end of its
output), its log and its runs' folders stay in FOLDER; called again, the command goes on where it stopped, however that
happened; a step whose record is removed is measured again. One that is expected to take longer than what is left waits
for the next call. One that takes longer, or twice as long as expected, is stopped, and comes after the others next
time, as one that failed does. At the end a table shows what each step found, beside what others measured. Without a GPU
the same steps run shrunk, on CPU ranks; such figures are no results.

--data: a folder with MNIST/raw, alpaca*.jsonl and Llama's tokenizer.model, or with folders that hold these. Without
them images are made of scikit-learn's digits, and rows are generated.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT, parser
from benchmarks.gpu_steps import IMAGES, ROWS, STEPS, TOKENIZER, Finding, Pass, Step
from multicard.machine import devices
from multicard.measure.timing import clock_s, timestamp
from multicard.ranks import os_calls
from multicard.records import run_folder, text_table

GRACE_S = 15.0  # for a stopped command to record what it has
PATIENCE = 2  # times its estimate, for which a step may take from the others at its first attempt
TAIL = 30  # lines of a log, in the record
WIDTH = 120


def record_of(run: Pass, step: Step) -> dict[str, Any]:
    """The record of a step. One that says "running" was left by a call that was killed."""
    new: dict[str, Any] = {"step": step.name, "title": step.title, "status": "left", "why": "", "attempts": 0}
    return run_folder.read_json(run.out / f"{step.name}.json") or new | {"seconds": 0.0, "findings": []}


def write(run: Pass, record: dict[str, Any]) -> dict[str, Any]:
    run_folder.write_json(run.out / f"{record['step']}.json", record)
    return record


def queue(run: Pass, steps: Sequence[Step]) -> list[Step]:
    """The steps that are left: those never tried, then those that were stopped or failed."""
    records = {step.name: record_of(run, step) for step in steps}
    left = [step for step in steps if records[step.name]["status"] != "ok"]  # what was skipped may be there by now
    return sorted(left, key=lambda step: records[step.name]["attempts"])


def take(run: Pass, step: Step, limit_s: float) -> dict[str, Any]:
    """Run a step for `limit_s` seconds at most; its record, which is written however that ends."""
    command, log = step.command(run), run.log(step.name)
    began = {"started_at": timestamp(), "command": shlex.join(command), "log": str(log)}
    record: dict[str, Any] = record_of(run, step) | began
    before_s, record["attempts"] = record["seconds"], record["attempts"] + 1
    write(run, record | {"status": "running", "why": "the call was killed"})
    started_s, code = clock_s(), None
    try:
        with log.open("a") as output:
            code = run_command(command, output, limit_s)
    finally:  # also where this process is told to stop
        lines = log.read_text(errors="replace")
        record |= {"rc": code, "seconds": before_s + clock_s() - started_s, "tail": lines.splitlines()[-TAIL:]}
        record |= judged(step, run, code, lines)
        write(run, record)
    return record


def judged(step: Step, run: Pass, code: int | None, log: str) -> dict[str, Any]:
    """Status, reason and findings of a step that ended with `code`; None where it was stopped."""
    try:
        found = step.read(run.out / step.name, log)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:  # a command that failed left no figures
        unread = Finding("figures", f"cannot be read: {type(error).__name__}: {error}", passed=False)
        found = [unread] if code == 0 else []
    bad = [finding.what for finding in found if finding.passed is False]
    if code is None:
        status, why = "stopped", "out of time"
    elif code or bad:
        status, why = "failed", f"exit code {code}" if code else f"check: {', '.join(bad)}"
    else:
        status, why = "ok", ""
    return {"status": status, "why": why, "findings": [asdict(finding) for finding in found]}


def run_command(command: Sequence[str], output: Any, limit_s: float) -> int | None:
    """Run a command in the repository's root; its exit code, or None where it was stopped."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=partial(os_calls.die_with_parent, os.getpid()),  # noqa: PLW1509 - this process has one thread
    )
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # at which pytest, too, says what failed so far
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and what it left running
        child.wait()


def take_all(run: Pass, steps: Sequence[Step], minutes: float) -> None:
    """Take the steps that are left, one after the other, as long as they fit."""
    ends_s = clock_s() + 60 * minutes - GRACE_S
    for step in queue(run, steps):
        reason, left_s = step.skip(run), ends_s - clock_s()
        if reason:
            say(write(run, record_of(run, step) | {"status": "skipped", "why": reason}))
        elif run.cuda and step.estimate_s > left_s:
            say(record_of(run, step) | {"why": f"takes about {step.estimate_s:.0f} s, {max(0, left_s):.0f} s are left"})
        elif left_s > 0:
            print(f"{step.name}: {step.title}", flush=True)
            first = run.cuda and not record_of(run, step)["attempts"]
            say(take(run, step, min(left_s, PATIENCE * step.estimate_s) if first else left_s))


def calls_of(run: Pass, left: Sequence[Step], minutes: float) -> dict[str, int]:
    """In which call from now on, of so many minutes, each step is taken if all take what is expected."""
    left, calls, number = [step for step in left if not step.skip(run)], dict[str, int](), 0
    while left:
        number, left_s, waiting = number + 1, 60 * minutes - GRACE_S, list[Step]()
        for step in left:
            if step.estimate_s <= left_s:
                calls[step.name], left_s = number, left_s - step.estimate_s
            else:
                waiting.append(step)
        if len(waiting) == len(left):  # no call is long enough
            break
        left = waiting
    return calls


def say(record: dict[str, Any]) -> None:
    why = f" ({record['why']})" if record["why"] else ""
    print(f"{record['step']}: {record['status']}{why}, {record['seconds']:.0f} s", flush=True)


def table(records: Sequence[dict[str, Any]]) -> list[str]:
    """The findings of each step, in lines of `WIDTH` characters."""
    rows = []
    for record in records:
        reason = {"what": "", "value": record["why"], "against": ""}
        shown = record["findings"] or [reason]
        for number, finding in enumerate(shown):
            mark = {None: "", False: "failed: ", True: "passed: "}[finding.get("passed")]
            head = ["", "", ""] if number else [record["step"], record["status"], f"{record['seconds']:.0f}"]
            rows.append([*head, finding["what"], mark + finding["value"], finding["against"]])
    headings = ["step", "status", "s", "what", "found", "others, or the goal"]
    return text_table.text(headings, rows, WIDTH, align="llrlll", wrap=True)


def show(run: Pass, steps: Sequence[Step]) -> int:
    """Print the table, what failed and what is left. Returns the exit code: 1 where a step failed."""
    records = [record_of(run, step) for step in steps]
    print("\n".join(["", *table(records)]))
    failed = [record for record in records if record["status"] == "failed"]
    for record in failed:
        print(f"failed: {record['step']} ({record['why']}); its log: {record['log']}")
    left = [record["step"] for record in records if record["status"] not in ("ok", "skipped", "failed")]
    if left:
        print(f"left for another call: {', '.join(left)}")
    return 1 if failed else 0


def main() -> None:
    options = parser(__doc__)
    names = [step.name for step in STEPS]
    options.add_argument("--minutes", type=float, default=9, help="that this call may take; default: 9")
    options.add_argument("--data", type=Path, metavar="FOLDER", help="images, rows and tokenizer: see above")
    options.add_argument("--out", type=Path, metavar="FOLDER", help="default: multirun/on_gpu, without one on_cpu")
    options.add_argument("--only", nargs="+", choices=names, metavar="STEP", default=names)
    options.add_argument("--list", action="store_true", help="the steps, their state and their call; run nothing")
    args = options.parse_args()
    cuda = bool(devices.visible_gpus())
    out = args.out or ROOT / "multirun" / ("on_gpu" if cuda else "on_cpu")
    run = Pass(out.resolve(), cuda, args.data.resolve() if args.data else None)
    if run.data and not run.holds_data():
        wanted = f"{IMAGES}, {ROWS} or {TOKENIZER}"
        options.error(f"--data {args.data}: holds no {wanted}; name the folder that does, or leave --data out")
    steps = [step for step in STEPS if step.name in args.only]
    if args.list:
        calls = calls_of(run, queue(run, steps), args.minutes)
        for step in steps:
            state = f"{step.estimate_s:.0f} s, {record_of(run, step)['status']}"
            when = f", call {calls[step.name]}" if step.name in calls else ""
            print(f"{step.name:16} {step.title:44} {step.skip(run) or state + when}")
        return
    run.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of what `take` writes
    take_all(run, steps, args.minutes)
    sys.exit(show(run, steps))


if __name__ == "__main__":
    main()
