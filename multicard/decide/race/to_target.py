"""`race=total_s`: the cell that reaches its target accuracy in the least time.

Speed alone does not say when a cell is there, so cells train in turn towards the target, those first that are estimated
to be fast. The first that reaches it sets the bar: a cell that has trained longer than the bar by MARGIN is stopped and
out, one that is there sooner lowers the bar. Those that came within MARGIN are measured in full, three times each.
"""

import signal
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from multicard.config.job import count
from multicard.decide.race import grid, processes, view
from multicard.machine.shares import MachineShare
from multicard.measure.timing import clock_s, in_hours, pause
from multicard.messages import say
from multicard.records import run_folder
from multicard.records.progress import Board
from multicard.records.schema import VisionRecord
from multicard.sweep.cells import Cell, Sweep, settle
from multicard.sweep.executor import Executor, run_all
from multicard.sweep.streak import SameFailureError, would_fail_too

MARGIN = 0.25  # by which times to a target differ from run to run: an epoch more or less
FINALISTS, RUNS = 3, 3
POLL_S = 0.2
SLOW = "not at its target after"  # begins the reason of a cell that was stopped


def run(sweep: Sweep, finals: Sweep) -> None:
    """Race the cells to their target, and measure those in full that came near the best.

    Args:
        finals: what is measured in full is added to it.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once what ran has ended.
        SameFailureError: a cell failed for a cause that the others have too.
        JournalError: what it learns cannot be kept.
    """
    race = TargetRace(sweep.cells)
    try:
        settle(Sweep(sweep.command, [*race.runs]))
        with processes.whole_machine(sweep.cells[race.order[0]].config) as share:
            for place in race.order:
                race.judge(place, share)
        best = race.finalists()
        more = [processes.as_result(race.cells[place], turn) for turn in range(2, RUNS + 1) for place in best]
        finals.cells += [*(race.runs[place] for place in best), *more]
        settle(rest := Sweep(sweep.command, more))
        if rest.left:
            say(f"race=total_s: {count(len(rest.left), 'run')} more of those that came near the best")
            run_all(rest)
        say("\n".join(race.end(finals.cells)))
        sweep.command.abandoned |= not race.reached_s
    finally:
        race.journal.close()


