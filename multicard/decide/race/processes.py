"""Processes of a race: cells that are started as probes, train a block when they are told to,
and pause.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

import psutil

from multicard.config.base import RunConfig
from multicard.decide.race import readings
from multicard.decide.race.readings import BlockReader, MeasuredBlock
from multicard.machine import devices
from multicard.machine.load import LoadMeter, busy_cores
from multicard.machine.shares import LEASES_POLL_S, MachineShare, MachineShares
from multicard.measure import memory
from multicard.measure.timing import clock_s, pause
from multicard.records import run_folder
from multicard.records.progress import Board
from multicard.records.run_folder import RecordedRun
from multicard.sweep.cells import Cell
from multicard.sweep.executor import Executor, Running

POLL_S = 0.02
# a paused cell is quiet below this share of a core
QUIET_S = 0.1
QUIET_SHARE = 0.2
QUIET_WITHIN_S = 5.0


class CellEndedError(Exception):
    """The process of a cell has ended by itself; its record says why."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__(run.status)
        self.run = run


@dataclass
class CellProcess:
    """A process of a cell, as a probe in a folder of its own;
    `number` is its own in the whole race.

    last: what its ranks wrote when they last paused. step_s: of its steps; None before it has
    trained. start_s,
    block_s: seconds of its start, and of its last block with all that is not measured. ran_at_s:
    when it last paused.
    busy: share of this machine's cores that others had in its last block.
    """

    cell: Cell
    number: int
    executor: Executor
    running: Running
    reader: BlockReader
    board: Board | None = None
    last: MeasuredBlock | None = None
    step_s: float | None = None
    start_s: float = 0.0
    block_s: float = 0.0
    ran_at_s: float = field(default_factory=clock_s)
    busy: float = 0.0

    def run_block(self, block_s: float) -> MeasuredBlock:
        """Train so that `block_s` seconds are measured, and a few steps at least, or until it ends
        (`wait`). A process that has not trained yet does a few steps first,
        which tell how many make a block.
        """
        began_s = clock_s()
        step_s = self._train(0.0, 1.0).mean_step_s if self.step_s is None else self.step_s
        load = LoadMeter()  # of others than the race: its cells that wait are its own
        measured = self._train(block_s, step_s)
        self.busy = busy_cores(load.end()) / len(os.sched_getaffinity(0))
        self.step_s = measured.mean_step_s
        self.ran_at_s = clock_s()
        self.block_s = self.ran_at_s - began_s
        return measured

    def _train(self, seconds: float, step_s: float) -> MeasuredBlock:
        """Train until `seconds` seconds are measured, by steps of `step_s`."""
        assert self.board is not None and self.last is not None
        while True:
            steps = readings.steps_for(seconds, step_s, self.last.skips, self.last.steps_per_epoch)
            self.board.run_to(self.last.step + steps)
            measured = self.wait()
            if len(measured.step_s):
                return measured

    def wait(self) -> MeasuredBlock:
        """Wait until its ranks pause; a CellEndedError where it ends before."""
        while (measured := self.reader.next()) is None:
            if self.running.has_ended():
                raise CellEndedError(self.executor.collect(self.running))
            pause(POLL_S)
        self.last = measured
        return measured

    def end(self) -> None:
        """Have it end, as a probe does."""
        if self.board is not None and self.last is not None:
            if not self.last.step:
                self.board.run_to(1)
            self.board.ask_stop(max(1, self.last.step))
        while not self.running.has_ended():
            pause(POLL_S)
        self.executor.running.remove(self.running)

    def wait_until_quiet(self) -> None:
        """Wait until its loader's workers have filled their queues, and nothing of it computes."""
        ends_s = clock_s() + QUIET_WITHIN_S
        before_s = self._cpu_s()
        used_s = QUIET_S
        while used_s >= QUIET_SHARE * QUIET_S and clock_s() < ends_s:
            pause(QUIET_S)
            now_s = self._cpu_s()
            used_s, before_s = now_s - before_s, now_s

    def _cpu_s(self) -> float:
        """CPU time of its processes."""
        total_s = 0.0
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.running.pid).children(recursive=True):
                total_s += sum(process.cpu_times()[:2])  # user and system
        return total_s


def as_run(cell: Cell, repetition: int, is_probe: bool) -> Cell:
    """The cell as it is raced, a probe, or as it is measured in full."""
    cfg = deepcopy(cell.cfg)
    config = cell.config
    figure = cell.config.race.figure if is_probe else None
    cfg.probe.enabled = is_probe
    cfg.race.figure = figure
    cfg.repetition = repetition
    probe = replace(config.probe, enabled=is_probe)
    race = replace(config.race, figure=figure)
    config = replace(config, probe=probe, race=race, repetition=repetition)
    digits = config.identity()
    ending = (f"-r{repetition}" if repetition > 1 else "") + ("-probe" if is_probe else "")
    changed = cell.folder.name.partition(f"-{digits}")[0]
    folder = run_folder.find_cell(cell.folder.parent, f"{changed}-{digits}{ending}")
    return replace(cell, cfg=cfg, config=config, folder=folder, result=None)


def start(executor: Executor, cell: Cell, number: int, share: MachineShare) -> CellProcess:
    """Start a process of a cell, as a probe, and wait until its ranks are ready to train; a
    CellEndedError where it
    ended before: refused, or out of memory.
    """
    began_s = clock_s()
    (cell.folder / "result.json").unlink(missing_ok=True)
    for path in cell.folder.glob("blocks/*.jsonl"):  # of a process that was killed
        path.unlink()
    process = CellProcess(
        cell, number, executor, executor.start(cell, share), BlockReader(cell.folder)
    )
    process.wait()
    process.board = Board(cell.folder, process.reader.ranks)
    process.start_s = clock_s() - began_s
    return process


@contextmanager
def whole_machine(config: RunConfig) -> Iterator[MachineShare]:
    """Lease all GPUs and cores of this machine, once other commands have given theirs back."""
    on = MachineShares()
    whole = replace(config, exclusive=None)
    while (share := on.take(whole)) is None:
        pause(LEASES_POLL_S)
    try:
        yield share
    finally:
        on.give_back(share)


def free_bytes(on_gpus: bool) -> int:
    """Memory that a process can still have: of the host, or of the GPU that has least;
    0 where NVML does not say.
    """
    if not on_gpus:
        return memory.available_memory_bytes()
    with devices.nvml() as library:
        if library is None:
            return 0
        handles = [
            devices.ask(library, library.nvmlDeviceGetHandleByUUID, uuid)
            for uuid in devices.visible_gpus()
        ]
        told = [
            handle and devices.ask(library, library.nvmlDeviceGetMemoryInfo, handle)
            for handle in handles
        ]
        return min((0 if each is None else each.free for each in told), default=0)
