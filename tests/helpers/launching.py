"""Ranks of `tests.helpers.rank_work`, started on CPU as the controller starts them;
commands in their own process.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.config.placement import Placement
from multicard.machine.slurm import Allocation
from multicard.ranks import elastic, os_calls
from multicard.ranks.failures import Failure
from multicard.ranks.process import RankSettings
from multicard.records.progress import Board
from tests.conftest import warm_up


def job(folder: Path, **options: Any) -> RankSettings:
    return RankSettings(folder, "cpu", "gloo", 0, 1, "system", **options)


def launch(
    work: str,
    *arguments: Any,
    folder: Path,
    ranks: int = 1,
    allocation: Allocation | None = None,
    **options: Any,
) -> Failure | None:
    """Run a function of `rank_work` on the ranks of a node of `allocation`;
    None for this machine alone.

    Args:
        options: of the `RankSettings`.
    """
    allocation = allocation or Allocation()
    placement = Placement("cpu", "gloo", ranks, False, nodes=allocation.nodes)
    ours = job(folder, allocation=allocation, **options)
    return elastic.launch(f"tests.helpers.rank_work:{work}", arguments, placement, ours)


def two_nodes(node: int, port: int) -> Allocation:
    """Two nodes that are both this machine."""
    return Allocation(("localhost",) * 2, node, "7", port)


def on_ranks(
    ranks: int, work: str, folder: Path, *arguments: Any, module: str = "rank_work"
) -> list[Any]:
    """What each rank of a function of `module` saved in `folder`;
    a failure of theirs fails the test.
    """
    folder.mkdir(exist_ok=True)
    Board(folder, ranks, create=True)
    warm_up()
    ours, placement = (
        RankSettings(folder, "cpu", "gloo", 0, 1, "tuned"),
        Placement("cpu", "gloo", ranks, False),
    )
    failure = elastic.launch(f"tests.helpers.{module}:{work}", arguments, placement, ours)
    if failure is not None:
        pytest.fail("\n".join([failure.message, *failure.log_tail]))
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def in_own_process(module: str, words: Sequence[str], log: Path) -> int | None:
    """`python -m MODULE WORDS` in a process forked where torch is imported already, which sees no
    GPU and appends its output to `log`; its exit code.
    """
    child = multiprocessing.get_context("forkserver").Process(
        target=_run, args=(module, words, log)
    )
    child.start()
    child.join()
    return child.exitcode


def _run(module: str, words: Sequence[str], log: Path) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os_calls.redirect(log)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__")
