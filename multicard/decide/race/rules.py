"""Rules of a race: which cells run next, which drop out, and when it is over.

Everything is decided by draws of all cells' figures from the posterior (`posterior.Model`).

- A rival is a cell that is better than the leader by more than the tolerance, weighted by the share of draws in which
  it is the best such cell (as in top-two Thompson sampling: Russo 2020, Oper. Res. 68:1625).
- The next blocks are those that reduce the uncertainty of these differences most per second: a further block of a
  running cell, a block of a fresh process, or a block of a cell that never ran, which tells about all cells like it. In
  a Gaussian model this is known before the block is measured.
- A cell drops out when it is beaten. The posterior probability that a cell is the best is a martingale: however often
  one looks, the best cell drops out with at most the sum of these probabilities at the times at which cells dropped
  out. The sum stays below DROP_SHARE of 1 - confidence; one look may spend a quarter of what is left.
- The race is over when, but for a share of 1 - confidence, no cell is better than the best finalist by more than the
  tolerance. The share grows with the race's time from the first to the second of MISS_SHARES, over SPENT of the grid's
  time; the rest of 1 - confidence is for machines that differ from the model. Several finalists end it where cells are
  too close, or once the race, since they would have been enough, took as long as the full runs that a single finalist
  would save.
- The finalists then run in full, `runs` times each, by turns in fresh processes. Full runs count like blocks.
- A race that would take longer than its grid measures the grid instead.
- Each process runs a second block once all of its round have run their first: a burst of load slows one of them.
- A block is disturbed where others had the machine, or where it is far slower than another of its cell. Its error
  grows by as much. Its cell gets another block, and returns where it had dropped out by such blocks.
- Where many blocks are disturbed, nothing is sure any more: as many cells as the grid's time allows run in full.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr

from multicard.decide.race.posterior import FLOOR, Block, Model, Posterior, Prior
from multicard.messages import Message, code_of
from multicard.records.limits import BUSY_SHARE

NOT_STARTED, IN, OUT = "not started", "in", "out"
# Codes of reasons: of a cell that dropped out, and of one whose full run did not reach its accuracy
BEATEN, MISSED = "race.beaten", "race.missed-target"
DRAWS = 4096
DROP_SHARE = 0.1  # of 1 - confidence, for dropping the best cell
MISS_SHARES, SPENT = (0.1, 0.75), (0.04, 0.10)  # of 1 - confidence, for missing it; by the share of the grid's time
START_S, BLOCK_S, FULL_S = 20.0, 5.0, 3600.0  # of a process, a block and a full run, before one is known
NOISE_DEGREES = 3  # of freedom of a cell's noise before its first block
PROCESSES = 3  # of a cell before the finals
SPENT_AT_ONCE = 0.25  # of the probability that is left for dropping the best cell
MOST_CELLS = 8  # in a round
WORTH_ROUND = 0.5  # least gain per second of a block, relative to the first block of its round
WORTH_GOING_ON = 0.02  # least share of the uncertainty that a block resolves; below it the race ends undecided
MOST_SPENT = 0.5  # of the grid's time: a longer race ends undecided
CELLS_AN_EFFECT = 3  # cells that a race starts for each value of an axis beyond the first
# Behind another block of its cell, a block is disturbed: by so many standard errors, and in the logarithm by so much:
# shared machines make stretches of 2 s differ by a tenth, and processes differ by as much
OUTLYING, LEAST_SLOWED = 5.0, 0.3
NORMAL_95 = 1.96  # half of a 95 % interval in standard deviations
MOST_BUSY = 0.95  # of the cores, that others are taken to have had: what is left of a block's figure tells little
UNEVEN_FINALISTS = 6  # most of them where processes of a cell differ
IN_FRONT = 3  # cells that run in two processes at least, before the race says that it is sure
TRIES = 4  # most blocks of a cell that are repeated because all others were disturbed
# Disturbed blocks from which on there are bursts: this many, and this share of all; of full runs this share
BURST_BLOCKS, BURST_SHARE, BURST_RUNS = 3, 0.1, 0.5
# Why a race ended
SURE, CLOSE, TIME = "sure", "close", "time"
NOTHING_LEFT, NOT_WORTH, NO_CELL, BURSTS = "nothing left", "not worth", "no cell", "bursts"
ENDINGS = {
    SURE: Message("race.sure", "the blocks showed one cell to be as good as any"),
    CLOSE: Message(
        "race.too-close",
        "the best cells are too close: to order them would take as long as measuring them in full",
    ),
    TIME: Message(
        "race.time", f"it has taken {MOST_SPENT:.0%} of the time of the whole grid, or all but that of the full runs"
    ),
    NOTHING_LEFT: Message("race.nothing-left", "further blocks would hardly show which cell is best"),
    NOT_WORTH: Message(
        "race.not-worth", "it would take longer than all cells of the grid in full, which are measured instead"
    ),
    NO_CELL: Message("race.no-cell-left", "no cell is left"),
    BURSTS: Message("race.bursts", "other load came in bursts, so that short blocks cannot order the cells"),
}


@dataclass(frozen=True)
class RaceOptions:
    """confidence: of the winner being within `tolerance`, a share, of the best cell.

    finalists: most cells that are measured in full. runs: of each.
    """

    confidence: float = 0.95
    tolerance: float = 0.02
    finalists: int = 3
    runs: int = 3


@dataclass(frozen=True)
class Standing:
    """A cell in the race.

    state: NOT_STARTED, IN or OUT. reason: why it is out, else "". blocks: their number.
    log_figure, error: mean and standard deviation, from its own blocks and those of cells like it. The error is at
    least that of the mean of its full runs by how these differ; with bursts it reaches its calm blocks and all runs.
    in_full: mean log figure of its full runs.
    """

    cell: int
    state: str
    reason: str
    blocks: int
    log_figure: float
    error: float
    in_full: float | None = None

    @property
    def failed(self) -> bool:
        """True for a cell that could not go on, or did not reach its target; False for one that was beaten."""
        return self.state == OUT and code_of(self.reason) != BEATEN

    @property
    def missed(self) -> bool:
        """True for a cell that was measured in full, and did not reach its target accuracy."""
        return code_of(self.reason) == MISSED


@dataclass(frozen=True)
class Verdict:
    """How a race ended.

    winner: None where no cell could be measured. sure: probability that it is within the tolerance of the best; 0 where
    bursts were found, beside which no such probability holds. disturbed, blocks: blocks and full runs, of all.
    equal: cells that differ from it by at most the tolerance, with the race's confidence; beaten ones count.
    close: cells in the race for which neither that nor the contrary is sure.
    """

    winner: int | None
    sure: float
    equal: tuple[int, ...] = ()
    close: tuple[int, ...] = ()
    disturbed: int = 0
    blocks: int = 0


class _Look(NamedTuple):
    """The race as the draws show it: where a cell is within the tolerance of the best (DRAWS, cells), and which cell is
    the best (DRAWS,)."""

    posterior: Posterior
    enough: np.ndarray
    best: np.ndarray


class Race:
    """A race between cells, by the figures of their blocks, from which all decisions follow: a race which is told the
    blocks of an earlier one goes on from there.

    Args:
        settings: of each cell, by axis.
        priors: of each cell's log figure, or None.

    Attributes:
        fresh: cells of the last round that end their process and start another. ending: why it is over, one of ENDINGS;
            "" before.
        finalists: the cells that are then measured in full.
    """

    def __init__(
        self,
        settings: Sequence[Mapping[str, object]],
        priors: Sequence[Prior | None],
        options: RaceOptions | None = None,
        seed: int = 0,
    ) -> None:
        self.options = options or RaceOptions()
        self.fresh: frozenset[int] = frozenset()
        self.ending = ""
        self.finalists: tuple[int, ...] = ()
        self._count = len(settings)
        self._model = Model(settings, priors)
        self._normals = np.random.default_rng(seed).standard_normal((DRAWS, self._count))
        self._tolerance = -math.log1p(-self.options.tolerance)
        self._blocks: list[Block] = []
        self._told: list[Block] = []  # the blocks, with how much others slowed them
        self._out: dict[int, str] = {}  # reasons
        self._risks: dict[int, float] = {}  # of beaten cells: what each took of the probability below
        self._stopped: set[int] = set()  # cells that returned, and need a new process
        self._spent = 0.0  # of the probability that the best cell drops out
        self._full: dict[int, list[float]] = {}  # log figures of full runs, by cell
        self._enough_s: dict[int, float] = {}  # by number of finalists, since when they are enough
        self._rounds = self._finals = self._learned_from = 0
        self.costs()

    def costs(
        self, start_s: float = START_S, block_s: float = BLOCK_S, full_s: float = FULL_S, raced_s: float = 0.0
    ) -> None:
        """Set the seconds of a start, a block, a full run with its start, and of the race so far."""
        self._start_s, self._block_s, self._full_s, self._raced_s = start_s, block_s, full_s, raced_s

    @property
    def round(self) -> int:
        """Number of the last round of `next_round`; its blocks have it."""
        return self._rounds - 1

    def next_round(self) -> list[int]:
        """The cells that run next, a block each in this order; none when the race is over.

        Those without a process are started before the first block, so that the blocks follow one another closely.
        """
        self.fresh = frozenset()
        if self.ending:
            return []
        self._learn()
        look = self._look()
        cells, ending = self._round(look) if look else ([], NO_CELL)
        if cells:
            self._rounds += 1
            self.fresh |= self._stopped & {*cells}
            self._stopped -= {*cells}
        elif ending == NOT_WORTH:
            self.end(ending, np.flatnonzero(self._alive()).tolist())
        elif ending == BURSTS:
            self.end_in_rounds()
        else:
            self.end(ending, self._chosen(self._look(), self._finalists()))
        return cells

    def end_in_rounds(self) -> None:
        """End the race because of bursts: the likeliest cells run in full, as many as the grid's time allows."""
        for cell in [*self._risks]:
            self._return(cell)
        look = self._look()
        if look is None:
            self.end(NO_CELL, ())
            return
        hopes = look.posterior.mean + look.posterior.sd
        left_s = self._count * self._full_s - self._raced_s
        most = max(self.options.finalists, int(left_s / (self.options.runs * self._full_s)))
        alive = np.flatnonzero(self._alive())
        self.end(BURSTS, alive[np.argsort(-hopes[alive])][:most].tolist())

    def widen(self, full_runs: Sequence[Block]) -> bool:
        """End in rounds after all where the finalists' full runs show bursts; their runs count among those of the
        rounds. True where there are more runs to measure."""
        if self.ending in (BURSTS, NOT_WORTH):
            return False
        if not _are_bursts(told([replace(each, is_full=True) for each in full_runs])):
            return False
        before = self.final_runs
        first = [cell for cell in self.finalists if cell not in self._out]
        turn = self._finals
        self.end_in_rounds()
        rest = [cell for cell in self.finalists if cell not in first]
        self.finalists, self._finals = (*first, *rest), turn
        return {*self.final_runs} > {*before}

    @property
    def bursts(self) -> bool:
        """True once so many blocks, or full runs, were disturbed that no figure of the race is trusted by itself."""
        return self.ending == BURSTS or _are_bursts(self._told)

    def end(self, ending: str, finalists: Sequence[int]) -> None:
        """End the race, as `next_round` does, or as an earlier command ended it."""
        if ending == BURSTS:
            for cell in [*self._risks]:
                self._return(cell)
        self.ending, self.finalists, self._finals = ending, tuple(finalists), self._rounds

    @property
    def gives_up(self) -> bool:
        """True where, by the first round, the starts, two blocks of each and the fewest full runs take longer than the
        whole grid."""
        started = min(self._count, CELLS_AN_EFFECT * self._model.effects)
        least_s = started * (self._start_s + 2 * self._block_s) + self.options.runs * self._full_s
        return self._rounds <= 1 and least_s >= self._count * self._full_s

    @property
    def most_s(self) -> float:
        """Seconds after which the race ends undecided: the full runs of one cell fit into the grid's time after it."""
        return max(min(MOST_SPENT * self._count, self._count - self.options.runs), 0) * self._full_s

    @property
    def final_runs(self) -> list[tuple[int, int]]:
        """The finalists' full runs in their order, each with its round, once the race is over."""
        turns = range(self._finals, self._finals + (1 if self.ending == NOT_WORTH else self.options.runs))
        return [(turn, cell) for turn in turns for cell in self.finalists]

    def add(self, block: Block) -> None:
        """Take a block that ran."""
        if not (math.isfinite(block.log_figure) and math.isfinite(block.error) and block.error >= 0):
            self.out(block.cell, Message("race.figure-not-finite", "its figure is not finite"))
            return
        self._rounds = max(self._rounds, block.round + 1)
        self._blocks.append(block)
        self._told = told(self._blocks)
        calm = [each for each in self._told if each.cell == block.cell and not each.slowed]
        if len(calm) > 1 and all(self._model.misses(each) for each in calm):
            self._model.forget(block.cell)

    def add_full(self, block: Block) -> None:
        """Take a full run of a finalist, as a block of a new process."""
        self.add(replace(block, is_full=True))
        self._full.setdefault(block.cell, []).append(block.log_figure)

    def out(self, cell: int, reason: str) -> None:
        """Take a cell out that cannot go on: failed, out of memory, diverged."""
        self._out.setdefault(cell, reason)

    @property
    def standings(self) -> list[Standing]:
        """All cells, in their order."""
        if self._full:
            self._learn()
        posterior = self._model.posterior(self._told)
        blocks = np.bincount([block.cell for block in self._blocks], minlength=self._count)
        return [
            Standing(
                cell,
                OUT if cell in self._out else IN if blocks[cell] or cell in self._full else NOT_STARTED,
                self._out.get(cell, ""),
                int(blocks[cell]),
                float(posterior.mean[cell]),
                self._error(cell, float(posterior.mean[cell]), float(posterior.sd[cell])),
                float(np.mean(self._full[cell])) if cell in self._full else None,
            )
            for cell in range(self._count)
        ]

    def _error(self, cell: int, mean: float, sd: float) -> float:
        """The standard deviation of a cell's figure, no smaller than what its full runs say by themselves."""
        full = self._full.get(cell, [])
        if len(full) > 1:
            sd = max(sd, float(np.std(full, ddof=1)) / math.sqrt(len(full)))
        if self.bursts:
            calm = [each.log_figure for each in self._told if each.cell == cell and not each.slowed]
            sd = max(sd, *(abs(figure - mean) / NORMAL_95 for figure in [mean, *full, *calm]))
        return sd

    def verdict(self) -> Verdict:
        """The winner by the finalists' full runs, and how sure that is by all that was measured."""
        self._learn()
        beaten = [cell for cell in self._out if code_of(self._out[cell]) == BEATEN]
        look = self._look(beaten)
        cells = [cell for cell in self.finalists if cell not in self._out]
        if look is None or not cells:
            return Verdict(None, 0.0)
        figures = {cell: float(np.mean(self._full[cell])) for cell in cells if cell in self._full}
        if self.bursts:  # full runs were disturbed by more or less; what is known of all blocks weighs them
            figures = {cell: float(look.posterior.mean[cell]) for cell in figures}
        winner = max(figures or cells, key=lambda cell: figures.get(cell, float(look.posterior.mean[cell])))
        disturbed, blocks = sum(block.slowed > 0 for block in self._told), len(self._told)
        if self.bursts:
            return Verdict(winner, 0.0, disturbed=disturbed, blocks=blocks)
        out = {cell for cell, reason in self._out.items() if code_of(reason) != BEATEN}
        ran = sorted({block.cell for block in self._blocks} - out)
        apart = {cell: look.posterior.difference(winner, cell) for cell in ran if cell != winner}
        ends = {cell: [(side * self._tolerance - mean) / sd for side in (-1, 1)] for cell, (mean, sd) in apart.items()}
        near = {cell: float(ndtr(high) - ndtr(low)) for cell, (low, high) in ends.items()}  # within the tolerance
        confidence = self.options.confidence
        equal = tuple(cell for cell, probability in near.items() if probability >= confidence)
        unsure = (cell for cell, probability in near.items() if 1 - confidence < probability < confidence)
        close = tuple(cell for cell in unsure if cell not in self._out)
        sure = max(float(look.enough[:, winner].mean()) - self._spent, 0.0)
        return Verdict(winner, sure, equal, close, disturbed, blocks)

    def _learn(self) -> None:
        """Learn the scales from all blocks and full runs, unless that is done."""
        if self._learned_from != len(self._blocks):
            self._learned_from = len(self._blocks)
            self._model.learn(self._told)

    def _alive(self) -> np.ndarray:
        return np.array([cell not in self._out for cell in range(self._count)])

    def _started(self) -> list[int]:
        """Cells in the race that ran a block."""
        return sorted({block.cell for block in self._blocks} - self._out.keys())

    def _look(self, beaten: Sequence[int] = ()) -> _Look | None:
        """The cells that are in, with some of those that dropped out; None where no cell is left."""
        alive = self._alive()
        alive[[*beaten]] = True
        if not alive.any():
            return None
        posterior, draws = self._model.drawn(self._told, self._normals)
        draws = np.where(alive, draws, -np.inf)
        enough = draws >= draws.max(axis=1, keepdims=True) - self._tolerance
        return _Look(posterior, enough, draws.argmax(axis=1))

    def _round(self, look: _Look) -> tuple[list[int], str]:
        """The cells of the next round; none, and the reason, where the race ends."""
        if self.gives_up:
            return [], NOT_WORTH
        if self.bursts:
            return [], BURSTS
        leader = max(self._started(), key=lambda cell: look.posterior.mean[cell], default=None)
        if leader is None:
            likeliest = int(np.bincount(look.best).argmax())
            return self._twice(self._telling(look, likeliest) or [likeliest]), ""
        self._take_back(look, leader)
        self._drop(look, leader)
        again = self._again()[:MOST_CELLS]
        ending = self._worth_ending(look)
        if ending in (SURE, CLOSE) and not again:
            again = self._of_one_process(look)
            self.fresh = frozenset(again)
        if ending and (ending == TIME or not again):
            return [], ending
        if ending:
            return self._twice(again), ""
        cells = self._twice([*again, *(cell for cell in self._telling(look, leader) if cell not in again)])
        return cells, "" if cells else NOTHING_LEFT

    def _twice(self, cells: list[int]) -> list[int]:
        """The cells of a round; those that start a process run a second block after all others."""
        running = {*self._started()} - self.fresh
        return cells + [cell for cell in cells if cell not in running] if len(cells) > 1 else cells

    def _again(self) -> list[int]:
        """Cells of which no block can be trusted yet: all were disturbed, or the only calm one misses its estimate."""
        again = list[int]()
        for cell in self._started():
            own = [block for block in self._told if block.cell == cell]
            calm = [block for block in own if not block.slowed]
            doubtful = not calm or (len(calm) == 1 and self._model.misses(calm[0]))
            if doubtful and len(own) < TRIES:
                again.append(cell)
        return again

    def _of_one_process(self, look: _Look) -> list[int]:
        """Cells in front that ran in a single process, of which one cannot tell by how much processes differ."""
        front = sorted(self._started(), key=lambda cell: -look.posterior.mean[cell])[:IN_FRONT]
        processes = {cell: {block.process for block in self._told if block.cell == cell} for cell in front}
        return [cell for cell in front if len(processes[cell]) < 2]

    def _risk(self, behind: tuple[float, float], blocks: int) -> float:
        """The probability that a cell that is so far behind the leader (mean, sd) is the better one."""
        mean, sd = behind
        return float(stdtr(NOISE_DEGREES + blocks, -mean / sd))

    def _take_back(self, look: _Look, leader: int) -> None:
        """Beaten cells return that may be the best after all: as their blocks turned out to be disturbed, or processes
        to differ."""
        most = DROP_SHARE * (1 - self.options.confidence)
        for cell in [*self._risks]:
            own = [block for block in self._told if block.cell == cell]
            if not self._model.is_uneven and not any(block.slowed for block in own):
                continue
            calm = sum(not block.slowed for block in own)
            if self._risk(look.posterior.difference(leader, cell), calm) > most:
                self._return(cell)

    def _return(self, cell: int) -> None:
        """Undo that a cell dropped out."""
        self._spent -= self._risks.pop(cell)
        del self._out[cell]
        self._stopped.add(cell)

    def _drop(self, look: _Look, leader: int) -> None:
        """Drop beaten cells, the worst first, as far as their probabilities to be the best allow it."""
        behind = {cell: look.posterior.difference(leader, cell) for cell in self._started() if cell != leader}
        calm = np.bincount([block.cell for block in self._told if not block.slowed], minlength=self._count)
        wrong = {cell: self._risk(apart, int(calm[cell])) for cell, apart in behind.items()}
        allowed = SPENT_AT_ONCE * (DROP_SHARE * (1 - self.options.confidence) - self._spent)
        for cell in sorted(wrong, key=lambda cell: wrong[cell]):
            if self._model.has_estimate(cell) and calm[cell] < 2:
                continue  # a single block does not outweigh what records say
            allowed -= wrong[cell]
            if allowed < 0:
                break
            self._spent += wrong[cell]
            self._risks[cell] = wrong[cell]
            mean, sd = behind[cell]
            share = -math.expm1(-mean)
            least = max(-math.expm1(2 * sd - mean), 0.0)
            sentence = f"beaten: {share:.1%} behind the leader, at least {least:.1%}"
            self._out[cell] = Message("race.beaten", sentence, behind=share, at_least=least)

    def _worth_ending(self, look: _Look) -> str:
        """Why to end: the time is over, one finalist is enough, or several are cheaper than going on; else empty."""
        if self._raced_s >= self.most_s:
            return TIME
        for count in range(1, self._finalists() + 1):
            finalists = self._chosen(look, count)
            if look.enough[:, finalists].any(axis=1).mean() < 1 - self._accepted_risk():
                self._enough_s.pop(count, None)
                continue
            since_s = self._enough_s.setdefault(count, self._raced_s)
            if self._raced_s - since_s >= (count - 1) * self.options.runs * self._full_s:
                return SURE if count == 1 else CLOSE
        return ""

    def _finalists(self) -> int:
        """Most finalists whose full runs fit into what is left of the grid's time, one at least."""
        left_s = self._count * self._full_s - self._raced_s
        most = UNEVEN_FINALISTS if self._model.is_uneven else self.options.finalists
        return max(1, min(most, int(left_s / (self.options.runs * self._full_s))))

    def _accepted_risk(self) -> float:
        """Probability of missing the best cell at which the race ends."""
        spent = self._raced_s / (self._count * self._full_s)
        return float(np.interp(spent, SPENT, MISS_SHARES)) * (1 - self.options.confidence)

    def _chosen(self, look: _Look | None, most: int) -> tuple[int, ...]:
        """The fewest cells, at most `most`, that contain a good-enough one at the accepted risk; the best first."""
        started, chosen = self._started(), list[int]()
        if look is None:
            return ()
        missed = np.ones(DRAWS, bool)
        while len(chosen) < min(most, len(started)) and (not chosen or missed.mean() > self._accepted_risk()):
            rest = [cell for cell in started if cell not in chosen]
            chosen.append(max(rest, key=lambda cell: look.enough[missed, cell].sum()))
            missed &= ~look.enough[:, chosen[-1]]
        return tuple(chosen)

    def _telling(self, look: _Look, leader: int) -> list[int]:
        """The cells whose next blocks tell most about how far the leader's rivals are from it; sets `fresh`."""
        beaten = ~look.enough[:, leader]
        mass = np.bincount(look.best[beaten], minlength=self._count) / max(beaten.sum(), 1)
        rivals = np.flatnonzero(mass)
        covariance = self._model.outlook(self._told)
        own = np.diag(covariance)
        before = np.maximum(own[leader] + own[rivals] - 2 * covariance[leader, rivals], FLOOR)
        can_run, seconds = self._turns()
        picked: list[int] = []
        first_rate = 0.0
        while len(picked) < MOST_CELLS and can_run.any():
            tells = covariance[self._count :, leader, None] - covariance[self._count :, rivals]
            own = np.maximum(np.diag(covariance)[self._count :, None], FLOOR)  # nothing is left of blocks picked before
            resolved = np.square(tells) / own / before @ mass[rivals]
            rates = np.where(can_run & (resolved >= WORTH_GOING_ON), resolved / seconds, 0.0)
            turn = int(rates.argmax())
            if not rates[turn] or rates[turn] < WORTH_ROUND * first_rate:
                break
            first_rate = first_rate or float(rates[turn])
            picked.append(turn)
            can_run[[turn % self._count, turn % self._count + self._count]] = False
            column = covariance[:, self._count + turn]
            covariance = covariance - np.outer(column, column) / column[self._count + turn]
        self.fresh = frozenset(turn % self._count for turn in picked if turn >= self._count) & {*self._started()}
        return [turn % self._count for turn in picked]

    def _turns(self) -> tuple[np.ndarray, np.ndarray]:
        """Blocks that can run, first of running and then of fresh processes (2 cells,), and their seconds."""
        alive, running = self._alive(), np.zeros(self._count, bool)
        running[[cell for cell in self._started() if cell not in self._stopped]] = True
        started = {(block.cell, block.process) for block in self._blocks}
        processes = np.bincount([cell for cell, _ in started], minlength=self._count)
        seconds = np.repeat([self._block_s, self._block_s + self._start_s], self._count)
        return np.concatenate((alive & running, alive & (processes < PROCESSES))), seconds


