"""A race on this machine: cells train short blocks by turns until the rules know the best, which is then measured in
full.

One cell trains at a time, on the whole machine; the others that are in wait in their processes, as far as memory
allows. All that is learnt is in a journal at once, so that a race which was cut off goes on.
"""

import itertools
import signal
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from multicard.config.job import Device, count
from multicard.config.sweeps import share
from multicard.decide.race import grid, processes, readings, view
from multicard.decide.race.posterior import Block
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.readings import Measured
from multicard.decide.race.rules import NOT_WORTH, Race
from multicard.decide.race.standings import MISSED, OUT, RaceOptions
from multicard.machine.shares import MachineShare, machine
from multicard.measure.timing import clock_s
from multicard.messages import say
from multicard.ranks.elastic import KILLED
from multicard.records import run_folder
from multicard.records.journal import Journal, JournalError, code_and_machine
from multicard.records.run_folder import Run
from multicard.records.schema import AnyRecord, VisionRecord
from multicard.sweep.cells import Cell, Sweep, settle
from multicard.sweep.executor import NO_RECORD, Executor, SameFailureError, run_all, would_fail_too

FOLDER = ".race"  # of a sweep: the journals of its races
FINAL_RUNS = 3  # of each finalist
MARGIN = 0.1  # of the available memory, which stays free
ON_GPU_BYTES = 2 * 10**9  # of a process on a GPU, beside what torch has allocated: its context, and what torch keeps
START_S = 20.0  # of a process, before one was started


def run(sweep: Sweep, finals: Sweep) -> None:
    """Race the cells, and measure the best of them in full.

    Args:
        finals: takes what is measured in full.

    Raises:
        ValueError: an earlier race of this name was of other code, or on another machine, or goes on now.
        KeyboardInterrupt: on Ctrl-C, once what ran has ended.
        SameFailureError: a cell failed for a cause that the others have too.
        JournalError: what it learns cannot be kept.
    """
    if not sweep.cells:
        return
    grid.refuse(str(sweep.cells[0].config.race.figure), sweep.cells)
    race = LiveRace(sweep.cells)
    try:
        with processes.whole_machine(race.widest) as machine_share:
            race.run(machine_share)
        runs = race.finals()
        finals.cells += runs
        settle(finals)
        if finals.left:
            reason = NOT_WORTH if race.rules.ending == NOT_WORTH else "the best in full"
            say(f"race={race.options.figure}: {count(len(finals.left), 'run')}: {reason}")
            run_all(finals)
        race.take_finals(runs)
        say("\n".join(view.end(race, runs)))
        sweep.command.abandoned |= race.rules.verdict().winner is None
    finally:
        race.journal.close()


