"""A race on this machine: cells train short blocks by turns until the rules know the best, which is
then measured in full.

One cell trains at a time, on the whole machine; the others that are in wait in their processes, as
far as memory allows. All that is learnt is in a journal at once, so that a race which was cut off
goes on.
"""

import itertools
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from multicard.config.base import plain
from multicard.config.job import Device, count
from multicard.config.sweeps import share
from multicard.config.vision import VisionConfig
from multicard.decide.race import processes, readings
from multicard.decide.race.outcome import IN, NOT_STARTED, OUT, RaceOptions
from multicard.decide.race.posterior import Block, Prior
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.rules import Race
from multicard.estimate import estimates, totals
from multicard.estimate.observations import NORMAL_90
from multicard.machine.shares import MachineShare, machine
from multicard.measure.timing import clock_s, in_hours
from multicard.messages import Message, say
from multicard.ranks.elastic import was_killed
from multicard.records import comparable, limits, run_folder
from multicard.records.figures import FIGURES
from multicard.records.journal import Journal, code_and_machine
from multicard.records.limits import Forbids
from multicard.records.run_folder import RecordedRun
from multicard.records.schema import AnyRecord, ScriptRecord, VisionRecord
from multicard.records.schema_parts import Limit
from multicard.sweep.cells import Cell
from multicard.sweep.executor import Executor, ending_on_error, left_no_record
from multicard.sweep.streak import SameFailureError, would_fail_too

FOLDER = ".race"  # of a sweep: the journals of its races
FINAL_RUNS = 3  # of each finalist
MARGIN = 0.1  # of the available memory, which stays free
# of a process on a GPU, beside what torch has allocated: its context, and what torch keeps
ON_GPU_BYTES = 2 * 10**9
MANY = 10**7  # images, so many that the last batch of an epoch does not count


