"""Cells of which a step is known, and what those that differ in one axis say of that axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multicard.measure import repeated_runs
from multicard.predict.time import scaling
from multicard.predict.time.observations import Cell, StepObservation, axes, by_setting, differences, without

GPUS = "gpus"
CPU_SD = 0.08  # of the logarithm of a run's step on CPU ranks, before any was repeated: others share their machine
PROBE_SD = 0.03  # of the logarithm of the step of a whole run over that of its probe
COMMIT_SD = 0.03  # of the logarithm of the step on one commit over that on another
PRINTED_SD = 0.10  # of the logarithm of the step on a node of one's own over that on another's with the same GPUs
INTERACTION_SD = 0.05  # of the logarithm of the effect of an axis in one cell over that in another
OTHER_GPUS_SD = 0.10  # more of it, where the exchange has another share of the step: an effect on other GPUs
BATCH_SD = 0.25  # of the exponent with which a step grows with its images, where no pair of cells shows it
# A step has as much to compute as there are images or rows in a batch, and pixels in an image
PROPORTIONAL = {"batch_size": 1.0, "dataset.image_size": 2.0}
NORMAL_90 = 1.645


@dataclass(frozen=True)
class Known:
    """A cell of which the step is known.

    variance: of log_s, for a new run of the cell. runs: observations behind it. about: in words.
    """

    setting: Mapping[str, str]
    log_s: float
    variance: float
    runs: int
    probe: bool
    machine: str
    published: bool
    about: str = ""

    @property
    def gpus(self) -> int:
        return int(self.setting.get(GPUS, "1"))


@dataclass(frozen=True)
class Effect:
    """What crossing an axis does to the logarithm of a step."""

    log_ratio: float
    variance: float
    runs: int
    about: str
    published: bool = False


def cells(
    observations: Sequence[StepObservation], commit: str | None, run_sd: float = repeated_runs.PRIOR_SD
) -> list[Known]:
    """Each cell with the mean over its runs, those of the commit if there are any; over its probes if it has none.

    Args:
        run_sd: of the logarithm of a run's step, from run to run, before any was repeated.
    """
    groups = by_setting(observations).values()
    whole = [[seen for seen in group if not seen.probe] for group in groups]
    repeated = [[(math.log(seen.step_s), seen.error**2) for seen in group] for group in whole if group]
    spread = repeated_runs.pooled(repeated, run_sd)
    return [_cell(group, commit, spread) for group in groups]


def _cell(group: Sequence[StepObservation], commit: str | None, spread: repeated_runs.Spread) -> Known:
    runs = [seen for seen in group if not seen.probe] or list(group)
    here = [seen for seen in runs if seen.commit == commit] or runs
    first, count = here[0], len(here)
    elsewhere = not first.published and first.commit != commit
    variance = spread.variance * (1 + 1 / count) + math.fsum(seen.error**2 for seen in here) / count**2
    variance += PROBE_SD**2 * first.probe + COMMIT_SD**2 * elsewhere + PRINTED_SD**2 * first.published
    mean = math.fsum(math.log(seen.step_s) for seen in here) / count
    about = "another commit" if elsewhere else f"printed for {first.machine}" if first.published else ""
    return Known(axes(first.setting), mean, variance, count, first.probe, first.machine, first.published, about)


class Pairs:
    """Cells of a machine that differ in one axis alone; each search is made once."""

    def __init__(self, all_cells: Sequence[Known], wanted: Mapping[str, str]) -> None:
        self._cells, self._wanted = all_cells, wanted
        self._lines: dict[str, list[dict[str | None, Known]]] = {}
        self._pairs: dict[tuple[str | None, ...], list[tuple[tuple[bool, int], Known, Known]]] = {}

    def of(
        self, axis: str, before: str | None, after: str | None, gpus: str | None
    ) -> list[tuple[tuple[bool, int], Known, Known]]:
        """From one value to another, each with how unlike the wanted cell on so many GPUs it is; printed ones last."""
        if axis not in self._lines:
            self._lines[axis] = self._alike(axis)
        search = axis, before, after, gpus
        if search not in self._pairs:
            ends = [(line[before], line[after]) for line in self._lines[axis] if before in line and after in line]
            alike = {**self._wanted, GPUS: gpus or "1"}
            rests = [len(differences(without(a.setting, axis), alike)) for a, _ in ends]
            self._pairs[search] = [((a.published, rest), a, b) for (a, b), rest in zip(ends, rests, strict=True)]
        return self._pairs[search]

    def _alike(self, axis: str) -> list[dict[str | None, Known]]:
        """Two cells or more in a line, by their values of the axis."""
        lines: dict[Cell, dict[str | None, Known]] = {}
        for cell in self._cells:
            rest = frozenset(without(cell.setting, axis).items())
            lines.setdefault((cell.machine, rest), {})[cell.setting.get(axis)] = cell
        return [line for line in lines.values() if len(line) > 1]


def effect(axis: str, source: Known, wanted: Mapping[str, str], known_pairs: Pairs, adds: bool) -> Effect | None:
    """Of an axis from its value in `source` to the wanted one; None where nothing tells it.

    By pairs of cells of one machine that differ in this axis alone, and of them by those most like the wanted cell.
    Their mean is drawn nowhere; that effects differ from cell to cell is in the variance (INTERACTION_SD, which counts
    as one more pair).

    Args:
        adds: whether more GPUs add seconds to a step, the exchange, and not a share of it: so on GPUs, where the
            seconds that computing saves in another precision are not saved in the exchange as well. CPU ranks share
            their cores: there all of the step grows.
    """
    before, after = source.setting.get(axis), wanted.get(axis)
    pairs = known_pairs.of(axis, before, after, source.setting.get(GPUS))  # the number of GPUs is crossed last
    if not pairs:
        return _proportional(axis, before, after)
    least = min(distance for distance, *_ in pairs)
    near = [pair[1:] for pair in pairs if pair[0] == least]
    if axis == GPUS and adds:
        source_s = math.exp(source.log_s)
        grown = [source_s + math.exp(b.log_s) - math.exp(a.log_s) for a, b in near]
        ratios = [math.log(max(total_s / source_s, 0.1)) for total_s in grown]
    else:
        ratios = [b.log_s - a.log_s for a, b in near]
    mean, count = math.fsum(ratios) / len(ratios), len(ratios)
    between = (INTERACTION_SD**2 + math.fsum((ratio - mean) ** 2 for ratio in ratios)) / count
    if adds and axis != GPUS and all(a.gpus != source.gpus for a, _ in near):
        between += OTHER_GPUS_SD**2
    measured = math.fsum(_own_variance(a) + _own_variance(b) for a, b in near) / count**2
    runs = sum(a.runs + b.runs for a, b in near)
    printed = near[0][0].published
    about = f"{axis} {before} -> {after} by {count} pair{'s' * (count > 1)} of cells".replace('"', "")
    # Between one pair's cell and the wanted there is an interaction as well as between pairs
    return Effect(mean, between * (1 + 1 / count) + measured, runs, about + " printed" * printed, printed)


def _own_variance(cell: Known) -> float:
    """Without what is common to all printed cells of a node."""
    return max(cell.variance - PRINTED_SD**2, 0.0) if cell.published else cell.variance


def _proportional(axis: str, before: str | None, after: str | None) -> Effect | None:
    power = PROPORTIONAL.get(axis)
    if power is None or not (_is_count(before) and _is_count(after)):
        return None
    log_ratio = math.log(int(after or 1) / int(before or 1))
    about = f"{axis} {before} -> {after} in proportion"
    return Effect(power * log_ratio, (BATCH_SD * power * log_ratio) ** 2, 0, about)


def _is_count(value: str | None) -> bool:
    return value is not None and value.isdecimal() and int(value) > 0


def grown(all_cells: Sequence[Known], gpus: int, growth: scaling.Growth) -> list[Known]:
    """Cells on a number of GPUs on which they did not run, by those on 1 and 2 (`scaling`), from the nearest count."""
    by_rest: dict[Cell, dict[int, Known]] = {}
    for cell in all_cells:
        rest = frozenset(without(cell.setting, GPUS).items())
        by_rest.setdefault((cell.machine, rest), {})[cell.gpus] = cell
    wanted = [counts for counts in by_rest.values() if gpus not in counts and {1, 2} <= counts.keys() and gpus > 2]
    return [_grown(counts, gpus, growth) for counts in wanted]


def _grown(counts: Mapping[int, Known], gpus: int, growth: scaling.Growth) -> Known:
    one, two = counts[1], counts[2]
    growth_2 = math.expm1(two.log_s - one.log_s)
    nearest = min(
        (count for count in counts if count > 1), key=lambda count: abs(scaling.ring(count) - scaling.ring(gpus))
    )
    origin = counts[nearest]

    def carried(d: float) -> float:
        return growth.log_ratio(d, gpus) - growth.log_ratio(d, nearest)

    (low, high), (low_0, high_0) = (growth.bounds(growth_2, count) for count in (gpus, nearest))
    middle, half = (low + high - low_0 - high_0) / 2, abs(high - low - high_0 + low_0) / 2
    # What is wrong with T(1) and T(2) is taken for growth, as far as that is carried on
    noise = ((carried(growth_2 + 0.01) - carried(growth_2)) / 0.01) ** 2 * (one.variance + two.variance)
    variance = origin.variance + (half / NORMAL_90) ** 2 + noise
    log_s = origin.log_s + carried(growth_2) + middle
    about = f"T(1), T(2) of gpus{f', T({nearest})' * (nearest > 2)}"
    setting = {**origin.setting, GPUS: str(gpus)}
    runs = sum(counts[count].runs for count in {1, 2, nearest})
    return Known(setting, log_s, variance, runs, one.probe, one.machine, one.published, about)
