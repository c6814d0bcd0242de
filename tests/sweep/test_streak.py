"""A sweep whose cells fail for one cause."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from multicard.sweep.cells import Cell
from multicard.sweep.executor import Streak, cause_of
from tests.conftest import SMALL
from tests.helpers import cells, records

DISK = ("disk", "hydra.run.dir: cannot write to /x/seed=1 (No space left on device); free some space")
FULL = ("refused", "hydra.run.dir: cannot write to /x/seed=2 (No space left on device); free some space")
GONE = ("refused", "dataset.root=/data: no such folder")
OOM = ("oom", "CUDA out of memory")
MODEL = ("exception", "RuntimeError: expected scalar type Float but found Half")


def cell(cause: tuple[str, str] | None = None, **dataset: Any) -> Cell:
    kind, message = cause or (None, None)
    result = {"status": "ok" if cause is None else "failed", "cause": cause and {"kind": kind, "message": message}}
    return cells.cell(cfg=DictConfig({"dataset": {"name": "images", **dataset}}), result=records.as_run(result))


def ends(*causes: tuple[str, str] | None, left: int = 1, **dataset: Any) -> bool:
    streak = Streak()
    for cause in causes:
        streak.add(cell(cause))
    return streak.ends([cell(**dataset)] * left)


@pytest.mark.parametrize("cause", [DISK, GONE, ("refused", "code=submitted: submitted on a, found b")])
def test_three_in_a_row_end_it(cause: tuple[str, str]):
    assert ends(cause, cause, cause) and ends(None, cause, cause, cause, cause)
    assert not ends(cause, cause) and not ends(cause, None, cause, cause) and not ends(cause, OOM, cause, cause)
    assert not ends(cause, cause, cause, left=0)


def test_failures_of_several_causes_do_not():
    assert not ends(DISK, GONE, DISK) and not ends(DISK, DISK, GONE, GONE)
    assert ends(DISK, GONE, GONE, GONE)


def test_a_full_disk_is_one_cause_whether_a_run_ended_or_could_not_begin():
    assert ends(DISK, FULL, FULL)
    assert not ends(FULL, FULL, ("refused", "hydra.run.dir: another run measures there"))


@pytest.mark.parametrize(
    "cause",
    [
        OOM,
        MODEL,
        ("diverged", "the loss is not finite"),
        ("signal", "rank 0 was killed"),
        ("exception", "OSError: [Errno 24] Too many open files"),  # gpus, num_workers
        ("disk", "no space left on the disk of /dev/shm/multicard/x.u8 (No space left on device); free some"),
        ("refused", "dataset.rows=8: is less than one step (gpus x batch_size = 16); use 16 or more"),
        ("refused", "dataset.cache=process: 2 processes need 9 GB of memory, 4 GB are free"),  # gpus, image_size
    ],
)
def test_what_the_settings_may_have_caused_does_not(cause: tuple[str, str]):
    assert cause_of(cell(cause)) == "" and not ends(cause, cause, cause, cause)


def test_where_data_is_gone_cells_that_read_other_data_are_measured():
    assert not ends(GONE, GONE, GONE, name="mnist") and not ends(GONE, GONE, GONE, root="/elsewhere")
    assert ends(DISK, DISK, DISK, name="mnist") and ends(GONE, GONE, GONE, image_size=7)
    fetched = "refused", "dataset.download=true: could not fetch MNIST into /data"
    assert ends(fetched, fetched, fetched) and not ends(fetched, fetched, fetched, download=True)


def test_a_sweep_says_what_it_leaves(called: Callable[..., tuple[int, str]], tmp_path: Path):
    words = ["dataset=mnist", f"dataset.root={tmp_path}", "seed=1,2,3,4,5", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    code, printed = called("-m", *SMALL, *words)
    assert code == 1 and printed.count("refused: dataset.") == 3
    line = next(line for line in printed.splitlines() if line.startswith("stopped, 3 cells in a row failed"))
    assert "for one cause: dataset." in line and line.endswith(": 2 of 5 cells are left")
    assert "\nTo resume: " in printed


@pytest.mark.parametrize("size", [2, 3])  # the third fails within a batch, or ends one
def test_batches_of_a_sweep_are_one_row(called: Callable[..., tuple[int, str]], tmp_path: Path, size: int):
    words = ["dataset=mnist", f"dataset.root={tmp_path}", "seed=1,2,3,4,5,6", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    code, printed = called("-m", *SMALL, *words, f"hydra.sweeper.max_batch_size={size}")
    assert code == 1 and printed.count("refused: dataset.") == 3 and printed.count("stopped, 3 cells in a row") == 1
