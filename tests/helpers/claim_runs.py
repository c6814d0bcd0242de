"""Run folders of an experiment's cells, by the figures that a world gives a cell."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import experiments
from analysis.runs import details
from tests.helpers import grids, records
from tests.helpers.claim_worlds import Cell, Figures

REPEATED_LR = 0.077  # of the repetitions that show how runs of the machine differ
# keys of the record, by figure
AS_RECORDED = {"chance": "chance_accuracy", "lost": "non_finite_losses"}
AS_RECORDED |= {name: name for name in ("cores", "threads", "beside")}
# of epochs, on the clock of the GPUs' samples
SPANS_S = [[20 * epoch, 20 * epoch + 20] for epoch in range(21)]
MACHINE = records.environment(
    numa="node",
    cpu={"memory_bytes": 755 * 2**30},
    gpus=[{"uuid": "GPU-1", "name": "NVIDIA H100", "memory_bytes": 94 * 2**30}],
)


def grid(name: str) -> list[Cell]:
    """The cells of an experiment, in the papers' setting."""
    experiment = experiments.load_experiment(name)
    setting = {
        column: value
        for column, value in experiment.papers.all.items()
        if not isinstance(value, list)
    }
    return [{**setting, **cell} for cell in grids.cells(experiment)]


def write(
    folder: Path,
    name: str,
    *worlds: Callable[[Cell], Figures],
    repetitions: int = 10,
    **changes: Any,
) -> None:
    """Run folders of an experiment's cells, by the world of each seed.

    Args:
        repetitions: of one more setting, which show that runs of the machine differ by 0.3 %;
            no claim reads it.
    """
    write_repeated(folder, name, repetitions, **changes)
    for (index, cell), (seed, world) in itertools.product(enumerate(grid(name)), enumerate(worlds)):
        write_run(
            folder / f"{name}-{index}-{seed}", name, cell, world(cell), **{"seed": seed, **changes}
        )


def write_repeated(
    folder: Path, name: str, repetitions: int = 10, apart: float = 0.01, **changes: Any
) -> None:
    """Repetitions of a setting that no claim reads; the fastest and the slowest differ by `apart`,
    relatively.
    """
    for seed, off in enumerate(np.linspace(-apart / 2, apart / 2, repetitions).tolist()):
        cell = {**grid(name)[0], "lr": REPEATED_LR}
        write_run(
            folder / f"{name}-repeated-{seed}",
            name,
            cell,
            repeated(1 + off),
            **{"seed": seed, **changes},
        )


def repeated(factor: float) -> Figures:
    """The figures of a run that is `factor` times as slow as others of its setting."""
    relative = dict.fromkeys(
        (
            "s",
            "memory",
            "loss",
            "copy_s",
            "sync_s",
            "comm_s",
            "nsys",
            "memcpy_s",
            "broadcast_s",
            "destroy_s",
        ),
        factor,
    )
    powers = {
        "launch_s": factor**2,
        "gather_s": factor**3,
        "event_s": factor**4,
        "read_s": factor**2,
    }
    return (
        relative
        | powers
        | {"accuracy": 0.98 * factor**0.1, "waiting": 0.5 * factor, "h2d_s": 0.02 * factor}
    )


def write_run(folder: Path, experiment: str, cell: Cell, figures: Figures, **changes: Any) -> None:
    """A run of a cell. Its samples lie alternately 10 % above and below their mean."""
    kind = experiments.load_experiment(experiment).kind
    settings = {key.removesuffix(".name").replace(".", "__"): value for key, value in cell.items()}
    own: dict[str, Any] = {"status": figures.get("status", "ok")}
    if "memory" in figures:
        own["peak_memory_bytes"] = {
            "max": round(5e9 * figures["memory"]),
            "per_rank": [],
            "kind": "cuda_allocated",
        }
    own |= {key: figures[name] for name, key in AS_RECORDED.items() if name in figures}
    own |= {"load": records.load(figures["others"])} if "others" in figures else {}
    record = getattr(records, kind)(**settings | own | changes)
    h2d_bytes = int(figures.get("h2d", 1e6))
    record["transfer_bytes"] |= {
        "h2d": h2d_bytes,
        "h2d_images": {"train": h2d_bytes, "evaluate": 0},
    }
    record["communication_bytes"]["all_reduce"] = int(figures.get("received", 0))
    if "profile.name" in cell or figures.get("profiled"):
        record["profile"] = profiled(cell["gpus"], figures)
    (tune if kind == "llm" else train)(record, figures)
    record["total_s"] = figures.get("total_s", record["total_s"])
    losses = figures.get("step_loss", 1.0) * 7.0 * 0.9 ** np.arange(40)
    steps = (
        records.steps(figures.get("s", 1.0) * waves(40)) | {"loss": losses}
        if kind == "llm"
        else None
    )
    if experiment == "loaders" and record["gpu"] is not None:
        record["gpu"]["parts"] = [{"start": 0, "covers": "training", "spans_s": SPANS_S}]
    records.write(folder, record, steps, MACHINE)
    if experiment == "loaders":
        pq.write_table(
            pa.Table.from_pylist(list(samples(cell["gpus"], figures))), folder / details.SAMPLES
        )


