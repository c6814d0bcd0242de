"""The node that a plan is for: this machine, or another one that the file names."""

from dataclasses import dataclass

from multicard.config.job import count
from multicard.config.keys import require
from multicard.decide.plan.jobs_file import JobsFile
from multicard.machine import environment, slurm


@dataclass(frozen=True)
class PlannedNode:
    """A node with its GPUs; where it has none, CPU ranks with cores of their own stand in for them.

    Fields:
        words: what the command of each run has besides those of the file, to run beside others.
        predict_words: what its prediction has besides.
    """

    gpus: int
    on_gpus: bool = True
    words: tuple[str, ...] = ()
    name: str = ""
    predict_words: tuple[str, ...] = ()
    on_slurm: bool = False

    @property
    def noun(self) -> str:
        return "GPU" if self.on_gpus else "rank"


def resolve(file: JobsFile, is_here: bool = False) -> PlannedNode:
    """The node of a file.

    Args:
        is_here: it has to be this machine, also where all times are known.

    Raises:
        ValueError: there is no such node; with the key and the remedy.
    """
    node = file.node
    other = () if node.gpu is None else (f"predict.gpu={node.gpu}",)
    if node.slurm:
        return _of_slurm(file, other)
    beside = ("exclusive=false",)
    if node.gpu is not None and node.gpus is not None:
        return PlannedNode(node.gpus, True, beside, f"{count(node.gpus, 'GPU')} {node.gpu}", other)
    here = environment.gpus()
    if here:
        gpus = node.gpus or len(here)
        too_many = is_here and gpus > len(here)
        require(not too_many, f"node.gpus={gpus}: this machine has {count(len(here), 'GPU')}")
        return PlannedNode(gpus, True, beside, f"{count(gpus, 'GPU')} {here[0].get('name') or ''}".strip())
    if not is_here and not any(job.is_predicted for job in file.jobs) and node.gpus is not None:
        return PlannedNode(node.gpus, name=count(node.gpus, "GPU"))
    cores = environment.cores()
    each = node.cpus_per_gpu or max(cores // (node.gpus or cores), 1)
    ranks = node.gpus or max(cores // each, 1)
    problem = f"node.gpus={ranks}: this machine has no GPU, and {count(cores, 'core')} for CPU ranks"
    require(ranks * each <= cores, f"{problem} of {count(each, 'core')}; name the node's GPUs with node.gpu")
    name = f"{count(ranks, 'CPU rank')} of {count(each, 'core')}"
    return PlannedNode(ranks, False, (*beside, f"cpus_per_gpu={each}"), name)


def _of_slurm(file: JobsFile, other: tuple[str, ...]) -> PlannedNode:
    """A node of SLURM: its GPUs are those of the file, or of the node that has most."""
    node = file.node
    gpus = node.gpus or slurm.gpus_of_nodes(node.partition)
    if gpus is None:
        raise ValueError("node.slurm: sinfo names no GPUs of nodes here; write how many one has: node: {gpus: 4}")
    predicted = [job.name for job in file.jobs if job.is_predicted]
    problem = f"jobs.{''.join(predicted[:1])}: needs seconds, or node.gpu: the nodes' GPU, for which it is predicted"
    require(node.gpu is not None or not predicted, problem)
    words = ["hydra/launcher=submitit_slurm"]
    words += [] if node.partition is None else [f"hydra.launcher.partition='{node.partition}'"]
    words += [] if node.cpus_per_gpu is None else [f"cpus_per_gpu={node.cpus_per_gpu}"]
    name = f"{count(gpus, 'GPU')} of SLURM{f', {node.gpu}' if node.gpu else ''}"
    return PlannedNode(gpus, True, tuple(words), name, other, on_slurm=True)
