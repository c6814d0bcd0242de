"""What a race shows: its standings as it goes on, and at the end the winner, the other cells, and what it took."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol, Self

from multicard.config.base import plain
from multicard.config.job import count
from multicard.config.race import FIGURES, LESS_IS_BETTER, RaceConfig
from multicard.decide.race import front
from multicard.decide.race.readings import MISSED
from multicard.decide.race.rules import CLOSE, MOST_SPENT, SURE, Race
from multicard.decide.race.standings import BEATEN, IN, NOT_STARTED, OUT, Standing
from multicard.measure.timing import in_hours
from multicard.records import comparable, table, text_table
from multicard.records.text_table import in_bytes
from multicard.run.session import say
from multicard.sweep.cells import Cell

NORMAL_95 = 1.96
LISTED = 12  # cells at most in the table at the end
END_WIDTH = 120  # of that table where there is no terminal: why cells are out was said in full when they dropped out
CHANGES_ACCURACY = (  # groups and keys; gpus, as batch_size is of a rank
    *("precision", "strategy", "batch_size", "gpus", "gradient_accumulation_steps", "epochs", "max_steps"),
    *("lr", "schedule", "warmup_steps", "weight_decay", "optimizer", "method", "recipe", "model"),
    *("dataset", "template", "tokenizer", "max_seq_len", "packed"),
)
ENERGY = {"images": "J an image", "tokens": "J a token"}  # those that are no padding
OWN_WORDS = ("race.", "name=", "rerun=", "hydra.", "tracker")  # of the race's command, that the winner's leaves out


class ShownRace(Protocol):
    """What is shown of a race (`live.LiveRace`).

    By a cell's place among `cells`: the peak memory of its rank that takes most, in bytes, and the seconds that it took
    so far. raced_s: seconds of all rounds. ended: cells that cannot go on.
    """

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
    """How the race stands, and what is still to come."""
    standings = race.rules.standings
    states = {state: sum(each.state == state for each in standings) for state in (IN, OUT, NOT_STARTED)}
    leader = max((each for each in standings if each.state == IN), key=lambda each: each.log_figure, default=None)
    ahead = "" if leader is None else f"; ahead: {race.cells[leader.cell].label}{figure(race, leader)}"
    said = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    return [f"race, round {race.rules.round + 1}, {in_hours(race.raced_s)}: {said}{ahead}", *_left(race)]


def say_if_small(race: ShownRace) -> None:
    """Say that full runs of the best take about as long as all of a small grid, or longer."""
    options, cells = race.rules.options, len(race.cells)
    if cells <= options.runs * options.finalists:
        most = count(options.runs * min(options.finalists, cells), "run")
        what = f"measures the best in full, {options.runs} to {most}, of a grid of {count(cells, 'cell')}"
        say(f"race={race.options.figure}: {what}; without it, each cell is measured once, or thrice with repeat=3")


def _left(race: ShownRace) -> list[str]:
    """What is still to come at most, before the final runs are known."""
    full_s, options = race.full_s(), race.rules.options
    if full_s is None:
        return []
    most_s = MOST_SPENT * full_s * len(race.cells) - race.raced_s
    runs = f"{options.runs} to {count(options.runs * min(options.finalists, len(race.cells)), 'full run')}"
    return [f"at most about {in_hours(max(most_s, 0.0))} left, then {runs} of about {in_hours(full_s)} each"]


def _sorted(standings: Sequence[Standing], winner: int | None) -> list[Standing]:
    """The cells that ran, the best first."""
    known = [each for each in standings if each.blocks]
    return sorted(known, key=lambda each: (each.cell == winner, each.state == IN, each.log_figure), reverse=True)


def figure(race: ShownRace, standing: Standing) -> str:
    unit = "" if race.options.figure == "peak_memory" else f" {_unit(race)}"
    return f"{value(race, standing.log_figure)}{unit} ({interval(race, standing)})"


def _unit(race: ShownRace) -> str:
    """Of the figure."""
    name = str(race.options.figure)
    return ENERGY[race.cells[0].workload.unit] if name == "energy_joules" else FIGURES[name]


def value(race: ShownRace, log_figure: float) -> str:
    name = str(race.options.figure)
    number = math.exp(-log_figure if name in LESS_IS_BETTER else log_figure)
    return in_bytes(round(number)) if name == "peak_memory" else f"{number:,.4g}"


def interval(race: ShownRace, standing: Standing) -> str:
    """Of the figure, 95 %."""
    sign = -1 if race.options.figure in LESS_IS_BETTER else 1
    ends = (standing.log_figure + side * sign * NORMAL_95 * standing.error for side in (-1, 1))
    return " to ".join(value(race, log_figure) for log_figure in ends)


def end(race: ShownRace, finals: Sequence[Cell]) -> list[str]:
    """The table of the race, its winner, and what it took."""
    verdict = race.rules.verdict()
    known = _sorted(race.rules.standings, verdict.winner)
    missed = [each for each in race.rules.standings if each.reason.startswith(MISSED)]
    if verdict.winner is None and missed:
        lines = [f"{race.cells[each.cell].label}out: {each.reason}" for each in missed]
        remedy = "race=total_s looks for the cell that reaches its target first"
        return [f"race={race.options.figure}: none of the fastest reached the target; {remedy}", *lines]
    if verdict.winner is None:
        return [f"race={race.options.figure}: no cell could be measured to its end"]
    width = text_table.terminal_width() or END_WIDTH
    accuracies = _accuracies(race, finals)
    lines = ["", *_table(race, known[:LISTED], width, accuracies, verdict.winner)]
    if len(known) > LISTED:
        lines.append(f"and {count(len(known) - LISTED, 'cell')} that ran, and came after these")
    for place in sorted(race.ended - {each.cell for each in known[:LISTED]}):
        reason = race.rules.standings[place].reason
        lines.append(f"out: {race.cells[place].label}{reason}")
    unstarted = [race.cells[each.cell].label.strip() for each in race.rules.standings if each.state == NOT_STARTED]
    if unstarted:
        why = ", as cells with the same settings say enough of them" if race.rules.ending in (SURE, CLOSE) else ""
        named = ", ".join(unstarted[:LISTED]) + (", ..." if len(unstarted) > LISTED else "")
        lines.append(f"{count(len(unstarted), 'cell')} never ran{why}: {named}")
    lines.append(f"the race ended: {race.rules.ending}")
    winner, tolerance = known[0], race.options.tolerance
    sure = f"within {tolerance} of the best with a probability of {verdict.sure:.0%}"
    lines.append(f"winner: {race.cells[winner.cell].label}{figure(race, winner)}, {sure}")
    if verdict.sure < race.options.confidence:
        lines.append(f"that is less sure than race.confidence={race.options.confidence:g}")
    for cells, what in ((verdict.equal, f"as good, within {tolerance}"), (verdict.close, "too close to tell")):
        if cells:
            lines.append(f"{what}: {', '.join(race.cells[place].label.strip() for place in cells)}")
    if missed:
        lines.append(
            "cells that were beaten by one that missed its target are not tried again: race without such cells"
        )
    lines += front.lines(race, known, accuracies)
    lines.append(_cost(race, finals))
    differ = _differing(race)
    if differ:
        lines.append(f"the race does not vouch for accuracy, which {', '.join(differ)} may change")
    return [*lines, f"to run it: {command(race.cells[winner.cell])}"]


def _accuracies(race: ShownRace, finals: Sequence[Cell]) -> dict[int, list[float]]:
    """The accuracies of the finalists' full runs, by the cell's place."""
    places = {cell.number: place for place, cell in enumerate(race.cells)}
    known: dict[int, list[float]] = {}
    for cell in finals:
        accuracy = None if cell.result is None else cell.result.get("test_accuracy")
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
    axes, shown = _axes(race), ["accuracy"] if accuracies else []
    rows = [
        [
            race.cells[each.cell].label.strip(),
            *(comparable.cell(_as_record(race.cells[each.cell]), axis) for axis in axes),
            value(race, each.log_figure),
            interval(race, each),
            in_bytes(race.peaks[each.cell]) if each.cell in race.peaks else "-",
            *(f"{fmean(values):.1%}" if (values := (accuracies or {}).get(each.cell)) else "-" for _ in shown),
            "winner" if each.cell == winner else _state(each),
        ]
        for each in standings
    ]
    headings = ["cell", *axes, _unit(race), "interval", "memory", *shown, "race"]
    return text_table.text(headings, rows, width, "l" * (len(axes) + 1) + "rrr" + "r" * len(shown) + "l")


def _state(standing: Standing) -> str:
    beaten = standing.reason.removeprefix(BEATEN).partition(" the leader")[0]
    return f"out: {beaten}" if standing.state == OUT else standing.state


def _axes(race: ShownRace) -> list[str]:
    return comparable.varied([_as_record(cell) for cell in race.cells], table.ALWAYS[race.cells[0].workload.name])


def _as_record(cell: Cell) -> dict[str, Any]:
    return {"axes": cell.workload.axes(cell.cfg, str(cell.cfg.device)), "config": plain(cell.config)}


def _cost(race: ShownRace, finals: Sequence[Cell]) -> str:
    """The time that the race took, and that the whole grid would have taken."""
    final_s = sum(whole_s(cell.result) for cell in finals if cell.result is not None)
    used_s = race.raced_s + final_s
    full_s = race.full_s()
    whole = None if full_s is None else full_s * len(race.cells)
    line = f"it took {in_hours(used_s)}, of it {in_hours(final_s)} for the final runs"
    if full_s is None or whole is None:
        return line
    gpus, unit = [1 if cell.config is None else cell.config.gpus for cell in race.cells], front.unit(race.cells)
    minutes = sum(used_s * gpus[place] for place, used_s in race.used_s.items())
    minutes += sum(whole_s(cell.result) * cell.config.gpus for cell in finals if cell.result and cell.config)
    shares = f"{used_s / whole:.0%}; {minutes / 60:,.1f} of {full_s * sum(gpus) / 60:,.1f} minutes of a {unit}"
    return f"{line}; the whole grid, once, takes about {in_hours(whole)} ({shares})"


def whole_s(record: dict[str, Any]) -> float:
    return (record.get("startup_s") or 0.0) + (record.get("total_s") or 0.0)


def _differing(race: ShownRace) -> list[str]:
    """Keys that change accuracy, and differ between cells; none where the winner has reached its target accuracy."""
    first = race.cells[0]
    assert first.config is not None
    if getattr(first.config, "target_accuracy", None) is not None:
        return []
    own = [plain(cell.config) for cell in race.cells if cell.config is not None]
    return [key for key in CHANGES_ACCURACY if any(values.get(key) != own[0].get(key) for values in own)]


def command(cell: Cell) -> str:
    """The command that measures the cell alone."""
    words = [str(word) for word in cell.composed.hydra.overrides.task]
    words = [word for word in words if not word.startswith(OWN_WORDS)]
    return shlex.join(["python", cell.workload.entry, *words])
