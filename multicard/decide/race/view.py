"""Lines that a race prints: its standings after each round; at the end the winner, the other cells, and the cost."""

import math
import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Protocol

from multicard.config.base import plain
from multicard.config.job import Device, count
from multicard.config.sweeps import RaceConfig, share
from multicard.decide.race.rules import CLOSE, SURE, Race
from multicard.decide.race.standings import BEATEN, IN, MISSED, NOT_STARTED, OUT, Standing
from multicard.machine.shares import machine
from multicard.measure.timing import in_hours
from multicard.records import comparable, table, text_table
from multicard.records.figures import Figure
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell

NORMAL_95 = 1.96
LISTED = 12  # most cells in the table at the end
END_WIDTH = 120  # of that table where there is no terminal: why cells are out was said in full when they dropped out
LEAST_RUNS = 2  # of a cell; one does not show by how much its accuracy differs from run to run
CHANGES_ACCURACY = (  # groups and keys; gpus, as batch_size is of a rank
    *("precision", "strategy", "batch_size", "gpus", "gradient_accumulation_steps", "epochs", "max_steps"),
    *("lr", "schedule", "warmup_steps", "weight_decay", "optimizer", "method", "recipe", "model"),
    *("dataset", "template", "tokenizer", "max_seq_len", "packed"),
)
OWN_WORDS = ("race.", "name=", "rerun=", "hydra.", "tracker")  # of the race's command, that the winner's leaves out


class ShownRace(Protocol):
    """The attributes of `live.LiveRace` that are shown."""

    cells: list[Cell]
    options: RaceConfig
    figure: Figure
    rules: Race
    peaks: dict[int, int]
    used_s: dict[int, float]
    raced_s: float
    ended: set[int]

    def full_s(self) -> float | None: ...


def progress(race: ShownRace) -> str:
    """A line after each round: how the race stands, and what is still to come at most."""
    standings, options = race.rules.standings, race.rules.options
    states = {state: sum(each.state == state for each in standings) for state in (IN, OUT, NOT_STARTED)}
    line = f"race, round {race.rules.round + 1}, {in_hours(race.raced_s)}: "
    line += ", ".join(f"{number} {state}" for state, number in states.items() if number)
    leader = max((each for each in standings if each.state == IN), key=lambda each: each.log_figure, default=None)
    if leader is not None:
        line += f"; ahead: {race.cells[leader.cell].label}{figure(race.figure, leader)}"
    full_s = race.full_s()
    if full_s is not None:
        left = in_hours(max(race.rules.most_s - race.raced_s, 0.0))
        runs = f"{options.runs} to {count(options.runs * min(options.finalists, len(race.cells)), 'full run')}"
        line += f"; at most about {left} left, then {runs} of about {in_hours(full_s)} each"
    return line


def figure(raced: Figure, standing: Standing) -> str:
    return f"{value(raced, standing.log_figure)} {raced.head or raced.title} ({interval(raced, standing)})"


def value(raced: Figure, log_figure: float) -> str:
    return f"{math.exp(-log_figure if raced.better == 'lower' else log_figure):,.4g}"


def interval(raced: Figure, standing: Standing) -> str:
    """95 % interval of the figure."""
    half = NORMAL_95 * standing.error * (-1 if raced.better == "lower" else 1)
    return f"{value(raced, standing.log_figure - half)} to {value(raced, standing.log_figure + half)}"


