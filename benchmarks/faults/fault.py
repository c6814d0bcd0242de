"""What a fault is, as data: the command, what is done to it and when, and what must be true afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.faults.trial import Trial

Act = Callable[["Trial"], object]
Point = Callable[["Trial"], object]  # true once the command has come to it

ENTRY = ("benchmarks/faults/entry.py",)
TINY = (
    *("device=cpu", "dataset.image_size=32", "dataset.train_limit=64", "dataset.test_limit=32", "epochs=2"),
    *("batch_size=16", "model.width=0.35", "warmup_steps=1", "num_workers=0", "tracker.mode=disabled"),
)
SWEEP = ("-m", "hydra.sweep.dir={sweep}", *TINY, "gpus=2", "seed=1,2")  # the first cell is the one that a fault hits
RUN = ("hydra.run.dir={sweep}", *TINY)


def nothing(_: "Trial") -> None: ...


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        what: it is, in words.
        words: of the command, after `program`; {sweep} is the sweep's folder, {trial} the folder of this trial.
        program: a script or `-m module` for Python, in the repository's root.
        inside: what a rank or the controller of the first cell does at one of its own points, as "raise@step3": see
            work.py.
        prefix: a command that runs the command, as prlimit does.
        variables: of the command's environment.
        prepare: called before the command is typed.
        at: the point at which `act` is called; None: once it has ended.
        mend: called before the command is typed again.
        undo: called at the end, however the trial went.
        code: the command's exit code; a negative number is a signal, None any.
        says: a regular expression of which the output has one line.
        lines: of the output, at most; None: any.
        statuses: of the records, sorted, when the command has ended; None: any.
        ends: the same when the command was typed again; None: it is not.
        within_s: seconds from the act (without one, from the start) to that line.
        leaves_jobs: jobs of SLURM go on after the command.
        check: says what else is wrong; None where nothing is.
        needs: says why the fault cannot be caused on this machine; "" where it can.
    """

    name: str
    what: str
    words: tuple[str, ...] = SWEEP
    program: tuple[str, ...] = ENTRY
    inside: str = ""
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Act = nothing
    at: Point | None = None
    act: Act = nothing
    mend: Act = nothing
    undo: Act = nothing
    code: int | None = 1
    says: str = ""
    lines: int | None = None
    statuses: tuple[str, ...] | None = None
    ends: tuple[str, ...] | None = ("ok", "ok")
    within_s: float = 60.0
    leaves_jobs: bool = False
    check: Callable[["Trial"], str | None] = nothing
    needs: Callable[[], str] = str


@dataclass
class Outcome:
    """What a fault did.

    Args:
        happened: the statuses of the records or the exit code, and the line that says why.
        lost: records that are not there, or not whole.
        twice: cells that were measured although they were measured before, or have two records.
        knew_s: seconds until the command said so; None where it did not, or was killed itself.
        left: processes and files that nothing needs any more.
        wrong: what is, in words.
        skipped: why the fault was not caused; "" where it was.
    """

    name: str
    happened: str = ""
    lost: int = 0
    twice: int = 0
    knew_s: float | None = None
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""


Records = dict[Path, dict[str, Any]]
