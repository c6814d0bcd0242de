"""How often a step that is predicted from repeated runs lies in its interval, in made worlds.

    python -m benchmarks.beside_others [--worlds 1000] [--seed 1]

Each world has settings on CPU ranks whose steps differ from run to run by a known standard
deviation. The next run of one of them is predicted by the others (`multicard.estimate`): alone, and
beside others that stay as busy as during all of these runs. Printed is the share of next runs that
lie in the 90 % interval.

- usual: runs differ as is assumed before any was repeated (`CPU_SD`, `BUSY_SD`): the goal is 88 to
  95 %. Predicted from single runs, the interval says only what was assumed.
- half, and 1.5 times: they differ by so much less, or more. There is no goal: this shows how fast
  repetitions teach it. Intervals that reach beyond twice the step beside others are not given.
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

REPEATED = ((1, 1), (1, 2), (1, 3), (1, 5), (4, 2), (8, 3))  # settings, and runs of each
TIMES = {"usual": 1.0, "half": 0.5, "1.5 times": 1.5}  # how runs differ, over what is assumed
LEAST = 0.88
MOST = 0.95
BUSY = 0.5  # of the cores, for others
HEADINGS = ("others", "settings", "runs", "differ", "covered", "given", "to either side", "met")


@dataclass(frozen=True)
class Coverage:
    """Next runs inside their interval, of those that have one; given: share of all that have one.

    half: the median of half of the interval, on a logarithm's scale.
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
        """None where there is no goal."""
        return LEAST <= self.covered <= MOST if self.differ == "usual" else None


def world(
    random: np.random.Generator, settings: int, runs: int, sd: float, beside: bool
) -> list[StepObservation]:
    """Runs of settings whose steps differ by so much from run to run, and take a second."""
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


def interval(seen: Sequence[StepObservation], beside: bool) -> PredictedInterval | None:
    """The 90 % interval of the next run of the first setting; None where none is given."""
    found: list[StepEstimate] = cells(seen, "a commit", CPU_SD)
    first = next(cell for cell in found if cell.setting["batch_size"] == "8")
    return first.as_busy if beside else first.interval


def coverage(
    random: np.random.Generator, worlds: int, settings: int, runs: int, differ: str, beside: bool
) -> Coverage:
    """How many next runs of so many worlds are predicted."""
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


def every(worlds: int, seed: int) -> list[Coverage]:
    random = np.random.default_rng(seed)
    return [
        coverage(random, worlds, settings, runs, differ, beside)
        for beside, (settings, runs), differ in product((True, False), REPEATED, TIMES)
    ]


def row(one: Coverage) -> tuple[str, ...]:
    return (
        "as busy" if one.beside else "none",
        str(one.settings),
        str(one.runs),
        one.differ,
        f"{one.covered:.1%}",
        f"{one.given:.0%}",
        f"{math.exp(one.half):.2f} times",
        {None: "-", True: "yes", False: "no"}[one.meets_goal],
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--worlds", type=int, default=1000, help="of each kind")
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    found = every(arguments.worlds, arguments.seed)
    for line in text_table.text(HEADINGS, [row(one) for one in found], 100, "lrrlrrrl"):
        print(line)
    goals = [one.meets_goal for one in found if one.meets_goal is not None]
    print(f"{sum(goals)} of {len(goals)} meet the goal, {LEAST:.0%} to {MOST:.0%} covered")


if __name__ == "__main__":
    main()