def end(race: ShownRace, finals: Sequence[Cell]) -> list[str]:
    """The table of the race, its winner, and its cost."""
    verdict, standings, options = race.rules.verdict(), race.rules.standings, race.options
    missed = [each for each in standings if each.reason.startswith(MISSED)]
    if verdict.winner is None and missed:
        lines = [f"{race.cells[each.cell].label}out: {each.reason}" for each in missed]
        remedy = "to look at all cells, sweep without race and with stop_at_target=true"
        return [f"race={options.figure}: none of the fastest reached the target; {remedy}", *lines]
    if verdict.winner is None:
        return [f"race={options.figure}: no cell could be measured to its end"]
    accuracies = _accuracies(race, finals)
    ran = [each for each in standings if each.blocks]
    ran.sort(key=lambda each: (each.cell == verdict.winner, each.state == IN, each.log_figure), reverse=True)
    lines = ["", *_table(race, ran[:LISTED], accuracies, verdict.winner)]
    if len(ran) > LISTED:
        lines.append(f"and {count(len(ran) - LISTED, 'cell')} that ran, and came after these")
    for place in sorted(race.ended - {each.cell for each in ran[:LISTED]}):
        lines.append(f"out: {race.cells[place].label}{standings[place].reason}")
    unstarted = [each.cell for each in standings if each.state == NOT_STARTED]
    if unstarted:
        why = ", as cells with the same settings say enough of them" if race.rules.ending in (SURE, CLOSE) else ""
        more = ", ..." if len(unstarted) > LISTED else ""
        lines.append(f"{count(len(unstarted), 'cell')} never ran{why}: {_labels(race, unstarted[:LISTED])}{more}")
    lines.append(f"the race ended: {race.rules.ending}")
    winner = race.cells[ran[0].cell]
    sure = f"within {options.tolerance} of the best with a probability of {verdict.sure:.0%}"
    lines.append(f"winner: {winner.label}{figure(race.figure, ran[0])}, {sure}")
    if verdict.sure < options.confidence:
        lines.append(f"that is less sure than race.confidence={options.confidence:g}")
    for cells, what in ((verdict.equal, f"as good, within {options.tolerance}"), (verdict.close, "too close to tell")):
        if cells:
            lines.append(f"{what}: {_labels(race, cells)}")
    if missed:
        again = "are not tried again: race without such cells"
        lines.append(f"cells that were beaten by one that missed its target {again}")
    lines += [*otherwise(race, ran, accuracies), _cost(race, finals)]
    differ = _differing(race.cells)
    if differ:
        lines.append(f"the race does not vouch for accuracy, which {', '.join(differ)} may change")
    return [*lines, f"to run it: {command(winner)}"]


def _labels(race: ShownRace, places: Sequence[int]) -> str:
    return ", ".join(race.cells[place].label.strip() for place in places)


def _accuracies(race: ShownRace, finals: Sequence[Cell]) -> dict[int, list[float]]:
    """Accuracies of the finalists' full runs, by the cell's place."""
    places = {cell.number: place for place, cell in enumerate(race.cells)}
    known: dict[int, list[float]] = {}
    for cell in finals:
        accuracy = cell.result and getattr(cell.result.record, "test_accuracy", None)
        if accuracy is not None:
            known.setdefault(places[cell.number], []).append(accuracy)
    return known


def _table(
    race: ShownRace, standings: Sequence[Standing], accuracies: Mapping[int, Sequence[float]], winner: int
) -> list[str]:
    records = [cell.as_record() for cell in race.cells]
    axes = comparable.varied(records, table.ALWAYS[race.cells[0].workload.name])
    columns: dict[str, list[str]] = {"cell": [race.cells[each.cell].label.strip() for each in standings]}
    columns |= {axis: [comparable.cell(records[each.cell], axis) for each in standings] for axis in axes}
    columns[race.figure.head or race.figure.title] = [value(race.figure, each.log_figure) for each in standings]
    columns["interval"] = [interval(race.figure, each) for each in standings]
    if any(each.in_full is not None for each in standings):
        full = ["-" if each.in_full is None else value(race.figure, each.in_full) for each in standings]
        columns["in full"] = full
    columns["memory"] = [in_bytes(race.peaks[each.cell]) if each.cell in race.peaks else "-" for each in standings]
    if accuracies:
        of_cells = [accuracies.get(each.cell) for each in standings]
        columns["accuracy"] = [f"{fmean(values):.1%}" if values else "-" for values in of_cells]
    align = "l" * (len(axes) + 1) + "r" * (len(columns) - len(axes) - 1) + "l"
    columns["race"] = ["winner" if each.cell == winner else _state(each) for each in standings]
    rows = [*zip(*columns.values(), strict=True)]
    return text_table.text([*columns], rows, text_table.terminal_width() or END_WIDTH, align)


def _state(standing: Standing) -> str:
    beaten = standing.reason.removeprefix(BEATEN).partition(" the leader")[0]
    return f"out: {beaten}" if standing.state == OUT else standing.state


