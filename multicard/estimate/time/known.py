"""Cells of which a step is known, and what those that differ in one axis say of that axis."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.estimate.time import scaling
from multicard.estimate.time.observations import Cell, StepObservation, axes, by_setting, differences, without
from multicard.measure import repeated_runs

GPUS = "gpus"
CPU_SD = 0.08  # of the logarithm of a run's step on CPU ranks, before any was repeated: others share their machine
PROBE_SD = 0.03  # of the logarithm of the step of a whole run over that of its probe
COMMIT_SD = 0.03  # of the logarithm of the step on one commit over that on another
PRINTED_SD = 0.10  # of the logarithm of the step on a node of one's own over that on another's with the same GPUs
INTERACTION_SD = 0.05  # of the logarithm of the effect of an axis in one cell over that in another
OTHER_GPUS_SD = 0.10  # more of it, where the exchange has another share of the step: an effect on other GPUs
MARKED_SD = 0.30  # of the logarithm of a run's step that others slowed over that of a run alone
RANKS_SD = 0.25  # of the exponent with which a step grows with CPU ranks that share their cores
BATCH_SD = 0.25  # of the exponent with which a step grows with its images, where no pair of cells shows it
# A step has as much to compute as there are images or rows in a batch, and pixels in an image
PROPORTIONAL = {"batch_size": 1.0, "dataset.image_size": 2.0}
NORMAL_90 = 1.645  # half of a 90 % interval in standard deviations
DOUBTFUL = "?"  # mark of an estimate by cells that scaled beyond linear


@dataclass(frozen=True)
class Known:
    """A cell of which the step is known.

    variance: of log_s, for a new run of the cell. below, above: what its 90 % interval reaches further to a side, on
        the scale of log_s. runs: observations behind it. about: in words. marks: of the runs behind it, or DOUBTFUL.
    """

    setting: Mapping[str, str]
    log_s: float
    variance: float
    runs: int
    probe: bool
    machine: str
    published: bool
    about: str = ""
    below: float = 0.0
    above: float = 0.0
    marks: str = ""

    @property
    def gpus(self) -> int:
        return int(self.setting.get(GPUS, "1"))

    @property
    def sides(self) -> tuple[float, float]:
        """Both sides of the 90 % interval around log_s."""
        half = NORMAL_90 * math.sqrt(self.variance)
        return math.hypot(half, self.below), math.hypot(half, self.above)


@dataclass(frozen=True)
class Effect:
    """What crossing an axis does to the logarithm of a step."""

    log_ratio: float
    variance: float
    runs: int
    about: str
    published: bool = False
    marks: str = ""


def cells(
    observations: Sequence[StepObservation], commit: str | None, run_sd: float = repeated_runs.PRIOR_SD
) -> list[Known]:
    """Each cell with the mean over its runs of the commit, else its probes of the commit, else its runs, its probes;
    marked ones count where there are no others.

    Args:
        run_sd: of the logarithm of a run's step, from run to run, before any was repeated.
    """
    groups = by_setting(observations).values()
    whole = [[seen for seen in group if not (seen.probe or seen.published)] for group in groups]
    repeated = [[(math.log(seen.step_s), seen.error**2) for seen in group] for group in whole if group]
    spread = repeated_runs.pooled(repeated, run_sd)
    return [_cell(group, commit, spread) for group in groups]


def _cell(group: Sequence[StepObservation], commit: str | None, spread: repeated_runs.Spread) -> Known:
    group = [seen for seen in group if not seen.marks] or group
    runs = [seen for seen in group if not seen.probe]
    fresh = [[seen for seen in members if seen.commit == commit] for members in (runs, group)]
    here = fresh[0] or fresh[1] or runs or list(group)
    first, count = here[0], len(here)
    elsewhere = not first.published and first.commit != commit
    variance = spread.variance * (1 + 1 / count) + math.fsum(seen.error**2 for seen in here) / count**2
    variance += PROBE_SD**2 * first.probe + COMMIT_SD**2 * elsewhere + PRINTED_SD**2 * first.published
    marks = joined(seen.marks for seen in here)
    variance += MARKED_SD**2 * bool(marks)
    mean = math.fsum(math.log(seen.step_s) for seen in here) / count
    about = "another commit" if elsewhere else f"printed for {first.machine}" if first.published else ""
    origin = first.probe, first.machine, first.published, about
    return Known(axes(first.setting), mean, variance, count, *origin, marks=marks)


def joined(marks: Iterable[str]) -> str:
    """Each mark once."""
    return "".join(dict.fromkeys("".join(marks)))


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
    as one more pair). A single pair of this machine may be the exception: the interval then reaches from no effect to
    twice the effect, as logarithms. More GPUs never make a step shorter here, even where they did in the pairs.

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
    if axis == GPUS and adds and not near[0][0].published:  # printed times may be those of a sample
        source_s = math.exp(source.log_s)
        grown = [source_s + math.exp(b.log_s) - math.exp(a.log_s) for a, b in near]
        ratios = [math.log(max(total_s / source_s, 0.1)) for total_s in grown]
    else:
        ratios = [b.log_s - a.log_s for a, b in near]
    mean, count = math.fsum(ratios) / len(ratios), len(ratios)
    between = (INTERACTION_SD**2 + math.fsum((ratio - mean) ** 2 for ratio in ratios)) / count
    if adds and axis != GPUS and all(a.gpus != source.gpus for a, _ in near):
        between += OTHER_GPUS_SD**2
    printed = near[0][0].published
    if count == 1 and not printed and not (axis == GPUS and adds):  # the seconds of an exchange carry over
        between += (mean / NORMAL_90) ** 2
    marks = joined(cell.marks for pair in near for cell in pair)
    if axis == GPUS and _is_count(before) and _is_count(after):
        more = int(after or 1) > int(before or 1)
        linear = max(mean, 0.0) if more else min(mean, 0.0)
        between, marks = between + (mean - linear) ** 2, marks + _doubt(mean - linear)
        mean = linear
    measured = math.fsum(_own_variance(a) + _own_variance(b) for a, b in near) / count**2
    runs = sum(a.runs + b.runs for a, b in near)
    about = f"{axis} {before} -> {after} by {count} pair{'s' * (count > 1)} of cells".replace('"', "")
    # Between one pair's cell and the wanted there is an interaction as well as between pairs
    return Effect(mean, between * (1 + 1 / count) + measured, runs, about + " printed" * printed, printed, marks)


def _doubt(clipped: float) -> str:
    """The mark of what scaled beyond linear, by the logarithm that was clipped; none of noise."""
    return DOUBTFUL * (abs(clipped) > -scaling.FASTER_LIMIT)


def _own_variance(cell: Known) -> float:
    """Of both sides in the mean, without what is common to all printed cells of a node."""
    own = max(cell.variance - PRINTED_SD**2, 0.0) if cell.published else cell.variance
    return own + ((cell.below + cell.above) / 2 / NORMAL_90) ** 2


def _proportional(axis: str, before: str | None, after: str | None) -> Effect | None:
    power = PROPORTIONAL.get(axis)
    if power is None or not (_is_count(before) and _is_count(after)):
        return None
    log_ratio = math.log(int(after or 1) / int(before or 1))
    about = f"{axis} {before} -> {after} in proportion"
    return Effect(power * log_ratio, (BATCH_SD * power * log_ratio) ** 2, 0, about)


def _is_count(value: str | None) -> bool:
    return value is not None and value.isdecimal() and int(value) > 0


def grown(all_cells: Sequence[Known], gpus: int, growth: scaling.Growth, on_gpu: bool) -> list[Known]:
    """Cells on a number of GPUs on which they did not run, by two other numbers at least.

    From 1 and 2 GPUs by `scaling`; from others by a ring's bytes alone. CPU ranks share their cores: there a step grows
    as a power of the number of ranks.
    """
    by_rest: dict[Cell, dict[int, Known]] = {}
    for cell in all_cells:
        rest = frozenset(without(cell.setting, GPUS).items())
        by_rest.setdefault((cell.machine, rest), {})[cell.gpus] = cell
    lines = [counts for counts in by_rest.values() if gpus not in counts and len(counts) > 1]
    by_growth = [on_gpu and {1, 2} <= counts.keys() for counts in lines]
    return [
        _grown(counts, gpus, growth) if grows else _extended(counts, gpus, on_gpu)
        for counts, grows in zip(lines, by_growth, strict=True)
    ]


def _grown(counts: Mapping[int, Known], gpus: int, growth: scaling.Growth) -> Known:
    """The interval of `growth` is of tables in which each time is of one run: what two runs differ by is in it."""
    one, two = counts[1], counts[2]
    growth_2 = math.expm1(two.log_s - one.log_s)
    nearest = min(counts.keys() - {1}, key=lambda count: abs(scaling.ring(count) - scaling.ring(gpus)))
    origin = counts[nearest]

    def carried(d: float) -> float:
        return growth.log_ratio(d, gpus) - growth.log_ratio(d, nearest)

    (low, high), (low_0, high_0) = (growth.bounds(growth_2, count) for count in (gpus, nearest))
    # What is wrong with T(1) and T(2) is taken for growth, as far as that is carried on
    slope = (carried(growth_2 + 0.01) - carried(growth_2)) / 0.01
    variance = _beyond_runs(origin) + slope**2 * (_beyond_runs(one) + _beyond_runs(two))
    about = f"T(1), T(2) of gpus{f', T({nearest})' * (nearest > 2)}"
    known = replace(origin, log_s=origin.log_s + carried(growth_2), variance=variance, about=about)
    behind = {1, 2, nearest}
    marks = _doubt(min(growth_2, 0.0))
    return _on(known, gpus, [counts[count] for count in behind], abs(low - low_0), abs(high - high_0), marks)


def _beyond_runs(cell: Known) -> float:
    """The variance of a cell without that of one run from another."""
    return max(cell.variance - 2 * repeated_runs.PRIOR_SD**2, 0.0)


def _extended(counts: Mapping[int, Known], gpus: int, on_gpu: bool) -> Known:
    """By the line through the two nearest counts: of T over a ring's bytes, on CPU ranks of log T over log n."""

    def place(count: int) -> float:
        return scaling.ring(count) if on_gpu else math.log(count)

    near, far = sorted(counts, key=lambda count: abs(place(count) - place(gpus)))[:2]
    share = (place(gpus) - place(near)) / (place(near) - place(far))
    rise = counts[near].log_s - counts[far].log_s
    falls = (rise < 0) == (near > far) and not min(counts) < gpus < max(counts)
    fallen = rise if falls else 0.0
    clipped, rise = share * fallen, rise - fallen  # beyond the measured range nothing is faster than linear
    if on_gpu:
        log_ratio = math.log(max(1 + share * -math.expm1(-rise), 0.1))
        sd = 2 * abs(share) * (scaling.NOISE + scaling.NOISE_SLOPE * abs(rise))
    else:
        log_ratio, sd = share * rise, RANKS_SD * abs(place(gpus) - place(near))
    ends = (1 + share) ** 2 * counts[near].variance + share**2 * counts[far].variance
    about = f"T({min(near, far)}), T({max(near, far)}) of gpus"
    known = replace(
        counts[near], log_s=counts[near].log_s + log_ratio, variance=ends + sd**2, about=about, below=0.0, above=0.0
    )
    return _on(known, gpus, [counts[near], counts[far]], below=abs(clipped), marks=_doubt(fallen))


def _on(
    known: Known, gpus: int, behind: Sequence[Known], below: float = 0.0, above: float = 0.0, marks: str = ""
) -> Known:
    """The cell on another number of GPUs, with the runs and marks of the cells behind it."""
    marks = joined([*(cell.marks for cell in behind), marks])
    setting, runs = {**known.setting, GPUS: str(gpus)}, sum(cell.runs for cell in behind)
    probe = any(cell.probe for cell in behind)
    return replace(known, setting=setting, runs=runs, probe=probe, below=below, above=above, marks=marks)
