"""What a race shows: its standings as it goes on, and at the end the winner, the other cells, and what it took."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, Self

from multicard.config.base import plain
from multicard.config.job import Device, count
from multicard.config.race import FIGURES, LESS_IS_BETTER, RaceConfig
from multicard.config.repetition import share
from multicard.decide.race.rules import CLOSE, SURE, Race
from multicard.decide.race.standings import BEATEN, IN, MISSED, NOT_STARTED, OUT, Standing
from multicard.machine.shares import machine
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import comparable, table, text_table
from multicard.records.run_folder import Run
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell

NORMAL_95 = 1.96
LISTED = 12  # most cells in the table at the end
END_WIDTH = 120  # of that table where there is no terminal: why cells are out was said in full when they dropped out
LEAST_RUNS = 2  # of a cell, without which nobody knows by how much its accuracy differs from run to run
CHANGES_ACCURACY = (  # groups and keys; gpus, as batch_size is of a rank
    *("precision", "strategy", "batch_size", "gpus", "gradient_accumulation_steps", "epochs", "max_steps"),
    *("lr", "schedule", "warmup_steps", "weight_decay", "optimizer", "method", "recipe", "model"),
    *("dataset", "template", "tokenizer", "max_seq_len", "packed"),
)
ENERGY = {"images": "J an image", "tokens": "J a token"}  # those that are no padding
WORSE = {"energy_joules": ("energy", "more energy"), "peak_memory": ("memory", "more memory")}
OWN_WORDS = ("race.", "name=", "rerun=", "hydra.", "tracker")  # of the race's command, that the winner's leaves out


class ShownRace(Protocol):
    """What is shown of a race (`live.LiveRace`, which says what these are)."""

    cells: list[Cell]
    options: RaceConfig
    rules: Race
    peaks: dict[int, int]
    used_s: dict[int, float]
    raced_s: float
    ended: set[int]

    def full_s(self) -> float | None: ...


class Screen:
    """While it is open: on a terminal a table that is drawn anew after each block, elsewhere a line a round."""

    def __init__(self, race: ShownRace) -> None:
        self._race, self._drawn = race, None
        if sys.stdout.isatty():
            from rich.live import Live

            self._drawn = Live(auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._drawn is not None:
            self._drawn.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def block_ended(self) -> None:
        if self._drawn is not None:
            from rich.text import Text

            standings = _sorted(self._race.rules.standings, None)[:LISTED]
            lines = _table(self._race, standings, text_table.terminal_width())
            self._drawn.update(Text("\n".join([*lines, *_round(self._race)]), no_wrap=True), refresh=True)

    def round_ended(self) -> None:
        if self._drawn is None:
            say("; ".join(_round(self._race)))


def _round(race: ShownRace) -> list[str]:
    """How the race stands, and what is still to come at most, before the final runs are known."""
    standings = race.rules.standings
    states = {state: sum(each.state == state for each in standings) for state in (IN, OUT, NOT_STARTED)}
    leader = max((each for each in standings if each.state == IN), key=lambda each: each.log_figure, default=None)
    ahead = "" if leader is None else f"; ahead: {race.cells[leader.cell].label}{figure(race, leader)}"
    said = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    lines = [f"race, round {race.rules.round + 1}, {in_hours(race.raced_s)}: {said}{ahead}"]
    full_s, options = race.full_s(), race.rules.options
    if full_s is None:
        return lines
    left = in_hours(max(race.rules.most_s - race.raced_s, 0.0))
    runs = f"{options.runs} to {count(options.runs * min(options.finalists, len(race.cells)), 'full run')}"
    return [*lines, f"at most about {left} left, then {runs} of about {in_hours(full_s)} each"]


def _sorted(standings: Sequence[Standing], winner: int | None) -> list[Standing]:
    """The cells that ran, the best first."""
    known = [each for each in standings if each.blocks]
    return sorted(known, key=lambda each: (each.cell == winner, each.state == IN, each.log_figure), reverse=True)


def figure(race: ShownRace, standing: Standing) -> str:
    unit = "" if race.options.figure == "peak_memory" else f" {_unit(race)}"
    return f"{value(race, standing.log_figure)}{unit} ({interval(race, standing)})"


def _unit(race: ShownRace) -> str:
    """Unit of the race's figure."""
    name = str(race.options.figure)
    return ENERGY[race.cells[0].workload.unit] if name == "energy_joules" else FIGURES[name]


def value(race: ShownRace, log_figure: float) -> str:
    name = str(race.options.figure)
    number = math.exp(-log_figure if name in LESS_IS_BETTER else log_figure)
    return in_bytes(round(number)) if name == "peak_memory" else f"{number:,.4g}"


def interval(race: ShownRace, standing: Standing) -> str:
    """95 % interval of the figure."""
    sign = -1 if race.options.figure in LESS_IS_BETTER else 1
    ends = (standing.log_figure + side * sign * NORMAL_95 * standing.error for side in (-1, 1))
    return " to ".join(value(race, log_figure) for log_figure in ends)


