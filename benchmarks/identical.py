"""Measure how often two groups of runs with the same configuration are called different.

    python -m benchmarks.identical [--rounds 10] [--worlds 1000] [--seed 1]
        [--out multirun/identical]

This shows whether the verdicts on this machine are reliable. One training run and one tuning run
are measured ten times each. They take turns, each in a command of its own. Runs that are already in
`--out` are not measured again.

Then the runs of each kind are split into two sides, as if these were two settings that had been
measured alternately. One run of each pair of neighbors goes to A and the other to B, in all
possible ways. The output is how often `compare` (step), `claims` (time and accuracy, with a bound
at no difference) and `best` (time and accuracy) call the sides different. The goal is at most 5 %.
The splits are not independent: ten runs are worth few verdicts.

Repeated runs of one setting do not show how settings of unequal noise affect one another.
Therefore, made worlds of such settings are judged first (`benchmarks.unequal_noise`). `--worlds 0`
leaves them out, and `--rounds 0` measures nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from analysis.claims.comparison import UNDECIDED, UNITS, Readings, RuleComparison, Sides
from analysis.claims.measures import MEASURES
from analysis.commands import compared_cells
from analysis.runs import load
from analysis.runs.load import Run
from analysis.stats.between_runs import CONFIDENCE, RepeatedRuns
from benchmarks import interleaved, machine, parser, python, unequal_noise

GOAL = 0.05
RUNS_PER_SIDE = (2, 3, 5)
LABEL = "pin_memory"  # The sides pretend to differ in this setting.
SMALL = (
    "dataset.image_size=32 dataset.train_limit=320 dataset.test_limit=64 batch_size=8 epochs=1"
    " model.width=0.25"
)
COMMANDS = {
    "vision": ("train_vision.py", *SMALL.split()),
    "llm": ("tune_llm.py", "method=lora", "max_steps=60"),
}
# With one seed, all training runs have one accuracy. Tuning runs with other seeds have other rows.
REPEATED_BY = {"vision": "seed", "llm": "repetition"}
Deal = tuple[list[Run], list[Run]]


def measure(kind: str, out: Path, repetitions: Iterator[int]) -> None:
    """Measure the next repetition of a kind of run."""
    run_words = f"hydra.run.dir={out / kind}", f"{REPEATED_BY[kind]}={next(repetitions)}"
    python(*COMMANDS[kind], "tracker.mode=disabled", *run_words)


def deals(runs: Sequence[Run], side_size: int) -> Iterator[Deal]:
    """Yield all splits of neighboring runs into two sides of `side_size` runs each.

    The two runs of each pair of neighbors go to different sides. Swapping the sides gives no new
    split.
    """
    for first in range(0, len(runs) - 2 * side_size + 1):
        pairs = [runs[place : place + 2] for place in range(first, first + 2 * side_size, 2)]
        for later_swaps in product((False, True), repeat=side_size - 1):
            a: list[Run] = []
            b: list[Run] = []
            # The first pair is never swapped, so no split is yielded twice.
            for (earlier, later), is_swapped in zip(pairs, (False, *later_swaps), strict=True):
                a.append(_labelled(later if is_swapped else earlier, True))
                b.append(_labelled(earlier if is_swapped else later, False))
            yield a, b


def _labelled(run: Run, label: bool) -> Run:
    return replace(run, columns={**run.columns, LABEL: label})


def by_compare(a: list[Run], b: list[Run]) -> bool:
    (cell,) = compared_cells.compare(a, b, [LABEL], common=False, mix=False)
    return cell.verdict in (compared_cells.FASTER, compared_cells.SLOWER)


def by_claims(measure: str, a: list[Run], b: list[Run]) -> bool:
    """Return whether a claim that A has less, or that A has more, would hold."""
    no_difference = 0.0 if measure == "accuracy" else 1.0
    unit = UNITS["points" if measure == "accuracy" else "times"]
    claim = RuleComparison(
        "A against B", "", unit, over=no_difference, under=math.inf, runs=(*a, *b)
    )
    interval = MEASURES[measure].interval(Sides(a, b, CONFIDENCE, Readings([*a, *b])))
    return claim.verdict(interval.low, interval.high) != UNDECIDED


def by_best(a: list[Run], b: list[Run]) -> bool:
    repeated = RepeatedRuns([*a, *b])
    return any(
        repeated.cheaper("total_s", *sides) or repeated.more_accurate(*sides)
        for sides in ((a, b), (b, a))
    )


def judges(kind: str) -> dict[str, Callable[[list[Run], list[Run]], bool]]:
    measures = ("time", "accuracy") if kind == "vision" else ("time",)
    claims = {f"claims, {measure}": partial(by_claims, measure) for measure in measures}
    return {"compare": by_compare, **claims, "best": by_best}


def count_false_verdicts(runs: Sequence[Run], kind: str) -> dict[str, list[tuple[int, int]]]:
    """Count how often each judge calls the sides different.

    Returns:
        The number of such splits and of all splits, for each of RUNS_PER_SIDE, by judge.
    """
    splits = [[*deals(runs, side_size)] for side_size in RUNS_PER_SIDE]
    named_judges = judges(kind).items()
    return {
        name: [(sum(judge(a, b) for a, b in ways), len(ways)) for ways in splits]
        for name, judge in named_judges
    }


def spread(runs: Sequence[Run], column: str) -> float:
    """Return the standard deviation of a figure's logarithm from run to run."""
    return float(np.log([run[column] for run in runs]).std(ddof=1))


def report(kind: str, runs: Sequence[Run]) -> list[str]:
    """Describe how much the runs differ, and how often each judge calls the sides different."""
    lines = [f"{kind}: {len(runs)} runs of one configuration"]
    lines += [
        f"  {column} differs by {spread(runs, column):.1%} from run to run (standard deviation)"
        for column in ("step_s", "total_s")
    ]
    lines.append(
        f"  {'told apart, with runs a side':30}"
        + "".join(f"{side_size:>12}" for side_size in RUNS_PER_SIDE)
        + "   all"
    )
    for name, counts in count_false_verdicts(runs, kind).items():
        share = sum(apart for apart, _ in counts) / max(1, sum(ways for _, ways in counts))
        cells = "".join(f"{f'{apart} of {ways}':>12}" for apart, ways in counts)
        lines.append(f"  {name:30}{cells}{share:7.1%}{'  above the goal' if share > GOAL else ''}")
    return lines


def main() -> None:
    options = parser(__doc__, rounds=10)
    options.add_argument("--out", type=Path, default=Path("multirun/identical"))
    options.add_argument("--worlds", type=int, default=1000, help="worlds of each kind of noise")
    options.add_argument("--seed", type=int, default=1, help="seed of these worlds")
    args = options.parse_args()
    if args.worlds:
        print("\n".join(unequal_noise.report(args.worlds, args.seed)))
    if not args.rounds:
        return
    print(f"{machine()}, {args.rounds} rounds; the goal is at most {GOAL:.0%}")
    numbers = {kind: iter(range(1, args.rounds + 1)) for kind in COMMANDS}
    interleaved(
        {kind: partial(measure, kind, args.out.absolute(), numbers[kind]) for kind in COMMANDS},
        args.rounds,
    )
    for kind in COMMANDS:
        runs = [run for run in load.read_runs([args.out / kind]).runs if run["status"] == "ok"]
        print("\n".join(report(kind, sorted(runs, key=lambda run: run["started_at"]))))


if __name__ == "__main__":
    main()
