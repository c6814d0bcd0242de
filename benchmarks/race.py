"""Replays of races: how near the best cell of a grid they end,
and for what share of the grid's time.

    python -m benchmarks.race [--races 200] [--seed 40000] [--only WORLD...] [--json]

Made grids have 96 cells with effects of axes between 1 % and 70 %, interactions of 5 %, 1 % between
runs and 4 % between steps. In four of their worlds processes of cells with gpus=2 differ by 8 %, a
fifth of the cells have slow spells of their own, or all steps take 1.8 times as long in bursts of
20 s, with 30 s between two in the mean. Gates for these and the quiet world stand below the table;
what is called sure is to be right in each world. The measured grids have 96 cells on CPU ranks; a
process replays stretches of its cell's own steps. The time is that of all processes' starts, all
blocks, and the finalists' full runs, as a share of all cells' full runs.

Five times as fast with OMP_NUM_THREADS=1, as its matrices are small.

a sweep: share of sweeps, one full run of each cell, whose best-looking cell is within 2 % of the
best. wrong: races in which a cell that dropped out as beaten is better than the winner. covered:
races whose winner's 95 % interval contains
its true figure. sure: races that claim to be within 2 % with 95 % confidence;
right: those of them that are.

A row of a measured grid is a cell: its axes, the seconds of its steps after the warm-up, samples a
step, seconds of training, and of its whole attempt. They are of

    python train_vision.py -m dataset=digits model.width=0.35 dataset.image_size=48 device=cpu \\
        layout=nchw,nhwc loader=torch,batched,device gpus=1,2 \\
        malloc=tuned,system optimizer.fused=false,true

with `epochs=4 precision=fp32,bf16` (short) and `epochs=10 batch_size=16,32` (long), on two cores.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from benchmarks import machine, parser
from benchmarks.race_worlds import GRIDS, LONG, SHORT, MadeGrid, MeasuredGrid, World, WorldKind
from multicard.decide.race.outcome import (
    BURSTS,
    NORMAL_95,
    NOT_WORTH,
    OUT,
    RaceOptions,
    RaceVerdict,
)
from multicard.decide.race.posterior import Block
from multicard.decide.race.processes import QUIET_S
from multicard.decide.race.readings import log_rate, log_slowdown
from multicard.decide.race.rules import Race
from multicard.records import text_table

UNMEASURED = 4  # steps before a block: the queue of its loader, the step after a pause
SWEEP = 1000  # number of a cell's process in a sweep: none of a race's


class Replay(NamedTuple):
    """The outcome of a race.

    loss: share by which its winner is slower than the best cell. share: of the grid's time that it
    took, where each cell is a process of its own; of_sweep: where cells share a process. started:
    cells. dropped_wrongly: a cell that dropped out as beaten is better than the winner. covered:
    the winner's 95 % interval contains its true figure.
    in_rounds: bursts were found, and the likeliest cells measured in rounds.
    """

    loss: float
    share: float
    of_sweep: float
    started: int
    blocks: int
    dropped_wrongly: bool
    covered: bool
    verdict: RaceVerdict
    in_rounds: bool = False


def swept(world: World) -> float:
    """By how much the cell that looks best in a sweep, one full run of each,
    is slower than the best, as a share.
    """
    now_s = 0.0
    figures = []
    for cell, full_s in enumerate(world.full_s):
        steps_s = world.steps_s(cell, SWEEP, float(full_s), now_s)
        now_s += world.start_s + float(steps_s.sum())
        figures.append(math.log(world.samples[cell] / steps_s.mean()))
    return -math.expm1(world.truth[int(np.argmax(figures))] - world.truth.max())


def replay(world: World, seed: int) -> Replay:
    """Run a race to its end, and its finals."""
    full_s = world.start_s + float(np.median(world.full_s))
    race = Race(world.settings, world.predictions, seed=seed)
    race.costs(world.start_s, world.block_s, full_s)
    processes: dict[int, int] = {}
    now_s = 0.0
    blocks = 0

    def train(cell: int, turn: int, seconds: float) -> tuple[Block, np.ndarray]:
        steps_s = world.steps_s(cell, processes[cell], seconds, now_s)
        busy = world.busy(now_s, float(steps_s.sum()))
        reading = log_rate(steps_s, world.samples[cell] * len(steps_s))
        return Block(cell, turn, *reading, processes[cell], busy=busy), steps_s

    while cells := race.next_round():
        begun = {cell for cell in cells if cell not in processes or cell in race.fresh}
        for cell in begun:
            processes[cell] = processes.get(cell, -1) + 1
            now_s += world.start_s
        for cell in cells:
            block, steps_s = train(cell, race.round, world.block_s)
            race.add(block)
            # a process leaves its first steps out besides
            unmeasured = UNMEASURED * (2 if cell in begun else 1)
            begun -= {cell}
            now_s += QUIET_S + float(steps_s.sum() + unmeasured * steps_s.mean())
            blocks += 1
        race.costs(world.start_s, world.block_s, full_s, now_s)
    full_runs: dict[tuple[int, int], Block] = {}

    def run_in_full() -> None:
        nonlocal now_s
        for turn, cell in race.final_runs:
            if (turn, cell) in full_runs:
                continue
            processes[cell] = processes.get(cell, -1) + 1
            now_s += world.start_s
            block, steps_s = train(cell, turn, float(world.full_s[cell]))
            full_runs[turn, cell] = replace(block, slowed=log_slowdown(steps_s))
            now_s += float(steps_s.sum())

    run_in_full()
    if race.widen([*full_runs.values()]):
        run_in_full()
    for turn, cell in race.final_runs:
        race.add_full(full_runs[turn, cell])
    verdict = race.verdict()
    assert verdict.winner is not None
    grid_s = float((world.start_s + world.full_s).sum())
    loss = -math.expm1(world.truth[verdict.winner] - world.truth.max())
    standings = race.standings
    figure = world.truth[verdict.winner]
    # none fails here
    dropped_wrongly = any(one.state == OUT and world.truth[one.cell] > figure for one in standings)
    winner = standings[verdict.winner]
    covered = bool(abs(winner.log_figure - figure) <= NORMAL_95 * winner.error)
    of_sweep = now_s / float((world.sweep_start_s + world.full_s).sum())
    in_rounds = race.ending in (BURSTS, NOT_WORTH)
    return Replay(
        loss,
        now_s / grid_s,
        of_sweep,
        len(processes),
        blocks,
        dropped_wrongly,
        covered,
        verdict,
        in_rounds,
    )


# ---- the table

NEAR_LOSS = 0.02  # within which a winner is near the best
# goals: near the best, and of the time where a start costs 10 s and 3 s
NEAR = 0.95
SHARE = 0.15
SHARE_FAST = 0.12
FIRST_SEED = 40_000  # the rules were tuned on smaller ones
HARDER = "runs differ by 3 %"  # than the goal is for
QUIET = "made, starts of 10 s"
# Worlds with gates of their own, below the table; 20 s in 50 s are slow in SEEN and UNSEEN
UNEVEN = "gpus=2 differ by 8 %"
SEEN = "bursts of load, seen"
UNSEEN = "bursts of load, unseen"
SPELLS = "some cells have slow spells"
WITH_GATES = (QUIET, UNEVEN, SPELLS, SEEN, UNSEEN)
WITHOUT_GOAL = (HARDER, UNEVEN, SPELLS, SEEN, UNSEEN)
BURST_FACTOR = 1.8
# Gates: points behind a sweep in the quiet world, and ahead of it where processes differ; of bursts
# that are found, of sure races that are right, and of intervals of winners that hold
BEHIND_SWEEP = 0.02
AHEAD_OF_SWEEP = 0.10
FOUND = 0.95
RIGHT = 0.95
COVERED = 0.85
KINDS = {
    QUIET: WorldKind(),
    "made, starts of 3 s": WorldKind(start_s=3.0),
    "steps correlate by 0.6": WorldKind(correlation=0.6),
    "drift of 2 % in 100 s": WorldKind(drift=0.02),
    "interactions of 10 %": WorldKind(interaction=0.10),
    HARDER: WorldKind(between_runs=0.03),
    "1 % of steps are slow": WorldKind(slowed=0.01),
    "the best three equal": WorldKind(equal=3),
    "predicted within 8 %": WorldKind(predicted=True),
    UNEVEN: WorldKind(uneven=0.08),
    SEEN: WorldKind(burst=BURST_FACTOR, is_seen=True),
    UNSEEN: WorldKind(burst=BURST_FACTOR),
    SPELLS: WorldKind(has_spells=True),
}
# The grid, and by how many times its epochs: the measured steps stand for all of them
MEASURED = {
    "measured, runs of 8 s": (SHORT, 1),
    "the same, runs of 33 s": (SHORT, 4),
    "measured, runs of 45 s": (LONG, 1),
}
HEADER = ("grid", "within 2 %", "a sweep", "worst", "time", "90 %", "started", "blocks")
HEADER += ("wrong", "covered", "sure", "right", "met")


class Figures(NamedTuple):
    """What a kind of races reached.

    near: share of races within 2 % of the best, with its 95 % interval (near_low, near_high);
    by_sweep: that of sweeps.
    share: mean share of the grid's time, with its 90 % quantile; of_sweep: where the cells of a
    sweep share a process.
    right: share of the sure races that are near; None where none is sure. met: None where there is
    no goal.
    in_rounds: share of races that measured cells in rounds, as they found bursts.
    """

    near: float
    near_low: float
    near_high: float
    by_sweep: float
    worst: float
    share: float
    share_90: float
    of_sweep: float
    started: float
    blocks: float
    dropped_wrongly: float
    covered: float
    sure: float
    right: float | None
    met: bool | None
    in_rounds: float = 0.0


def figures(races: Sequence[Replay], by_sweep: Sequence[float], goal: float | None) -> Figures:
    """by_sweep: see `swept`. goal: of the share of time; None: there is no goal."""
    near = np.array([race.loss <= NEAR_LOSS for race in races])
    low, high = binomtest(int(near.sum()), len(near)).proportion_ci(0.95, "wilson")
    shares = [race.share for race in races]
    sure = np.array([race.verdict.sure >= RaceOptions.confidence for race in races])
    met = bool(near.mean() >= NEAR and np.mean(shares) <= (goal or 1))
    return Figures(
        near=float(near.mean()),
        near_low=float(low),
        near_high=float(high),
        by_sweep=float(np.mean(np.array(by_sweep) <= NEAR_LOSS)),
        worst=max(0.0, *(race.loss for race in races)),
        share=float(np.mean(shares)),
        share_90=float(np.quantile(shares, 0.9)),
        of_sweep=float(np.mean([race.of_sweep for race in races])),
        started=float(np.mean([race.started for race in races])),
        blocks=float(np.mean([race.blocks for race in races])),
        dropped_wrongly=float(np.mean([race.dropped_wrongly for race in races])),
        covered=float(np.mean([race.covered for race in races])),
        sure=float(sure.mean()),
        right=float(near[sure].mean()) if sure.any() else None,
        met=None if goal is None else met,
        in_rounds=float(np.mean([race.in_rounds for race in races])),
    )


def row(name: str, reached: Figures) -> tuple[str, ...]:
    """A row of the table."""
    near = f"{reached.near:.1%} ({reached.near_low * 100:.0f}-{reached.near_high * 100:.0f})"
    times = f"{reached.share:.1%}", f"{reached.share_90:.1%}"
    counts = f"{reached.started:.0f}", f"{reached.blocks:.0f}"
    held = f"{reached.dropped_wrongly:.1%}", f"{reached.covered:.1%}", f"{reached.sure:.0%}"
    right = "-" if reached.right is None else f"{reached.right:.0%}"
    met = {None: "-", True: "yes", False: "no"}[reached.met]
    return (
        name,
        near,
        f"{reached.by_sweep:.1%}",
        f"{reached.worst:.1%}",
        *times,
        *counts,
        *held,
        right,
        met,
    )


class WorldGate(NamedTuple):
    """What a world has to reach; value and least as shares."""

    world: str
    what: str
    value: float
    least: float

    @property
    def line(self) -> str:
        verdict = "met" if self.value >= self.least - 1e-9 else "not met"
        return f"{self.world}: {self.what}: {self.value:.1%}, at least {self.least:.1%}: {verdict}"


def gates(found: Mapping[str, Figures]) -> list[WorldGate]:
    """The gates of those worlds that have some."""
    listed: list[WorldGate] = []
    for world, ahead in ((QUIET, -BEHIND_SWEEP), (SPELLS, -BEHIND_SWEEP), (UNEVEN, AHEAD_OF_SWEEP)):
        if world in found:
            least = min(found[world].by_sweep + ahead, 1.0)
            listed.append(WorldGate(world, "near the best", found[world].near, least))
    for world in (SEEN, UNSEEN):
        if world in found:
            in_rounds = found[world].in_rounds
            listed.append(WorldGate(world, "bursts found, measured in rounds", in_rounds, FOUND))
            listed.append(WorldGate(world, "not called sure", 1 - found[world].sure, FOUND))
    for world, reached in found.items():
        if reached.right is not None:
            listed.append(WorldGate(world, "sure ones that are right", reached.right, RIGHT))
        if world in WITH_GATES:
            listed.append(WorldGate(world, "interval holds", reached.covered, COVERED))
    return listed


def replayed(
    world: Callable[[int], World], races: int, first_seed: int
) -> tuple[list[Replay], list[float]]:
    """Races, and what sweeps would have chosen."""
    seeds = range(first_seed, first_seed + races)
    ended = [replay(world(seed), seed=seed) for seed in seeds]
    return ended, [swept(world(seed)) for seed in seeds]


def reached(
    races: int, first_seed: int = FIRST_SEED, only: Collection[str] = ()
) -> dict[str, Figures]:
    """What so many races of each kind, or of some, reach, by the name of the kind."""
    found: dict[str, Figures] = {}
    for name, kind in KINDS.items():
        if only and name not in only:
            continue
        goal = None if name in WITHOUT_GOAL else SHARE_FAST if kind.start_s < 10 else SHARE
        ended = replayed(lambda seed, kind=kind: MadeGrid(kind, seed), races, first_seed)
        found[name] = figures(*ended, goal)
    for name, (grid, times) in MEASURED.items():
        if only and name not in only:
            continue
        ended = replayed(
            lambda seed, g=grid, n=times: MeasuredGrid(g, seed, times=n), races, first_seed
        )
        found[name] = figures(*ended, SHARE)
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--races", type=int, default=200, help="of each kind")
    options.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first race")
    names = [*KINDS, *MEASURED]
    options.add_argument("--only", nargs="+", choices=names, default=[], metavar="WORLD")
    options.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    arguments = options.parse_args()
    found = reached(arguments.races, arguments.seed, arguments.only)
    if arguments.json:
        print(json.dumps({name: each._asdict() for name, each in found.items()}))
        return
    rows = [row(name, each) for name, each in found.items()]
    for line in text_table.text(HEADER, rows, 120, "lrrrrrrrrrrrl"):
        print(line)
    print(
        f"goals: within 2 % in >= {NEAR:.0%}, <= {SHARE:.0%} of the time ({SHARE_FAST:.0%} where a"
        " start costs 3 s)"
    )
    for gate in gates(found):
        print(gate.line)
    starts = " and ".join(f"{grid.start_s:g} s ({name})" for name, grid in GRIDS.items())
    print(f"time: of a grid whose cells each start a process, as in a race, in {starts}.")
    of_sweep = [f"{found[name].of_sweep:.1%} ({name})" for name in MEASURED if name in found]
    if of_sweep:
        print(f"Of a sweep that starts one process: {', '.join(of_sweep)}")
    print(f"{arguments.races} races each, from seed {arguments.seed}; {machine()}")


if __name__ == "__main__":
    main()