def end(race: ShownRace, finals: Sequence[Cell]) -> list[str]:
    """The table of the race, its winner, and what it took."""
    verdict, standings = race.rules.verdict(), race.rules.standings
    known = _sorted(standings, verdict.winner)
    missed = [each for each in standings if each.reason.startswith(MISSED)]
    if verdict.winner is None and missed:
        lines = [f"{race.cells[each.cell].label}out: {each.reason}" for each in missed]
        remedy = "race=total_s looks for the cell that reaches its target first"
        return [f"race={race.options.figure}: none of the fastest reached the target; {remedy}", *lines]
    if verdict.winner is None:
        return [f"race={race.options.figure}: no cell could be measured to its end"]
    accuracies = _accuracies(race, finals)
    width = text_table.terminal_width() or END_WIDTH
    lines = ["", *_table(race, known[:LISTED], width, accuracies, verdict.winner)]
    if len(known) > LISTED:
        lines.append(f"and {count(len(known) - LISTED, 'cell')} that ran, and came after these")
    for place in sorted(race.ended - {each.cell for each in known[:LISTED]}):
        lines.append(f"out: {race.cells[place].label}{standings[place].reason}")
    unstarted = [each.cell for each in standings if each.state == NOT_STARTED]
    if unstarted:
        why = ", as cells with the same settings say enough of them" if race.rules.ending in (SURE, CLOSE) else ""
        more = ", ..." if len(unstarted) > LISTED else ""
        lines.append(f"{count(len(unstarted), 'cell')} never ran{why}: {_labels(race, unstarted[:LISTED])}{more}")
    lines.append(f"the race ended: {race.rules.ending}")
    winner, tolerance = known[0], race.options.tolerance
    sure = f"within {tolerance} of the best with a probability of {verdict.sure:.0%}"
    lines.append(f"winner: {race.cells[winner.cell].label}{figure(race, winner)}, {sure}")
    if verdict.sure < race.options.confidence:
        lines.append(f"that is less sure than race.confidence={race.options.confidence:g}")
    for cells, what in ((verdict.equal, f"as good, within {tolerance}"), (verdict.close, "too close to tell")):
        if cells:
            lines.append(f"{what}: {_labels(race, cells)}")
    if missed:
        again = "are not tried again: race without such cells"
        lines.append(f"cells that were beaten by one that missed its target {again}")
    lines += otherwise(race, known, accuracies)
    lines.append(_cost(race, finals))
    differ = _differing(race)
    if differ:
        lines.append(f"the race does not vouch for accuracy, which {', '.join(differ)} may change")
    return [*lines, f"to run it: {command(race.cells[winner.cell])}"]


def _labels(race: ShownRace, places: Sequence[int]) -> str:
    return ", ".join(race.cells[place].label.strip() for place in places)


def _accuracies(race: ShownRace, finals: Sequence[Cell]) -> dict[int, list[float]]:
    """The accuracies of the finalists' full runs, by the cell's place."""
    places = {cell.number: place for place, cell in enumerate(race.cells)}
    known: dict[int, list[float]] = {}
    for cell in finals:
        accuracy = cell.result and getattr(cell.result.record, "test_accuracy", None)
        if accuracy is not None:
            known.setdefault(places[cell.number], []).append(accuracy)
    return known


def _table(
    race: ShownRace,
    standings: Sequence[Standing],
    width: int | None,
    accuracies: Mapping[int, Sequence[float]] | None = None,
    winner: int | None = None,
) -> list[str]:
    """
    Args:
        accuracies: of cells that were measured in full, by their place.
        winner: where the race is over.
    """
    records = [cell.as_record() for cell in race.cells]
    axes = comparable.varied(records, table.ALWAYS[race.cells[0].workload.name])
    columns: dict[str, list[str]] = {"cell": [race.cells[each.cell].label.strip() for each in standings]}
    columns |= {axis: [comparable.cell(records[each.cell], axis) for each in standings] for axis in axes}
    columns[_unit(race)] = [value(race, each.log_figure) for each in standings]
    columns["interval"] = [interval(race, each) for each in standings]
    if any(each.in_full is not None for each in standings):
        columns["in full"] = ["-" if each.in_full is None else value(race, each.in_full) for each in standings]
    columns["memory"] = [in_bytes(race.peaks[each.cell]) if each.cell in race.peaks else "-" for each in standings]
    if accuracies:
        of_cells = [accuracies.get(each.cell) for each in standings]
        columns["accuracy"] = [f"{fmean(values):.1%}" if values else "-" for values in of_cells]
    figures = len(columns) - len(axes) - 1
    columns["race"] = ["winner" if each.cell == winner else _state(each) for each in standings]
    align = "l" * (len(axes) + 1) + "r" * figures + "l"
    return text_table.text([*columns], [*zip(*columns.values(), strict=True)], width, align)


def _state(standing: Standing) -> str:
    beaten = standing.reason.removeprefix(BEATEN).partition(" the leader")[0]
    return f"out: {beaten}" if standing.state == OUT else standing.state


