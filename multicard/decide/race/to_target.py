"""`race=total_s`: the cell that reaches its target accuracy in the least time.

Speed alone does not say when a cell is there, so cells train in turn towards the target, those first that are predicted
to be fast. The first that reaches it sets the bar: a cell that has trained longer than the bar by MARGIN is stopped and
out, one that is there sooner lowers the bar. Those that came within MARGIN are measured in full, three times each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from multicard.config.job import count
from multicard.config.keys import require
from multicard.decide.race import priors, processes, view
from multicard.decide.race.state import State, head
from multicard.measure.timing import clock_s, in_hours, pause
from multicard.records import run_folder
from multicard.records.progress import Board
from multicard.run.session import say
from multicard.sweep.cells import Cell, Sweep, settle
from multicard.sweep.executor import Executor, run_all
from multicard.sweep.shares import MachineShare
from multicard.sweep.streak import SameFailureError, would_fail_too

MARGIN = 0.25  # by which times to a target differ from run to run: an epoch more or less
FINALISTS, RUNS = 3, 3
POLL_S = 0.2


@dataclass
class Times:
    """What is known of the cells, by their place.

    reached_s: to the target, of each that was there. reasons: why the others are out.
    """

    reached_s: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    used_s: dict[int, float] = field(default_factory=dict)

    @property
    def bar_s(self) -> float | None:
        """After which a cell that is not there is out; None before one was."""
        return (1 + MARGIN) * min(self.reached_s.values()) if self.reached_s else None

    def finalists(self) -> list[int]:
        near = [place for place, time_s in self.reached_s.items() if time_s <= (self.bar_s or 0.0)]
        return sorted(near, key=lambda place: self.reached_s[place])[:FINALISTS]


def refuse(cells: Sequence[Cell]) -> None:
    """
    Raises:
        ValueError: an entry that has no accuracy, cells without a target, or that train on once they are there.
    """
    workload = cells[0].workload
    own = "is the time to an accuracy, which train_vision.py has"
    require("target_accuracy" in cells[0].cfg, f"race=total_s: {own}; {workload.entry} has race={workload.unit}_per_s")
    remedy = "race=total_s: is the time to an accuracy; set target_accuracy=0.97 or another, and stop_at_target=true"
    require(all(cell.cfg.get("target_accuracy") and cell.cfg.stop_at_target for cell in cells), remedy)


def run(sweep: Sweep, finals: Sweep) -> None:
    """Race the cells to their target, and measure those in full that came near the best.

    Args:
        finals: what is measured in full is added to it.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once what ran has ended.
        SameFailureError: a cell failed for a cause that the others have too.
    """
    cells = sweep.cells
    state = State(cells[0].folder.parent, "total_s", head(), anew=bool(cells[0].cfg.rerun))
    outs = {line["cell"]: line for line in state.lines if "out" in line}
    known = priors.of(cells)
    order = sorted(range(len(cells)), key=lambda place: -(known[place] or (0.0, 0.0))[0])
    times, runs = Times(), {place: processes.as_result(cells[place], 1) for place in range(len(cells))}
    try:
        settle(Sweep(sweep.command, [*runs.values()]))
        first = cells[order[0]].config
        with processes.whole_machine(first) as share:
            for place in order:
                line = outs.get(_name(cells[place]))
                if line is not None:
                    times.reasons[place], times.used_s[place] = line["out"], line["used_s"]
                    continue
                left = [cells[other] for other in order if other not in times.reasons]
                lasts = _judge(times, place, runs[place], share, left)
                if place in times.reasons and lasts:
                    out = {"out": times.reasons[place], "used_s": times.used_s[place]}
                    state.add(cell=_name(cells[place]), **out)
        best = times.finalists()
        finals.cells += [runs[place] for place in best]
        more = [processes.as_result(cells[place], turn) for turn in range(2, RUNS + 1) for place in best]
        finals.cells += more
        settle(rest := Sweep(sweep.command, more))
        if rest.left:
            say(f"race=total_s: {count(len(rest.left), 'run')} more of those that came near the best")
            run_all(rest)
        say("\n".join(end(cells, times, finals.cells)))
        sweep.command.abandoned |= not times.reached_s
    finally:
        state.close()


def _name(cell: Cell) -> str:
    return cell.config.identity()


def _judge(times: Times, place: int, cell: Cell, share: MachineShare, left: Sequence[Cell]) -> bool:
    """Train a cell to its target or beyond the bar, unless it was measured before, and note the result.

    Args:
        left: cells that are not out.

    Returns:
        Whether that holds when the race goes on after an interruption too: what ended the cell from outside need not be
        there then.

    Raises:
        SameFailureError: the cells that are left would fail likewise.
    """
    began_s, bar_s = clock_s(), times.bar_s
    stopped_s = None if cell.result is not None else train(cell, share, bar_s)
    record = cell.result
    assert record is not None
    times.used_s[place] = clock_s() - began_s
    if stopped_s is not None:
        times.reasons[place] = f"not at its target after {stopped_s:.1f} s, in which another is"
    elif record["status"] == "interrupted":
        raise KeyboardInterrupt
    elif record["status"] != "ok":
        message = (record["cause"] or {}).get("message", "")
        if would_fail_too(left, cell):
            raise SameFailureError(message)
        times.reasons[place] = f"{record['status']}: {message}"
    elif record["time_to_target_s"] is None:
        times.reasons[place] = f"did not reach its target in its epochs ({record['test_accuracy']:.1%})"
    else:
        times.reached_s[place] = record["time_to_target_s"]
        times.used_s[place] = max(times.used_s[place], (record["startup_s"] or 0.0) + record["total_s"])
        say(f"{cell.label}reached its target in {record['time_to_target_s']:.1f} s")
        return True
    say(f"{cell.label}out: {times.reasons[place]}")
    return stopped_s is not None or record["status"] in ("ok", "oom", "diverged")


def train(cell: Cell, share: MachineShare, bar_s: float | None) -> float | None:
    """Measure the cell, as long as it takes no more than `bar_s` of training.

    Returns:
        The seconds after which it was stopped; None where it ended by itself. Its record is its result.
    """
    executor = Executor(cell.folder.parent)
    if run_folder.finished(cell.folder) is None:
        for board in cell.folder.glob(".progress*"):  # of an earlier start that was killed: `has_begun` reads it
            board.unlink(missing_ok=True)
    try:
        running = processes.submit(executor, cell, share)
        began_s = None
        while not running.has_ended():
            began_s = began_s or (clock_s() if has_begun(cell.folder) else None)
            if began_s is not None and bar_s is not None and clock_s() - began_s > bar_s:
                stopped_s = clock_s() - began_s
                executor.interrupt()
                assert cell.result is not None
                return None if cell.result["status"] == "ok" else stopped_s  # it may have ended meanwhile
            pause(POLL_S)
    except KeyboardInterrupt as interrupted:
        say(f"interrupted by {str(interrupted) or 'SIGINT'}: ending what runs", error=True)
        executor.interrupt()
        raise
    executor.collect(running)
    return None


def has_begun(folder: Path) -> bool:
    """Whether a run trains."""
    try:
        return Board(folder, 1, node=0).read(0).of > 0
    except (OSError, ValueError):  # not there, or not whole
        return False


def end(cells: Sequence[Cell], times: Times, finals: Sequence[Cell]) -> list[str]:
    """The winner, those near it, and what the race took."""
    measured: dict[int, list[float]] = {}
    accuracies: dict[int, list[float]] = {}
    for place, cell in enumerate(cells):
        records = [final.result for final in finals if final.number == cell.number and final.result is not None]
        reached = [record for record in records if record["status"] == "ok" and record["time_to_target_s"]]
        if reached and len(reached) == len(records):
            measured[place] = [record["time_to_target_s"] for record in reached]
            accuracies[place] = [record["test_accuracy"] for record in reached]
    if not measured:
        return ["race=total_s: no cell reached its target in each of its runs"]
    order = sorted(measured, key=lambda place: mean(measured[place]))
    lines = [""]
    for place in order:
        what = "winner: " if place == order[0] else "next: "
        several = ", ".join(f"{time_s:.1f}" for time_s in sorted(measured[place]))
        lines.append(f"{what}{cells[place].label}{cells[place].folder.name}")
        accuracy = f"accuracy {mean(accuracies[place]):.1%}"
        lines.append(f"  {mean(measured[place]):.1f} s to its target ({several}), {accuracy}")
    overlap = [place for place in order[1:] if min(measured[place]) <= max(measured[order[0]])]
    if overlap:
        named = ", ".join(cells[place].label.strip() for place in overlap)
        lines.append(f"too close to tell from the winner: {named}")
    final_s = sum(view.whole_s(final.result) for final in finals if final.result and final.cfg.repetition > 1)
    lines.append(
        f"it took {in_hours(sum(times.used_s.values()) + final_s)}, of it {in_hours(final_s)} to repeat the best"
    )
    stopped = sum("not at its target" in reason for reason in times.reasons.values())
    lines.append(f"{count(len(times.reasons), 'cell')} out, {stopped} of them stopped before the target")
    return [*lines, f"to run the winner: {view.command(cells[order[0]])}"]