def samples(gpus: int, figures: Figures) -> Iterator[dict[str, Any]]:
    """A sample a second of each GPU. The first is less busy than the others or, with `turns`,
    each for 10 s.
    """
    for time_s, gpu in itertools.product(range(SPANS_S[-1][1]), range(gpus)):
        is_idler = gpu == (time_s // 10 % gpus if figures.get("turns") else 0)
        share = figures.get("busy", 0.9) / (figures.get("uneven", 1.0) if is_idler else 1.0)
        yield {"start": 0, "gpu": f"GPU-{gpu}", "time_s": time_s + 0.5, "utilisation": share}


def tune(record: dict[str, Any], figures: Figures) -> None:
    step_s = figures.get("s", 1.0) * waves(40)
    record["transfer_bytes"] |= {"d2d": 0, "d2h": 0}
    record["total_s"] = 40 * figures.get("s", 1.0)
    record["loss"] |= {"mean_of_last_tenth": figures["last_loss"]} if "last_loss" in figures else {}
    record["epochs"][0] |= {"samples": figures["rows"]} if "rows" in figures else {}
    record["iteration_s"] |= {"mean": float(step_s[1:].mean()), "count": 39, "warmup_count": 1}


def train(record: dict[str, Any], figures: Figures) -> None:
    record["evaluate_s"] = figures.get("evaluate_s", 1.0)
    record["phases_s"] |= {"h2d": figures.get("h2d_s", 0.02)}
    record["input"] |= {"read_s": figures["read_s"]} if "read_s" in figures else {}
    ended_s = np.cumsum(figures.get("s", 1.0) + 0.1 * waves(21, 0.0)).tolist()
    losses = (
        figures.get("decay", 0.9) ** np.arange(21)
        * figures.get("loss", 1.0)
        * (waves(21) if "loss" in figures else 1.0)
    )
    own = {
        "test_accuracy": figures.get("accuracy", 0.98),
        "test_samples": figures.get("answers", 10_000),
    }
    first_epoch = (
        record["epochs"][0] | own | {"samples_trained": int(figures.get("trained", 60_000))}
    )
    record["epochs"] = [
        first_epoch
        | records.epoch_waits(index, figures.get("first_batch", 0.1))
        | (
            {"evaluate_first_batch_s": figures["evaluate_batch"]}
            if "evaluate_batch" in figures
            else {}
        )
        | {"epoch": index, "ended_s": end_s, "train_loss": loss}
        for index, (end_s, loss) in enumerate(zip(ended_s, losses.tolist(), strict=True))
    ]
    record["epochs"][0] |= {"test_accuracy": figures.get("first_accuracy", own["test_accuracy"])}
    record["epochs"][1] |= {
        "first_batch_s": figures.get("second_batch", record["epochs"][1]["first_batch_s"])
    }
    record |= {"test_accuracy": own["test_accuracy"], "total_s": ended_s[-1]}


def waves(count: int, mean: float = 1.0, depth: float = 0.1) -> np.ndarray:
    """The mean, alternately more and less (count,), after a first value at it."""
    return mean + np.concatenate([[0.0], depth * (-1.0) ** np.arange(count - 1)])


def profiled(gpus: int, figures: Figures) -> dict[str, Any]:
    """A profile of `gpus` ranks, which differ by 5 % either way."""
    off = [1 + 0.05 * (-1) ** rank for rank in range(gpus)]
    waiting = [figures.get("waiting", 0.5) + 0.01 * (-1) ** rank for rank in range(gpus)]
    rows = []
    for rank_off, waited_s in zip(off, waiting, strict=True):
        metrics = {
            ("copy", "memcpy Host-to-Device"): ("copy_s", 1.0),
            ("api", "cudaStreamSynchronize"): ("sync_s", waited_s),
            ("api", "cudaLaunchKernel"): ("launch_s", 0.0),
            ("api", "cudaEventSynchronize"): ("event_s", 0.0),
            ("collective", "nccl AllGather"): ("gather_s", 1.0),
            ("collective", "nccl Broadcast"): ("broadcast_s", 1.0),
            ("api", "cudaEventDestroy"): ("destroy_s", 0.0),
            ("api", "cudaMemcpyAsync"): ("memcpy_s", 1 - waited_s),
        }
        rows.append({metric: figures.get(*known) * rank_off for metric, known in metrics.items()})
    profile = records.profile(rows, [figures.get("comm_s", 1.0) * one for one in off])
    for rank in profile["ranks"] if "window_s" in figures else []:
        rank["window_s"] = figures["window_s"]
    if "nsys" in figures:
        profile |= {"source": "nsys", "step_s": profile["step_s"] | {"ratio": figures["nsys"]}}
    return profile
