"""Rows of published tables that cannot be what they say, so that they are left out with the reason and not fitted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FASTER = 1.15  # a step on more GPUs that is shorter by more: each has as much to compute, and communicates besides
APART = 1.3  # nodes with the same GPUs whose T(n) / T(1) differ by more
OTHER_BATCH = 1.1  # batches of a GPU that differ by more, from one number of GPUs to another
LEAST_RATE = 50.0  # rates are printed as whole numbers: below it, rounding alone is over 1 %
MANY = 0.25  # of a workload's rows, and at least two, that are beyond linear: the others are not believed either


@dataclass(frozen=True, eq=False)
class Series:
    """A row: samples a second of a workload on 1, 2, ... GPUs of a node.

    model: of the GPUs and their links, as "A100 40GB PCIe". family: GPUs that are left out together, as "A100".
    gpu: the model's name in `multicard.estimate.gpus`, "" where it has none.
    rates: samples (or tokens) a second, by number of GPUs. batches: of a GPU, by number of GPUs; empty where unknown.
    """

    source: str
    node: str
    model: str
    family: str
    gpu: str
    workload: str
    precision: str
    rates: Mapping[int, float]
    batches: Mapping[int, float] = field(default_factory=dict)

    @property
    def sample_s(self) -> dict[int, float]:
        """Seconds that a GPU takes for a sample: T(n) of a step, over the batch."""
        return {gpus: gpus / rate for gpus, rate in sorted(self.rates.items())}

    @property
    def step_s(self) -> dict[int, float]:
        """Seconds of a step; of a batch of 1 where it is not known."""
        return {gpus: seconds * self.batches.get(gpus, 1.0) for gpus, seconds in self.sample_s.items()}


def reasons(table: Sequence[Series]) -> dict[Series, str]:
    """The rows to leave out, and why."""
    wrong = {row: reason for row in table if (reason := _of_row(row))}
    workloads: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for row in table:
        if len(row.rates) > 1:
            workloads[row.source, row.workload, row.precision].append(row)
    for rows in workloads.values():
        faster = sum(_faster(row) is not None for row in rows)
        if faster > max(1, MANY * len(rows)):
            all_of_them = f"beyond linear on {faster} of {len(rows)} nodes: the workload is not believed"
            wrong |= {row: wrong.get(row, all_of_them) for row in rows}
        elif gap := _gap(rows):
            wrong |= {row: wrong.get(row, gap) for row in rows}
    return wrong


def _of_row(row: Series) -> str | None:
    steps = row.sample_s
    batches = [row.batches[gpus] for gpus in steps if gpus in row.batches]
    if len(steps) > 1 and batches and max(batches) > OTHER_BATCH * min(batches):
        return f"the batch of a GPU is {min(batches):g} to {max(batches):g}"
    if faster := _faster(row):
        return faster
    if 1 in steps and any(seconds > gpus * steps[1] for gpus, seconds in steps.items()):
        return "several GPUs are slower than one"
    if min(row.rates.values()) < LEAST_RATE:
        return f"printed as {min(row.rates.values()):g}: rounding alone is over 1 %"
    return None


def _faster(row: Series) -> str | None:
    steps = row.sample_s
    pairs = [(few, many) for few in steps for many in steps if few < many]
    gains = ((steps[few] / steps[many], many, few) for few, many in pairs)
    gain, more, fewer = max(gains, default=(1.0, 0, 0))
    return f"beyond linear: {gain:.2f} times as fast a GPU on {more} as on {fewer}" if gain > FASTER else None


def _gap(rows: Sequence[Series]) -> str | None:
    models: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        for gpus, seconds in row.sample_s.items():
            if 1 in row.rates:
                models[row.model, gpus].append(seconds / row.sample_s[1])
    if not models:
        return None
    widest = max(models, key=lambda key: max(models[key]) / min(models[key]))
    gap = max(models[widest]) / min(models[widest])
    return f"erratic: nodes with {widest[0]} differ by {gap:.2f} times on {widest[1]}" if gap > APART else None