def settings(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The values in which cells differ, by axis. A group with several options (loader.name) is one
    axis with all its keys.
    """
    known = [comparable.measured_settings(plain(cell.config)) for cell in cells]
    differing = set[str]()
    for own in known:
        differing.update(key for key in own if any(own[key] != other.get(key) for other in known))
    keys = sorted(differing)
    axes = {}
    for key in keys:
        group = key.partition(".")[0]
        axes[key] = group if f"{group}.name" in keys else key
    own_keys = {axis: [key for key in keys if axes[key] == axis] for axis in axes.values()}
    return [
        {axis: str([own.get(key) for key in names]) for axis, names in own_keys.items()}
        for own in known
    ]


def priors(cells: Sequence[Cell]) -> list[Prior | None]:
    """Each cell's log images/s by its estimate; None without records of this machine, and for
    tuning and scripts, where the tokens or samples of a step are not known before.
    """
    found: list[Prior | None] = [None] * len(cells)
    if cells[0].config.race.figure != "images_per_s":
        return found
    with estimates.printing_errors():
        for place, each in enumerate(
            estimates.estimate([cell.config for cell in cells], cells[0].folder)
        ):
            config = each.config
            step_s = each.prediction.step_s
            if (
                isinstance(config, VisionConfig)
                and step_s is not None
                and each.basis.is_own
                and step_s.low > 0
            ):
                images = MANY / totals.length_of_images(config, MANY, 0).steps
                sd = math.log(step_s.high / step_s.low) / (2 * NORMAL_90)
                found[place] = Prior(math.log(images / step_s.value), sd, str(each.basis))
    return found


class LiveRace:
    """The cells of a race, their processes, and its rules.

    widest: configuration of a cell that needs GPUs, if any does. raced_s: seconds of all rounds,
    with starts and ends.
    over_ranks: cells have different numbers of ranks. By the cell's place among `cells`: alive, the
    processes; peaks, peak memory in bytes of each rank; trained_s, seconds of all epochs by its
    steps, those of a calm block where it has one.

    Raises:
        ValueError: an earlier race of this name was of other cells or code, or on another machine,
            or goes on now.
    """

    share: MachineShare

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = [*cells]
        self.options = cells[0].config.race
        self.figure = FIGURES[str(self.options.figure)]
        self.over_ranks = len({cell.config.gpus * cell.config.nodes for cell in cells}) > 1
        on_gpus = [cell.config for cell in cells if cell.config.device is not Device.cpu]
        self.widest = [*on_gpus, cells[0].config][0]
        self.on_gpus = bool(on_gpus) and bool(machine().gpus)
        sweep = cells[0].folder.parent
        self.executor = Executor(sweep, signal.SIGKILL)
        path = sweep / FOLDER / f"{self.options.figure}.jsonl"
        owner = f"name={sweep.name}: its race"
        head = {"cells": [cell.config.identity() for cell in cells], **code_and_machine()}
        self.journal = Journal(path, owner, head, anew=bool(cells[0].cfg.rerun))
        if not self.journal.entries:  # later estimates would rest on the race's own blocks
            self.journal.add(priors=priors(cells))
        known = [prior and Prior(*prior) for prior in self.journal.entries[0]["priors"]]
        options = RaceOptions(
            self.options.confidence, share(self.options.tolerance), runs=FINAL_RUNS
        )
        self.rules = Race(settings(cells), known, options)
        self.alive: dict[int, CellProcess] = {}
        self.peaks: dict[int, list[int]] = {}
        self.trained_s: dict[int, float] = {}
        self.started = 0
        self.raced_s = 0.0
        self._said_out: set[int] = set()
        self._starts_s: list[float] = []
        self._blocks_s: list[float] = []
        self._resume()

    def _resume(self) -> None:
        """Take what an earlier command measured, and its finalists where it came to them."""
        for entry in self.journal.entries[1:]:
            if "cell" in entry:
                self._take(**entry)
            self.raced_s += entry.get("round_s", 0.0)
        self._tell_costs()
        if self._blocks_s:
            blocks = len(self._blocks_s)
            sentence = (
                f"race={self.options.figure}: goes on after {count(blocks, 'block')} of an"
                " earlier one"
            )
            say(Message("race.resumed", sentence, blocks=blocks))
        if self.journal.entries[-1].keys() >= {"ending", "finalists"}:
            self.rules.next_round()  # beaten cells drop out again
            self.rules.end(**self.journal.entries[-1])

    def _note(self, **entry: Any) -> None:
        """Keep what was learnt of a cell in the journal, and take it."""
        self.journal.add(**entry)
        self._take(**entry)

    def _take(self, cell: int, **entry: Any) -> None:
        """Add an entry of the journal to what is known."""
        self.started = max(self.started, entry.get("process", 0))
        if "log_figure" in entry:
            epochs = getattr(self.cells[cell].config, "epochs", 1)
            trained_s = entry["step_s"] * entry["steps_per_epoch"] * epochs
            # bursts only slow it
            self.trained_s[cell] = min(trained_s, self.trained_s.get(cell, math.inf))
            self.peaks[cell] = entry["peaks_bytes"]
            busy = entry.get("busy", 0.0)  # journals of older versions have none
            reading = entry["log_figure"], entry["error"]
            self.rules.add(Block(cell, entry["round"], *reading, entry["process"], busy=busy))
            self._blocks_s.append(entry["used_s"])
        elif "used_s" in entry:
            self._starts_s.append(entry["used_s"])
        else:
            self.rules.out(cell, entry["out"])

    def run(self, machine_share: MachineShare) -> None:
        """Race until the rules say that it is over."""
        self.share = machine_share
        cells = count(len(self.cells), "cell")
        sentence = (
            f"race={self.options.figure}: {cells} take turns; a line after each round of blocks"
        )
        say(Message("race.begins", sentence, cells=len(self.cells)))
        with ending_on_error(self.executor):
            while order := self.rules.next_round():
                self._round(order)
            if self.rules.finalists:
                self.journal.add(ending=self.rules.ending, finalists=self.rules.finalists)
            self._drop()
            for place in [*self.alive]:
                self._end(place)

    def _round(self, order: Sequence[int]) -> None:
        """Have these cells train a block each, one after the other."""
        began_s = clock_s()
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
        self._say_progress()

    def _say_progress(self) -> None:
        """A line after each round: how the race stands, and what is still to come at most."""
        standings = self.rules.standings
        options = self.rules.options
        full_s = self.full_s()
        states = {
            state: sum(each.state == state for each in standings)
            for state in (IN, OUT, NOT_STARTED)
        }
        number = self.rules.round + 1
        line = f"race, round {number}, {in_hours(self.raced_s)}: "
        line += ", ".join(f"{cells} {state}" for state, cells in states.items() if cells)
        leader = max(
            (each for each in standings if each.state == IN),
            key=lambda each: each.log_figure,
            default=None,
        )
        if leader is not None:
            line += (
                f"; ahead: {self.cells[leader.cell].label}{readings.in_words(self.figure, leader)}"
            )
        if full_s is not None:
            left = in_hours(max(self.rules.most_s - self.raced_s, 0.0))
            runs = (
                f"{options.runs} to"
                f" {count(options.runs * min(options.finalists, len(self.cells)), 'full run')}"
            )
            line += f"; at most about {left} left, then {runs} of about {in_hours(full_s)} each"
        ahead = None if leader is None else self.cells[leader.cell].label.strip()
        say(Message("race.round", line, round=number, cells=states, ahead=ahead))

    def _tell_costs(self) -> None:
        full_s = self.full_s()
        if full_s is not None:
            self.rules.costs(median(self._starts_s), fmean(self._blocks_s), full_s, self.raced_s)

    def _start_all(self, places: Sequence[int]) -> None:
        """Start the processes of a round, as far as memory allows:
        then its blocks follow one another closely.
        """
        if not self.peaks:
            return  # the memory of a process that trains is not known
        for place in places:
            if place not in self.alive and self._has_room(place):
                try:
                    self._start(place)
                except CellEndedError as ended:
                    # else it is tried alone in its turn
                    if not self.alive or not _may_want_memory(ended.run.record):
                        self._judge_end(place, ended.run)

    def _block(self, place: int) -> CellProcess | None:
        """Have a cell train a block, in a process that is started where it has none. Returns it;
        None where the cell is out.
        """
        while self.rules.standings[place].state != OUT:
            try:
                process = self.alive.get(place) or self._start(place)
                measured = process.run_block(self.options.block)
            except CellEndedError as ended:
                self.alive.pop(place, None)
                self._judge_end(place, ended.run)
                continue
            if measured.diverged:
                self._out(
                    place, Message("race.loss-not-finite", "diverged: its loss is not finite")
                )
                return None
            if self.over_ranks and measured.apart_by is not None:
                self._out(place, _apart(limits.APART_BY[measured.apart_by].limit()))
                return None
            log_figure, error = measured.reading()
            self._note(
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

    def _start(self, place: int) -> CellProcess:
        """Start a process of the cell, once those that have
        waited longest have ended for its memory.
        """
        while self.alive and not self._has_room(place):
            self._end(min(self.alive, key=lambda other: self.alive[other].ran_at_s))
        probes = (
            processes.as_run(self.cells[place], repetition, is_probe=True)
            for repetition in itertools.count(1)
        )
        probe = next(probe for probe in probes if run_folder.finished(probe.folder) is None)
        self.started += 1
        process = self.alive[place] = processes.start(
            self.executor, probe, self.started, self.share
        )
        self._note(cell=place, process=process.number, used_s=process.start_s)
        return process

    def _judge_end(self, place: int, run: RecordedRun) -> None:
        """Take a cell out whose process ended by itself; a SameFailureError where the others would
        fail likewise (the disk is full). Where others may hold the memory that it wants,
        these end instead, and it is tried again alone.
        """
        if run.status == "interrupted":
            raise KeyboardInterrupt
        if _may_want_memory(run.record) and self.alive:
            for other in [*self.alive]:
                self._end(other)
            return
        cause = run.record.cause
        message = Message("race.no-cause", "it ended by itself") if cause is None else cause.message
        left = [self.cells[each.cell] for each in self.rules.standings if each.state != OUT]
        if would_fail_too(left, replace(self.cells[place], result=run)):
            raise SameFailureError(message)
        reason = Message(
            "race.ended-by-itself", f"{run.status}: {message}", status=run.status, cause=message
        )
        self._out(place, reason, lasts=run.status in ("oom", "diverged"))

    def _out(self, place: int, reason: str, lasts: bool = True) -> None:
        """Take a cell out; where that lasts, also of a race that goes on after an interruption."""
        if lasts:
            self.journal.add(cell=place, out=reason)
        self.rules.out(place, reason)
        self._drop()

    def _drop(self) -> None:
        """Say which cells are out, and why, and end their processes;
        and which ones are in again.
        """
        for place, standing in enumerate(self.rules.standings):
            if standing.state != OUT and place in self._said_out:
                self._said_out.remove(place)
                label = self.cells[place].label
                sentence = f"{label}in again: the blocks by which it was beaten were disturbed"
                say(Message("race.again", sentence, cell=label.strip()))
            if standing.state == OUT and place not in self._said_out:
                self._said_out.add(place)
                say(out_line(self.cells[place], standing.reason))
                if place in self.alive:
                    self._end(place)

    def _end(self, place: int) -> None:
        self.alive.pop(place).end()

    def _has_room(self, place: int) -> bool:
        """True where there is memory for a process of the cell, beside what those still take that
        have not trained yet. A cell that has not trained is taken to need the most.
        """
        needed = {
            cell: max(peaks) if self.on_gpus else sum(peaks) for cell, peaks in self.peaks.items()
        }
        # on a GPU its own rank counts, on the host all ranks do
        most = max(needed.values(), default=0)
        starting = [other for other, process in self.alive.items() if process.step_s is None]
        wanted = sum(
            ON_GPU_BYTES * self.on_gpus + needed.get(each, most) for each in (place, *starting)
        )
        return wanted <= (1 - MARGIN) * processes.free_bytes(self.on_gpus)

    def full_s(self) -> float | None:
        """Seconds of a full run with its start, the mean of the cells that trained;
        None before one has.
        """
        return fmean(self.trained_s.values()) + median(self._starts_s) if self.trained_s else None

    def finals(self) -> list[Cell]:
        """The runs of the finalists, each in a fresh process."""
        runs = self.rules.final_runs
        return [
            processes.as_run(self.cells[place], turn - runs[0][0] + 1, is_probe=False)
            for turn, place in runs
        ]

    def widen(self, finals: Sequence[Cell]) -> bool:
        """Measure more cells where the finalists' full runs show bursts.
        True where there are more runs to measure.
        """
        blocks = [
            self._full_block(*turn, cell)
            for turn, cell in zip(self.rules.final_runs, finals, strict=True)
        ]
        if not self.rules.widen([block for block in blocks if block is not None]):
            return False
        self.journal.add(ending=self.rules.ending, finalists=self.rules.finalists)
        return True

    def _full_block(self, turn: int, place: int, cell: Cell) -> Block | None:
        """A full run as the rules take it; None where it has no figure."""
        known = None if cell.result is None else readings.full_run(cell.result, self.figure)
        if cell.result is None or known is None:
            return None
        busy = limits.busy_share(cell.result.record)
        slowed = readings.slowed_run(cell.result)
        return Block(place, turn, *known, process=0, is_full=True, busy=busy, slowed=slowed)

    def take_finals(self, finals: Sequence[Cell]) -> None:
        """Take the finalists' runs. A cell that missed its target in any of them cannot win."""
        lost = dict[int, str]()
        missed = dict[int, str]()
        measured = set[int]()
        for (turn, place), cell in zip(self.rules.final_runs, finals, strict=True):
            block = self._full_block(turn, place, cell)
            if cell.result is None or block is None:
                status = "not measured" if cell.result is None else cell.result.status
                lost[place] = Message(
                    "race.lost", f"{status} when it was measured in full", status=status
                )
                continue
            limited = limits.forbidding(limits.of(cell.result.record), Forbids.speed_up)
            if self.over_ranks and limited:
                lost[place] = _apart(limited[0])
                continue
            measured.add(place)
            reason = _missed_target(cell, cell.result.record)
            if reason is not None:
                missed[place] = reason
            self.started += 1
            self.rules.add_full(replace(block, process=self.started))
        for place, reason in (
            missed | {place: lost[place] for place in lost.keys() - measured}
        ).items():
            self.rules.out(place, reason)


def _missed_target(cell: Cell, record: AnyRecord) -> Message | None:
    """That a full run missed its target accuracy, or its target of held-out loss;
    None where it has none or did not.
    """
    if isinstance(record, ScriptRecord) or record.time_to_target_s is not None:
        return None
    if isinstance(record, VisionRecord):
        target = cell.cfg.get("target_accuracy")
        accuracy = record.test_accuracy or 0.0
        if target is None:
            return None
        sentence = f"missed target_accuracy={target:g} in a full run, which ended at {accuracy:.1%}"
        return Message("race.missed-target", sentence, target=target, reached=accuracy)
    target = cell.cfg.get("target_loss")
    loss = record.held_out_loss
    if target is None:
        return None
    ended = "without a held-out loss" if loss is None else f"at {loss:.3f}"
    sentence = f"missed target_loss={target:g} in a full run, which ended {ended}"
    return Message("race.missed-target-loss", sentence, target=target, reached=loss)


def _apart(limit: Limit) -> Message:
    """Why a cell is out of a race over numbers of ranks."""
    return Message("race.shows-no-speed-up", limit.says, limit=limit.code)


def out_line(cell: Cell, reason: str) -> Message:
    """The line on a cell that is out."""
    return Message("race.out", f"{cell.label}out: {reason}", cell=cell.label.strip(), reason=reason)


def _may_want_memory(record: AnyRecord) -> bool:
    """True where a cell's process ran out of memory, or was killed, as the host's out-of-memory
    killer does: it is not always seen to have done so.
    """
    cause = record.cause
    return record.status == "oom" or (
        cause is not None and (was_killed(cause) or left_no_record(cause))
    )
