"""How often is a step within the interval that was predicted from repeated runs, in made worlds?

    python -m benchmarks.beside_others [--worlds 1000] [--seed 1]

Each world has settings on CPU ranks whose steps differ from run to run by a known standard
deviation. The other runs predict the next run of one setting (`multicard.estimate`). Either the
runs have the machine to themselves, or other programs keep it equally busy during all runs. The
table has the share of next runs within the 90 % interval.

- usual: Runs differ by the standard deviation that is assumed before any run is repeated
  (`CPU_SD`, `BUSY_SD`). The goal is 88 to 95 %. From single runs, the interval only states this
  assumption.
- half, 1.5 times: Runs differ by half of that, or by 1.5 times as much. There is no goal. This
  shows how fast repetitions correct the assumption.

Beside others, intervals that reach beyond twice the step are not given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks import parser
from multicard.estimate.observations import (
    BUSY_SD,
    CPU_SD,
    Basis,
    StepEstimate,
    StepObservation,
    cells,
)
from multicard.records import text_table
from multicard.records.limits import LOADED
from multicard.records.schema_parts import PredictedInterval

REPEATED = ((1, 1), (1, 2), (1, 3), (1, 5), (4, 2), (8, 3))  # number of settings, and runs of each
# The standard deviation of runs, as a multiple of the assumed one.
TIMES = {"usual": 1.0, "half": 0.5, "1.5 times": 1.5}
LEAST = 0.88
MOST = 0.95
BUSY = 0.5  # the share of the cores that other programs use
HEADINGS = ("others", "settings", "runs", "differ", "covered", "given", "to either side", "met")


@dataclass(frozen=True)
class Coverage:
    """How often next runs are inside their interval, in worlds of one kind.

    Attributes:
        beside: whether other programs keep the machine busy.
        covered: the share of next runs inside, among the runs that have an interval.
        given: the share of runs that have an interval.
        half: the median of half the interval's width, on a logarithmic scale.
    """

    beside: bool
    settings: int
    runs: int
    differ: str
    covered: float
    given: float
    half: float

    @property
    def meets_goal(self) -> bool | None:
        """Return whether the goal is met; None if there is no goal."""
        return LEAST <= self.covered <= MOST if self.differ == "usual" else None


def world(
    random: np.random.Generator, settings: int, runs: int, sd: float, beside: bool
) -> list[StepObservation]:
    """Make runs of settings. A step takes one second, with the log standard deviation `sd`."""
    marks, busy = (LOADED.sign, BUSY) if beside else ("", 0.0)
    observations = []
    for setting, _ in product(range(settings), range(runs)):
        observation = StepObservation(
            {"device": '"cpu"', "gpus": "1", "batch_size": str(8 * (setting + 1))},
            math.exp(random.normal(0, sd)),
            0.0,
            "a machine",
            Basis.measured,
            "a commit",
            marks,
            busy,
        )
        observations.append(observation)
    return observations


def interval(known: Sequence[StepObservation], beside: bool) -> PredictedInterval | None:
    """Return the 90 % interval of the next run of the first setting, or None if none is given."""
    estimates: list[StepEstimate] = cells(known, "a commit", CPU_SD)
    first = next(cell for cell in estimates if cell.setting["batch_size"] == "8")
    return first.as_busy if beside else first.interval


def coverage(
    random: np.random.Generator, worlds: int, settings: int, runs: int, differ: str, beside: bool
) -> Coverage:
    """Predict the next run in each of `worlds` worlds, and count the runs inside their interval."""
    sd = TIMES[differ] * (BUSY_SD if beside else CPU_SD)
    inside: list[bool] = []
    halves: list[float] = []
    for _ in range(worlds):
        known = interval(world(random, settings, runs, sd, beside), beside)
        next_s = math.exp(random.normal(0, sd))
        if known is not None:
            inside.append(known.low <= next_s <= known.high)
            halves.append(math.log(known.high / known.value))
    covered = float(np.mean(inside))
    half = float(np.median(halves))
    return Coverage(beside, settings, runs, differ, covered, len(inside) / worlds, half)


def all_coverages(worlds: int, seed: int) -> list[Coverage]:
    random = np.random.default_rng(seed)
    return [
        coverage(random, worlds, settings, runs, differ, beside)
        for beside, (settings, runs), differ in product((True, False), REPEATED, TIMES)
    ]


def row(coverage: Coverage) -> tuple[str, ...]:
    return (
        "as busy" if coverage.beside else "none",
        str(coverage.settings),
        str(coverage.runs),
        coverage.differ,
        f"{coverage.covered:.1%}",
        f"{coverage.given:.0%}",
        f"{math.exp(coverage.half):.2f} times",
        {None: "-", True: "yes", False: "no"}[coverage.meets_goal],
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--worlds", type=int, default=1000, help="worlds of each kind")
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    coverages = all_coverages(arguments.worlds, arguments.seed)
    for line in text_table.text(HEADINGS, [row(cover) for cover in coverages], 100, "lrrlrrrl"):
        print(line)
    goals = [cover.meets_goal for cover in coverages if cover.meets_goal is not None]
    print(f"{sum(goals)} of {len(goals)} meet the goal, {LEAST:.0%} to {MOST:.0%} covered")


if __name__ == "__main__":
    main()
