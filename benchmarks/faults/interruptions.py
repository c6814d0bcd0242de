"""Signals by which a user, a terminal or a system ends a command: early, late, twice."""

import signal
from dataclasses import replace

from benchmarks.faults.fault import SWEEP, Fault
from benchmarks.faults.points import computed, from_terminal, held, kill_command, said, then_release, wrote

STEP = "hold@step3"
INTERRUPTED = r"^interrupted: \d of 2 cells are left:"
SIGINT = r"^interrupted(:| by SIGINT)"  # before the first cell is begun there is nothing to resume

_AT_STEP = Fault(
    "",
    "",
    inside=STEP,
    at=held,
    says=INTERRUPTED,
    statuses=("interrupted",),
)
_EARLY = Fault("", "", program=("train_vision.py",), act=from_terminal(), code=None, says=SIGINT, lines=12)

FAULTS = (
    *(
        replace(
            _EARLY, name=f"ctrl-c-at-{seconds}s", what=f"Ctrl-C after {seconds} s of start-up", at=computed(seconds)
        )
        for seconds in (0.05, 0.2, 0.4, 0.8)
    ),
    Fault(
        "ctrl-c-as-ranks-start",
        "Ctrl-C as the ranks start",
        at=wrote("*/environment.json"),
        act=from_terminal(),
        says=INTERRUPTED,
        statuses=("interrupted",),
    ),
    replace(_AT_STEP, name="ctrl-c-in-training", what="Ctrl-C in training", act=from_terminal()),
    replace(_AT_STEP, name="ctrl-c-ten-times", what="Ctrl-C ten times, at once", act=from_terminal(times=10)),
    replace(
        _AT_STEP,
        name="ctrl-c-in-evaluation",
        what="Ctrl-C while the first epoch is evaluated",
        inside="hold@evaluate",
        act=from_terminal(),
    ),
    Fault(
        "ctrl-c-in-recording",
        "Ctrl-C as the controller records",
        inside="hold@record",
        at=held,
        act=then_release(from_terminal()),
        says=INTERRUPTED,
    ),
    Fault(
        "ctrl-c-between-cells",
        "Ctrl-C between two cells",
        at=said(r"^  1 of 2 cells ended"),
        act=from_terminal(),
        says=INTERRUPTED,
    ),
    replace(
        _AT_STEP,
        name="ctrl-c-of-jobs",
        what="Ctrl-C in training (submitit_local)",
        words=(*SWEEP, "hydra/launcher=submitit_local"),
        act=from_terminal(),
    ),
    *(
        replace(_AT_STEP, name=f"{number.name.lower()}", what=f"{number.name} of the command", act=kill_command(number))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    ),
    replace(
        _AT_STEP,
        name="terminal-closed",
        what="SIGHUP of all its processes, as a terminal that is closed sends",
        act=from_terminal(signal.SIGHUP),
    ),
    replace(
        _AT_STEP,
        name="ctrl-backslash",
        what="SIGQUIT of all its processes, as Ctrl-\\ sends",
        act=from_terminal(signal.SIGQUIT),
    ),
)