@dataclass(frozen=True)
class Choice:
    """What a cell gives and needs. peak_bytes: of the rank that takes most. accuracies: of its full runs; empty where
    it had none."""

    standing: Standing
    peak_bytes: int
    gpus: int
    accuracies: Sequence[float]

    def is_better(self, other: "Choice", tolerance: float) -> bool:
        """True where any of its figures is better, by more than the tolerance and by more than chance."""
        ahead = self.standing.log_figure - other.standing.log_figure
        noise = NORMAL_95 * math.hypot(self.standing.error, other.standing.error)
        repeated = min(len(self.accuracies), len(other.accuracies)) >= LEAST_RUNS
        return (
            ahead > max(-math.log1p(-tolerance), noise)
            or self.peak_bytes < (1 - tolerance) * other.peak_bytes
            or self.gpus < other.gpus
            or (repeated and min(self.accuracies) > max(other.accuracies))
        )


def otherwise(race: ShownRace, known: Sequence[Standing], accuracies: Mapping[int, Sequence[float]]) -> list[str]:
    """The cells that are better than the winner in something, and than which no other cell is better in all, with what
    it costs to choose them.

    Args:
        known: the cells that ran, the winner first, then the best first. accuracies: by the cell's place.
    """
    choices = [
        Choice(each, race.peaks[each.cell], race.cells[each.cell].config.gpus, accuracies.get(each.cell, ()))
        for each in known
        if each.cell in race.peaks and each.cell not in race.ended
    ]
    tolerance, chosen = share(race.options.tolerance), choices[:1]
    for choice in choices[1:]:
        is_new = all(choice.is_better(other, tolerance) for other in chosen)
        if is_new and all(
            choice.is_better(other, tolerance) or not other.is_better(choice, tolerance) for other in choices
        ):
            chosen.append(choice)
    lines = []
    for choice in chosen[1:]:
        apart = chosen[0].standing.log_figure - choice.standing.log_figure
        cell = race.cells[choice.standing.cell]
        parts = [cost(str(race.options.figure), apart), in_bytes(choice.peak_bytes), count(choice.gpus, unit([cell]))]
        parts += [f"accuracy {fmean(choice.accuracies):.1%}"] if choice.accuracies else []
        lines.append(f"  {cell.label.strip()}: {', '.join(parts)}")
    what = f"less memory of a rank, fewer {unit(race.cells)}s" + (", or a higher accuracy" if accuracies else "")
    return [f"otherwise, for {what}:", *lines] if lines else []


def unit(cells: Sequence[Cell]) -> str:
    """What cells compute on."""
    has_gpus = bool(machine().gpus)
    on_cpu = [cell.config.device is Device.cpu or not has_gpus for cell in cells]
    return "CPU rank" if all(on_cpu) else "GPU or CPU rank" if any(on_cpu) else "GPU"


def cost(figure_name: str, apart: float) -> str:
    """How much worse a cell's figure is than the winner's, which is the best by full runs.

    Args:
        apart: by how much the winner's logarithm is better; below 0 where all that was measured puts the cell first.
    """
    relative = math.expm1(apart) if figure_name in LESS_IS_BETTER else -math.expm1(-apart)
    percent, (noun, worse) = f"{max(relative, 0.0):.0%}", WORSE.get(figure_name, ("speed", "slower"))
    return f"the same {noun}" if percent == "0%" else f"{percent} {worse}"


def _cost(race: ShownRace, finals: Sequence[Cell]) -> str:
    """The time that the race took, and that the whole grid would have taken."""
    finals_s = {id(cell): whole_s(cell.result) for cell in finals if cell.result is not None}
    used_s, full_s = race.raced_s + sum(finals_s.values()), race.full_s()
    line = f"it took {in_hours(used_s)}, of it {in_hours(sum(finals_s.values()))} for the final runs"
    if full_s is None:
        return line
    whole_grid_s, gpus = full_s * len(race.cells), [cell.config.gpus for cell in race.cells]
    gpu_s = sum(used_s * gpus[place] for place, used_s in race.used_s.items())
    gpu_s += sum(finals_s.get(id(cell), 0.0) * cell.config.gpus for cell in finals)
    minutes = f"{gpu_s / 60:,.1f} of {full_s * sum(gpus) / 60:,.1f} minutes of a {unit(race.cells)}"
    return (
        f"{line}; the whole grid, once, takes about {in_hours(whole_grid_s)} ({used_s / whole_grid_s:.0%}; {minutes})"
    )


def whole_s(run: Run) -> float:
    """Seconds of a run, its start-up included."""
    return (run.record.startup_s or 0.0) + (run.record.total_s or 0.0)


def _differing(race: ShownRace) -> list[str]:
    """Keys that change accuracy, and differ between cells; none where the winner has reached its target accuracy."""
    if getattr(race.cells[0].config, "target_accuracy", None) is not None:
        return []
    own = [plain(cell.config) for cell in race.cells]
    return [key for key in CHANGES_ACCURACY if any(values.get(key) != own[0].get(key) for values in own)]


def command(cell: Cell) -> str:
    """The command that measures the cell alone."""
    words = [str(word) for word in cell.composed.hydra.overrides.task]
    words = [word for word in words if not word.startswith(OWN_WORDS)]
    return shlex.join(["python", cell.workload.entry, *words])
