"""Measure verdicts in made worlds of unequal noise: false verdicts, and differences that are found.

    python -m benchmarks.unequal_noise [--worlds 1000] [--seed 1]

In each world, all settings are equally fast. Some differ by 20 % from run to run, the others by
2 %. With heavy tails, the logarithm of a run's time follows Student's t with 3 degrees of
freedom. The settings are judged as in rankings, comparisons and claims (`multicard.measure.noise`).
The table is for 2, 3, 5 and 10 repetitions:

- faster: Of two noisy settings, one is called faster at 95 % confidence.
- headline: The best-looking setting is called faster than the reference, at 95 % confidence over
  all settings.
- power: A quiet setting that is 1.15 times as fast as another quiet one is called faster, at the
  same confidence.

The goals for faster and headline are at most 8 % from five repetitions, and 15 % with two or three.
The goal for power is 90 % with five.
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
DEGREES = 3  # degrees of freedom of heavy tails
GAIN = math.log(1.15)
REPETITIONS = (2, 3, 5, 10)
WORLDS = ((8, 0), (8, 2), (8, 4), (16, 2))  # number of settings, and number of noisy settings
MOST_FALSE = {2: 0.15, 3: 0.15, 5: 0.08, 10: 0.08}
LEAST_POWER = {5: 0.9, 10: 0.9}
HEADINGS = ("settings", "noisy", "tails", "runs", "faster", "headline", "power", "met")


@dataclass(frozen=True)
class Shares:
    """How often each verdict fell in worlds of one kind.

    `faster` is None if fewer than two settings are noisy.
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
    """Draw the logarithms of times, shape (settings, runs), of equally fast settings.

    Noisy settings come first.
    """
    sd = np.full((settings, 1), QUIET_SD)
    sd[:noisy] = NOISY_SD
    if heavy:
        scale = math.sqrt(DEGREES / (DEGREES - 2))
        return sd * random.standard_t(DEGREES, (settings, runs)) / scale
    return sd * random.standard_normal((settings, runs))


def exceeds_noise(
    difference: float, spreads: tuple[Spread, Spread], runs: int, confidence: float
) -> bool:
    """Return whether the difference of two means, each of `runs` runs, exceeds the noise."""
    term = combined(terms_between(spreads, runs, runs))
    half = student_quantile(confidence, max(1.0, term.degrees)) * math.sqrt(term.variance)
    return abs(difference) > half


def shares(
    random: np.random.Generator, worlds: int, settings: int, noisy: int, runs: int, heavy: bool
) -> Shares:
    """Count how often each verdict falls in `worlds` worlds."""
    confidence_over_all = bonferroni(settings - 1)
    faster = headline = power = 0
    for _ in range(worlds):
        logs = logarithms(random, settings, noisy, runs, heavy)
        values = [[(float(value), 0.0) for value in row] for row in logs]
        noise = Noise.learnt(values, GPU_SD)
        spreads = [noise.of(row) for row in values]
        means = logs.mean(axis=1)
        if noisy >= 2:
            faster += exceeds_noise(means[0] - means[1], (spreads[0], spreads[1]), runs, CONFIDENCE)
        best = int(means.argmin())
        last = settings - 1
        before = settings - 2
        if best != last:
            difference = means[best] - means[last]
            headline += exceeds_noise(
                difference, (spreads[best], spreads[last]), runs, confidence_over_all
            )
        gained = means[before] - means[last] + GAIN
        power += exceeds_noise(gained, (spreads[before], spreads[last]), runs, confidence_over_all)
    faster_share = None if noisy < 2 else faster / worlds
    return Shares(settings, noisy, heavy, runs, faster_share, headline / worlds, power / worlds)


def all_shares(worlds: int, seed: int) -> list[Shares]:
    random = np.random.default_rng(seed)
    return [
        shares(random, worlds, settings, noisy, runs, heavy)
        for (settings, noisy), heavy, runs in product(WORLDS, (False, True), REPETITIONS)
    ]


def rows(all_kinds: Sequence[Shares]) -> list[tuple[str, ...]]:
    return [
        (
            str(kind.settings),
            str(kind.noisy),
            "heavy" if kind.heavy else "normal",
            str(kind.runs),
            "-" if kind.faster is None else f"{kind.faster:.1%}",
            f"{kind.headline:.1%}",
            f"{kind.power:.1%}",
            "yes" if kind.meets_goals else "no",
        )
        for kind in all_kinds
    ]


def report(worlds: int, seed: int) -> list[str]:
    """Return the table, and a line that says how many of its rows meet their goals."""
    all_kinds = all_shares(worlds, seed)
    met = f"{sum(kind.meets_goals for kind in all_kinds)} of {len(all_kinds)} meet their goals"
    return [*text_table.text(HEADINGS, rows(all_kinds), 100, "rrlrrrrl"), met]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--worlds", type=int, default=1000, help="worlds of each kind")
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    print("\n".join(report(arguments.worlds, arguments.seed)))


if __name__ == "__main__":
    main()
