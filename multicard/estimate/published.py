"""Published figures: throughputs of several GPUs (`published.csv`),
and the times of the papers' tables.

`published.csv` has a row a node, workload and precision: samples (or tokens) a second on 1, 2, 4
and 8 GPUs, and the batch of a GPU where it is printed (one for each number of GPUs where they
differ). `gpu` is the name in `machine/gpus.csv`. GPUs with TF32 compute what the sources call fp32
in it. `defect` says why a row cannot be what it says, so that it is left out: its batch changes by
over 10 % with the GPUs, a GPU is over 1.15 times as fast among more, several GPUs are slower than
one, rates below 50 are rounded by over 1 %, over a quarter of a workload's nodes are beyond linear,
or nodes with the same GPUs differ by over 1.3 times. Its sources (figures alone are taken from
them):

- lambda, lambda-2021: github.com/lambdal/deeplearning-benchmark,
  pytorch/pytorch-train-{throughput,bs}-{fp16,fp32}.csv, and those of 2021 in its root. H100 SXM5 is
  taken to have the batches of the other GPUs with 80 GB, as in fp16.
- nvidia: github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/*/README.md.
"""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from multicard.estimate.observations import Basis, StepObservation
from multicard.estimate.totals import EVALUATION
from multicard.papers import printed

FILE = Path(__file__).parent / "published.csv"
PAPERS_GPU = "h100-94gb"
PAPERS_NODE = "the papers' node"
PAPERS_ERROR = 0.05  # one setting is in two of their tables: its times differ by 1.9 to 8.1 %
PRINTED_ERROR = 0.01  # of a throughput, from run to run
COUNTS = (1, 2, 4, 8)
# of a run of Tables 2 and 3
IMAGES = 60_000
TEST_IMAGES = 10_000
EPOCHS = 20
# What the papers' runs had besides, as JSON: a cell with another value is not theirs
# no roles: facts of the papers, as values of keys
PAPERS_JOB = {"nodes": "1", "oversubscribe": "false", "compile": "false"}
# no roles: facts of the papers
PAPERS_VISION = PAPERS_JOB | {
    "model.name": '"mobilenet_v2"',
    "model.width": "1.0",
    "model.pointwise": '"convolution"',
    "dataset.name": '"mnist"',
    "dataset.image_size": "500",
    "dataset.augment": "false",
    "loader.name": '"torch"',
    "strategy.name": '"ddp_ds"',
    "strategy.sync_batchnorm": "false",
    "layout.name": '"nchw"',
    "cudnn_benchmark": "false",
    "batch_size": "32",
}
# no roles: facts of the papers
PAPERS_TUNING = PAPERS_JOB | {
    "method.name": '"lora"',
    "model.name": '"llama3_8b"',
    "dataset.name": '"alpaca_cleaned"',
    "precision.name": '"fp32"',
    "gradient_accumulation_steps": "1",
    "activation_checkpointing": "false",
    "packed": "false",
    "max_seq_len": "null",
    "optimizer_in_bwd": "false",
    "batch_size": "2",
}


@dataclass(frozen=True, eq=False)
class Series:
    """A row: samples (or tokens) a second of a workload, and a GPU's batch where it is known, by
    number of GPUs of a node. `family` are GPUs that are left out together: one chip,
    and from the H100 on one kind of links.
    """

    source: str
    node: str
    family: str
    gpu: str
    workload: str
    precision: str
    rates: Mapping[int, float]
    batches: Mapping[int, float] = field(default_factory=dict)
    defect: str = ""

    @property
    def sample_s(self) -> dict[int, float]:
        """Seconds that a GPU takes for a sample: T(n) of a step, over the batch."""
        return {gpus: gpus / rate for gpus, rate in sorted(self.rates.items())}

    @property
    def step_s(self) -> dict[int, float]:
        """Seconds of a step; of a batch of 1 where it is not known."""
        return {
            gpus: seconds * self.batches.get(gpus, 1.0) for gpus, seconds in self.sample_s.items()
        }


