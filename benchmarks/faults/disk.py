"""Disks: full, read-only, without inodes; files that a power cut left torn; folders that came from elsewhere."""

import json
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace

from benchmarks.faults.fault import RUN, Act, Fault, Trial
from benchmarks.faults.points import both, edit, held, measure_first, root, then_release, wrote

WHOLE = ("ok", "ok")
CHUNK = bytes(1 << 16)


def mount(place: str, options: str) -> Act:
    """Give a folder of the trial a file system of its own."""

    def act(trial: Trial) -> None:
        folder = trial.temporary if place == "temporary" else trial.folder / place
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "faults", str(folder)], check=True)
        trial.after.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)

    return act


def remount(place: str, option: str) -> Act:
    def act(trial: Trial) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(trial.folder / place)], check=True)

    return act


def fill(trial: Trial) -> None:
    """Leave no byte on the sweep's file system."""
    with suppress(OSError), (trial.sweep / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(CHUNK)
    with suppress(OSError), (trial.sweep / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(CHUNK[:1])


def fill_temporary(trial: Trial) -> None:
    with suppress(OSError), (trial.temporary / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(CHUNK)


def empty(trial: Trial) -> None:
    (trial.sweep / "filler").unlink()


def copy(trial: Trial) -> None:
    """What another machine measured is copied here, without its times of files."""
    measure_first(trial)
    shutil.copytree(trial.sweep, trial.folder / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(trial.sweep)
    (trial.folder / "copy").rename(trial.sweep)


def set_clock(trial: Trial) -> None:
    """The clocks of the machines that wrote the files were wrong, by decades."""
    measure_first(trial)
    for number, path in enumerate(sorted(trial.sweep.rglob("*"))):
        os.utime(path, [(0, 0), (1 << 32, 1 << 32)][number % 2])


def claim_elsewhere(trial: Trial) -> None:
    """A machine that is gone was measuring the first cell."""
    measure_first(trial)
    folder = next(trial.sweep.glob("*seed=1*"))
    (folder / "result.json").unlink()
    (folder / ".running.json").write_text(json.dumps({"host": "gone", "pid": 1, "job": None}))


def unclaim(trial: Trial) -> None:
    for path in trial.sweep.glob("*/.running.json"):
        path.unlink()


_ON_SMALL_DISK = Fault(
    "",
    "",
    prepare=mount("sweep", "size=2m"),
    at=held,
    act=then_release(fill),
    mend=empty,
    says=r"^  failed: .*(No space left|disk)",
    needs=root,
)
_WITH_LIMIT = Fault("", "", RUN, says=r"File too large", statuses=(), ends=("ok",))

FAULTS = (
    replace(
        _WITH_LIMIT,
        name="full-from-the-start",
        what="no file may exceed 500 bytes",
        prefix=("prlimit", "--fsize=500"),
        lines=1,
    ),
    replace(
        _WITH_LIMIT,
        name="full-in-mid-run",
        what="no file may exceed 2,000 bytes",
        prefix=("prlimit", "--fsize=2000"),
    ),
    replace(
        _ON_SMALL_DISK,
        name="full-as-ranks-start",
        what="the disk is full as the ranks start",
        at=wrote("*/config.yaml"),
        act=fill,
    ),
    replace(_ON_SMALL_DISK, name="full-in-training", what="the disk is full in training", inside="hold@step3"),
    replace(_ON_SMALL_DISK, name="full-in-recording", what="the disk is full as is recorded", inside="hold@record"),
    Fault(
        "no-inodes",
        "the disk has 12 inodes",
        RUN,
        prepare=mount("sweep", "size=8m,nr_inodes=12"),
        says=r"^(\[1/2\] refused|  failed): .*(No space left|rank \d cannot write to)",
        ends=("ok",),
        mend=remount("sweep", "nr_inodes=2000"),
        needs=root,
    ),
    Fault(
        "read-only-folder",
        "the sweep's folder is read-only",
        prepare=both(mount("sweep", "size=8m"), remount("sweep", "ro")),
        lines=1,
        says=r"^refused: hydra.sweep.dir=.*Read-only file system",
        statuses=(),
        mend=remount("sweep", "rw"),
        needs=root,
    ),
    Fault(
        "full-temporary-folder",
        "there is no room in TMPDIR",
        prepare=both(mount("temporary", "size=64k,nr_inodes=4"), fill_temporary),
        code=None,
        mend=lambda trial: (trial.temporary / "filler").unlink(),
        needs=root,
    ),
    Fault(
        "torn-record",
        "a power cut left half a record",
        prepare=both(measure_first, edit("*seed=1*/result.json", lambda content: content[: len(content) // 2])),
        code=0,
        statuses=WHOLE,
    ),
    Fault(
        "empty-record",
        "a power cut left an empty record",
        prepare=both(measure_first, edit("*seed=1*/result.json", lambda _: b"")),
        code=0,
        statuses=WHOLE,
    ),
    Fault(
        "claimed-elsewhere",
        "a machine that is gone was measuring a cell",
        prepare=claim_elsewhere,
        says=r"^\[1/2\] refused: name=sweep: process 1 on gone is measuring .*remove ",
        statuses=("ok",),
        mend=unclaim,
    ),
    Fault(
        "wrong-clock",
        "the files of the records are of 1970 and of 2106",
        prepare=set_clock,
        code=0,
        says=r"^\[2/2\] measured before \(ok\)",
        statuses=WHOLE,
    ),
    Fault(
        "copied",
        "the records come from another machine, with other times of their files",
        prepare=copy,
        code=0,
        says=r"^\[2/2\] measured before \(ok\)",
        statuses=WHOLE,
    ),
)
