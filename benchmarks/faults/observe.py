"""Causes a fault, and sees what came of it: records lost, cells measured twice, what is left, what was said."""

import re
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.faults.command import ENDED_WITHIN_S, Command
from benchmarks.faults.fault import Fault, NotReachedError, Outcome, Records, Trial
from multicard.measure.timing import clock_s
from multicard.records import run_folder

# What a sweep's folder has while its runs go on, and no longer
PASSING = (
    ".running.json",
    ".progress*",
    ".agent*",
    ".work*",
    ".*.json.*",
    ".*.parquet.*",
    "segments.json",
    "checkpoint",
)
PATIENCE = 8  # times `within_s`, for which a command may run
NAMED = 3  # of the processes and files that are left


def take(fault: Fault, out: Path) -> Outcome:
    """Cause a fault in a folder of its own under `out`."""
    outcome = Outcome(fault.name, skipped=fault.needs())
    if outcome.skipped:
        return outcome
    with Trial(fault, out / fault.name) as trial:
        try:
            _take(trial, outcome)
        except (NotReachedError, subprocess.SubprocessError, psutil.Error, OSError, LookupError) as error:
            outcome.wrong.append(f"{type(error).__name__}: {error}")
        if outcome.wrong and trial.commands:
            outcome.happened = outcome.happened or (trial.commands[-1].output.splitlines() or [""])[-1]
    return outcome


def _take(trial: Trial, outcome: Outcome) -> None:
    fault = trial.fault
    fault.prepare(trial)
    prepared = len(trial.commands)
    before = measured(trial.sweep)
    command = trial.command = trial.start()
    began_s = command.started_s
    if fault.at is not None:
        trial.wait_for(fault.at)
        began_s = clock_s()
        fault.act(trial)
    code = _ended(trial, command, outcome, min(ENDED_WITHIN_S, PATIENCE * fault.within_s))
    if fault.at is None:
        fault.act(trial)
    after = records(trial.sweep)
    _judge_first(trial, command, code, began_s, outcome)
    if not fault.leaves_jobs:
        _count_left(trial, outcome)
    outcome.twice += again_measured(before, after)
    statuses = tuple(sorted(record["status"] for record in after.values()))
    outcome.happened = f"{','.join(statuses) or f'exit {code}'}: {outcome.happened}"
    if fault.statuses is not None and statuses != fault.statuses:
        outcome.lost += max(0, len(fault.statuses) - len(statuses))
        outcome.wrong.append(f"the records are {statuses}, not {fault.statuses}")
    if fault.ends is not None:
        _type_again(trial, outcome)
    outcome.wrong += [
        f"the command typed before ended with {c.process.poll()}" for c in trial.commands[:prepared] if c.process.poll()
    ]
    if outcome.twice:
        outcome.wrong.append("cells are measured twice")
    if (problem := fault.check(trial)) is not None:
        outcome.wrong.append(problem)


def _ended(trial: Trial, command: Command, outcome: Outcome, seconds: float = ENDED_WITHIN_S) -> int | None:
    """The exit code of a command; one that does not end is stopped."""
    try:
        return command.wait(seconds)
    except subprocess.TimeoutExpired:
        outcome.wrong.append("the command did not end")
        trial.stop()
        return command.wait()


def _judge_first(trial: Trial, command: Command, code: int | None, began_s: float, outcome: Outcome) -> None:
    """What the command said, when, and how it ended."""
    fault, lines = trial.fault, command.output.splitlines()
    if fault.code is not None and code != fault.code:
        outcome.wrong.append(f"exit code {code}, not {fault.code}")
    if "Traceback" in command.output:
        outcome.wrong.append("a traceback is printed")
    if fault.lines is not None and len(lines) > fault.lines:
        outcome.wrong.append(f"{len(lines)} lines are printed, not {fault.lines}")
    said = [line for line in lines if fault.says and re.search(fault.says, line)]
    if fault.says and len(said) != 1:
        outcome.wrong.append(f"{len(said)} lines say {fault.says!r}, not one")
    causes = [record["cause"]["message"] for record in records(trial.sweep).values() if record.get("cause")]
    outcome.happened = (said or causes or lines or [""])[-1].strip().replace(f"{trial.folder}/", "")
    if fault.says and said:
        outcome.knew_s = max(0.0, (command.said_s(fault.says) or began_s) - began_s)
    elif code is not None and code >= 0:
        outcome.knew_s = command.ended_s - began_s
    if outcome.knew_s is not None and outcome.knew_s > fault.within_s:
        outcome.wrong.append(f"it took {outcome.knew_s:.0f} s to say so, not {fault.within_s:.0f} s at most")


