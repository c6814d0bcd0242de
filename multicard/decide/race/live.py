"""Race the cells of a sweep on this machine, then measure the best cell in full.

The cells take turns: one trains a short block of steps on the whole machine, and the other cells
that are still in the race wait in their processes, as far as memory allows. The rules (`rules.py`)
end the race once they know the best cell. Everything learned goes into a journal at once. An
interrupted race therefore resumes.
"""

import itertools
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from multicard.config.job import Device, count
from multicard.config.sweeps import share
from multicard.decide.race import processes, race_cells, readings
from multicard.decide.race.outcome import IN, NOT_STARTED, OUT, RaceOptions
from multicard.decide.race.posterior import Block, Prior
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.rules import Race
from multicard.machine.shares import MachineShare, machine
from multicard.measure.timing import clock_s, in_hours
from multicard.messages import Message, say
from multicard.ranks.elastic import was_killed
from multicard.records import limits, run_folder
from multicard.records.figures import FIGURES
from multicard.records.journal import Journal, code_and_machine
from multicard.records.run_folder import RecordedRun
from multicard.records.schema import AnyRecord
from multicard.records.schema_parts import Limit
from multicard.sweep.cells import Cell
from multicard.sweep.executor import Executor, ending_on_error, left_no_record
from multicard.sweep.streak import SameFailureError, would_fail_too

FOLDER = ".race"  # The folder of a sweep with the journals of its races.
FINAL_RUNS = 3  # Full runs of each finalist.
FREE_MEMORY_SHARE = 0.1  # The share of the available memory that stays free.
# A process on a GPU needs this much in addition to what torch has allocated: for its context, and
# for the memory that torch caches.
GPU_PROCESS_BYTES = 2 * 10**9


