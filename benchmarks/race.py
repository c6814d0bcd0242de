"""Replays of races: how near the best cell of a grid they end, and for what share of the grid's time.

    python -m benchmarks.race [--races 200]

Made grids have 96 cells with effects of axes between 1 % and 70 %, interactions of 5 %, 1 % between runs and 4 %
between steps. The measured grids have 96 cells on CPU ranks; a process replays stretches of its cell's own steps. The
time is that of all processes' starts, all blocks, and the finalists' full runs, as a share of all cells' full runs.

Five times as fast with OMP_NUM_THREADS=1, as its matrices are small.

a sweep: share of sweeps, one full run of each cell, whose best-looking cell is within 2 % of the best. wrong: races in
which a cell that dropped out as beaten is better than the winner. covered: races whose winner's 95 % interval contains
its true figure. sure: races that claim to be within 2 % with 95 % confidence; right: those of them that are.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import binomtest

from benchmarks.common import machine, parser
from benchmarks.race_replays import GRIDS, LONG, SHORT, Kind, MadeGrid, MeasuredGrid, Replay, World, replay, swept
from multicard.decide.race.rules import RaceOptions
from multicard.records import text_table

NEAR, SHARE, SHARE_FAST = 0.95, 0.15, 0.12  # goals: near the best, and of the time where a start costs 10 s and 3 s
FIRST_SEED = 10_000  # the rules were tuned on smaller ones
HARDER = "runs differ by 3 %"  # than the goal is for
KINDS = {
    "made, starts of 10 s": Kind(),
    "made, starts of 3 s": Kind(start_s=3.0),
    "steps correlate by 0.6": Kind(correlation=0.6),
    "drift of 2 % in 100 s": Kind(drift=0.02),
    "interactions of 10 %": Kind(interaction=0.10),
    HARDER: Kind(between_runs=0.03),
    "1 % of steps are slow": Kind(slowed=0.01),
    "the best three equal": Kind(equal=3),
    "predicted within 8 %": Kind(predicted=True),
}
# The grid, and by how many times its epochs: the measured steps stand for all of them
MEASURED = {
    "measured, runs of 8 s": (SHORT, 1),
    "the same, runs of 33 s": (SHORT, 4),
    "measured, runs of 45 s": (LONG, 1),
}
HEADER = ("grid", "within 2 %", "a sweep", "worst", "time", "90 %", "started", "blocks")
HEADER += ("wrong", "covered", "sure", "right", "met")


def row(name: str, races: Sequence[Replay], by_sweep: Sequence[float], goal: float | None) -> tuple[str, ...]:
    """by_sweep: see `swept`. goal: of the share of time; None: the row has no goal."""
    near = [race.loss <= 0.02 for race in races]
    low, high = binomtest(sum(near), len(near)).proportion_ci(0.95, "wilson")
    shares = [race.share for race in races]
    sure = np.array([race.verdict.sure >= RaceOptions.confidence for race in races])
    right = f"{np.mean(np.array(near)[sure]):.0%}" if sure.any() else "-"
    met = "yes" if np.mean(near) >= NEAR and np.mean(shares) <= (goal or 1) else "no"
    counts = (f"{np.mean([getattr(race, field) for race in races]):.0f}" for field in ("started", "blocks"))
    held = (f"{np.mean([getattr(race, field) for race in races]):.1%}" for field in ("dropped_wrongly", "covered"))
    worst = max(0.0, *(race.loss for race in races))
    figures = f"{np.mean(near):.1%} ({low * 100:.0f}-{high * 100:.0f})", f"{np.mean(np.array(by_sweep) <= 0.02):.1%}"
    times = f"{np.mean(shares):.1%}", f"{np.quantile(shares, 0.9):.1%}"
    said = *held, f"{np.mean(sure):.0%}", right
    return name, *figures, f"{worst:.1%}", *times, *counts, *said, "-" if goal is None else met


def replayed(world: Callable[[int], World], races: int) -> tuple[list[Replay], list[float]]:
    """Races, and what sweeps would have chosen."""
    seeds = range(FIRST_SEED, FIRST_SEED + races)
    return [replay(world(seed), seed=seed) for seed in seeds], [swept(world(seed)) for seed in seeds]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--races", type=int, default=200, help="of each kind")
    arguments = options.parse_args()
    rows: list[tuple[str, ...]] = []
    for name, kind in KINDS.items():
        goal = None if name == HARDER else SHARE_FAST if kind.start_s < 10 else SHARE
        rows.append(row(name, *replayed(lambda seed, kind=kind: MadeGrid(kind, seed), arguments.races), goal))
    of_sweep: dict[str, float] = {}
    for name, (grid, times) in MEASURED.items():
        races, by_sweep = replayed(lambda seed, g=grid, n=times: MeasuredGrid(g, seed, times=n), arguments.races)
        rows.append(row(name, races, by_sweep, SHARE))
        of_sweep[name] = float(np.mean([race.of_sweep for race in races]))
    for line in text_table.text(HEADER, rows, 120, "lrrrrrrrrrrrl"):
        print(line)
    print(f"goals: within 2 % in >= {NEAR:.0%}, <= {SHARE:.0%} of the time ({SHARE_FAST:.0%} where a start costs 3 s)")
    starts = " and ".join(f"{grid.start_s:g} s ({name})" for name, grid in GRIDS.items())
    print(f"time: of a grid whose cells each start a process, as a race's do, in {starts}. Of a sweep that")
    print(f"starts one: {', '.join(f'{share:.1%} ({name})' for name, share in of_sweep.items())}")
    print(f"{arguments.races} races each, from seed {FIRST_SEED}; {machine()}")


if __name__ == "__main__":
    main()
