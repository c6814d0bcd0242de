"""The board between controller and ranks, and the bar that shows it."""

from pathlib import Path
from threading import Event

import pytest

from multicard.records.progress import Board, Progress
from multicard.run import progress_bar
from multicard.run.progress_bar import InSweep, ProgressBar


def test_ranks_post_and_the_controller_asks(tmp_path: Path):
    board = Board(tmp_path, 3, create=True)
    seen = Board(tmp_path, 3)
    assert seen.stop_at == 0
    board.ask_stop(123_456_789)
    for rank in range(3):
        seen.post(rank, rank, 10, 16 * rank, 0, 0.5)
    assert seen.stop_at == 123_456_789
    assert [board.read(rank) for rank in range(3)] == [Progress(rank, 10, 16 * rank, 0, 0.5) for rank in range(3)]
    board.remove()
    assert not list(tmp_path.iterdir())


def test_every_node_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = Board(tmp_path, 2, create=True), Board(tmp_path, 2, create=True, node=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".progress", ".progress-1"]
    second.ask_stop(7)
    monkeypatch.setenv("GROUP_RANK", "1")  # as the elastic agent has it on its ranks
    assert Board(tmp_path, 2).stop_at == 7 and Board(tmp_path, 2, node=0).stop_at == first.stop_at == 0


def test_the_bar_has_rates_from_where_the_run_goes_on_and_is_not_full_while_evaluating(tmp_path: Path):
    board = Board(tmp_path, 1, create=True)
    view = ProgressBar(board, 1, epochs=2, unit="images")
    assert view.fields(0.0) == {}
    board.post(0, 2, 10, 640, 0, float("nan"))
    assert view.fields(100.0) == {"description": "epoch 1/2", "total": 10, "completed": 2, "figures": ""}
    board.post(0, 3, 10, 960, 0, 0.5)
    assert view.fields(164.0)["figures"] == "loss 0.500  5 images/s"
    board.post(0, 10, 10, 3200, 1, 0.5, evaluating=True)
    fields = view.fields(1000.0)
    assert fields["description"] == "epoch 2/2, evaluating" and fields["completed"] < 10
    board.post(0, 10, 10, 3200, 1, 0.5)
    assert view.fields(1010.0)["completed"] == 10


@pytest.mark.parametrize("has_terminal", [False, True])  # a dumb one
def test_where_no_bar_can_be_drawn_a_long_run_says_how_far_it_and_its_sweep_are(
    has_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    board, said, has_said = Board(tmp_path, 1, create=True), list[str](), Event()
    board.post(0, 2, 10, 640, 0, 0.5)
    monkeypatch.setattr(progress_bar, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(progress_bar, "say", lambda line: (said.append(line), has_said.set()))
    monkeypatch.setattr("sys.stderr.isatty", lambda: has_terminal, raising=False)
    monkeypatch.setenv("TERM", "dumb" if has_terminal else "xterm")
    with ProgressBar(board, 1, epochs=2, unit="images", cell=InSweep("[1/2] lr=1   ", lambda: 61.0)):
        assert has_said.wait(60)
    assert said[0] == "[1/2] lr=1   epoch 1/2  loss 0.500  sweep 0:01:01"