class LiveRace:
    """The cells of a race, their processes, and the rules that decide between them.

    Cells are numbered by their place among `cells`.

    Attributes:
        widest: configuration of a cell that needs GPUs, if there is one.
        over_ranks: True if the cells have different world sizes.
        alive: the running processes, by cell.
        peaks: peak memory of each rank in bytes, by cell.
        trained_s: predicted seconds of all epochs, by cell, from its fastest block: bursts of load
            only slow a block down.
        raced_s: seconds of all rounds, including starting and ending processes.

    Raises:
        ValueError: an earlier race of this name had other cells or code, ran on another machine, or
            is still running.
    """

    share: MachineShare

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = [*cells]
        self.options = cells[0].config.race
        self.figure = FIGURES[str(self.options.figure)]
        self.over_ranks = len({cell.config.gpus * cell.config.nodes for cell in cells}) > 1
        on_gpus = [cell.config for cell in cells if cell.config.device is not Device.cpu]
        self.widest = on_gpus[0] if on_gpus else cells[0].config
        self.on_gpus = bool(on_gpus) and bool(machine().gpus)
        sweep = cells[0].folder.parent
        self.executor = Executor(sweep, signal.SIGKILL)
        path = sweep / FOLDER / f"{self.options.figure}.jsonl"
        owner = f"name={sweep.name}: its race"
        header = {"cells": [cell.config.identity() for cell in cells], **code_and_machine()}
        self.journal = Journal(path, owner, header, anew=bool(cells[0].cfg.rerun))
        if not self.journal.entries:  # Later predictions would rest on the race's own blocks.
            self.journal.add(priors=race_cells.priors(cells))
        cell_priors = [prior and Prior(*prior) for prior in self.journal.entries[0]["priors"]]
        options = RaceOptions(
            self.options.confidence, share(self.options.tolerance), runs=FINAL_RUNS
        )
        self.rules = Race(race_cells.settings(cells), cell_priors, options)
        self.alive: dict[int, CellProcess] = {}
        self.peaks: dict[int, list[int]] = {}
        self.trained_s: dict[int, float] = {}
        self.started = 0
        self.raced_s = 0.0
        self._announced_outs: set[int] = set()
        self._starts_s: list[float] = []
        self._blocks_s: list[float] = []
        self._resume()

    def _resume(self) -> None:
        """Restore what an earlier command measured, and its finalists if it had chosen them."""
        for entry in self.journal.entries[1:]:
            if "cell" in entry:
                self._apply_entry(**entry)
            self.raced_s += entry.get("round_s", 0.0)
        self._update_costs()
        if self._blocks_s:
            blocks = len(self._blocks_s)
            sentence = (
                f"race={self.options.figure}: resumes after {count(blocks, 'block')} of an"
                " earlier command"
            )
            say(Message("race.resumed", sentence, blocks=blocks))
        if self.journal.entries[-1].keys() >= {"ending", "finalists"}:
            self.rules.next_round()  # This drops the beaten cells again.
            self.rules.end(**self.journal.entries[-1])

    def _record_entry(self, **entry: Any) -> None:
        """Write an entry about a cell to the journal, and apply it."""
        self.journal.add(**entry)
        self._apply_entry(**entry)

    def _apply_entry(self, cell: int, **entry: Any) -> None:
        """Apply an entry of the journal to the state of the race."""
        self.started = max(self.started, entry.get("process", 0))
        if "log_figure" in entry:
            epochs = getattr(self.cells[cell].config, "epochs", 1)
            trained_s = entry["step_s"] * entry["steps_per_epoch"] * epochs
            # The fastest block counts: bursts of load only slow a block down.
            self.trained_s[cell] = min(trained_s, self.trained_s.get(cell, math.inf))
            self.peaks[cell] = entry["peaks_bytes"]
            busy = entry.get("busy", 0.0)  # Journals of older versions have no load.
            reading = entry["log_figure"], entry["error"]
            self.rules.add(Block(cell, entry["round"], *reading, entry["process"], busy=busy))
            self._blocks_s.append(entry["used_s"])
        elif "used_s" in entry:
            self._starts_s.append(entry["used_s"])
        else:
            self.rules.out(cell, entry["out"])

    def run(self, machine_share: MachineShare) -> None:
        """Run rounds of blocks until the rules end the race."""
        self.share = machine_share
        cells = count(len(self.cells), "cell")
        sentence = (
            f"race={self.options.figure}: {cells} take turns; each round of blocks prints a line"
        )
        say(Message("race.begins", sentence, cells=len(self.cells)))
        with ending_on_error(self.executor):
            while order := self.rules.next_round():
                self._run_round(order)
            if self.rules.finalists:
                self.journal.add(ending=self.rules.ending, finalists=self.rules.finalists)
            self._announce_outs()
            for place in [*self.alive]:
                self._end_process(place)

    def _run_round(self, order: Sequence[int]) -> None:
        """Train one block of each of these cells, one cell after the other."""
        began_s = clock_s()
        self._announce_outs()
        for place in self.rules.fresh & self.alive.keys():
            self._end_process(place)
        self._start_processes(order)
        for place in order:
            process = self._train_block(place)
            if process is not None:
                process.wait_until_quiet()
            self._update_costs()
            if self.rules.gives_up:
                break
        round_s = clock_s() - began_s
        self.raced_s += round_s
        self._update_costs()
        self.journal.add(round_s=round_s)
        self._say_progress()

    def _say_progress(self) -> None:
        """Print the state of the race after a round, and the time that it can still take."""
        standings = self.rules.standings
        options = self.rules.options
        full_s = self.full_s()
        states = {
            state: sum(standing.state == state for standing in standings)
            for state in (IN, OUT, NOT_STARTED)
        }
        number = self.rules.round + 1
        line = f"race, round {number}, {in_hours(self.raced_s)}: "
        line += ", ".join(f"{cells} {state}" for state, cells in states.items() if cells)
        leader = max(
            (standing for standing in standings if standing.state == IN),
            key=lambda standing: standing.log_figure,
            default=None,
        )
        if leader is not None:
            line += (
                f"; ahead: {self.cells[leader.cell].label}{readings.in_words(self.figure, leader)}"
            )
        if full_s is not None:
            time_left = in_hours(max(self.rules.most_s - self.raced_s, 0.0))
            runs = (
                f"{options.runs} to"
                f" {count(options.runs * min(options.finalists, len(self.cells)), 'full run')}"
            )
            line += (
                f"; at most about {time_left} left, then {runs} of about {in_hours(full_s)} each"
            )
        leader_label = None if leader is None else self.cells[leader.cell].label.strip()
        say(Message("race.round", line, round=number, cells=states, ahead=leader_label))

    def _update_costs(self) -> None:
        full_s = self.full_s()
        if full_s is not None:
            self.rules.costs(median(self._starts_s), fmean(self._blocks_s), full_s, self.raced_s)

    def _start_processes(self, places: Sequence[int]) -> None:
        """Start the processes of a round in advance, as far as memory allows.

        The blocks of the round then follow one another closely.
        """
        if not self.peaks:
            return  # How much memory a training process needs is not known yet.
        for place in places:
            if place not in self.alive and self._has_room(place):
                try:
                    self._start_process(place)
                except CellEndedError as ended:
                    # A cell that may have run out of memory is tried again alone, at its turn.
                    if not self.alive or not _may_want_memory(ended.run.record):
                        self._judge_end(place, ended.run)

    def _train_block(self, place: int) -> CellProcess | None:
        """Train a block of a cell, in a new process if the cell has none.

        Returns:
            The process, or None if the cell is out.
        """
        while self.rules.standings[place].state != OUT:
            try:
                process = self.alive.get(place) or self._start_process(place)
                measured = process.run_block(self.options.block)
            except CellEndedError as ended:
                self.alive.pop(place, None)
                self._judge_end(place, ended.run)
                continue
            if measured.diverged:
                self._take_out(
                    place, Message("race.loss-not-finite", "diverged: its loss is not finite")
                )
                return None
            if self.over_ranks and measured.apart_by is not None:
                self._take_out(
                    place, no_speed_up_reason(limits.APART_BY[measured.apart_by].limit())
                )
                return None
            log_figure, error = measured.reading()
            self._record_entry(
                cell=place,
                process=process.number,
                round=self.rules.round,
                log_figure=log_figure,
                error=error,
                step_s=measured.mean_step_s,
                steps_per_epoch=measured.steps_per_epoch,
                peaks_bytes=measured.peaks_bytes,
                busy=process.busy,
                used_s=process.block_s,
            )
            return process
        return None

    def _start_process(self, place: int) -> CellProcess:
        """Start a process of the cell.

        If memory is short, the processes that have waited longest are ended first.
        """
        while self.alive and not self._has_room(place):
            self._end_process(min(self.alive, key=lambda other: self.alive[other].ran_at_s))
        probes = (
            processes.as_run(self.cells[place], repetition, is_probe=True)
            for repetition in itertools.count(1)
        )
        probe = next(probe for probe in probes if run_folder.finished(probe.folder) is None)
        self.started += 1
        process = self.alive[place] = processes.start(
            self.executor, probe, self.started, self.share
        )
        self._record_entry(cell=place, process=process.number, used_s=process.start_s)
        return process

    def _judge_end(self, place: int, run: RecordedRun) -> None:
        """Take a cell out whose process ended by itself.

        If other processes may hold the memory that it needs, they end instead, and the cell is
        tried again alone.

        Raises:
            SameFailureError: the other cells would fail for the same cause, such as a full disk.
        """
        if run.status == "interrupted":
            raise KeyboardInterrupt
        if _may_want_memory(run.record) and self.alive:
            for other in [*self.alive]:
                self._end_process(other)
            return
        cause = run.record.cause
        message = Message("race.no-cause", "it ended by itself") if cause is None else cause.message
        remaining_cells = [
            self.cells[standing.cell] for standing in self.rules.standings if standing.state != OUT
        ]
        if would_fail_too(remaining_cells, replace(self.cells[place], result=run)):
            raise SameFailureError(message)
        reason = Message(
            "race.ended-by-itself", f"{run.status}: {message}", status=run.status, cause=message
        )
        self._take_out(place, reason, lasts=run.status in ("oom", "diverged"))

    def _take_out(self, place: int, reason: str, lasts: bool = True) -> None:
        """Take a cell out. If `lasts`, it also stays out when an interrupted race resumes."""
        if lasts:
            self.journal.add(cell=place, out=reason)
        self.rules.out(place, reason)
        self._announce_outs()

    def _announce_outs(self) -> None:
        """Print which cells dropped out and why, end their processes, and print which returned."""
        for place, standing in enumerate(self.rules.standings):
            if standing.state != OUT and place in self._announced_outs:
                self._announced_outs.remove(place)
                label = self.cells[place].label
                sentence = f"{label}in again: the blocks in which it was beaten were disturbed"
                say(Message("race.again", sentence, cell=label.strip()))
            if standing.state == OUT and place not in self._announced_outs:
                self._announced_outs.add(place)
                say(out_line(self.cells[place], standing.reason))
                if place in self.alive:
                    self._end_process(place)

    def _end_process(self, place: int) -> None:
        self.alive.pop(place).end()

    def _has_room(self, place: int) -> bool:
        """Return True if memory suffices for a process of the cell.

        Processes that have started but not trained still need their memory, so it is reserved.
        A cell that has never trained is assumed to need as much as the largest known cell.
        """
        needed_bytes = {
            cell: max(peaks) if self.on_gpus else sum(peaks) for cell, peaks in self.peaks.items()
        }
        # On a GPU only the rank on that GPU counts. On the host all ranks share the memory.
        largest_bytes = max(needed_bytes.values(), default=0)
        starting = [other for other, process in self.alive.items() if process.step_s is None]
        extra_bytes = GPU_PROCESS_BYTES if self.on_gpus else 0
        wanted_bytes = sum(
            extra_bytes + needed_bytes.get(other, largest_bytes) for other in (place, *starting)
        )
        return wanted_bytes <= (1 - FREE_MEMORY_SHARE) * processes.free_bytes(self.on_gpus)

    def full_s(self) -> float | None:
        """Return the seconds of a full run with its start, as a mean over the cells that trained.

        None before any cell has trained.
        """
        return fmean(self.trained_s.values()) + median(self._starts_s) if self.trained_s else None


def no_speed_up_reason(limit: Limit) -> Message:
    """Return why a cell is out of a race between different world sizes."""
    return Message("race.shows-no-speed-up", limit.says, limit=limit.code)


def out_line(cell: Cell, reason: str) -> Message:
    """Return the line that says that a cell is out, and why."""
    return Message("race.out", f"{cell.label}out: {reason}", cell=cell.label.strip(), reason=reason)


def _may_want_memory(record: AnyRecord) -> bool:
    """Return True if a cell's process may have ended for lack of memory.

    A killed process counts: the host's out-of-memory killer does not always leave a trace.
    """
    cause = record.cause
    return record.status == "oom" or (
        cause is not None and (was_killed(cause) or left_no_record(cause))
    )
