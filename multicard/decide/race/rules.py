"""Rules of a race: which cells run next, which drop out, and when it is over.

Everything is decided by draws of all cells' figures from the posterior (`posterior.Model`).

- A rival is a cell that is better than the leader by more than the tolerance, weighted by the share
  of draws in which it is the best such cell (as in top-two Thompson sampling: Russo 2020, Oper.
  Res. 68:1625).
- The next blocks are those that reduce the uncertainty of these differences most per second
  (`next_blocks`): of a running cell, of a fresh process, or of a cell that never ran, which tells
  about all cells like it.
- A cell drops out when it is beaten. The posterior probability that a cell is the best is a
  martingale. However often one looks, the best cell drops out with at most the sum of these
  probabilities at the times at which cells dropped out. The sum stays below a share of
  1 - confidence (`elimination.DROP_SHARE`). One look may spend a quarter of the rest.
- The race is over when, but for a share of 1 - confidence, no cell is better than the best finalist
  by more than the tolerance. The share grows with the race's time (`budget.MISS_SHARES`, over SPENT
  of the grid's time); the rest is for machines that differ from the model. Several finalists end it
  where cells are too close, or once the race, since they would have been enough, took as long as
  the full runs that a single finalist would save.
- The finalists then run in full, `runs` times each, alternating, in new processes. Full runs count
  like blocks.
- A race that would take longer than its grid measures the grid instead.
- Each process runs a second block once all of its round have run their first: a burst of load slows
  one of them.
- A block is disturbed if other processes used the machine, or if it is far slower than another of
  its cell. Its error grows accordingly. Its cell gets another block, and returns if such blocks had
  made it drop out.
- Slow blocks of one cell are its own spells (`disturbance`). Such a cell has a variance of its own
  (`blocks`).
- If many blocks are disturbed, nothing is sure any more: as many cells as the grid's time allows
  run in full.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.special import ndtr

from multicard.decide.race import disturbance, next_blocks
from multicard.decide.race.budget import BLOCK_S, FULL_S, START_S, Budget
from multicard.decide.race.elimination import Elimination
from multicard.decide.race.look import DRAWS, Look
from multicard.decide.race.next_blocks import MOST_CELLS
from multicard.decide.race.outcome import (
    BURSTS,
    CLOSE,
    IN,
    NO_CELL,
    NORMAL_95,
    NOT_STARTED,
    NOT_WORTH,
    NOTHING_LEFT,
    OUT,
    SURE,
    TIME,
    RaceOptions,
    RaceVerdict,
    Standing,
)
from multicard.decide.race.posterior import Block, Model, Prior
from multicard.messages import Message

PROCESSES = 3  # At most this many processes of a cell run before the finals.
CELLS_AN_EFFECT = 3  # The race starts this many cells for each value of an axis after the first.
UNEVEN_FINALISTS = 6  # At most this many finalists run if processes of a cell differ.
IN_FRONT = 3  # This many leading cells run in two processes before the race says it is sure.
TRIES = 4  # A cell whose blocks were all disturbed runs at most this many.


class Race:
    """A race between cells. All decisions follow from the figures of their blocks.

    A race that gets the blocks of an earlier race therefore resumes it.

    Args:
        settings: of each cell, by axis.
        priors: of each cell's log figure, or None.

    Attributes:
        fresh: cells of the last round that end their process and start another.
        ending: why the race is over, one of ENDINGS, or "" before.
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
        self._estimated_blocks: list[
            Block
        ] = []  # The blocks, with how much other load slowed each.
        self._counted_blocks: list[Block] = []  # The blocks by which cells are judged.
        self._outs = Elimination(self.options.confidence)
        self._full: dict[int, list[float]] = {}  # Log figures of full runs, by cell.
        # When each number of finalists became enough, in seconds of the race.
        self._enough_s: dict[int, float] = {}
        self._rounds = self._finals = self._learned_from = 0
        self.costs()

    def costs(
        self,
        start_s: float = START_S,
        block_s: float = BLOCK_S,
        full_s: float = FULL_S,
        raced_s: float = 0.0,
    ) -> None:
        """Set the seconds of a start, a block, a full run with its start, and the race so far."""
        cells = self._count
        runs = self.options.runs
        self._budget = Budget(cells, runs, start_s, block_s, full_s, raced_s)

    @property
    def round(self) -> int:
        """Number of the last round that `next_round` returned; its blocks carry it."""
        return self._rounds - 1

    def next_round(self) -> list[int]:
        """Return the cells that run next, a block each in this order; none when the race is over.

        Cells without a process are started before the first block, so that the blocks follow one
        another closely.
        """
        self.fresh = frozenset()
        if self.ending:
            return []
        self._learn()
        look = self._look()
        cells, ending = self._round(look) if look else ([], NO_CELL)
        if cells:
            self._rounds += 1
            self.fresh |= self._outs.stopped & {*cells}
            self._outs.stopped -= {*cells}
        elif ending == NOT_WORTH:
            self.end(ending, np.flatnonzero(self._alive()).tolist())
        elif ending == BURSTS:
            self.end_in_rounds()
        else:
            self.end(ending, self._chosen(self._look(), self._finalists()))
        return cells

    def end_in_rounds(self) -> None:
        """End the race because of bursts: the likeliest cells run in full, as time allows."""
        self._outs.take_all_back()
        look = self._look()
        if look is None:
            self.end(NO_CELL, ())
            return
        hopes = look.posterior.mean + look.posterior.sd
        most = max(self.options.finalists, self._budget.finalists_that_fit)
        alive = np.flatnonzero(self._alive())
        self.end(BURSTS, alive[np.argsort(-hopes[alive])][:most].tolist())

    def widen(self, full_runs: Sequence[Block]) -> bool:
        """End in rounds after all if the finalists' full runs show bursts.

        Their runs then count among the runs of the rounds.

        Returns:
            True if there are more runs to measure.
        """
        if self.ending in (BURSTS, NOT_WORTH):
            return False
        runs = [replace(run, is_full=True) for run in full_runs]
        if not disturbance.are_bursts(disturbance.with_slowdowns([*self._blocks, *runs])):
            return False
        before = self.final_runs
        first = [cell for cell in self.finalists if cell not in self._outs.reasons]
        turn = self._finals
        self.end_in_rounds()
        rest = [cell for cell in self.finalists if cell not in first]
        self.finalists = (*first, *rest)
        self._finals = turn
        return {*self.final_runs} > {*before}

    @property
    def bursts(self) -> bool:
        """True once so many blocks or full runs were disturbed that no figure is trusted alone."""
        return self.ending == BURSTS or disturbance.are_bursts(self._estimated_blocks)

    def end(self, ending: str, finalists: Sequence[int]) -> None:
        """End the race, as `next_round` does, or as an earlier command ended it."""
        if ending == BURSTS:
            self._outs.take_all_back()
            self._counted_blocks = self._estimated_blocks
        self.ending = ending
        self.finalists = tuple(finalists)
        self._finals = self._rounds

    @property
    def gives_up(self) -> bool:
        """True if the shortest race would take longer than the whole grid, seen in the first round.

        It needs the starts, two blocks of each cell, and the fewest full runs.
        """
        started = min(self._count, CELLS_AN_EFFECT * self._model.effects)
        return self._rounds <= 1 and self._budget.is_not_worth(started)

    @property
    def most_s(self) -> float:
        """Seconds after which the race ends undecided, with time left for one cell's full runs."""
        return self._budget.most_s

    @property
    def final_runs(self) -> list[tuple[int, int]]:
        """The finalists' full runs in their order, each with its round, once the race is over."""
        turns = range(
            self._finals, self._finals + (1 if self.ending == NOT_WORTH else self.options.runs)
        )
        return list(product(turns, self.finalists))

    def add(self, block: Block) -> None:
        """Add a measured block."""
        if not (
            math.isfinite(block.log_figure) and math.isfinite(block.error) and block.error >= 0
        ):
            self.out(block.cell, Message("race.figure-not-finite", "its figure is not finite"))
            return
        self._rounds = max(self._rounds, block.round + 1)
        self._blocks.append(block)
        self._estimated_blocks = disturbance.with_slowdowns(self._blocks)
        self._counted_blocks = (
            self._estimated_blocks
            if self.bursts
            else disturbance.blocks_for_figures(self._estimated_blocks)
        )
        calm = [
            other
            for other in self._estimated_blocks
            if other.cell == block.cell and not other.slowed
        ]
        if len(calm) > 1 and all(self._model.misses(other) for other in calm):
            self._model.forget(block.cell)

    def add_full(self, block: Block) -> None:
        """Add a full run of a finalist, as a block of a new process."""
        self.add(replace(block, is_full=True))
        self._full.setdefault(block.cell, []).append(block.log_figure)

    def out(self, cell: int, reason: str) -> None:
        """Take out a cell that cannot go on: it failed, ran out of memory, or diverged."""
        self._outs.out(cell, reason)

    @property
    def standings(self) -> list[Standing]:
        """All cells, in their order."""
        if self._full:
            self._learn()
        posterior = self._model.posterior(self._counted_blocks)
        blocks = np.bincount([block.cell for block in self._blocks], minlength=self._count)
        return [
            Standing(
                cell,
                (
                    OUT
                    if cell in self._outs.reasons
                    else IN
                    if blocks[cell] or cell in self._full
                    else NOT_STARTED
                ),
                self._outs.reasons.get(cell, ""),
                int(blocks[cell]),
                float(posterior.mean[cell]),
                self._error(cell, float(posterior.mean[cell]), float(posterior.sd[cell])),
                float(np.mean(self._full[cell])) if cell in self._full else None,
            )
            for cell in range(self._count)
        ]

    def _error(self, cell: int, mean: float, sd: float) -> float:
        """Return the standard deviation of a cell's figure.

        It is at least the standard error that the cell's full runs show by themselves.
        """
        full = self._full.get(cell, [])
        if len(full) > 1:
            sd = max(sd, float(np.std(full, ddof=1)) / math.sqrt(len(full)))
        if self.bursts:
            calm = [
                block.log_figure
                for block in self._estimated_blocks
                if block.cell == cell and not block.slowed
            ]
            sd = max(sd, *(abs(figure - mean) / NORMAL_95 for figure in [mean, *full, *calm]))
        return sd

    def verdict(self) -> RaceVerdict:
        """Return the winner among the finalists by all measurements, and how sure it is."""
        self._learn()
        look = self._look(self._outs.beaten)
        cells = [cell for cell in self.finalists if cell not in self._outs.reasons]
        if look is None or not cells:
            return RaceVerdict(None, 0.0)
        # By the mean of its full runs alone, a noisy cell would be the best too often.
        measured = [cell for cell in cells if cell in self._full] or cells
        winner = max(measured, key=lambda cell: look.posterior.mean[cell])
        disturbed = sum(block.slowed > 0 for block in self._estimated_blocks)
        blocks = len(self._estimated_blocks)
        if self.bursts:
            return RaceVerdict(winner, 0.0, disturbed=disturbed, blocks=blocks)
        ran = sorted({block.cell for block in self._blocks} - self._outs.failed)
        apart = {cell: look.posterior.difference(winner, cell) for cell in ran if cell != winner}
        ends = {
            cell: [(side * self._tolerance - mean) / sd for side in (-1, 1)]
            for cell, (mean, sd) in apart.items()
        }
        # The probability of being within the tolerance of the winner.
        near = {cell: float(ndtr(high) - ndtr(low)) for cell, (low, high) in ends.items()}
        confidence = self.options.confidence
        equal = tuple(cell for cell, probability in near.items() if probability >= confidence)
        unsure = (
            cell for cell, probability in near.items() if 1 - confidence < probability < confidence
        )
        close = tuple(cell for cell in unsure if cell not in self._outs.reasons)
        sure = max(float(look.enough[:, winner].mean()) - self._outs.spent, 0.0)
        return RaceVerdict(winner, sure, equal, close, disturbed, blocks)

    def _learn(self) -> None:
        """Learn the scales from all blocks and full runs, unless that was done."""
        if self._learned_from != len(self._blocks):
            self._learned_from = len(self._blocks)
            self._model.learn(self._counted_blocks)

    def _alive(self) -> np.ndarray:
        return np.array([cell not in self._outs.reasons for cell in range(self._count)])

    def _started(self) -> list[int]:
        """Cells in the race that ran a block."""
        return sorted({block.cell for block in self._blocks} - self._outs.reasons.keys())

    def _look(self, beaten: Sequence[int] = ()) -> Look | None:
        """Look at the cells that are in, and at these beaten ones; None if no cell is left."""
        alive = self._alive()
        alive[[*beaten]] = True
        if not alive.any():
            return None
        posterior, draws = self._model.drawn(self._counted_blocks, self._normals)
        draws = np.where(alive, draws, -np.inf)
        enough = draws >= draws.max(axis=1, keepdims=True) - self._tolerance
        return Look(posterior, enough, draws.argmax(axis=1))

    def _round(self, look: Look) -> tuple[list[int], str]:
        """Return the cells of the next round, or none and the reason if the race ends."""
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
        cells = self._twice(
            [*again, *(cell for cell in self._telling(look, leader) if cell not in again)]
        )
        return cells, "" if cells else NOTHING_LEFT

    def _twice(self, cells: list[int]) -> list[int]:
        """Add a second block, after all others, for each cell of a round that starts a process."""
        running = {*self._started()} - self.fresh
        return cells + [cell for cell in cells if cell not in running] if len(cells) > 1 else cells

    def _again(self) -> list[int]:
        """Return the cells without a block that can be trusted.

        All blocks of such a cell were disturbed, or its only calm one misses its estimate.
        """
        again = list[int]()
        for cell in self._started():
            cell_blocks = [block for block in self._estimated_blocks if block.cell == cell]
            calm = [block for block in cell_blocks if not block.slowed]
            doubtful = not calm or (len(calm) == 1 and self._model.misses(calm[0]))
            if doubtful and len(cell_blocks) < TRIES:
                again.append(cell)
        return again

    def _of_one_process(self, look: Look) -> list[int]:
        """Return the leading cells that ran in a single process.

        How much their processes differ is not known.
        """
        front = sorted(self._started(), key=lambda cell: -look.posterior.mean[cell])[:IN_FRONT]
        processes = {
            cell: {block.process for block in self._estimated_blocks if block.cell == cell}
            for cell in front
        }
        return [cell for cell in front if len(processes[cell]) < 2]

    def _take_back(self, look: Look, leader: int) -> None:
        """Return beaten cells to the race that may be the best after all.

        Their blocks turned out to be disturbed, or processes turned out to differ.
        """
        for cell in self._outs.beaten:
            cell_blocks = [block for block in self._estimated_blocks if block.cell == cell]
            if not self._model.is_uneven and not any(block.slowed for block in cell_blocks):
                continue
            calm = sum(not block.slowed for block in cell_blocks)
            if self._outs.may_be_best(look.posterior.difference(leader, cell), calm):
                self._outs.take_back(cell)

    def _drop(self, look: Look, leader: int) -> None:
        """Drop beaten cells. A single block does not outweigh what records say of its cell."""
        calm = Counter(block.cell for block in self._estimated_blocks if not block.slowed)
        cells = [
            cell for cell in self._started() if calm[cell] > 1 or not self._model.has_estimate(cell)
        ]
        self._outs.drop(look.posterior, leader, cells, calm)

    def _worth_ending(self, look: Look) -> str:
        """Return why the race should end now, or "" if it should go on.

        Either its time is over, or one finalist is enough, or several cost less than going on.
        """
        raced_s = self._budget.raced_s
        if raced_s >= self._budget.most_s:
            return TIME
        for count in range(1, self._finalists() + 1):
            if look.misses(self._chosen(look, count)) > self._accepted_risk():
                self._enough_s.pop(count, None)
                continue
            since_s = self._enough_s.setdefault(count, raced_s)
            if raced_s - since_s >= (count - 1) * self.options.runs * self._budget.full_s:
                return SURE if count == 1 else CLOSE
        return ""

    def _finalists(self) -> int:
        """Return how many finalists' full runs fit into the rest of the grid's time, at least 1."""
        most = UNEVEN_FINALISTS if self._model.is_uneven else self.options.finalists
        return max(1, min(most, self._budget.finalists_that_fit))

    def _accepted_risk(self) -> float:
        """Return the probability of missing the best cell at which the race ends."""
        return self._budget.accepted_risk_share * (1 - self.options.confidence)

    def _chosen(self, look: Look | None, most: int) -> tuple[int, ...]:
        """Return the fewest cells that contain a good-enough one at the accepted risk.

        The best comes first. At most `most` cells are returned.
        """
        return () if look is None else look.fewest(self._started(), most, self._accepted_risk())

    def _telling(self, look: Look, leader: int) -> list[int]:
        """Return the cells whose next blocks tell most about the leader's rivals; set `fresh`."""
        covariance = self._model.outlook(self._counted_blocks)
        mass = look.rivals(leader)
        picked = next_blocks.most_telling(covariance, leader, mass, *self._turns())
        self.fresh = frozenset(turn % self._count for turn in picked if turn >= self._count) & {
            *self._started()
        }
        return [turn % self._count for turn in picked]

    def _turns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the blocks that can run (2 cells,), and their seconds.

        Blocks of running processes come first, then blocks of new processes.
        """
        alive = self._alive()
        running = np.zeros(self._count, bool)
        running[[cell for cell in self._started() if cell not in self._outs.stopped]] = True
        started = {(block.cell, block.process) for block in self._blocks}
        processes = np.bincount([cell for cell, _ in started], minlength=self._count)
        budget = self._budget
        seconds = np.repeat([budget.block_s, budget.block_s + budget.start_s], self._count)
        return np.concatenate((alive & running, alive & (processes < PROCESSES))), seconds