def _type_again(trial: Trial, outcome: Outcome) -> None:
    """Type the same command again, without the fault: every cell has to end, and none that is measured anew."""
    fault = trial.fault
    assert fault.ends is not None
    trial.release()
    fault.mend(trial)
    before = measured(trial.sweep)
    command = trial.start(again=True)
    code = _ended(trial, command, outcome)
    after = records(trial.sweep)
    if code:
        outcome.wrong.append(f"typed again, it ends with {code}: {(command.output.splitlines() or [''])[-1]}")
    if "Traceback" in command.output:
        outcome.wrong.append("typed again, it prints a traceback")
    statuses = tuple(sorted(record["status"] for record in after.values()))
    whole = sum(is_whole(folder, record) for folder, record in after.items())
    outcome.lost += max(0, len(fault.ends) - whole)
    outcome.twice += again_measured(before, after)
    if statuses != fault.ends:
        outcome.wrong.append(f"typed again, the records are {statuses}, not {fault.ends}")
    _count_left(trial, outcome, files=True)
    if outcome.lost:
        outcome.wrong.append("records are lost, or not whole")


def _count_left(trial: Trial, outcome: Outcome, files: bool = False) -> None:
    """Count processes that outlast the command and, once all cells have ended, files that nothing needs any more."""
    processes = trial.outlasting()
    names = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            names.append(" ".join(process.cmdline()[:6]) or process.name())
            process.kill()
    if files:
        names += [str(path.relative_to(trial.folder)) for path in passing(trial.sweep)]
    outcome.left += len(names)
    if names:
        outcome.wrong.append(f"left behind: {', '.join(names[:NAMED])}")


def records(sweep: Path) -> Records:
    """The records of a sweep, by folder."""
    read = {path.parent: run_folder.read_json(path) for path in sorted(sweep.glob("*/result.json"))}
    return {folder: record for folder, record in read.items() if record is not None}


def measured(sweep: Path) -> Records:
    """Those that the same command does not measure again."""
    return {folder: record for folder, record in records(sweep).items() if record["status"] in run_folder.DONE}


def again_measured(before: Records, after: Records) -> int:
    """How many cells have another measurement than before, or two records."""
    changed = sum(after.get(folder, {}).get("started_at") != record["started_at"] for folder, record in before.items())
    identities = [
        (record.get("identity"), record.get("repetition"))
        for record in after.values()
        if record["status"] in run_folder.DONE
    ]
    return changed + len(identities) - len(set(identities))


def is_whole(folder: Path, record: dict) -> bool:
    """Whether a record has every step of every rank and epoch exactly once, if it says that the run ended well."""
    if record["status"] != "ok":
        return True
    steps = run_folder.read_steps(folder)
    if steps is None or list(folder.glob("steps/*")):
        return False
    rows = list(zip(*(steps[key].to_pylist() for key in ("epoch", "rank", "step")), strict=True))
    epochs, ranks, numbers = (sorted({row[place] for row in rows}) for place in range(3))
    every = {(epoch, rank, number) for epoch in epochs for rank in ranks for number in numbers}
    planned = record["config"]["epochs"]
    return len(rows) == len(every) and set(rows) == every and epochs == list(range(planned))


def passing(sweep: Path) -> list[Path]:
    """Files that are there only while runs go on."""
    return [path for pattern in PASSING for place in ("", "*/") for path in sweep.glob(place + pattern)]