def told(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with how much others slowed each: by their load, or by another block of the cell that was far faster.
    What a full run's own steps say of it stays."""
    found = list[Block]()
    for block in blocks:
        slowed = block.slowed
        if block.busy > BUSY_SHARE:
            slowed = max(slowed, -math.log1p(-min(block.busy, MOST_BUSY)))
        if not block.is_full:
            peers = (other for other in blocks if other.cell == block.cell and not other.is_full)
            slowed = max([slowed, *(_behind(block, other) for other in peers)])
        found.append(replace(block, slowed=slowed))
    return found


def _are_bursts(blocks: Sequence[Block]) -> bool:
    """True where enough blocks, or enough full runs, were disturbed."""
    short = [block.slowed > 0 for block in blocks if not block.is_full]
    full = [block.slowed > 0 for block in blocks if block.is_full]
    in_blocks = sum(short) >= max(BURST_BLOCKS, BURST_SHARE * len(short))
    return in_blocks or sum(full) > BURST_RUNS * len(full)


def _behind(block: Block, other: Block) -> float:
    """By how much a block is slower than another of its cell, where that is more than blocks differ; else 0."""
    apart = other.log_figure - block.log_figure
    return apart if apart > max(LEAST_SLOWED, OUTLYING * math.hypot(block.error, other.error)) else 0.0
