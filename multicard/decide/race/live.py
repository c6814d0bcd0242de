"""A race on this machine: cells train short blocks by turns until the rules know the best, which is then measured in
full.

One cell trains at a time, on the whole machine; the others that are in wait in their processes, as long as memory
allows. All that is learnt is on disk at once (`state`), so that a race which was cut off goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from multicard.config.base import plain
from multicard.config.job import Device, count
from multicard.config.repetition import share
from multicard.decide.race import gpus, grid, priors, processes, readings, to_target, view
from multicard.decide.race.posterior import Block
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.readings import Measured
from multicard.decide.race.rules import Race
from multicard.decide.race.standings import OUT, RaceOptions
from multicard.decide.race.state import State, head
from multicard.measure.timing import clock_s
from multicard.ranks.elastic import KILLED
from multicard.records import run_folder
from multicard.run.session import say
from multicard.sweep.cells import Cell, Sweep, settle
from multicard.sweep.executor import NO_RECORD, Executor, run_all
from multicard.sweep.shares import MachineShare, machine
from multicard.sweep.streak import SameFailureError, would_fail_too

FINALISTS, FINAL_RUNS = 3, 3
MARGIN = 0.1  # of the memory that is available, which stays free
ON_GPU_BYTES = 2 * 10**9  # of a process on a GPU, beside what torch has allocated: its context, and what torch keeps
PEAK_SD = 0.002  # of the peak memory between processes of a cell
START_S = 20.0  # of a process, before one was started


def run(sweep: Sweep, finals: Sweep) -> None:
    """Race the cells, and measure the best of them in full.

    Args:
        finals: what is measured in full is added to it.

    Raises:
        ValueError: an earlier race of this name was of other code, or on another machine, or goes on now.
        KeyboardInterrupt: on Ctrl-C, once what ran has ended.
        SameFailureError: a cell failed for a cause that the others have too.
    """
    cells = sweep.cells
    if not cells:
        return
    figure = str(cells[0].cfg.race.figure)
    grid.refuse(figure, cells)
    if figure == "total_s":
        to_target.run(sweep, finals)
        return
    race = LiveRace(cells)
    view.say_if_small(race)
    try:
        with processes.whole_machine(race.widest) as share:
            race.run(share)
        finals.cells += race.finals()
        settle(finals)
        if finals.left:
            say(f"race={figure}: {count(len(finals.left), 'run')} of the best in full")
            run_all(finals)
        race.take_finals(finals.cells)
        say("\n".join(view.end(race, finals.cells)))
        sweep.command.abandoned |= race.rules.verdict().winner is None
    finally:
        race.close()


class LiveRace:
    """The cells of a race, their processes, and what the rules say.

    share: the machine, while it runs. By the cell's place among `cells`: alive, the processes; peaks, the peak memory
    of the rank that takes most, in bytes; needed, what a process takes of the memory that cells share: of a GPU,
    that of its rank; of the host, that of all ranks.
    """

    share: MachineShare

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = [cell for cell in cells if cell.config is not None]
        assert self.cells and self.cells[0].config is not None
        self.options = self.cells[0].config.race
        self.figure = str(self.options.figure)
        on_gpus = [cell.config for cell in self.cells if cell.config and cell.config.device is not Device.cpu]
        self.widest = on_gpus[0] if on_gpus else self.cells[0].config
        self.on_gpus = bool(on_gpus) and bool(machine().gpus)
        axes = grid.settings([plain(cell.config) for cell in self.cells if cell.config is not None])
        runs, process_sd = (1, PEAK_SD) if self.figure == "peak_memory" else (FINAL_RUNS, RaceOptions.process_sd)
        options = RaceOptions(self.options.confidence, share(self.options.tolerance), FINALISTS, runs, process_sd)
        self.executor = Executor(self.cells[0].folder.parent)
        self.state = State(self.cells[0].folder.parent, self.figure, head(), anew=bool(self.cells[0].cfg.rerun))
        known = priors.of_race(self.cells, self.state)
        self.rules = Race(axes, known, START_S, self.options.block, options)
        for place, reason in priors.hopeless(known).items():
            self.rules.out(place, reason)
        self.alive: dict[int, CellProcess] = {}
        self.peaks: dict[int, int] = {}
        self.needed: dict[int, int] = {}
        self.ended: set[int] = set()  # cells that cannot go on
        self.said: set[int] = set()  # cells of which it was said that they are out
        self.started = 0
        self.raced_s = 0.0  # seconds of all rounds, with starts and ends
        self.used_s: dict[int, float] = {}
        self.starts_s: list[float] = []
        self.blocks_s: list[float] = []
        self.steps: dict[int, tuple[float, int]] = {}  # seconds of a step, and steps of an epoch
        self._resume()

    def _resume(self) -> None:
        """Take what an earlier race for the figure knew of these cells.

        Of the same cells its rounds are decided anew, as they were then: so this race goes on as that one would have.
        """
        places = {cell.config.identity(): place for place, cell in enumerate(self.cells) if cell.config is not None}
        same = any([*line.get("priors", ())] == [*places] for line in self.state.lines)
        taken, lost, began = 0, set[int](), False
        for line in self.state.lines:
            self.raced_s += line.get("round_s", 0.0)
            if "began" in line:
                self._tell_costs()
                began = True
            if began and same and line.keys() & {"log_figure", "out", "lost"}:  # else nothing came of the round
                self.rules.replay_round()
                began = False
            if "resumed" in line:
                self._take_back(lost)
            place = places.get(str(line.get("cell")))
            if place is None:
                continue
            self.started = max(self.started, line.get("process", 0))
            if "log_figure" in line:
                self.steps[place] = line["step_s"], line["steps_per_epoch"]
                self.peaks[place], self.needed[place] = line["peak_bytes"], line["needed_bytes"]
                block = Block(place, line["round"], line["log_figure"], line["error"], line["process"])
                self.rules.add(block)
                self.blocks_s.append(line["used_s"])
                taken += 1
            elif "out" in line:
                self.rules.out(place, line["out"])
                self.ended.add(place)
            elif "lost" in line:
                self.rules.out(place, line["lost"])
                lost.add(place)
            elif "used_s" in line:
                self.starts_s.append(line["used_s"])
            self.used_s[place] = self.used_s.get(place, 0.0) + line.get("used_s", 0.0)
        self._take_back(lost)
        self._tell_costs()
        if taken:
            self.said |= {standing.cell for standing in self.rules.standings if standing.state == OUT}
            self.state.add(resumed=True)
            say(f"race={self.figure}: goes on after {count(taken, 'block')} of an earlier one")

    def _take_back(self, lost: set[int]) -> None:
        """What ended these cells from outside need not be there when the race goes on later."""
        for place in lost:
            self.rules.take_back(place)
        lost.clear()

    def run(self, share: MachineShare) -> None:
        """Race until the rules say that it is over."""
        self.share = share
        try:
            with view.Screen(self) as screen:
                while order := self.rules.next_round():
                    self._round(order, screen)
                self._drop()
                for place in list(self.alive):
                    self._end(place)
        except KeyboardInterrupt as interrupted:
            say(f"interrupted by {str(interrupted) or 'SIGINT'}: ending what runs", error=True)
            self.executor.interrupt()
            raise
        except SameFailureError:
            self.executor.interrupt()
            raise

    def _round(self, order: Sequence[int], screen: view.Screen) -> None:
        """Have these cells train a block each, one after the other."""
        began_s = clock_s()
        self.state.add(began=self.rules.round)
        self._drop()
        for place in self.rules.fresh & self.alive.keys():
            self._end(place)
        self._start_all(order)
        for place in order:
            process = self._block(place)
            if process is not None:
                process.wait_until_quiet()
            screen.block_ended()
        round_s = clock_s() - began_s
        self.raced_s += round_s
        self._tell_costs()
        self.state.add(round_s=round_s)
        screen.round_ended()

    def _tell_costs(self) -> None:
        full_s = self.full_s()
        if full_s is not None:
            self.rules.costs(median(self.starts_s), fmean(self.blocks_s), full_s, self.raced_s)

    def _start_all(self, places: Sequence[int]) -> None:
        """Start the processes of a round, as far as memory allows: then its blocks follow one another closely."""
        if not self.needed:
            return  # what a process takes once it trains is not known
        for place in places:
            if place not in self.alive and self._has_room(place):
                try:
                    self._start(place)
                except CellEndedError as ended:
                    self._forget_ended(place)
                    if not self.alive or not _may_want_memory(ended.record):  # else it is tried alone in its turn
                        self._judge_end(place, ended.record)

    def _block(self, place: int) -> CellProcess | None:
        """Have a cell train a block, in a process that is started where it has none. Returns it; None where the cell is
        out."""
        while place not in self.ended:
            try:
                process = self.alive.get(place) or self._start(place)
                measured = process.run_block(0.0 if self.figure == "peak_memory" else self.options.block)
            except CellEndedError as ended:
                self._forget_ended(place)
                self._judge_end(place, ended.record)
                continue
            if not measured.diverged:
                self._take(place, process, measured)
                return process
            self._out(place, "diverged: its loss is not finite")
        return None

    def _start(self, place: int) -> CellProcess:
        self._make_room(place)
        cell, repetition = self.cells[place], 1
        while run_folder.finished(processes.folder_of(cell, repetition, probe=True)) is not None:
            repetition += 1
        self.started += 1
        probe = processes.as_probe(cell, repetition)
        process = processes.start(self.executor, probe, self.started, self.share)
        self.alive[place] = process
        self.starts_s.append(process.start_s)
        self._note(place, process=process.number, used_s=process.start_s)
        return process

    def _judge_end(self, place: int, record: dict[str, Any]) -> None:
        """A cell's process ended by itself: the cell is out, unless the memory that it wants may be what others hold;
        these end, and it is tried again alone.

        Raises:
            SameFailureError: the other cells would fail likewise: the disk is full, the data that all read is gone.
        """
        if record["status"] == "interrupted":
            raise KeyboardInterrupt
        if _may_want_memory(record) and self.alive:
            for other in list(self.alive):
                self._end(other)
            return
        message = (record["cause"] or {}).get("message", "it ended by itself")
        left = [self.cells[each.cell] for each in self.rules.standings if each.state != OUT]
        if would_fail_too(left, replace(self.cells[place], result=record)):
            raise SameFailureError(message)
        self._out(place, f"{record['status']}: {message}", lasts=record["status"] in ("oom", "diverged"))

    def _take(self, place: int, process: CellProcess, measured: Measured) -> None:
        """Add a block to what the rules know."""
        block = Block(place, self.rules.round, *measured.log_figure(self.figure), process.number)
        peaks = measured.peaks_bytes
        self.steps[place] = measured.mean_step_s, measured.steps_per_epoch
        self.peaks[place] = max(peaks)
        self.needed[place] = max(peaks) if self.on_gpus else sum(peaks)
        self.rules.add(block)
        self.blocks_s.append(process.block_s)
        self._note(
            place,
            process=process.number,
            round=block.round,
            log_figure=block.log_figure,
            error=block.error,
            step_s=measured.mean_step_s,
            steps_per_epoch=measured.steps_per_epoch,
            peak_bytes=self.peaks[place],
            needed_bytes=self.needed[place],
            used_s=process.block_s,
        )

    def _note(self, place: int, **values: Any) -> None:
        config = self.cells[place].config
        assert config is not None
        self.state.add(cell=config.identity(), **values)
        self.used_s[place] = self.used_s.get(place, 0.0) + values.get("used_s", 0.0)

    def _out(self, place: int, reason: str, lasts: bool = True) -> None:
        """
        Args:
            lasts: whether the cell is out too when the race goes on after an interruption.
        """
        self.ended.add(place)
        self.rules.out(place, reason)
        self._note(place, **{"out" if lasts else "lost": reason})
        self._drop()

    def _drop(self) -> None:
        """End the processes of cells that are out, and say why they are."""
        for standing in self.rules.standings:
            if standing.state != "out":
                continue
            if standing.cell not in self.said:
                self.said.add(standing.cell)
                say(f"{self.cells[standing.cell].label}out: {standing.reason}")
            if standing.cell in self.alive:
                self._end(standing.cell)

    def _end(self, place: int) -> None:
        self.alive.pop(place).end()

    def _forget_ended(self, place: int) -> None:
        self.alive.pop(place, None)

    def _has_room(self, place: int) -> bool:
        """Whether there is memory for a process of the cell, beside what those still take that have not trained yet. A
        cell that has not trained is taken to need the most."""
        most = max(self.needed.values(), default=0)
        untrained = [other for other, process in self.alive.items() if process.step_s is None]
        needed = sum(ON_GPU_BYTES * self.on_gpus + self.needed.get(each, most) for each in (place, *untrained))
        return needed <= (1 - MARGIN) * gpus.free_bytes(self.on_gpus)

    def _make_room(self, place: int) -> None:
        """End those that have waited longest until there is memory for another process."""
        while self.alive and not self._has_room(place):
            self._end(min(self.alive, key=lambda other: self.alive[other].ran_at_s))

    def full_s(self) -> float | None:
        """The seconds of a cell that is measured in full, with its start: the mean of those that trained; None before
        one has."""
        trained = [
            step_s * steps * getattr(self.cells[place].config, "epochs", 1)
            for place, (step_s, steps) in self.steps.items()
        ]
        return sum(trained) / len(trained) + median(self.starts_s) if trained and self.starts_s else None

    def finals(self) -> list[Cell]:
        """The runs of the finalists, each in a fresh process."""
        first = min((turn for turn, _ in self.rules.final_runs), default=0)
        return [processes.as_result(self.cells[place], turn - first + 1) for turn, place in self.rules.final_runs]

    def take_finals(self, finals: list[Cell]) -> None:
        """Tell the rules what the finalists' runs came to. One that missed its target accuracy in any cannot win."""
        lost: dict[int, str] = {}
        missed: dict[int, str] = {}
        measured: set[int] = set()
        for (turn, place), cell in zip(self.rules.final_runs, finals, strict=True):
            known = None if cell.result is None else readings.of_result(cell.result, self.figure)
            if cell.result is None or known is None:
                status = "not measured" if cell.result is None else cell.result["status"]
                lost[place] = f"{status} when it was measured in full"
                continue
            measured.add(place)
            target = cell.cfg.get("target_accuracy")
            if target is not None and cell.result["time_to_target_s"] is None:
                ended_at = f"{cell.result['test_accuracy']:.1%}"
                missed[place] = f"{readings.MISSED}={target:g} in a full run, which ended at {ended_at}"
            self.started += 1
            if self.figure != "peak_memory":  # of which the steps of a process tell all
                # a run's energy has that of evaluation, of which blocks have none
                is_alike = self.figure != "energy_joules"
                self.rules.add_full(Block(place, turn, *known, self.started), is_alike)
        for place in lost.keys() - measured:
            self.rules.out(place, lost[place])
        for place, reason in missed.items():
            self.ended.add(place)
            self.rules.out(place, reason)

    def close(self) -> None:
        self.state.close()


def _may_want_memory(record: dict[str, Any]) -> bool:
    """Whether a cell's process ran out of memory, or was killed, as the host's out-of-memory killer does: it is not
    always seen to have done so."""
    message = (record["cause"] or {}).get("message") or ""
    return record["status"] == "oom" or any(words in message for words in (*KILLED, NO_RECORD))
