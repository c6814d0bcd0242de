"""The faults that need no SLURM: a table, caused one by one."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from multicard.measure.timing import pause
from multicard.records import limits, run_folder
from tests.faults import harness
from tests.faults.acts import (
    IN_GROUP,
    both,
    computed,
    empty,
    fill,
    from_terminal,
    held,
    is_unpickled,
    kill_children,
    kill_command,
    kill_holder,
    limit_memory,
    mount,
    no_memory_group,
    photographs,
    remount,
    root,
    send_nonsense,
    then_release,
    type_beside,
    wrote,
)
from tests.faults.harness import RUN, SWEEP, Fault, Trial
from tests.records.test_record import step_columns

FAILED, OOM, WHOLE = ("failed", "ok"), ("ok", "oom"), ("ok", "ok")
LOCAL_JOBS = (*SWEEP, "hydra/launcher=submitit_local")
PHOTOGRAPHS = (
    *(*RUN, "gpus=2", "seed=1", "lr=1e-6", "dataset=images", "dataset.root={trial}/photographs"),
    *("dataset.train_limit=null", "dataset.test_limit=null", "batch_size=4", "dataset.cache=none"),
)
STOPPED_S = 40.0  # above 20 steps, on a machine that is busy too
REPLACED = "photographs/train/cats/0.jpg"
SAYS_FAILED = r"^(\[./2\] .*)?failed: "
NO_SPACE = SAYS_FAILED + r".*(No space left|\[\[(disk\.full|folder\.))"


def move_away(trial: Trial) -> None:
    (trial.folder / "photographs").rename(trial.folder / "away")


def put_back(trial: Trial) -> None:
    (trial.folder / "away").rename(trial.folder / "photographs")


def replace_one(trial: Trial) -> None:
    (trial.folder / REPLACED).rename(trial.folder / "before.jpg")
    shutil.copy(trial.folder / REPLACED.replace("cats", "dogs"), trial.folder / REPLACED)


def put_one_back(trial: Trial) -> None:
    (trial.folder / "before.jpg").replace(trial.folder / REPLACED)


def remove_run(trial: Trial) -> None:
    shutil.rmtree(trial.first_run())


def stop_for_a_while(trial: Trial) -> None:
    os.kill(trial.holder(), signal.SIGSTOP)
    trial.release()
    pause(STOPPED_S)
    os.kill(trial.holder(), signal.SIGCONT)


def is_marked(sign: str) -> Callable[[Trial], str | None]:
    """Whether the record of the only run has this mark."""

    def marked(trial: Trial) -> str | None:
        (folder,) = harness.records(trial.sweep)
        run = run_folder.finished(folder)
        return (
            None
            if run is not None and sign in limits.brief_signs(run.record)
            else f"it has no mark {sign}"
        )

    return marked


# Kinds of faults: by what a rank does, at its third step (in the second epoch,
# with the first on disk), and so on
AT_STEP = Fault("", inside="hold@step3", at=held, statuses=FAILED)
SIGNALLED = replace(
    AT_STEP, says=r"^\[\[sweep\.left ended=\"interrupted\" ", statuses=("interrupted",)
)
# Before the first cell is begun there is nothing to resume
EARLY_LINE = (
    r'^(\[\[sweep\.left ended="interrupted"|\[\[command\.interrupted |interrupted by SIGINT)'
)
EARLY = Fault(
    "", entry="train_vision.py", code=None, act=from_terminal(), says=EARLY_LINE, lines=12
)
LIMITED = Fault("", RUN, says=r"File too large", statuses=(), ends=("ok",))
# a machine without a network
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
BY_ITSELF = {  # what the last rank does, and what is said
    "raise": "rank 1: KeyError: 'no such weight'",
    "exit": r"\[\[rank\.exited rank=1 exit_code=3\]\]",
    "crash": r'\[\[rank\.killed rank=1 signal="SIGSEGV"\]\]',
}
KILLED = r'\[\[rank\.killed rank=1 signal="SIGKILL"\]\]'
LONG_TMPDIR = f'TMPDIR=$TMPDIR/{"x" * 140}; mkdir $TMPDIR; exec "$@"'
DISK_OF_2_MB = mount("sweep", "size=2m")
FULL = Fault(
    "", prepare=DISK_OF_2_MB, at=held, act=then_release(fill), mend=empty, needs=root, says=NO_SPACE
)

QUICK = (  # in `make test-all`
    replace(AT_STEP, name="rank-killed", act=kill_holder(), says=SAYS_FAILED + KILLED),
    replace(AT_STEP, name="controller-killed", act=kill_command(), code=-signal.SIGKILL, statuses=()),
    replace(SIGNALLED, name="ctrl-c-in-training", act=from_terminal(), check=lambda trial: (
        None if trial.command.said(r"^\[\[sweep\.resume .*-m ") else "it does not say how to resume")),
    replace(SIGNALLED, name="ctrl-c-of-jobs", words=LOCAL_JOBS, act=from_terminal()),
    replace(EARLY, name="ctrl-c-at-0.4s", at=computed(0.4)),
    replace(LIMITED, name="full-from-the-start", prefix=("prlimit", "--fsize=500"), lines=1),
)  # fmt: skip
LONG = (  # in `make faults`
    replace(SIGNALLED, name="ctrl-c-ten-times", act=from_terminal(times=10)),
    *(replace(SIGNALLED, name=f"{number.name.lower()}", act=kill_command(number))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)),
    replace(SIGNALLED, name="terminal-closed", act=from_terminal(signal.SIGHUP)),
    replace(SIGNALLED, name="ctrl-backslash", act=from_terminal(signal.SIGQUIT)),
    *(replace(EARLY, name=f"ctrl-c-at-{seconds}s", at=computed(seconds)) for seconds in (0.05, 0.2, 0.8)),
    replace(SIGNALLED, name="ctrl-c-as-ranks-start", inside="", at=wrote("*/environment.json"), act=from_terminal()),
    replace(SIGNALLED, name="ctrl-c-in-evaluation", inside="hold@evaluate", act=from_terminal()),
    replace(SIGNALLED, name="ctrl-c-between-cells", inside="", act=from_terminal(), statuses=None,
        at=lambda trial: trial.commands[-1].said(r"^\[1/2\] .* ok\b")),
    *(Fault(f"rank-{act}", inside=f"{act}@step3", prefix=("prlimit", "--core=0"), says=SAYS_FAILED + said,
        statuses=FAILED) for act, said in BY_ITSELF.items()),
    Fault("allocator", inside="run_out@step3", code=0, says=r"^(\[./2\] .*)?oom: rank 1: ", statuses=OOM, ends=OOM),
    replace(LIMITED, name="full-in-mid-run", prefix=("prlimit", "--fsize=2000")),
    Fault("kernel-memory", inside="swallow@step3", prefix=IN_GROUP, prepare=limit_memory, code=0,
        says=r"^(\[./2\] .*)?oom: \[\[rank\.out-of-memory .*rank=1", statuses=OOM, ends=OOM, needs=no_memory_group),
    replace(AT_STEP, name="rank-terminated-goes-on", act=then_release(kill_holder(signal.SIGTERM)), code=0,
        statuses=WHOLE),
    replace(AT_STEP, name="worker-killed", words=(*SWEEP, "num_workers=1", "dataset.train_limit=320"),
        inside="hold@step2", act=then_release(kill_children(Trial.holder, "")), says=SAYS_FAILED + "rank 1: .*worker"),
    replace(AT_STEP, name="fork-server-killed", says=SAYS_FAILED, act=then_release(
        kill_children(lambda trial: trial.command.process.pid, "multiprocessing.forkserver"))),
    replace(AT_STEP, name="job-killed", words=LOCAL_JOBS, inside="hold@record", act=kill_holder(),
        says=r"^\[1/2\] .*failed: \[\[cell\.no-record "),
    replace(AT_STEP, name="launcher-killed", words=LOCAL_JOBS, act=then_release(kill_command()), code=-signal.SIGKILL,
        statuses=None),
    replace(AT_STEP, name="folder-removed", act=then_release(remove_run), code=None, statuses=None),
    replace(AT_STEP, name="two-commands", act=then_release(type_beside), code=0, statuses=WHOLE, check=lambda trial: (
        None if trial.commands[1].said(r"\[\[claim\.in-use ") else "the second does not say who is measuring")),
    Fault("few-files", prefix=("prlimit", "--nofile=64"), code=None, needs=root),
    replace(SIGNALLED, name="ctrl-c-in-recording", inside="hold@record", act=then_release(from_terminal()),
        statuses=None),
    replace(FULL, name="full-as-ranks-start", at=wrote("*/config.yaml"), act=fill),
    Fault("read-only-folder", prepare=both(mount("sweep", "size=8m"), remount("ro")), mend=remount("rw"), needs=root,
        says=r"^refused: .*hydra\.sweep\.dir.*Read-only file system", lines=1, statuses=()),
    replace(FULL, name="full-in-training", inside="hold@step3"),
    replace(FULL, name="full-in-recording", inside="hold@record"),
    Fault("full-temporary", prepare=both(mount("temporary", "size=64k,nr_inodes=4"),
        lambda trial: fill(trial, "temporary")), code=None, mend=empty, needs=root),
    Fault("no-inodes", RUN, prepare=mount("sweep", "size=8m,nr_inodes=12"), mend=remount("nr_inodes=2000"), needs=root,
        says=r"^(refused|failed): .*(No space left|\[\[folder\.unwritable .*rank=\d)", ends=("ok",)),
    Fault("data-removed", PHOTOGRAPHS, prepare=photographs, inside="hold@step3", at=held, act=then_release(move_away),
        mend=put_back, says=SAYS_FAILED + r"rank \d: .*photographs", statuses=("failed",), ends=("ok",)),
    Fault("data-replaced", PHOTOGRAPHS, prepare=photographs, inside="hold@step3", at=held,
        act=then_release(replace_one), mend=put_one_back, code=0, statuses=("ok",), ends=("ok",),
        check=is_marked(limits.MIXED_DATA.sign)),
    Fault("rank-stopped", (*RUN, "gpus=2", "seed=1", "batch_size=4", "dataset.train_limit=80"), inside="hold@step5",
        at=held, act=stop_for_a_while, code=0, statuses=("ok",), ends=("ok",), check=is_marked(limits.STALLED.sign)),
    replace(AT_STEP, name="rank-killed-by-signal-40", act=kill_holder(40),
        says=SAYS_FAILED + r'\[\[rank\.killed rank=1 signal="signal 40"\]\]'),
    Fault("output-full", RUN, prefix=("sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"), code=0, statuses=("ok",),
        ends=("ok",)),
    Fault("nobody-reads", SWEEP, prefix=("bash", "-c", 'exec "$@" > >(exec true) 2>&1', "bash"), code=0,
        statuses=WHOLE),
    Fault("long-temporary", RUN, prefix=("sh", "-c", LONG_TMPDIR, "sh"),
        says=SAYS_FAILED + r"\[\[run\.no-rank ", statuses=("failed",), ends=("ok",)),
    Fault("strangers", (*RUN, "gpus=2", "seed=1"), inside="hold@step3", at=held, act=then_release(send_nonsense),
        code=0, statuses=("ok",), ends=("ok",), check=is_unpickled),
    Fault("loopback-alone", (*RUN, "gpus=2"), prefix=ALONE, code=0, statuses=("ok",), ends=("ok",), needs=root),
    Fault("left-over-variables", RUN, variables={"GROUP_RANK": "1", "RANK": "3", "GIT_DIR": "/nowhere"}, code=0,
        statuses=("ok",), ends=("ok",)),
)  # fmt: skip


@pytest.mark.usefixtures("processes")
@pytest.mark.faults
@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=fault.name) for fault in QUICK),
        *(pytest.param(fault, id=fault.name, marks=pytest.mark.nightly) for fault in LONG),
    ],
)
def test_a_fault_loses_nothing_and_leaves_nothing(fault: Fault, tmp_path: Path):
    if problem := fault.needs():
        pytest.skip(problem)
    assert harness.wrong(fault, tmp_path) == []


def test_steps_that_are_missing_and_cells_that_are_measured_again_are_noticed(tmp_path: Path):
    config = {"epochs": 1, "batch_size": 16, "dataset": {"train_limit": 64}}
    record = {
        "status": "ok",
        "config": config,
        "axes": {"gpus": 2, "nodes": 1},
        "segments": [{"steps": 2}],
    }
    for rank in (0, 1):
        run_folder.write_steps(tmp_path, rank, 0, step_columns(rank))
    every = run_folder.merge_steps(tmp_path)
    assert harness.is_whole(tmp_path, record)
    assert not harness.is_whole(tmp_path, record | {"segments": [{"steps": 2}, {"steps": 1}]})
    for left in (every[:2], every.take([0, 2]), every[:3], every.take([0, 1, 2, 2])):
        run_folder.write_parquet(
            tmp_path / "steps.parquet", {name: left[name] for name in left.column_names}
        )
        assert not harness.is_whole(tmp_path, record)
    measured = {tmp_path: record | {"started_at": "now", "identity": "a"}}
    for before, starts, times in (
        ({}, {"0": 1, "1": 1}, 0),
        ({}, {"0": 1, "1": 2}, 1),
        (measured, {"0": 1}, 1),
    ):
        started = Counter({f"{rank} {tmp_path}": number for rank, number in starts.items()})
        assert harness.again_measured(before, measured, started) == times
