"""The processes of a race: each trains a block of its cell when asked, then pauses.

They start as probes (`probe.enabled`), in folders of their own.
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
# A paused cell is quiet once it uses less than this share of a core, measured over QUIET_S.
QUIET_S = 0.1
QUIET_SHARE = 0.2
QUIET_WITHIN_S = 5.0  # The race waits at most this long for a paused cell to become quiet.


class CellEndedError(Exception):
    """The process of a cell ended by itself. The record of its run says why."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__(run.status)
        self.run = run


@dataclass
class CellProcess:
    """A process of a cell, which runs as a probe in a folder of its own.

    Attributes:
        number: unique in the whole race.
        last: the block that its ranks wrote when they last paused.
        step_s: seconds of a step, or None before the process has trained.
        start_s: seconds that its start took.
        block_s: seconds of its last block, including the steps that are not measured.
        ran_at_s: clock time of its last pause.
        busy: share of this machine's cores that other processes used during its last block.
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
        """Train until about `block_s` seconds are measured, but at least a few steps.

        A process that has not trained yet first does a few steps, whose time decides how many steps
        make a block.

        Raises:
            CellEndedError: the process ended before (`wait`).
        """
        began_s = clock_s()
        step_s = self._train(0.0, 1.0).mean_step_s if self.step_s is None else self.step_s
        # This meters processes outside of the race: its waiting cells are this process's children.
        load = LoadMeter()
        measured = self._train(block_s, step_s)
        self.busy = busy_cores(load.end()) / len(os.sched_getaffinity(0))
        self.step_s = measured.mean_step_s
        self.ran_at_s = clock_s()
        self.block_s = self.ran_at_s - began_s
        return measured

    def _train(self, seconds: float, step_s: float) -> MeasuredBlock:
        """Train until `seconds` seconds are measured, if a step takes `step_s`."""
        assert self.board is not None and self.last is not None
        while True:
            steps = readings.steps_for(seconds, step_s, self.last.skips, self.last.steps_per_epoch)
            self.board.run_to(self.last.step + steps)
            measured = self.wait()
            if len(measured.step_s):
                return measured

    def wait(self) -> MeasuredBlock:
        """Wait until the ranks pause. Raise CellEndedError if the process ends before."""
        while (measured := self.reader.next()) is None:
            if self.running.has_ended():
                raise CellEndedError(self.executor.collect(self.running))
            pause(POLL_S)
        self.last = measured
        return measured

    def end(self) -> None:
        """Make the process end, as a probe ends, and wait for it."""
        if self.board is not None and self.last is not None:
            if not self.last.step:
                self.board.run_to(1)
            self.board.ask_stop(max(1, self.last.step))
        while not self.running.has_ended():
            pause(POLL_S)
        self.executor.running.remove(self.running)

    def wait_until_quiet(self) -> None:
        """Wait until its loader's workers have filled their queues, and nothing computes."""
        ends_s = clock_s() + QUIET_WITHIN_S
        before_s = self._cpu_s()
        used_s = QUIET_S
        while used_s >= QUIET_SHARE * QUIET_S and clock_s() < ends_s:
            pause(QUIET_S)
            now_s = self._cpu_s()
            used_s, before_s = now_s - before_s, now_s

    def _cpu_s(self) -> float:
        """Return the CPU time of all its processes, in seconds."""
        total_s = 0.0
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.running.pid).children(recursive=True):
                total_s += sum(process.cpu_times()[:2])  # User and system time.
        return total_s


def as_run(cell: Cell, repetition: int, is_probe: bool) -> Cell:
    """Return the cell as it is raced (a probe), or as it is measured in full."""
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
    """Start a process of a cell as a probe, and wait until its ranks are ready to train.

    Raises:
        CellEndedError: the process was refused or ran out of memory.
    """
    began_s = clock_s()
    (cell.folder / "result.json").unlink(missing_ok=True)
    for path in cell.folder.glob("blocks/*.jsonl"):  # A killed process may have left some.
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
    """Lease all GPUs and cores of this machine, once other commands have returned theirs."""
    shares = MachineShares()
    whole_machine_config = replace(config, exclusive=None)
    while (share := shares.take(whole_machine_config)) is None:
        pause(LEASES_POLL_S)
    try:
        yield share
    finally:
        shares.give_back(share)


def free_bytes(on_gpus: bool) -> int:
    """Return the free memory of the host, or of the GPU that has least, in bytes.

    0 if NVML does not report the memory of a GPU.
    """
    if not on_gpus:
        return memory.available_memory_bytes()
    with devices.nvml() as library:
        if library is None:
            return 0
        free = list[int]()
        for uuid in devices.visible_gpus():
            handle = devices.ask(library, library.nvmlDeviceGetHandleByUUID, uuid)
            if handle is None:
                return 0
            gpu_memory = devices.ask(library, library.nvmlDeviceGetMemoryInfo, handle)
            if gpu_memory is None:
                return 0
            free.append(gpu_memory.free)
        return min(free, default=0)