@cache
def table() -> tuple[Series, ...]:
    with FILE.open(newline="") as lines:
        return tuple(map(_series, csv.DictReader(lines)))


def _series(row: Mapping[str, str]) -> Series:
    rates = {gpus: float(row[f"rate_{gpus}"]) for gpus in COUNTS if row[f"rate_{gpus}"]}
    batches = [float(batch) for batch in row["batch_per_gpu"].split()]
    by_count = dict(zip(rates, batches * (len(rates) if len(batches) == 1 else 1), strict=False))
    own = {
        name: row[name]
        for name in ("source", "node", "family", "gpu", "workload", "precision", "defect")
    }
    return Series(**own, rates=rates, batches=by_count)


@cache
def sound() -> tuple[Series, ...]:
    """The rows without defects."""
    return tuple(row for row in table() if not row.defect)


@cache
def observations(gpu: str) -> tuple[StepObservation, ...]:
    """Published steps on a GPU of the table, as `steps.step` takes them."""
    rows = [row for row in sound() if row.gpu == gpu]
    seen = chain.from_iterable(row_observations(row, row.sample_s) for row in rows)
    return (*seen, *papers()) if gpu == PAPERS_GPU else tuple(seen)


def row_observations(row: Series, times_s: Mapping[int, float]) -> list[StepObservation]:
    """A row's times by number of GPUs, which may be of a sample; node and workload are keys that no
    cell to predict has, so that only ratios within a row's node count.
    """
    # as the project calls them
    precision = {"amp": "fp16", "tf32": "fp32"}.get(row.precision, row.precision)
    common = {"node": row.node, "workload": row.workload, "precision.name": json.dumps(precision)}
    return [
        StepObservation(
            {**common, "gpus": str(gpus)}, time_s, PRINTED_ERROR, row.node, Basis.published
        )
        for gpus, time_s in times_s.items()
    ]


class PaperTotal(NamedTuple):
    """A run of Tables 2 and 3. series: the table, and the value of its other axis."""

    series: tuple[str, str]
    gpus: int
    total_s: float


@cache
def paper_totals() -> tuple[PaperTotal, ...]:
    figures = [*printed.figures("table2", "total_s"), *printed.figures("table3", "total_s")]
    others = [
        figure.cell.get("precision") or json.dumps(figure.cell["pin_memory"]) for figure in figures
    ]
    pairs = zip(figures, others, strict=True)
    return tuple(
        PaperTotal((one.experiment, other), one.cell["gpus"], one.low) for one, other in pairs
    )


@cache
def papers() -> tuple[StepObservation, ...]:
    """Tables 2, 3 and 5 as steps. The totals of Tables 2 and 3 hold evaluation, which is not
    printed by itself: an evaluated image is taken to cost `EVALUATION` of a trained one,
    as `totals` takes it where no run tells.
    """
    steps_s: list[tuple[dict[str, str], float]] = []  # by setting
    for total in paper_totals():
        pinned = total.series[1] if total.series[0] == "table3" else "false"
        precision = total.series[1] if total.series[0] == "table2" else "fp32"
        train, test = (math.ceil(count / 32 / total.gpus) for count in (IMAGES, TEST_IMAGES))
        step_s = total.total_s / EPOCHS / (train + EVALUATION.value * test)
        own = {
            "precision.name": json.dumps(precision),
            "pin_memory": pinned,
            "gpus": str(total.gpus),
        }
        steps_s.append((PAPERS_VISION | own, step_s))
    for figure in printed.figures("table5", "step_s"):
        own = {key: json.dumps(value) for key, value in figure.cell.items()}
        steps_s.append((PAPERS_TUNING | own, figure.low))
    return tuple(
        StepObservation(*each, PAPERS_ERROR, PAPERS_NODE, Basis.published) for each in steps_s
    )
