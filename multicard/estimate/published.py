"""Published figures: throughputs of several GPUs (`published.csv`), and the papers' times.

`published.csv` has a row for each node, workload and precision. It gives samples (or tokens) a
second on 1, 2, 4 and 8 GPUs. It also gives the batch per GPU if the source prints it: one number,
or one for each number of GPUs if they differ. `gpu` is the name in `machine/gpus.csv`. GPUs with
TF32 use it for what the sources call fp32. `defect` says why a row cannot be right, so that it is
left out:

- its batch changes by over 10 % with the number of GPUs;
- a GPU is over 1.15 times as fast among several, or several GPUs are slower than one;
- rates below 50 are rounded by over 1 %;
- over a quarter of a workload's nodes scale beyond linear;
- nodes with the same GPUs differ by over 1.3 times.

Only figures are taken from its sources:

- lambda, lambda-2021: github.com/lambdal/deeplearning-benchmark,
  pytorch/pytorch-train-{throughput,bs}-{fp16,fp32}.csv, and the files of 2021 in its root. H100
  SXM5 is assumed to have the batches of the other GPUs with 80 GB, as in fp16.
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
# One setting is in two of the papers' tables. Its times differ by 1.9 to 8.1 %.
PAPERS_ERROR = 0.05
PRINTED_ERROR = 0.01  # Of a throughput, between runs.
COUNTS = (1, 2, 4, 8)
# The size of a run of Tables 2 and 3.
IMAGES = 60_000
TEST_IMAGES = 10_000
EPOCHS = 20
# Further settings of the papers' runs, as JSON. A cell with another value is not theirs.
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
    """A row of `published.csv`.

    Fields:
        family: GPUs that are left out together. They have one chip, and from the H100 on one kind
            of links.
        rates: number of GPUs to samples (or tokens) a second of all of them.
        batches: number of GPUs to the batch per GPU, as far as it is known.
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
        """Seconds that a GPU takes per sample, by number of GPUs: T(n) / batch."""
        return {gpus: gpus / rate for gpus, rate in sorted(self.rates.items())}

    @property
    def step_s(self) -> dict[int, float]:
        """Seconds per step, by number of GPUs. If the batch is not known, it counts as 1."""
        return {
            gpus: seconds * self.batches.get(gpus, 1.0) for gpus, seconds in self.sample_s.items()
        }


@cache
def all_series() -> tuple[Series, ...]:
    with FILE.open(newline="") as lines:
        return tuple(map(_series, csv.DictReader(lines)))


def _series(row: Mapping[str, str]) -> Series:
    rates = {gpus: float(row[f"rate_{gpus}"]) for gpus in COUNTS if row[f"rate_{gpus}"]}
    batches = [float(batch) for batch in row["batch_per_gpu"].split()]
    by_count = dict(zip(rates, batches * (len(rates) if len(batches) == 1 else 1), strict=False))
    fields = {
        name: row[name]
        for name in ("source", "node", "family", "gpu", "workload", "precision", "defect")
    }
    return Series(**fields, rates=rates, batches=by_count)


@cache
def sound_series() -> tuple[Series, ...]:
    """Return the rows without defects."""
    return tuple(row for row in all_series() if not row.defect)


@cache
def observations(gpu: str) -> tuple[StepObservation, ...]:
    """Return the published steps on a GPU of the table, as `steps.step` takes them."""
    rows = [row for row in sound_series() if row.gpu == gpu]
    step_observations = chain.from_iterable(row_observations(row, row.sample_s) for row in rows)
    return (*step_observations, *papers()) if gpu == PAPERS_GPU else tuple(step_observations)


def row_observations(row: Series, times_s: Mapping[int, float]) -> list[StepObservation]:
    """Return a row's times as observations.

    Node and workload become keys that no predicted cell has. Only ratios within a row's node count.

    Args:
        times_s: seconds by number of GPUs, per step or per sample.
    """
    # The project's names of the precisions.
    precision = {"amp": "fp16", "tf32": "fp32"}.get(row.precision, row.precision)
    common = {"node": row.node, "workload": row.workload, "precision.name": json.dumps(precision)}
    return [
        StepObservation(
            {**common, "gpus": str(gpus)}, time_s, PRINTED_ERROR, row.node, Basis.published
        )
        for gpus, time_s in times_s.items()
    ]


class PaperTotal(NamedTuple):
    """A run of Tables 2 and 3. `series` is the table, and the value of its other axis."""

    series: tuple[str, str]
    gpus: int
    total_s: float


@cache
def paper_totals() -> tuple[PaperTotal, ...]:
    figures = [*printed.figures("table2", "total_s"), *printed.figures("table3", "total_s")]
    series_values = [
        figure.cell.get("precision") or json.dumps(figure.cell["pin_memory"]) for figure in figures
    ]
    pairs = zip(figures, series_values, strict=True)
    return tuple(
        PaperTotal((figure.experiment, value), figure.cell["gpus"], figure.low)
        for figure, value in pairs
    )


@cache
def papers() -> tuple[StepObservation, ...]:
    """Return Tables 2, 3 and 5 as steps.

    The totals of Tables 2 and 3 include evaluation, which is not printed separately. An evaluated
    image is assumed to cost `EVALUATION` of a trained one, as in `totals`.
    """
    steps_s: list[tuple[dict[str, str], float]] = []  # Pairs of a setting and its step.
    for total in paper_totals():
        pinned = total.series[1] if total.series[0] == "table3" else "false"
        precision = total.series[1] if total.series[0] == "table2" else "fp32"
        train, test = (math.ceil(count / 32 / total.gpus) for count in (IMAGES, TEST_IMAGES))
        step_s = total.total_s / EPOCHS / (train + EVALUATION.value * test)
        axes = {
            "precision.name": json.dumps(precision),
            "pin_memory": pinned,
            "gpus": str(total.gpus),
        }
        steps_s.append((PAPERS_VISION | axes, step_s))
    for figure in printed.figures("table5", "step_s"):
        axes = {key: json.dumps(value) for key, value in figure.cell.items()}
        steps_s.append((PAPERS_TUNING | axes, figure.low))
    return tuple(
        StepObservation(*step, PAPERS_ERROR, PAPERS_NODE, Basis.published) for step in steps_s
    )
