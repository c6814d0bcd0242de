"""Ranks of `tests.helpers.rank_work`, started on CPU as the controller starts them."""

from pathlib import Path
from typing import Any

from multicard.config.placement import Placement
from multicard.machine.slurm import Allocation
from multicard.ranks import elastic
from multicard.ranks.failures import Failure
from multicard.ranks.process import Job


def job(folder: Path, **options: Any) -> Job:
    return Job(folder, "cpu", "gloo", 0, 1, "system", **options)


def launch(
    work: str, *arguments: Any, folder: Path, ranks: int = 1, allocation: Allocation | None = None
) -> Failure | None:
    """Run a function of `rank_work` on the ranks of a node of `allocation`; None for this machine alone."""
    allocation = allocation or Allocation()
    placement = Placement("cpu", "gloo", ranks, False, nodes=allocation.nodes)
    return elastic.launch(f"tests.helpers.rank_work:{work}", arguments, placement, job(folder, allocation=allocation))


def two_nodes(node: int, port: int) -> Allocation:
    """Two nodes that are both this machine."""
    return Allocation(("localhost",) * 2, node, "7", port)
