"""What it costs to choose another cell than the winner of a race."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from multicard.config.job import Device, count
from multicard.config.race import LESS_IS_BETTER, RaceConfig
from multicard.config.repetition import share
from multicard.decide.race.standings import Standing
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell
from multicard.sweep.shares import machine

NORMAL_95 = 1.96
LEAST_RUNS = 2  # of a cell, without which nobody knows by how much its accuracy differs from run to run
WORSE = {"energy_joules": ("energy", "more energy"), "peak_memory": ("memory", "more memory")}


class RatedRace(Protocol):
    """The part of a race (`live.LiveRace`) that says what its cells need."""

    cells: list[Cell]
    options: RaceConfig
    peaks: dict[int, int]
    ended: set[int]


@dataclass(frozen=True)
class Choice:
    """What a cell gives and needs. peak_bytes: of the rank that takes most. accuracies: of its full runs; empty where
    it had none."""

    standing: Standing
    peak_bytes: int
    gpus: int
    accuracies: Sequence[float]

    def is_better(self, other: "Choice", tolerance: float) -> bool:
        """Whether any of its figures is better, by more than the tolerance and by more than chance."""
        ahead = self.standing.log_figure - other.standing.log_figure
        noise = NORMAL_95 * math.hypot(self.standing.error, other.standing.error)
        return (
            ahead > max(-math.log1p(-tolerance), noise)
            or self.peak_bytes < (1 - tolerance) * other.peak_bytes
            or self.gpus < other.gpus
            or self._is_more_accurate(other)
        )

    def _is_more_accurate(self, other: "Choice") -> bool:
        """Whether each of its runs is more accurate than all of the other's."""
        repeated = min(len(self.accuracies), len(other.accuracies)) >= LEAST_RUNS
        return repeated and min(self.accuracies) > max(other.accuracies)


def lines(race: RatedRace, known: Sequence[Standing], accuracies: Mapping[int, Sequence[float]]) -> list[str]:
    """The cells that are better than the winner in something, and than which no other cell is better in all.

    Args:
        known: the cells that ran, the winner first, then the best first. accuracies: by the cell's place.
    """
    choices = []
    for each in known:
        config = race.cells[each.cell].config
        if config is not None and each.cell in race.peaks and each.cell not in race.ended:
            own = accuracies.get(each.cell, ())
            choices.append(Choice(each, race.peaks[each.cell], config.gpus, own))
    tolerance = share(race.options.tolerance)
    chosen = choices[:1]
    for choice in choices[1:]:
        new = all(choice.is_better(other, tolerance) for other in chosen)
        if new and not any(
            other.is_better(choice, tolerance) and not choice.is_better(other, tolerance) for other in choices
        ):
            chosen.append(choice)
    if len(chosen) < 2:
        return []
    what = f"less memory of a rank, fewer {unit(race.cells)}s" + (", or a higher accuracy" if accuracies else "")
    return [f"otherwise, for {what}:", *(_line(race, choice, chosen[0]) for choice in chosen[1:])]


def _line(race: RatedRace, choice: Choice, winner: Choice) -> str:
    apart = winner.standing.log_figure - choice.standing.log_figure
    ranks = count(choice.gpus, unit([race.cells[choice.standing.cell]]))
    parts = [in_words(str(race.options.figure), apart), in_bytes(choice.peak_bytes), ranks]
    if choice.accuracies:
        parts.append(f"accuracy {fmean(choice.accuracies):.1%}")
    return f"  {race.cells[choice.standing.cell].label.strip()}: {', '.join(parts)}"


def unit(cells: Sequence[Cell]) -> str:
    """What cells compute on."""
    has_gpus = bool(machine().gpus)
    on_cpu = [cell.config.device is Device.cpu or not has_gpus for cell in cells if cell.config is not None]
    return "CPU rank" if all(on_cpu) else "GPU or CPU rank" if any(on_cpu) else "GPU"


def in_words(figure: str, apart: float) -> str:
    """How much worse a cell's figure is than the winner's, which is the best by full runs.

    Args:
        apart: by how much the winner's logarithm is better; below 0 where all that was measured puts the cell first.
    """
    relative = math.expm1(apart) if figure in LESS_IS_BETTER else -math.expm1(-apart)
    percent, (noun, worse) = f"{max(relative, 0.0):.0%}", WORSE.get(figure, ("speed", "slower"))
    return f"the same {noun}" if percent == "0%" else f"{percent} {worse}"
