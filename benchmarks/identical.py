"""How often one configuration is told apart from itself: whether
the verdicts of this machine can be relied on.

    python -m benchmarks.identical [--rounds 10] [--worlds 1000] [--seed 1]
        [--out multirun/identical]

Measures one training run and one tuning run ten times each, by turns, each in a command of its own;
what is in `--out` is not measured again. Then the runs of each kind are dealt to two sides, as if
these were two settings that were
measured by turns: of each pair of neighbours one goes to A and the other to B, in every way.
Printed is how often `compare` (step), `claims` (time and accuracy, with a bound at no difference)
and `best` (time and accuracy) tell the sides apart. The goal is at most 5 %.
Ways to deal the same runs are not independent: ten runs are worth few verdicts.

Repeated runs of one setting cannot show what settings of unequal noise do to one another. So before
that, made worlds of such settings are judged (`benchmarks.unequal_noise`);
`--worlds 0` leaves them out, `--rounds 0` measures nothing.
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
RUNS_A_SIDE = (2, 3, 5)
LABEL = "pin_memory"  # a setting in which the sides are taken to differ
SMALL = (
    "dataset.image_size=32 dataset.train_limit=320 dataset.test_limit=64 batch_size=8 epochs=1"
    " model.width=0.25"
)
COMMANDS = {
    "vision": ("train_vision.py", *SMALL.split()),
    "llm": ("tune_llm.py", "method=lora", "max_steps=60"),
}
# one seed: one accuracy; other seeds tune on other rows
REPEATED_BY = {"vision": "seed", "llm": "repetition"}
Deal = tuple[list[Run], list[Run]]


def measure(kind: str, out: Path, repetitions: Iterator[int]) -> None:
    """Measure the next repetition of a kind of run."""
    own = f"hydra.run.dir={out / kind}", f"{REPEATED_BY[kind]}={next(repetitions)}"
    python(*COMMANDS[kind], "tracker.mode=disabled", *own)


def deals(runs: Sequence[Run], each: int) -> Iterator[Deal]:
    """Neighbouring runs as two sides of `each` runs, measured by turns,
    in every way (swapped sides are one).
    """
    for first in range(0, len(runs) - 2 * each + 1):
        pairs = [runs[place : place + 2] for place in range(first, first + 2 * each, 2)]
        for turned in product((0, 1), repeat=each - 1):
            sides = [
                pair[:: -1 if turn else 1] for pair, turn in zip(pairs, (0, *turned), strict=True)
            ]
            labelled = [
                [replace(run, columns={**run.columns, LABEL: label}) for run in side]
                for label, side in zip((True, False), zip(*sides, strict=True), strict=True)
            ]
            yield labelled[0], labelled[1]


def by_compare(a: list[Run], b: list[Run]) -> bool:
    (cell,) = compared_cells.compare(a, b, [LABEL], common=False, mix=False)
    return cell.verdict in (compared_cells.FASTER, compared_cells.SLOWER)


def by_claims(measure: str, a: list[Run], b: list[Run]) -> bool:
    """True where a claim that A has less, or that it has more, would hold."""
    none = 0.0 if measure == "accuracy" else 1.0
    unit = UNITS["points" if measure == "accuracy" else "times"]
    claim = RuleComparison("A against B", "", unit, over=none, under=math.inf, runs=(*a, *b))
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


def told_apart(runs: Sequence[Run], kind: str) -> dict[str, list[tuple[int, int]]]:
    """How often each judge tells the sides apart, and of how many deals,
    for each of RUNS_A_SIDE.
    """
    dealt = [[*deals(runs, each)] for each in RUNS_A_SIDE]
    judging = judges(kind).items()
    return {
        name: [(sum(judge(a, b) for a, b in ways), len(ways)) for ways in dealt]
        for name, judge in judging
    }


def spread(runs: Sequence[Run], column: str) -> float:
    """The standard deviation of a figure's logarithm from run to run."""
    return float(np.log([run[column] for run in runs]).std(ddof=1))


def report(kind: str, runs: Sequence[Run]) -> list[str]:
    """How the runs differ, and how often each judge tells them apart."""
    lines = [f"{kind}: {len(runs)} runs of one configuration"]
    lines += [
        f"  {column} differs by {spread(runs, column):.1%} from run to run (standard deviation)"
        for column in ("step_s", "total_s")
    ]
    lines.append(
        f"  {'told apart, with runs a side':30}"
        + "".join(f"{each:>12}" for each in RUNS_A_SIDE)
        + "   all"
    )
    for name, counts in told_apart(runs, kind).items():
        share = sum(apart for apart, _ in counts) / max(1, sum(ways for _, ways in counts))
        cells = "".join(f"{f'{apart} of {ways}':>12}" for apart, ways in counts)
        lines.append(f"  {name:30}{cells}{share:7.1%}{'  above the goal' if share > GOAL else ''}")
    return lines


def main() -> None:
    options = parser(__doc__, rounds=10)
    options.add_argument("--out", type=Path, default=Path("multirun/identical"))
    options.add_argument("--worlds", type=int, default=1000, help="of each kind of unequal noise")
    options.add_argument("--seed", type=int, default=1, help="of these worlds")
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
        runs = [run for run in load.read([args.out / kind]).runs if run["status"] == "ok"]
        print("\n".join(report(kind, sorted(runs, key=lambda run: run["started_at"]))))


if __name__ == "__main__":
    main()