class LiveRace:
    """The cells of a race, their processes, and its rules.

    share: the machine, while it runs. widest: configuration of a cell that needs GPUs, if any does. ended: cells that
    cannot go on. raced_s: seconds of all rounds, with starts and ends. By the cell's place among `cells`: alive, the
    processes; used_s, its seconds; peaks, peak memory in bytes of the rank that takes most; needed, memory in bytes of
    its process that cells share (on a GPU that of its rank, on the host that of all ranks); steps, seconds of a step,
    and steps of an epoch.
    """

    share: MachineShare

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells, self.options = [*cells], cells[0].config.race
        self.figure = readings.raced_figure(str(self.options.figure), cells[0].workload)
        on_gpus = [cell.config for cell in cells if cell.config.device is not Device.cpu]
        self.widest = [*on_gpus, cells[0].config][0]
        self.on_gpus = bool(on_gpus) and bool(machine().gpus)
        sweep = cells[0].folder.parent
        self.executor = Executor(sweep, signal.SIGKILL)
        path, owner = sweep / FOLDER / f"{self.options.figure}.jsonl", f"name={sweep.name}: its race"
        self.journal = Journal(path, owner, code_and_machine(), anew=bool(cells[0].cfg.rerun))
        options = RaceOptions(self.options.confidence, share(self.options.tolerance), runs=FINAL_RUNS)
        known = grid.kept_priors(cells, self.journal)
        self.rules = Race(grid.settings(cells), known, START_S, self.options.block, options)
        self.alive: dict[int, CellProcess] = {}
        self.peaks: dict[int, int] = {}
        self.needed: dict[int, int] = {}
        self.used_s: dict[int, float] = {}
        self.steps: dict[int, tuple[float, int]] = {}
        self.ended: set[int] = set()
        self.started, self.raced_s = 0, 0.0
        self._said_out: set[int] = set()
        self._starts_s: list[float] = []
        self._blocks_s: list[float] = []
        self._resume()

    def _resume(self) -> None:
        """Take what an earlier race for the figure knew of these cells.

        With the same cells its rounds are decided anew, as they were then, so that this race goes on as that one would
        have.
        """
        places = {cell.config.identity(): place for place, cell in enumerate(self.cells)}
        same = any([*entry.get("priors", ())] == [*places] for entry in self.journal.entries)
        lost, began = set[int](), False
        for entry in [*self.journal.entries, {"resumed": True}]:
            self.raced_s += entry.get("round_s", 0.0)
            if "began" in entry:
                self._tell_costs()
                began = True
            if began and same and entry.keys() & {"log_figure", "out", "lost"}:  # else nothing came of the round
                self.rules.replay_round()
                began = False
            if "resumed" in entry:  # what ended these cells from outside may be gone
                for place in lost:
                    self.rules.take_back(place)
                self.ended -= lost
                lost.clear()
            place = places.get(str(entry.get("cell")))
            if place is not None:
                self._take(place, entry)
                if "lost" in entry:
                    lost.add(place)
        self._tell_costs()
        if self._blocks_s:
            self._said_out |= {standing.cell for standing in self.rules.standings if standing.state == OUT}
            self.journal.add(resumed=True)
            say(f"race={self.options.figure}: goes on after {count(len(self._blocks_s), 'block')} of an earlier one")

    def _note(self, place: int, **entry: Any) -> None:
        """Keep what was learnt of a cell in the journal, and take it."""
        self.journal.add(cell=self.cells[place].config.identity(), **entry)
        self._take(place, entry)

    def _take(self, place: int, entry: dict[str, Any]) -> None:
        """Add an entry of the journal to what is known."""
        self.used_s[place] = self.used_s.get(place, 0.0) + entry.get("used_s", 0.0)
        self.started = max(self.started, entry.get("process", 0))
        if "log_figure" in entry:
            self.steps[place] = entry["step_s"], entry["steps_per_epoch"]
            self.peaks[place], self.needed[place] = entry["peak_bytes"], entry["needed_bytes"]
            self.rules.add(Block(place, entry["round"], entry["log_figure"], entry["error"], entry["process"]))
            self._blocks_s.append(entry["used_s"])
        elif "used_s" in entry:
            self._starts_s.append(entry["used_s"])
        else:
            self.rules.out(place, entry.get("out") or entry["lost"])
            self.ended.add(place)

    def run(self, machine_share: MachineShare) -> None:
        """Race until the rules say that it is over."""
        self.share = machine_share
        try:
            while order := self.rules.next_round():
                self._round(order)
            self._drop()
            for place in [*self.alive]:
                self._end(place)
        except KeyboardInterrupt as interrupted:
            say(f"interrupted by {str(interrupted) or 'SIGINT'}: ending what runs", error=True)
            self.executor.interrupt()
            raise
        except (SameFailureError, JournalError):
            self.executor.interrupt()
            raise

    def _round(self, order: Sequence[int]) -> None:
        """Have these cells train a block each, one after the other."""
        began_s = clock_s()
        self.journal.add(began=self.rules.round)
        self._drop()
        for place in self.rules.fresh & self.alive.keys():
            self._end(place)
        self._start_all(order)
        for place in order:
            process = self._block(place)
            if process is not None:
                process.wait_until_quiet()
            self._tell_costs()
            if self.rules.gives_up:
                break
        round_s = clock_s() - began_s
        self.raced_s += round_s
        self._tell_costs()
        self.journal.add(round_s=round_s)
        say(view.progress(self))

    def _tell_costs(self) -> None:
        full_s = self.full_s()
        if full_s is not None:
            self.rules.costs(median(self._starts_s), fmean(self._blocks_s), full_s, self.raced_s)

    def _start_all(self, places: Sequence[int]) -> None:
        """Start the processes of a round, as far as memory allows: then its blocks follow one another closely."""
        if not self.needed:
            return  # the memory of a process that trains is not known
        for place in places:
            if place not in self.alive and self._has_room(place):
                try:
                    self._start(place)
                except CellEndedError as ended:
                    if not self.alive or not _may_want_memory(ended.run.record):  # else it is tried alone in its turn
                        self._judge_end(place, ended.run)

    def _block(self, place: int) -> CellProcess | None:
        """Have a cell train a block, in a process that is started where it has none. Returns it; None where the cell is
        out."""
        while place not in self.ended:
            try:
                process = self.alive.get(place) or self._start(place)
                measured = process.run_block(self.options.block)
            except CellEndedError as ended:
                self.alive.pop(place, None)
                self._judge_end(place, ended.run)
                continue
            if not measured.diverged:
                self._note_block(place, process, measured)
                return process
            self._out(place, "diverged: its loss is not finite")
        return None

    def _start(self, place: int) -> CellProcess:
        """Start a process of the cell, once those that have waited longest have ended for its memory."""
        while self.alive and not self._has_room(place):
            self._end(min(self.alive, key=lambda other: self.alive[other].ran_at_s))
        probes = (processes.as_run(self.cells[place], repetition, is_probe=True) for repetition in itertools.count(1))
        probe = next(probe for probe in probes if run_folder.finished(probe.folder) is None)
        self.started += 1
        process = self.alive[place] = processes.start(self.executor, probe, self.started, self.share)
        self._note(place, process=process.number, used_s=process.start_s)
        return process

    def _judge_end(self, place: int, run: Run) -> None:
        """Take a cell out whose process ended by itself. Where others may hold the memory that it wants, these end
        instead, and it is tried again alone.

        Raises:
            SameFailureError: the other cells would fail likewise: the disk is full, the data that all read is gone.
        """
        if run.status == "interrupted":
            raise KeyboardInterrupt
        if _may_want_memory(run.record) and self.alive:
            for other in [*self.alive]:
                self._end(other)
            return
        message = "it ended by itself" if run.record.cause is None else run.record.cause.message
        left = [self.cells[each.cell] for each in self.rules.standings if each.state != OUT]
        if would_fail_too(left, replace(self.cells[place], result=run)):
            raise SameFailureError(message)
        self._out(place, f"{run.status}: {message}", lasts=run.status in ("oom", "diverged"))

    def _note_block(self, place: int, process: CellProcess, measured: Measured) -> None:
        reading, peaks = measured.reading(self.figure), measured.peaks_bytes
        self._note(
            place,
            process=process.number,
            round=self.rules.round,
            log_figure=reading.log_figure,
            error=reading.error,
            step_s=measured.mean_step_s,
            steps_per_epoch=measured.steps_per_epoch,
            peak_bytes=max(peaks),
            needed_bytes=max(peaks) if self.on_gpus else sum(peaks),
            used_s=process.block_s,
        )

    def _out(self, place: int, reason: str, lasts: bool = True) -> None:
        """
        Args:
            lasts: the cell stays out when the race goes on after an interruption.
        """
        self._note(place, **{"out" if lasts else "lost": reason})
        self._drop()

    def _drop(self) -> None:
        """End the processes of cells that are out. Say which are out, and why, and which are in again."""
        for standing in self.rules.standings:
            label, is_out = self.cells[standing.cell].label, standing.state == OUT
            if is_out and standing.cell not in self._said_out:
                self._said_out.add(standing.cell)
                say(f"{label}out: {standing.reason}")
            elif not is_out and standing.cell in self._said_out:
                self._said_out.discard(standing.cell)
                say(f"{label}in again: estimates like the one by which it was out have missed")
            if is_out and standing.cell in self.alive:
                self._end(standing.cell)

    def _end(self, place: int) -> None:
        self.alive.pop(place).end()

    def _has_room(self, place: int) -> bool:
        """True where there is memory for a process of the cell, beside what those still take that have not trained yet.
        A cell that has not trained is taken to need the most."""
        most = max(self.needed.values(), default=0)
        untrained = [other for other, process in self.alive.items() if process.step_s is None]
        needed = sum(ON_GPU_BYTES * self.on_gpus + self.needed.get(each, most) for each in (place, *untrained))
        return needed <= (1 - MARGIN) * processes.free_bytes(self.on_gpus)

    def full_s(self) -> float | None:
        """Seconds of a full run with its start, the mean of the cells that trained; None before one has."""
        trained = [
            step_s * steps * getattr(self.cells[place].config, "epochs", 1)
            for place, (step_s, steps) in self.steps.items()
        ]
        return fmean(trained) + median(self._starts_s) if trained and self._starts_s else None

    def finals(self) -> list[Cell]:
        """The runs of the finalists, each in a fresh process."""
        first = min((turn for turn, _ in self.rules.final_runs), default=0)
        runs = self.rules.final_runs
        return [processes.as_run(self.cells[place], turn - first + 1, is_probe=False) for turn, place in runs]

    def take_finals(self, finals: Sequence[Cell]) -> None:
        """Take the finalists' runs. A cell that missed its target accuracy in any of them cannot win."""
        lost, missed, measured = dict[int, str](), dict[int, str](), set[int]()
        for (turn, place), cell in zip(self.rules.final_runs, finals, strict=True):
            known = None if cell.result is None else readings.full_run(cell.result, self.figure)
            if cell.result is None or known is None:
                status = "not measured" if cell.result is None else cell.result.status
                lost[place] = f"{status} when it was measured in full"
                continue
            measured.add(place)
            target, record = cell.cfg.get("target_accuracy"), cell.result.record
            if target is not None and isinstance(record, VisionRecord) and record.time_to_target_s is None:
                ended_at = f"{record.test_accuracy or 0.0:.1%}"
                missed[place] = f"{MISSED}={target:g} in a full run, which ended at {ended_at}"
            self.started += 1
            # A run's energy has that of evaluation, which blocks do not have
            is_alike = self.options.figure != "energy_joules"
            self.rules.add_full(Block(place, turn, *known, self.started), is_alike)
        self.ended |= missed.keys()
        for place, reason in (missed | {place: lost[place] for place in lost.keys() - measured}).items():
            self.rules.out(place, reason)


def _may_want_memory(record: AnyRecord) -> bool:
    """True where a cell's process ran out of memory, or was killed, as the host's out-of-memory killer does: it is not
    always seen to have done so."""
    message = "" if record.cause is None else record.cause.message
    return record.status == "oom" or any(words in message for words in (*KILLED, NO_RECORD))
