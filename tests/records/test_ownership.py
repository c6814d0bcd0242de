"""Claims of run folders: at most one process measures into one, whatever raced,
was killed or has no locks.
"""

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicard.ranks import checkpoint
from multicard.records import ownership, run_folder
from multicard.run import attempts
from tests.conftest import ROOT, awaited
from tests.helpers import records
from tests.helpers.messages import refused, says
from tests.helpers.records import GONE

# as some file systems do
REFUSE = "def fcntl(*_): raise OSError(errno.ENOLCK, 'No locks available')"
# Claims argv[1] on a file system with locks or without, says so, and measures until its input ends
CLAIMS = f"""
import errno, sys
from pathlib import Path
from multicard.records import ownership
if sys.argv[2] == "refused":
    {REFUSE}
    ownership.fcntl.fcntl = fcntl
try:
    ownership.claim(Path(sys.argv[1]))
    print("claimed", flush=True)
    sys.stdin.read()
except ValueError as error:
    print(error, flush=True)
"""


@pytest.fixture(params=["locks", "refused"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with locks, and one that refuses them."""
    if request.param == "refused":
        monkeypatch.setattr(fcntl, "fcntl", refuse)
    return request.param


def refuse(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def race(sweep: Path, rounds: int, number: int, barrier: Any, wins: Any, locks: str) -> None:
    """Claim one folder after another at the same moment as the other racer,
    and measure where that is granted.
    """
    if locks == "refused":
        fcntl.fcntl = refuse
    ownership.RETRY_S = 0.002
    for each in range(rounds):
        folder = sweep / str(each) / "cell"
        barrier.wait()
        try:
            ownership.claim(folder)
            (folder / "mine").write_text(str(number))
            wins[2 * each + number] = 1
        except ValueError as error:
            assert says(str(error), "claim.in-use"), error
        barrier.wait()
        if wins[2 * each + number]:
            # nobody has removed it, or written into it
            assert (folder / "mine").read_text() == str(number)
            ownership.release(folder)


KEPT = ("result.json", "steps.parquet", "a", "b", "c")
ROUNDS = [
    50,
    pytest.param(500, marks=pytest.mark.slow),
    pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_two_that_claim_at_once_at_most_one_measures(tmp_path: Path, locks: str, rounds: int):
    records.put_whole(tmp_path / "ok", records.vision())
    records.put(tmp_path / "failed", records.vision(status="failed"))
    # half of the folders have what a killed process left, or a measurement
    for each in range(0, rounds, 2):
        folder = tmp_path / str(each) / "cell"
        shutil.copytree(tmp_path / ("ok" if each % 4 else "failed"), folder)
        for name in KEPT[1:]:
            (folder / name).touch()
        records.claim(folder, pid=GONE)
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(2, timeout=60.0), context.Array("b", 2 * rounds)
    racers = [
        context.Process(target=race, args=(tmp_path, rounds, n, barrier, wins, locks), daemon=True)
        for n in (0, 1)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0]
    granted = [sum(wins[2 * each : 2 * each + 2]) for each in range(rounds)]
    assert granted.count(2) == 0 and granted.count(1) > 0.8 * rounds
    for each in (each for each in range(rounds) if granted[each]):
        assert {path.name for path in (tmp_path / str(each)).rglob("*")} <= {
            "cell",
            "mine",
            ".cell.before",
            *KEPT,
        }


HERE = {"pid": os.getppid()}
# what stands in another's claim, how long ago it was touched (seconds),
# and who still has the folder
CLAIMED = {
    "a process": (HERE, 999, "process {pid}"),
    "nobody that it names": (
        {"pid": 0, "host": "", "boot": ""},
        100,
        "process 0 on another machine",
    ),
    "a process that is gone": ({"pid": GONE}, 0, None),
    "its number was used again": (HERE | {"started": 1}, 0, None),
    "its lock is free": (HERE | {"locked": True}, 0, None),
    "another start of the machine": (HERE | {"boot": "other"}, 999, None),
    "another machine": (HERE | {"boot": "other", "host": "n2"}, 100, "process {pid} on n2"),
    "another machine that is silent": (HERE | {"boot": "other", "host": "n2"}, 140, None),
    "another namespace": (HERE | {"namespace": 1}, 100, "process {pid}"),
    "another namespace that is silent": (HERE | {"namespace": 1}, 140, None),
}


@pytest.mark.parametrize("case", CLAIMED)
def test_a_claim_counts_as_long_as_its_process_lives(tmp_path: Path, case: str):
    (who, age_s, owner), folder = CLAIMED[case], tmp_path / "sweep" / "cell"
    folder.mkdir(parents=True)
    path = records.claim(folder, **who)
    os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    assert ownership.owner(folder) == (owner and owner.format(**who))
    (folder / "kept").touch()
    if owner is None:
        assert not ownership.claim(folder) and not [*folder.iterdir()] and not path.exists()
    else:
        with refused(
            "claim.in-use", key="name", who=owner.format(**who), cell="cell", files=[str(path)]
        ):
            ownership.claim(folder)
        ownership.release(folder)  # of what is not its own nothing is undone
        assert [*folder.parent.glob(".*")] == [path] and (folder / "kept").exists()


def test_the_same_process_may_start_again(tmp_path: Path, locks: str):
    folder = tmp_path / "cell"
    for _ in range(2):
        assert (
            not ownership.claim(folder)
            and not [*folder.iterdir()]
            and len(ownership.claims(folder)) == 1
        )
        (folder / "result.json").write_text("{}")
        assert ownership.owner(folder) is None and not ownership.is_lost(folder)
    ownership.claims(folder)[0].unlink()
    assert ownership.is_lost(folder)
    ownership.release(folder)
    assert not ownership.claims(folder)


def test_of_two_tasks_of_a_job_one_measures(processes: None, tmp_path: Path):
    """A start that was requeued finds the claim of the one before it, whose lock is free."""
    folder = tmp_path / "cell"
    claims = CLAIMS.replace("claim(Path(sys.argv[1]))", "claim(Path(sys.argv[1]), '7')")
    command = [sys.executable, "-c", claims, str(folder), "locks"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "claimed\n"
        (folder / "kept").touch()
        with refused("claim.in-use", key="name", cell="cell"):
            ownership.claim(folder, "7")
        assert ownership.is_held_by(folder, "7")
        first.kill()
    awaited(lambda: ownership.owner(folder, "7") is None)
    assert ownership.claim(folder, "7") and (folder / "kept").exists()
    ownership.release(folder, "7")
    assert not ownership.claims(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_processes_of_two_containers_do_not_take_each_others_folders(
    processes: None, tmp_path: Path, locks: str
):
    """Each is process 1 of a host of one name."""
    folder = tmp_path / "cell"
    unshared = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        sys.executable,
        "-c",
        CLAIMS,
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen([*unshared, str(folder), locks], **pipes) as first:
        assert first.stdout is not None
        said = first.stdout.readline()
        if not said:
            pytest.skip("needs PID namespaces")
        assert said == "claimed\n"
        second = subprocess.run(
            [*unshared, str(folder), locks], **pipes | {"stdin": subprocess.DEVNULL}, check=True
        )
        assert says(second.stdout, "claim.in-use", who="process 1", cell="cell")
        first.kill()
    path = ownership.claims(folder)[0]
    if locks == "refused":
        os.utime(path, (path.stat().st_mtime - 2 * ownership.LEASE_S,) * 2)
    awaited(lambda: ownership.owner(folder) is None)
    assert not ownership.claim(folder)
    ownership.release(folder)


def test_a_claim_that_came_to_nothing_leaves_things_as_they_were(tmp_path: Path):
    folder = tmp_path / "cell"
    ownership.claim(folder)
    ownership.disclaim(folder)
    assert not list(tmp_path.iterdir())
    records.put_whole(folder, records.vision())
    ownership.claim(folder)
    ownership.disclaim(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]
    assert run_folder.finished(folder) is not None


def test_a_measurement_is_kept_until_the_next_one_has_finished(tmp_path: Path):
    folder = tmp_path / "cell-0a1b2c3d"
    records.put_whole(folder, records.vision(name="1"))
    for status, left in (("failed", 2), ("failed", 2), ("ok", 1)):
        ownership.claim(folder)
        records.put_whole(folder, records.vision(name="2", status=status))
        ownership.release(folder)
        assert len(list(tmp_path.iterdir())) == left
        assert run_folder.find_cell(tmp_path, "gpus=2-0a1b2c3d") == folder


def cut_off(folder: Path) -> None:
    run_folder.write_parquet(folder / "steps.parquet", {"step": [1]})
    os.truncate(folder / "steps.parquet", 100)


def changed(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: run_folder.write_json(folder / "result.json", records.vision() | changes)


OTHER, GONE_STEPS = "claim.other-record", "claim.no-steps"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a newer schema": (changed(schema_version=99), OTHER),
    "another type": (changed(total_s="long"), OTHER),
    "its steps cut off": (cut_off, GONE_STEPS),
    "no steps": (lambda folder: (folder / "steps.parquet").write_bytes(b""), GONE_STEPS),
    "its steps gone": (lambda folder: (folder / "steps.parquet").unlink(), GONE_STEPS),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_measurement_that_cannot_be_read_is_not_replaced(tmp_path: Path, wrong: str):
    folder = tmp_path / "sweep" / "cell"
    records.put_whole(folder, records.vision())
    assert run_folder.finished(folder) is not None
    spoil, code = WRONG[wrong]
    spoil(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run_folder.finished(folder) is None
    with refused(code, key="name", cell="cell"):
        ownership.claim(folder)
    assert {
        path: path.read_bytes() for path in folder.iterdir()
    } == before and not ownership.claims(folder)


def test_what_is_no_record_is_measured_again(tmp_path: Path):
    half = json.dumps(records.vision())[:999]  # after a power cut, as nothing is, its steps whole
    for number, wrong in enumerate(("{}", '{"status": 1}', "[]", "", "\0", half, None)):
        folder = tmp_path / str(number)
        records.put_whole(folder, records.vision())
        (folder / "result.json").unlink()
        (
            os.mkfifo(folder / "result.json")
            if wrong is None
            else (folder / "result.json").write_text(wrong)
        )
        run_folder.write_json(folder / "segments.json", {"segments": number})
        run_folder.write_json(folder / "checkpoint" / "latest.json", {"step": 1})
        assert run_folder.finished(folder) is None and not attempts.is_trained(folder, 1)
        assert checkpoint.latest(folder) is None
        assert not ownership.claim(folder) and not [*folder.iterdir()]


def test_a_claim_is_touched_while_its_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As those of other machines know it by that alone."""
    monkeypatch.setattr("tests.conftest.PATIENCE_S", 20.0)
    monkeypatch.setattr(ownership, "BEAT_S", 0.01)
    ownership.claim(tmp_path / "cell")
    (path,) = ownership.claims(tmp_path / "cell")
    os.utime(path, (0, 0))
    awaited(lambda: path.stat().st_mtime > 0)
    ownership.release(tmp_path / "cell")
