"""What others computed on the machine, runs that share it, and ranks that take turns."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multicard.machine import environment, load
from multicard.machine.environment import host
from multicard.records import comparable, ownership, run_folder
from tests.conftest import Measured, awaited
from tests.helpers import records

BURN = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass"


def test_what_others_computed_is_the_busy_time_less_the_runs_own():
    before = {0: (100.0, 1.0), 1: (50.0, 0.0), 2: (10.0, 0.0)}
    after = {0: (109.0, 1.5), 1: (57.0, 0.0), 2: (20.0, 4.0)}
    counted = load.others(before, after, own_s=12.0, seconds=10.0, usable={0, 1})
    assert counted["others_cores"] == pytest.approx((9 + 7 - 12) / 10)
    assert counted["stolen_cores"] == pytest.approx(0.05)  # of cores 0 and 1
    assert counted["machine_others_cores"] == pytest.approx((9 + 7 + 10 - 12) / 10)
    alone = load.others(before, after, own_s=99.0, seconds=10.0, usable={0, 1})
    assert alone["others_cores"] == 0.0  # ticks are coarse


def test_linux_counts_ticks_by_core_and_interrupts_are_nobodys():
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 900 7 8 9 40 5 0\ncpu3 1 0 0 0 0 0 0 0 0 0\nintr 5 6\nctxt 7\n"
    assert load.cores_s(stat) == {0: (150 * tick_s, 40 * tick_s), 3: (1 * tick_s, 0.0)}


@pytest.mark.usefixtures("processes")
def test_descendants_are_the_runs_own_while_they_run_and_after():
    before_s = load.own_cpu_s()
    script = f"{BURN}\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running_s = load.own_cpu_s() - before_s
        assert load.own_cpu_s(child.pid) >= 0.28  # as of a race, whose other cells do not disturb one
        child.communicate(b"\n")
    assert running_s >= 0.28
    assert load.own_cpu_s() - before_s >= running_s - 0.05


def test_a_process_of_somebody_else_is_seen(tmp_path: Path):
    """It is started by a shell that ends at once, so that it is nobody's child."""
    watched, done = load.Load(), tmp_path / "done"
    script = f"{BURN}\nopen({str(done)!r}, 'w').close()"
    subprocess.run(["sh", "-c", f'setsid "{sys.executable}" -c "$0" &', script], check=True)
    awaited(done.exists)
    counted = watched.end()
    assert counted["others_cores"] * counted["seconds"] >= 0.25
    assert counted["machine_others_cores"] >= counted["others_cores"] - 1e-9


def test_a_crowd_is_said_at_the_run_and_in_its_record(measured: Measured, monkeypatch, capsys):
    monkeypatch.setattr(environment, "cores", lambda: 1)
    record = measured("gpus=2")
    assert "more CPU ranks than cores: they took turns: 2 ranks on 1 core\n" in capsys.readouterr().out
    assert (record["cores"], record["threads"]) == (1, 1) and ">" in comparable.marks(records.as_record(record))


def run(sweep: Path, name: str, hosts: list[str] | None = None, **marker: Any) -> Path:
    """A run of a sweep: with a record, if `hosts` says where it was measured, or a mark that it is being measured."""
    folder = sweep / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    if hosts is not None:
        run_folder.write_json(folder / "result.json", records.vision(segments=[records.segment() | {"hosts": hosts}]))
    if marker:
        records.claim(folder, **marker)
    return folder


def test_runs_of_a_sweep_on_the_same_node_at_the_same_time_are_counted(tmp_path: Path):
    mine = run(tmp_path, "mine", host=host(), pid=os.getpid())
    run(tmp_path, "ended before", ["here"])  # and after `mine` was claimed, as its data was read
    before = ownership.results(tmp_path)
    for name, hosts in (("meanwhile", ["there", "here"]), ("elsewhere", ["there"])):
        os.utime(run(tmp_path, name, hosts) / "result.json", (1, 1))  # the clock was set back
    run(tmp_path, "running", host=host(), pid=os.getppid())
    run(tmp_path, "gone", host=host(), pid=2**22 + 1)
    run(tmp_path, "running there", host="there", pid=os.getppid())
    assert ownership.beside(mine, {"here", host()}, before) == 2
