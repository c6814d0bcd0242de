"""Verdicts in made worlds of unequal noise: how often equal settings are called different,
and what is seen.

    python -m benchmarks.unequal_noise [--worlds 1000] [--seed 1]

Each world has settings that are all equally fast. Some of them differ by 20 % from run to run, the
rest by 2 %; with heavy tails, a run's logarithm is a Student's t of 3 degrees. Settings are judged
as rankings, comparisons and claims judge them (`multicard.measure.noise`). Printed for 2, 3,
5 and 10 repetitions:

- faster: two noisy settings are told apart, at 95 %;
- headline: the setting that looks best is called faster than the reference, at 95 % over all
  settings;
- power: a quiet setting that is 1.15 times as fast as
  another quiet one is found at that confidence.

Goals: faster and headline at most 8 % at five repetitions and more, 15 % at two and three;
power 90 % at five.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from analysis.stats.intervals import bonferroni
from benchmarks import parser
from multicard.measure.noise import GPU_SD, Noise, Spread
from multicard.measure.repeated_runs import CONFIDENCE, combined, student_quantile, terms_between
from multicard.records import text_table

QUIET_SD = 0.02
NOISY_SD = 0.2
DEGREES = 3  # of the t of heavy tails
GAIN = math.log(1.15)
REPETITIONS = (2, 3, 5, 10)
WORLDS = ((8, 0), (8, 2), (8, 4), (16, 2))  # settings, and how many of them are noisy
MOST_FALSE = {2: 0.15, 3: 0.15, 5: 0.08, 10: 0.08}
LEAST_POWER = {5: 0.9, 10: 0.9}
HEADINGS = ("settings", "noisy", "tails", "runs", "faster", "headline", "power", "met")


@dataclass(frozen=True)
class Shares:
    """How often a verdict fell in worlds of one kind;
    faster: None where fewer than two settings are noisy.
    """

    settings: int
    noisy: int
    heavy: bool
    runs: int
    faster: float | None
    headline: float
    power: float

    @property
    def meets_goals(self) -> bool:
        most_false = max(self.faster or 0.0, self.headline)
        return most_false <= MOST_FALSE[self.runs] and self.power >= LEAST_POWER.get(self.runs, 0.0)


def logarithms(
    random: np.random.Generator, settings: int, noisy: int, runs: int, heavy: bool
) -> np.ndarray:
    """The logarithms (settings, runs) of the times of settings that are equally fast;
    noisy ones come first.
    """
    sd = np.full((settings, 1), QUIET_SD)
    sd[:noisy] = NOISY_SD
    if heavy:
        scale = math.sqrt(DEGREES / (DEGREES - 2))
        return sd * random.standard_t(DEGREES, (settings, runs)) / scale
    return sd * random.standard_normal((settings, runs))


def told(difference: float, spreads: tuple[Spread, Spread], runs: int, confidence: float) -> bool:
    """True where a difference of two means over so many runs each is more than how runs differ."""
    term = combined(terms_between(spreads, runs, runs))
    half = student_quantile(confidence, max(1.0, term.degrees)) * math.sqrt(term.variance)
    return abs(difference) > half


def shares(
    random: np.random.Generator, worlds: int, settings: int, noisy: int, runs: int, heavy: bool
) -> Shares:
    """How often verdicts fall over so many worlds."""
    over_all = bonferroni(settings - 1)
    faster = headline = power = 0
    for _ in range(worlds):
        logs = logarithms(random, settings, noisy, runs, heavy)
        values = [[(float(value), 0.0) for value in own] for own in logs]
        known = Noise.learnt(values, GPU_SD)
        spreads = [known.of(own) for own in values]
        means = logs.mean(axis=1)
        if noisy >= 2:
            faster += told(means[0] - means[1], (spreads[0], spreads[1]), runs, CONFIDENCE)
        best = int(means.argmin())
        last = settings - 1
        before = settings - 2
        if best != last:
            difference = means[best] - means[last]
            headline += told(difference, (spreads[best], spreads[last]), runs, over_all)
        gained = means[before] - means[last] + GAIN
        power += told(gained, (spreads[before], spreads[last]), runs, over_all)
    seen = None if noisy < 2 else faster / worlds
    return Shares(settings, noisy, heavy, runs, seen, headline / worlds, power / worlds)


def every(worlds: int, seed: int) -> list[Shares]:
    random = np.random.default_rng(seed)
    return [
        shares(random, worlds, settings, noisy, runs, heavy)
        for (settings, noisy), heavy, runs in product(WORLDS, (False, True), REPETITIONS)
    ]


def rows(found: Sequence[Shares]) -> list[tuple[str, ...]]:
    return [
        (
            str(one.settings),
            str(one.noisy),
            "heavy" if one.heavy else "normal",
            str(one.runs),
            "-" if one.faster is None else f"{one.faster:.1%}",
            f"{one.headline:.1%}",
            f"{one.power:.1%}",
            "yes" if one.meets_goals else "no",
        )
        for one in found
    ]


def report(worlds: int, seed: int) -> list[str]:
    """The table, and how many of its rows meet their goals."""
    found = every(worlds, seed)
    met = f"{sum(one.meets_goals for one in found)} of {len(found)} meet their goals"
    return [*text_table.text(HEADINGS, rows(found), 100, "rrlrrrrl"), met]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--worlds", type=int, default=1000, help="of each kind")
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    print("\n".join(report(arguments.worlds, arguments.seed)))


if __name__ == "__main__":
    main()