def otherwise(race: ShownRace, ran: Sequence[Standing], accuracies: Mapping[int, Sequence[float]]) -> list[str]:
    """Cells that are better than the winner in something, and not dominated by another, with what they cost.

    Args:
        ran: the cells that ran, the winner first, then the best first. accuracies: by the cell's place.
    """
    tolerance, gpus = share(race.options.tolerance), [cell.config.gpus for cell in race.cells]

    def is_better(one: Standing, other: Standing) -> bool:
        """True where any figure is better, by more than the tolerance and by more than chance."""
        noise = NORMAL_95 * math.hypot(one.error, other.error)
        own, others = accuracies.get(one.cell, ()), accuracies.get(other.cell, ())
        return (
            one.log_figure - other.log_figure > max(-math.log1p(-tolerance), noise)
            or race.peaks[one.cell] < (1 - tolerance) * race.peaks[other.cell]
            or gpus[one.cell] < gpus[other.cell]
            or (min(len(own), len(others)) >= LEAST_RUNS and min(own) > max(others))
        )

    choices = [each for each in ran if each.cell in race.peaks and each.cell not in race.ended]
    chosen, lines = choices[:1], list[str]()
    for one in choices[1:]:
        is_new = all(is_better(one, other) for other in chosen)
        if not is_new or any(is_better(other, one) and not is_better(one, other) for other in choices):
            continue
        chosen.append(one)
        cell, apart = race.cells[one.cell], chosen[0].log_figure - one.log_figure
        parts = [_worse(race.figure, apart), in_bytes(race.peaks[one.cell]), count(gpus[one.cell], unit([cell]))]
        parts += [f"accuracy {fmean(accuracies[one.cell]):.1%}"] if one.cell in accuracies else []
        lines.append(f"  {cell.label.strip()}: {', '.join(parts)}")
    what = f"less memory of a rank, fewer {unit(race.cells)}s" + (", or a higher accuracy" if accuracies else "")
    return [f"otherwise, for {what}:", *lines] if lines else []


def unit(cells: Sequence[Cell]) -> str:
    """The devices that cells compute on."""
    has_gpus = bool(machine().gpus)
    on_cpu = [cell.config.device is Device.cpu or not has_gpus for cell in cells]
    return "CPU rank" if all(on_cpu) else "GPU or CPU rank" if any(on_cpu) else "GPU"


def _worse(raced: Figure, apart: float) -> str:
    """How much worse a cell's figure is than that of the winner, which is the best by full runs.

    Args:
        apart: by how much the winner's logarithm is better; below 0 where all that was measured puts the cell first.
    """
    less = raced.better == "lower"
    percent = f"{max(math.expm1(apart) if less else -math.expm1(-apart), 0.0):.0%}"
    if percent == "0%":
        return "the same energy" if less else "the same speed"
    return f"{percent} more energy" if less else f"{percent} slower"


def _cost(race: ShownRace, finals: Sequence[Cell]) -> str:
    """Time of the race compared with that of the whole grid."""
    gpus = [cell.config.gpus for cell in race.cells]
    finals_s, full_s = 0.0, race.full_s()
    gpu_s = sum(used_s * gpus[place] for place, used_s in race.used_s.items())
    for record, cell in ((cell.result.record, cell) for cell in finals if cell.result is not None):
        seconds = (record.startup_s or 0.0) + (record.total_s or 0.0)
        finals_s += seconds
        gpu_s += seconds * cell.config.gpus
    used_s = race.raced_s + finals_s
    line = f"it took {in_hours(used_s)}, of it {in_hours(finals_s)} for the final runs"
    if full_s is None:
        return line
    grid_s = full_s * len(race.cells)
    minutes = f"{gpu_s / 60:,.1f} of {full_s * sum(gpus) / 60:,.1f} minutes of a {unit(race.cells)}"
    return f"{line}; the whole grid, once, takes about {in_hours(grid_s)} ({used_s / grid_s:.0%}; {minutes})"


def _differing(cells: Sequence[Cell]) -> list[str]:
    """Keys that change accuracy, and differ between cells; none where the winner has reached its target accuracy."""
    if getattr(cells[0].config, "target_accuracy", None) is not None:
        return []
    own = [plain(cell.config) for cell in cells]
    return [key for key in CHANGES_ACCURACY if any(values.get(key) != own[0].get(key) for values in own)]


def command(cell: Cell) -> str:
    """The command that measures the cell alone."""
    words = [str(word) for word in cell.composed.hydra.overrides.task]
    return shlex.join(["python", cell.workload.entry, *(word for word in words if not word.startswith(OWN_WORDS))])
