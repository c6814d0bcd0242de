"""A sweep of tiny cells over SLURM with a random fault every few seconds, typed again until all are measured.

    python -m tests.faults.soak MINUTES [SEED]

Every cell has to end with one whole record that never changed once it was there, and nothing may be left.
"""

import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import CalledProcessError

import psutil

from multicard.measure.timing import clock_s, in_hours, pause
from multicard.ranks import interruption
from multicard.records import run_folder
from tests.faults import cluster, harness
from tests.faults.acts import empty, fill, mount
from tests.faults.harness import ROOT, TINY, Command, Fault, Trial

CELLS_A_MINUTE = 20
AT_ONCE = 4  # jobs
BETWEEN_S = (2.0, 6.0)  # two faults
LASTS_S = (2.0, 5.0)  # a drained node, a full disk
PATIENCE, LEAST_S = 4, 900.0  # all cells may take so many times the minutes of faults, or so many seconds
DISK = "size=512m"


class Soak:
    """The sweep, what was done to it, and the records that were seen."""

    def __init__(self, trial: Trial, rng: random.Random) -> None:
        self.trial, self.rng = trial, rng
        self.seen: dict[Path, str] = {}  # when each cell that is measured had been started
        self.changed: set[Path] = set()
        self.done: Counter[str] = Counter()
        self.command: Command | None = None

    def look(self) -> None:
        """Note records that have come, and those that are no longer what they were."""
        records = harness.measured(self.trial.sweep)
        self.changed |= {
            folder
            for folder, started_at in self.seen.items()
            if records.get(folder, {}).get("started_at") != started_at
        }
        self.seen |= {folder: record["started_at"] for folder, record in records.items()}

    def type_again(self) -> None:
        """Type the command, unless it is running."""
        if self.command is None or self.command.process.poll() is not None:
            self.command = self.trial.start(again=self.command is not None)

    def ended_well(self) -> bool:
        return self.command is not None and self.command.process.poll() == 0

    def controllers(self) -> list[int]:
        claims = [run_folder.read_json(path) for path in self.trial.sweep.glob(f"*/{run_folder.RUNNING}")]
        return sorted(claim["pid"] for claim in claims if claim is not None)

    def ranks(self) -> list[int]:
        """The children of the controllers' fork servers."""
        ranks = []
        for pid in self.controllers():
            with suppress(psutil.Error):
                for child in psutil.Process(pid).children():
                    if "forkserver" in " ".join(child.cmdline()):
                        ranks += [rank.pid for rank in child.children()]
        return ranks

    # ---- the faults

    def kill_rank(self) -> bool:
        return self._kill(self.ranks())

    def kill_controller(self) -> bool:
        return self._kill(self.controllers())

    def kill_launcher(self) -> bool:
        return self._kill([self.command.process.pid] if self.command and self.command.process.poll() is None else [])

    def drain(self) -> bool:
        return self._without_node("drain")

    def take_down(self) -> bool:
        return self._without_node("down")

    def fill_disk(self) -> bool:
        fill(self.trial)
        pause(self.rng.uniform(*LASTS_S))
        empty(self.trial)
        return True

    def _kill(self, pids: list[int]) -> bool:
        with suppress(psutil.NoSuchProcess):
            if pids:
                psutil.Process(self.rng.choice(pids)).send_signal(signal.SIGKILL)
                return True
        return False

    def _without_node(self, state: str) -> bool:
        node = self.rng.choice(cluster.NODES)
        try:
            cluster.update(node, state)
            pause(self.rng.uniform(*LASTS_S))
        finally:
            cluster.resume()
        return True


FAULTS: dict[str, Callable[[Soak], bool]] = {
    "SIGKILL of a rank": Soak.kill_rank,
    "SIGKILL of a controller": Soak.kill_controller,
    "SIGKILL of the command": Soak.kill_launcher,
    "a node drained": Soak.drain,
    "a node down": Soak.take_down,
    "the disk full": Soak.fill_disk,
}


def sweep(cells: int) -> Fault:
    words = ("-m", "hydra/launcher=submitit_slurm", "hydra.sweep.dir={sweep}", *TINY, "gpus=1", "cpus_per_gpu=1")
    seeds = ",".join(map(str, range(cells)))
    words = (*words, f"hydra.launcher.array_parallelism={AT_ONCE}", f"seed={seeds}")
    return Fault("soak", words, "train_vision.py")


def run(minutes: float, seed: int, out: Path) -> int:
    """Print what was done, and what came of it. Returns the exit code: 1 where a cell is not measured exactly once, or
    anything is left."""
    if problem := cluster.problem():
        print(problem)
        return 1
    cells, began_s = round(CELLS_A_MINUTE * minutes), clock_s()
    with Trial(sweep(cells), out) as trial:
        faults = dict(FAULTS)
        try:
            mount("sweep", DISK)(trial)
        except CalledProcessError:
            del faults["the disk full"]
            print("the disk is not filled: a file system of its own needs root")
        soak = Soak(trial, random.Random(seed))
        try:
            end_s = began_s + max(60 * PATIENCE * minutes, LEAST_S)
            until_measured(soak, faults, began_s + 60 * minutes, end_s)
            return report(soak, cells, clock_s() - began_s)
        finally:
            cluster.cancel_all()
            cluster.resume()
            unneeded = shutil.ignore_patterns("*.pkl", "filler")
            shutil.copytree(trial.sweep, out / "records", ignore=unneeded, dirs_exist_ok=True)


def until_measured(soak: Soak, faults: dict[str, Callable[[Soak], bool]], calm_s: float, end_s: float) -> None:
    """Cause faults until `calm_s`; then wait, until the command ends with every cell measured, or `end_s`."""
    while clock_s() < end_s:
        soak.type_again()
        if clock_s() < calm_s:
            name = soak.rng.choice(list(faults))
            if faults[name](soak):
                soak.done[name] += 1
        pause(soak.rng.uniform(*BETWEEN_S))
        soak.look()
        if soak.ended_well():
            return


def report(soak: Soak, cells: int, took_s: float) -> int:
    """Say what is true at the end; the exit code."""
    trial = soak.trial
    records = harness.records(trial.sweep)
    whole = sum(record["status"] == "ok" and harness.is_whole(folder, record) for folder, record in records.items())
    twice = len(soak.changed) + harness.again_measured({}, records)
    left = trial.left(files=True)
    for name, count in soak.done.items():
        print(f"{count:5} x {name}")
    print(f"the command was typed {len(trial.commands)} times in {in_hours(took_s)}")
    print(f"{whole} of {cells} cells are measured, {twice} of them twice; {len(left)} processes or files are left")
    print("\n".join(f"left: {name}" for name in left))
    return 0 if whole == cells and not twice and not left else 1


if __name__ == "__main__":
    for number in interruption.SIGNALS:  # a shell ignores some of them for what it starts beside itself
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # by way of what a trial undoes
    minutes, *seed = sys.argv[1:]
    sys.exit(run(float(minutes), int((seed or ["0"])[0]), ROOT / "multirun" / "soak"))
