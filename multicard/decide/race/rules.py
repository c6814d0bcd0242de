"""Which cells of a race run next, which drop out, and when it is over.

Everything is decided by draws of all cells' figures from the posterior (`posterior.Model`).

- The race asks how it could be wrong: in which draws a cell is better than the leader by more than the tolerance. A
  cell counts by the share of draws in which it is the best of these (as in top-two Thompson sampling: Russo 2020, Oper.
  Res. 68:1625).
- What runs next is what says most of these differences for its seconds: a further block of a cell, of the leader too, a
  block of a fresh process, once the blocks of one are surer than processes are alike, or of a cell that never ran,
  which says something of all that are like it. In a Gaussian model that is known before it is measured.
- A cell drops out when it is beaten. The probability, given all that was measured, that a cell is the best is a
  martingale: however often one looks, the race drops the best cell with no more than the sum of these probabilities at
  the times at which cells dropped out. That sum is kept under DROP_SHARE of 1 - confidence; a look may spend a quarter
  of what is left of it.
- The race is over when, but for a share of 1 - confidence, nothing is better than the best finalist by more than the
  tolerance. That share grows with the race's time, as being surer costs more: MISS_SHARES from and up to SPENT of the
  grid's time. The rest of 1 - confidence is for machines that are not as the model has them. There is one finalist;
  or several, where cells are too close for that after PROCESSES processes, or where the race, since as many would have
  been enough, took as long as the full runs that a single one would save: at worst that part of it takes twice as long
  as if one had known.
- The finalists then run in full, each `runs` times in fresh processes, in turns. These count like blocks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, stdtr

from multicard.decide.race.posterior import FLOOR, Block, Model, Posterior, Scales, scatter_degrees
from multicard.decide.race.standings import BEATEN, IN, NOT_STARTED, OUT, RaceOptions, Standing, Verdict

DRAWS = 4096
DROP_SHARE = 0.1  # of 1 - confidence, for dropping the best cell
MISS_SHARES, SPENT = (0.1, 0.75), (0.04, 0.10)  # of 1 - confidence, for missing it; by the share of the grid's time
PROCESSES = 3  # of a cell before the finals
SPENT_AT_ONCE = 0.25  # of the probability that is left for dropping the best cell
MOST_CELLS = 8  # of a round
WORTH_ROUND = 0.5  # of what the first block of a round says a second: a round ends with blocks that say less
WORTH_GOING_ON = 0.02  # of the uncertainty, which a block resolves at least: else the race ends undecided
MOST_ROUNDS = 200
MOST_SPENT = 0.5  # of the grid's time: a race that takes longer ends undecided, with the finalists that it has
# Why a race ended
SURE = "one cell is within the tolerance of the best, as surely as was asked for"
CLOSE = "the best cells are too close: to tell them apart would take as long as to measure them in full"
TIME = f"it has taken {MOST_SPENT:.0%} of the time of the whole grid"
ROUNDS = f"it has taken {MOST_ROUNDS} rounds"
NOTHING_LEFT = "further blocks would hardly tell the best cells apart"
NO_CELL = "no cell is left"


@dataclass(frozen=True)
class _Known:
    """What a look at the race sees.

    draws: figures (DRAWS, cells), minus infinity for cells that cannot win any more. enough: in which draws a cell is
    within the tolerance of the best.
    """

    posterior: Posterior
    draws: np.ndarray
    enough: np.ndarray
    best: np.ndarray  # of each draw, the best cell

    @property
    def leads(self) -> np.ndarray:
        """The probability of each cell to be the best."""
        return np.bincount(self.best, minlength=self.draws.shape[1]) / len(self.best)


class Race:
    """A race between cells, by the figures of their blocks.

    Its decisions follow from the arguments and the calls, in their order: a race that is called again with the same
    blocks goes the same way, and so one that was killed goes on.

    Args:
        settings: of each cell, by axis.
        predictions: of each cell's log figure (mean, standard deviation), or None.
        start_s: of a process. block_s: of a block. full_s: of a finalist's full run with its start; None: runs of any
            length are saved.
    """

    def __init__(
        self,
        settings: Sequence[Mapping[str, object]],
        predictions: Sequence[tuple[float, float] | None],
        start_s: float,
        block_s: float,
        options: RaceOptions | None = None,
        seed: int = 0,
        full_s: float | None = None,
    ) -> None:
        if not settings:
            raise ValueError("a race needs a cell")
        self.options = options or RaceOptions()
        self.finalists: tuple[int, ...] = ()
        self.fresh: frozenset[int] = frozenset()
        self.over, self.ending = False, ""
        self._count = len(settings)
        self._start_s, self._block_s, self._full_s = start_s, block_s, full_s
        self._model = Model(settings, predictions)
        self._defaults = Scales(process=self.options.process_sd)
        self._learned = self._model.unlearned(self._defaults)
        self._normals = np.random.default_rng(seed).standard_normal((DRAWS, self._count))
        self._tolerance = -math.log1p(-self.options.tolerance)
        self._blocks: list[Block] = []
        self._reasons: dict[int, str] = {}
        self._spent = 0.0
        self._full: dict[int, list[float]] = {}  # log figures of full runs, by cell
        self._enough_s: dict[int, float] = {}  # by number of finalists, since when they are enough
        self._rounds = self._finals = 0
        self._raced_s = 0.0

    @property
    def round(self) -> int:
        """The number of the round that `next_round` returned last, which its blocks have."""
        return self._rounds - 1

    def next_round(self) -> list[int]:
        """The cells that run next, a block each in this order; none when the race is over.

        Those that have no process are started before the first block, so that the blocks follow one another closely;
        those in `fresh` end theirs and are started anew.
        """
        self.fresh = frozenset()
        if self.over:
            return []
        self._learned = self._model.learned(self._blocks, self._learned, self._defaults)
        known = self._look()
        cells, ending = self._round(known) if known else ([], NO_CELL)
        if cells and self._rounds < MOST_ROUNDS:
            self._rounds += 1
            return cells
        self.over, self.ending, self._finals = True, ending or ROUNDS, self._rounds
        self.finalists = self._chosen(self._look(), self.options.finalists)
        return []

    def replay_round(self) -> None:
        """Decide as before the next round of an earlier race, of which the blocks follow."""
        self.next_round()
        if self.over:  # by rounding alone, as that race went on
            self.over, self._rounds = False, self._rounds + 1

    def costs(self, start_s: float, block_s: float, full_s: float, raced_s: float = 0.0) -> None:
        """What these take, once it is known of this machine: as the arguments of the same names.

        Args:
            raced_s: what the race took so far, with all that is neither a start nor a block.
        """
        self._start_s, self._block_s, self._full_s, self._raced_s = start_s, block_s, full_s, raced_s

    @property
    def final_runs(self) -> list[tuple[int, int]]:
        """The finalists' full runs in their order, each with its round, once the race is over."""
        turns = range(self._finals, self._finals + self.options.runs)
        return [(turn, cell) for turn in turns for cell in self.finalists]

    def add(self, block: Block) -> None:
        """A block that ran."""
        if not (math.isfinite(block.log_figure) and math.isfinite(block.error) and block.error >= 0):
            self.out(block.cell, "its figure is not finite")
            return
        self._rounds = max(self._rounds, block.round + 1)
        self._blocks.append(block)

    def add_full(self, block: Block, is_alike: bool = True) -> None:
        """A full run of a finalist, as a block of a new process.

        Args:
            is_alike: whether its figure is of the same work as that of blocks; else it ranks the finalists alone.
        """
        if is_alike:
            self.add(replace(block, is_full=True))
        self._full.setdefault(block.cell, []).append(block.log_figure)

    def out(self, cell: int, reason: str) -> None:
        """A cell that cannot go on: failed, out of memory, diverged."""
        self._reasons.setdefault(cell, reason)

    def take_back(self, cell: int) -> None:
        """Let a cell run again that was out for a cause that may be gone."""
        self._reasons.pop(cell, None)

    @property
    def standings(self) -> list[Standing]:
        known = self._look()
        posterior = self._posterior() if known is None else known.posterior
        leader = None if known is None else self._leader(known)
        leads = np.zeros(self._count) if known is None else known.leads
        return [self._standing(cell, posterior, leader, float(leads[cell])) for cell in range(self._count)]

    def verdict(self) -> Verdict:
        """Who won: by the finalists' full runs, which are the results; how sure that is, by all that was measured."""
        known = self._look()
        cells = [cell for cell in self.finalists if cell not in self._reasons]
        if known is None or not cells:
            return Verdict(None, 0.0)
        figures = {cell: float(np.mean(self._full[cell])) for cell in cells if cell in self._full}
        winner = max(figures or cells, key=lambda cell: figures.get(cell, float(known.posterior.mean[cell])))
        started = [*self._started(), *(cell for cell, why in self._reasons.items() if why.startswith(BEATEN))]
        near = {cell: self._near(known.posterior, winner, cell) for cell in sorted(started) if cell != winner}
        confidence = self.options.confidence
        equal = tuple(cell for cell, probability in near.items() if probability >= confidence)
        unsure = (cell for cell, probability in near.items() if 1 - confidence < probability < confidence)
        close = tuple(cell for cell in unsure if cell not in self._reasons)
        return Verdict(winner, max(float(known.enough[:, winner].mean()) - self._spent, 0.0), equal, close)

    def _posterior(self) -> Posterior:
        return self._model.posterior(self._blocks, self._learned)

    def _alive(self) -> np.ndarray:
        return np.array([cell not in self._reasons for cell in range(self._count)])

    def _look(self) -> _Known | None:
        """None where no cell is left."""
        alive = self._alive()
        if not alive.any():
            return None
        posterior = self._posterior()
        draws = self._model.draws(self._blocks, self._learned, self._defaults, self._normals)
        draws = np.where(alive, draws, -np.inf)
        enough = draws >= draws.max(axis=1, keepdims=True) - self._tolerance
        return _Known(posterior, draws, enough, draws.argmax(axis=1))

    def _started(self) -> list[int]:
        """Cells that ran a block and are in the race."""
        return sorted({block.cell for block in self._blocks} - self._reasons.keys())

    def _leader(self, known: _Known) -> int | None:
        started = self._started()
        return max(started, key=lambda cell: known.posterior.mean[cell]) if started else None

    def _round(self, known: _Known) -> tuple[list[int], str]:
        """The cells of the next round; none, and why, where there is none."""
        leader = self._leader(known)
        if leader is None:
            likeliest = int(known.leads.argmax())
            return self._telling(known, likeliest) or [likeliest], ""
        self._drop(known, leader)
        ending = self._worth_ending(known)
        cells = [] if ending else self._telling(known, leader)
        return cells, ending or ("" if cells else NOTHING_LEFT)

    def _spare(self) -> float:
        """The probability of missing the best cell at which the race ends."""
        spent = SPENT[1] if self._full_s is None else self._seconds() / (self._count * self._full_s)
        return float(np.interp(spent, SPENT, MISS_SHARES)) * (1 - self.options.confidence)

    def _worth_ending(self, known: _Known) -> str:
        """Why to end: one finalist is enough, or several are by now cheaper than to go on, or none may be found in
        time; empty where it is worth going on."""
        seconds = self._seconds()
        if self._full_s is not None and max(seconds, self._raced_s) >= MOST_SPENT * self._count * self._full_s:
            return TIME
        for count in range(1, self.options.finalists + 1):
            finalists = self._chosen(known, count)
            if known.enough[:, finalists].any(axis=1).mean() < 1 - self._spare():
                self._enough_s.pop(count, None)
                continue
            since_s = self._enough_s.setdefault(count, seconds)
            more_runs = (count - 1) * self.options.runs
            if not more_runs or (self._full_s is not None and seconds - since_s >= more_runs * self._full_s):
                return CLOSE if more_runs else SURE
        return ""

    def _seconds(self) -> float:
        """What the blocks took."""
        return len(self._processes()) * self._start_s + len(self._blocks) * self._block_s

    def _drop(self, known: _Known, leader: int) -> None:
        """Beaten cells, the worst first, as long as their probabilities to be the best allow it."""
        behind = {cell: known.posterior.difference(leader, cell) for cell in self._started() if cell != leader}
        degrees = scatter_degrees(self._blocks, self._count)  # of each cell's noise, of which its blocks tell little
        wrong = {cell: float(stdtr(degrees[cell], -mean / sd)) for cell, (mean, sd) in behind.items()}
        allowed = SPENT_AT_ONCE * (DROP_SHARE * (1 - self.options.confidence) - self._spent)
        for cell in sorted(wrong, key=lambda cell: wrong[cell]):
            allowed -= wrong[cell]
            if allowed < 0:
                break
            self._spent += wrong[cell]
            mean, sd = behind[cell]
            share, least = (-math.expm1(-value) for value in (mean, mean - 2 * sd))
            self._reasons[cell] = f"{BEATEN}{share:.1%} behind the leader, at least {max(least, 0.0):.1%}"

    def _telling(self, known: _Known, leader: int) -> list[int]:
        """The cells whose next blocks say most of how far those that may beat the leader are from it; sets `fresh`."""
        beaten = ~known.enough[:, leader]
        mass = np.bincount(known.best[beaten], minlength=self._count) / max(beaten.sum(), 1)
        rivals = np.flatnonzero(mass)
        covariance = self._model.outlook(self._blocks, self._learned)
        before = self._apart(covariance, leader, rivals)
        open_turns, seconds = self._turns()
        picked: list[int] = []
        first_rate = 0.0
        while len(picked) < MOST_CELLS and open_turns.any():
            tells = covariance[self._count :, leader, None] - covariance[self._count :, rivals]
            own = np.maximum(np.diag(covariance)[self._count :, None], FLOOR)  # nothing is left of blocks picked before
            resolved = np.square(tells) / own / before @ mass[rivals]
            rates = np.where(open_turns & (resolved >= WORTH_GOING_ON), resolved / seconds, 0.0)
            turn = int(rates.argmax())
            if not rates[turn] or rates[turn] < WORTH_ROUND * first_rate:
                break
            first_rate = first_rate or float(rates[turn])
            picked.append(turn)
            open_turns[[turn % self._count, turn % self._count + self._count]] = False
            column = covariance[:, self._count + turn]
            covariance = covariance - np.outer(column, column) / column[self._count + turn]
        started = set(self._started())
        cells = [turn % self._count for turn in picked]
        self.fresh = frozenset(turn % self._count for turn in picked if turn >= self._count) & started
        return cells

    @staticmethod
    def _apart(covariance: np.ndarray, leader: int, rivals: np.ndarray) -> np.ndarray:
        """The variance of the leader's figure - each rival's (rivals,)."""
        own = np.diag(covariance)
        return np.maximum(own[leader] + own[rivals] - 2 * covariance[leader, rivals], FLOOR)

    def _turns(self) -> tuple[np.ndarray, np.ndarray]:
        """Which blocks can run, first of running processes, then of fresh ones (2 cells,), and what they take."""
        alive, running = self._alive(), np.zeros(self._count, bool)
        running[self._started()] = True
        processes = np.bincount([cell for cell, _ in self._processes()], minlength=self._count)
        seconds = np.repeat([self._block_s, self._block_s + self._start_s], self._count)
        return np.concatenate((alive & running, alive & (processes < PROCESSES))), seconds

    def _processes(self) -> set[tuple[int, int]]:
        return {(block.cell, block.process) for block in self._blocks}

    def _chosen(self, known: _Known | None, most: int) -> tuple[int, ...]:
        """The fewest cells, the best first, one of which is good enough with what may go wrong; at most so many."""
        started = self._started()
        chosen: list[int] = []
        if known is None:
            return ()
        missed = np.ones(DRAWS, bool)
        while len(chosen) < min(most, len(started)) and (not chosen or missed.mean() > self._spare()):
            rest = [cell for cell in started if cell not in chosen]
            chosen.append(max(rest, key=lambda cell: known.enough[missed, cell].sum()))
            missed &= ~known.enough[:, chosen[-1]]
        return tuple(chosen)

    def _near(self, posterior: Posterior, cell: int, other: int) -> float:
        """The probability that two cells differ by no more than the tolerance."""
        mean, sd = posterior.difference(cell, other)
        return float(ndtr((self._tolerance - mean) / sd) - ndtr((-self._tolerance - mean) / sd))

    def _standing(self, cell: int, posterior: Posterior, leader: int | None, best: float) -> Standing:
        blocks = sum(block.cell == cell for block in self._blocks)
        state = OUT if cell in self._reasons else IN if blocks else NOT_STARTED
        behind = (0.0, 0.0) if leader is None or cell == leader else posterior.difference(leader, cell)
        mean, sd = float(posterior.mean[cell]), float(posterior.sd[cell])
        return Standing(cell, state, self._reasons.get(cell, ""), blocks, mean, sd, *behind, best)
