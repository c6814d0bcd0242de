"""The loop that measures cells, on a backend that only pretends to."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from multicard.messages import Message
from multicard.ranks.failures import Failure
from multicard.run import outcome
from multicard.sweep.cells import Cell
from multicard.sweep.drive import Drive, StartedCell
from multicard.sweep.grid import Grid, Pace
from multicard.sweep.streak import SameFailureError, Streak
from tests.conftest import SMALL, composed, typed
from tests.helpers import cells

FULL_DISK = Failure("disk", Message("disk.full", "no space"))
INTERRUPTED = Failure("interrupt", Message("test.interrupted", "SIGINT"))


class Pretending:
    """Cells end at the next look, in order, with these failures.

    Attributes:
        room: how many may run at a time.
        most: how many ran at a time.
        begun: numbers of the cells that were started.
    """

    def __init__(self, *failures: Failure, room: int = 1, shares_terminal: bool = True) -> None:
        self.failures = [*failures]
        self.room, self.most = room, 0
        self.shares_terminal = shares_terminal
        self.begun: list[int] = []
        self.running: list[Cell] = []
        self.queued: list[Cell] = []

    def is_busy(self) -> bool:
        return bool(self.running)

    def start(self, cell: Cell) -> StartedCell | None:
        if len(self.running) == self.room:
            return None
        self.begun.append(cell.number)
        self.running.append(cell)
        self.most = max(self.most, len(self.running))
        return StartedCell(cell)

    def collect(self) -> list[Cell]:
        cell = self.running.pop(0)
        began = outcome.begin(cell.workload, cell.cfg, cell.folder)
        cell.result = outcome.fail(began, self.failures.pop(0))
        return [cell]

    def waiting(self) -> list[Cell]:
        return self.queued

    def give_up(self, why: SameFailureError) -> int:
        return len(self.queued)


def grid_of(folder: Path, number: int) -> tuple[Grid, Sequence[Cell]]:
    kind = {"cfg": composed(*SMALL), "config": typed(*SMALL)}
    made = [cells.cell(place, folder / str(place), **kind) for place in range(number)]
    return Grid(made, Pace(number)), made


@pytest.mark.parametrize("room", [1, 3])
def test_cells_start_in_order_as_far_as_there_is_room(tmp_path: Path, room: int):
    other = [Failure("exception", Message("test.no", "no"))] * 5
    backend = Pretending(*other, room=room)
    grid, made = grid_of(tmp_path, 5)
    Drive(grid, backend, Streak()).run()
    assert backend.begun == [0, 1, 2, 3, 4] and backend.most == room
    assert all(cell.result is not None for cell in made) and grid.pace.total == 5


@pytest.mark.parametrize("shares_terminal", [True, False])
def test_an_interrupted_cell_interrupts_the_command_if_both_have_one_terminal(
    tmp_path: Path, shares_terminal: bool
):
    """A job of SLURM that somebody cancels is the end of that job alone."""
    backend = Pretending(INTERRUPTED, INTERRUPTED, shares_terminal=shares_terminal)
    grid, _ = grid_of(tmp_path, 2)
    drive = Drive(grid, backend, Streak())
    if shares_terminal:
        with pytest.raises(KeyboardInterrupt):
            drive.run()
    else:
        drive.run()
    assert backend.begun == ([0] if shares_terminal else [0, 1])


def test_failures_of_one_cause_end_what_waits_and_what_is_queued(tmp_path: Path):
    backend = Pretending(*[FULL_DISK] * 5, room=1)
    grid, made = grid_of(tmp_path, 7)
    backend.queued = [cells.cell(9), cells.cell(10)]
    grid.pace.total += 2
    with pytest.raises(SameFailureError):
        Drive(grid, backend, Streak()).run()
    assert backend.begun == [0, 1, 2] and grid.waiting() == []
    assert [cell.result is None for cell in made] == [False] * 3 + [True] * 4
    assert grid.pace.total == 3  # four did not start, and two were cancelled


def test_failures_that_only_the_queued_cells_would_share_end_them_too(tmp_path: Path):
    backend = Pretending(*[FULL_DISK] * 3)
    backend.queued = [cells.cell(9)]
    grid, _ = grid_of(tmp_path, 3)
    with pytest.raises(SameFailureError):
        Drive(grid, backend, Streak()).run()