class TargetRace:
    """Cells on their way to a target.

    order: of the cells, those first that are estimated to be fast. By the cell's place: runs, the first run of each;
    reached_s, to the target, of each that was there; reasons, why the others are out; used_s.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells, self.journal = [*cells], grid.open_journal(cells[0])
        speeds = [float("-inf") if prior is None else prior.mean for prior in grid.priors(cells)]
        self.order = sorted(range(len(cells)), key=lambda place: -speeds[place])
        self.runs = [processes.as_result(cell, 1) for cell in cells]
        self.reached_s: dict[int, float] = {}
        self.reasons: dict[int, str] = {}
        self.used_s: dict[int, float] = {}

    @property
    def bar_s(self) -> float | None:
        """After which a cell that is not there is out; None before one was."""
        return (1 + MARGIN) * min(self.reached_s.values()) if self.reached_s else None

    def finalists(self) -> list[int]:
        near = [place for place, time_s in self.reached_s.items() if time_s <= (self.bar_s or 0.0)]
        return sorted(near, key=lambda place: self.reached_s[place])[:FINALISTS]

    def judge(self, place: int, share: MachineShare) -> None:
        """Train a cell to its target or beyond the bar, unless it was measured before, and keep the result where it
        holds when the race goes on after an interruption: what ended a cell from outside need not be there then.

        Raises:
            SameFailureError: the cells that are left would fail likewise.
        """
        name = self.cells[place].config.identity()
        known = next((entry for entry in self.journal.entries if entry.get("cell") == name), None)
        if known is not None:
            self.reasons[place], self.used_s[place] = known["out"], known["used_s"]
            return
        cell, began_s = self.runs[place], clock_s()
        stopped_s = None if cell.result is not None else train(cell, share, self.bar_s)
        assert cell.result is not None
        record = cell.result.record
        assert isinstance(record, VisionRecord)
        self.used_s[place] = clock_s() - began_s
        if stopped_s is None and record.status == "ok" and record.time_to_target_s is not None:
            self.reached_s[place] = record.time_to_target_s
            self.used_s[place] = max(self.used_s[place], view.whole_s(cell.result))
            say(f"{cell.label}reached its target in {record.time_to_target_s:.1f} s")
            return
        if stopped_s is not None:
            reason = f"{SLOW} {stopped_s:.1f} s, in which another is"
        elif record.status == "interrupted":
            raise KeyboardInterrupt
        elif record.status == "ok":
            reason = f"did not reach its target in its epochs ({record.test_accuracy or 0.0:.1%})"
        else:
            message = "" if record.cause is None else record.cause.message
            if would_fail_too([self.cells[other] for other in self.order if other not in self.reasons], cell):
                raise SameFailureError(message)
            reason = f"{record.status}: {message}"
        self.reasons[place] = reason
        say(f"{cell.label}out: {reason}")
        if stopped_s is not None or record.status in ("ok", "oom", "diverged"):
            self.journal.add(cell=name, out=reason, used_s=self.used_s[place])

    def end(self, finals: Sequence[Cell]) -> list[str]:
        """The winner, those near it, and what the race took."""
        reached: dict[int, list[tuple[float, float]]] = {}  # seconds and accuracy of each run
        for place, cell in enumerate(self.cells):
            runs = [final.result for final in finals if final.number == cell.number and final.result is not None]
            records = [run.record for run in runs if run.status == "ok" and isinstance(run.record, VisionRecord)]
            known = [(each.time_to_target_s, each.test_accuracy or 0.0) for each in records if each.time_to_target_s]
            if known and len(known) == len(runs):
                reached[place] = sorted(known)
        if not reached:
            return ["race=total_s: no cell reached its target in each of its runs"]
        means_s = {place: fmean(time_s for time_s, _ in runs) for place, runs in reached.items()}
        order = sorted(reached, key=lambda place: means_s[place])
        lines = [""]
        for place in order:
            several = ", ".join(f"{time_s:.1f}" for time_s, _ in reached[place])
            accuracy = f"accuracy {fmean(accuracy for _, accuracy in reached[place]):.1%}"
            what = "winner: " if place == order[0] else "next: "
            lines.append(f"{what}{self.cells[place].label}{self.cells[place].folder.name}")
            lines.append(f"  {means_s[place]:.1f} s to its target ({several}), {accuracy}")
        overlap = [place for place in order[1:] if reached[place][0][0] <= reached[order[0]][-1][0]]
        if overlap:
            named = ", ".join(self.cells[place].label.strip() for place in overlap)
            lines.append(f"too close to tell from the winner: {named}")
        final_s = sum(view.whole_s(final.result) for final in finals if final.result and final.cfg.repetition > 1)
        used = in_hours(sum(self.used_s.values()) + final_s)
        lines.append(f"it took {used}, of it {in_hours(final_s)} to repeat the best")
        stopped = sum(reason.startswith(SLOW) for reason in self.reasons.values())
        lines.append(f"{count(len(self.reasons), 'cell')} out, {stopped} of them stopped before the target")
        return [*lines, f"to run the winner: {view.command(self.cells[order[0]])}"]


def train(cell: Cell, share: MachineShare, bar_s: float | None) -> float | None:
    """Measure the cell, as long as it takes no more than `bar_s` of training.

    Returns:
        The seconds after which it was stopped; None where it ended by itself. Its record is its result.
    """
    executor = Executor(cell.folder.parent, signal.SIGKILL)
    if run_folder.finished(cell.folder) is None:
        for board in cell.folder.glob(".progress*"):  # of an earlier start that was killed: `has_begun` reads it
            board.unlink(missing_ok=True)
    try:
        running = executor.start(cell, share)
        began_s = None
        while not running.has_ended():
            began_s = began_s or (clock_s() if has_begun(cell.folder) else None)
            if began_s is not None and bar_s is not None and clock_s() - began_s > bar_s:
                stopped_s = clock_s() - began_s
                executor.interrupt()
                assert cell.result is not None
                return None if cell.result.status == "ok" else stopped_s  # it may have ended meanwhile
            pause(POLL_S)
    except KeyboardInterrupt as interrupted:
        say(f"interrupted by {str(interrupted) or 'SIGINT'}: ending what runs", error=True)
        executor.interrupt()
        raise
    executor.collect(running)
    return None


def has_begun(folder: Path) -> bool:
    """True once a run trains."""
    try:
        return Board(folder, 1, node=0).read(0).of > 0
    except (OSError, ValueError):  # not there, or not whole
        return False
