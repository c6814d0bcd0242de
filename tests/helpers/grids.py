"""Run folders of whole experiments, with invented figures or the papers' own,
and the figures drawn of them.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import vl_convert

from analysis import experiments
from analysis.experiments import Experiment, load_experiment
from analysis.figures import draw as figures
from analysis.figures import vega
from analysis.figures.vega import Chart
from analysis.runs import load as data
from multicard.measure import formulas
from multicard.papers import printed
from tests.helpers import records

BASE_S = {
    "fp64": 62.0,
    "fp32": 37.0,
    "fp16": 25.0,
    "lora": 0.8,
    "qlora": 1.3,
    "dpo": 2.1,
    "qat": 1.9,
}
BASE_S |= {
    "ddp_ds": 1.0,
    "ddp_rr": 1.6,
    "ddp": 3.2,
    "torch": 1.0,
    "dali": 0.7,
    "instruct": 1.0,
    "grammar": 0.6,
}
BASE_S |= {"summarize": 1.7, "nchw": 1.0, "nhwc": 0.9}
CALLS = {
    "cudaLaunchKernel": 9.1,
    "cudaLaunchKernelExC": 1.2,
    "cudaMemcpyAsync": 3.3,
    "cudaStreamSynchronize": 20.5,
    "cudaEventSynchronize": 0.4,
    "cudaDeviceSynchronize": 0.05,
    "cudaEventRecordWithFlags": 0.3,
    "cudaMalloc": 0.2,
    "cuLaunchKernel": 0.1,
    "cudaStreamIsCapturing": 0.02,
}
OTHERS = {
    "copy": {
        "memcpy Host-to-Device": 3.0,
        "memcpy Device-to-Host": 0.1,
        "memcpy Device-to-Device": 0.7,
        "memset": 0.2,
    },
    "collective": {"nccl AllReduce": 6.2, "nccl AllGather": 2.0, "nccl Broadcast": 0.3},
    "phase": {"backward": 20.0, "forward": 10.0, "data": 3.0, "optimizer": 2.0, "h2d": 0.5},
    "derived": {
        "GPU busy": 30.0,
        "communication": 6.0,
        "communication, exposed": 1.5,
        "launch gaps": 2.0,
    },
}
COPIED = {
    "memcpy Host-to-Device": 40_000,
    "memcpy Device-to-Host": 800,
    "memcpy Device-to-Device": 12_000_000_000,
}
Change = Callable[[dict[str, Any]], dict[str, Any]]


def fill(
    folder: Path,
    name: str,
    seeds: Sequence[int] = (0,),
    device: str = "cuda",
    change: Change = lambda cell: {},
    where: Callable[[dict[str, Any]], bool] = lambda cell: True,
) -> Experiment:
    """Write a run for each cell of an experiment's grid and each seed.

    Args:
        change: of a cell (swept column to value, and the seed), keys that its record has instead of
            those made here.
        where: the cells that were measured.
    """
    experiment = load_experiment(name)
    for index, cell in enumerate(cells(experiment)):
        for seed in seeds:
            place = cell | {"seed": seed}
            if where(place):
                records.write(
                    folder / name / f"{index:02d}-{seed}",
                    record(experiment, place, device) | change(place),
                )
    return experiment


def cells(experiment: Experiment) -> Iterator[dict[str, Any]]:
    for values in product(*experiment.swept.values()):
        cell = tuple(zip(experiment.swept, values, strict=True))
        if experiment.has(cell):
            yield dict(cell)


def record(experiment: Experiment, cell: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """A run's record: shorter with more GPUs, a little otherwise with each seed."""
    groups: dict[str, Any] = {
        group: option
        for group, option in experiment.chosen.items()
        if group not in ("profile", "scale")
    }
    if experiment.kind == "llm":
        groups["model"] = "llama3_8b"
    if "profile" in experiment.chosen:
        window = {"window": "after", "steps": 10, "seconds": None}
        groups["profile"] = {"name": experiment.chosen["profile"], **window}
    keys = {
        key.replace(".", "__"): value for key, value in (_set_keys(experiment.name) | cell).items()
    }
    result = {"vision": records.vision, "llm": records.llm}[experiment.kind](
        device=device, **groups, **keys
    )
    gpus = result["axes"]["gpus"]
    wobble = 1 + 0.03 * math.sin(7.0 * cell["seed"] + 3.0 * gpus)
    base_s = math.prod(BASE_S.get(value, 1.0) for value in cell.values() if isinstance(value, str))
    base_s *= (result["axes"].get("image_size", 500) / 500) ** 2 * (
        1 if cell.get("pin_memory") is not False else 1.1
    )
    if experiment.kind == "vision":
        total_s = base_s * 100 * (0.9 / gpus + 0.1) * wobble
        result |= {
            "total_s": total_s,
            "trained_images_per_s": 1.2e6 / total_s,
            "epochs": _epochs(cell, wobble),
        }
        result["test_accuracy"] = result["epochs"][-1]["test_accuracy"]
        result["step_s"] = formulas.statistics(
            [total_s / 1000 * (1 + 0.1 * (-1) ** n) for n in range(20)], 1
        )
    else:
        step_s = base_s * (1 + 0.08 * (gpus - 1)) * wobble
        result["iteration_s"] = formulas.statistics(
            [step_s * (1 + 0.1 * (-1) ** n) for n in range(20)], 1
        )
        result |= {
            "total_s": 250 * step_s / gpus,
            "tokens_per_s": {"non_padding": 3000 * gpus / step_s},
        }
        peak = int(40e9 * base_s * (1.0 if gpus == 1 else 0.7) * wobble)
        result["peak_memory_bytes"] = {
            "max": peak,
            "per_rank": [peak] * gpus,
            "kind": "cuda_allocated",
        }
        result["transfer_bytes"] = {"h2d": int(2.1e6 * base_s * wobble)}
        result["communication_bytes"] = {
            "all_gather": int(3e12 * base_s * (gpus - 1) / gpus),
            "reduce_scatter": 10**9,
        }
    if "profile" in experiment.chosen:
        result["profile"] = profile(gpus, wobble * base_s, device)
    return result


@cache
def _set_keys(name: str) -> dict[str, Any]:
    """What an experiment's file sets for all cells, of the keys that figures name."""
    fixed = experiments.load_experiment(name).fixed
    return {
        key: fixed[key]
        for key in fixed
        if key in ("gpus", "pin_memory", "epochs") or key.startswith("dataset.")
    }


def _epochs(cell: dict[str, Any], wobble: float, count: int = 20) -> list[dict[str, Any]]:
    slower = 1.0 if cell.get("precision") != "fp16" else 1.15
    return [
        {
            "epoch": epoch,
            "train_s": 10.0,
            "ended_s": 10.0 * epoch,
            "train_loss": 2.2 * slower * wobble / (1 + epoch),
            "test_loss": 2.3 * slower / (1 + epoch),
            "test_accuracy": 1 - 0.35 * slower * wobble / (1 + epoch),
            "test_samples": 10_000,
            "samples": 60_000,
            "samples_trained": 60_000,
        }
        for epoch in range(count)
    ]


def profile(ranks: int, factor: float, device: str = "cuda", steps: int = 10) -> dict[str, Any]:
    """A record's profile, of as many ranks; times are ms a step and rank times `factor`."""
    groups = {"api": CALLS, **OTHERS} if device == "cuda" else {"phase": OTHERS["phase"]}
    rows = [
        {
            "rank": rank,
            "group": group,
            "metric": name,
            "calls": 10,
            "total_s": ms / 1e3 * steps * factor * many,
        }
        | {
            "share": ms / 40,
            "bytes": COPIED.get(name, 0) * many or None,
            "detail": "",
            "mean_s": None,
        }
        for rank, many in [*((rank, 1) for rank in range(ranks)), (None, ranks)]
        for group, metrics in groups.items()
        for name, ms in metrics.items()
    ]
    derived = dict.fromkeys(
        (
            "gpu_busy_share",
            "compute_s",
            "communication_s",
            "exposed_communication_s",
            "overlap_share",
        )
    ) | dict.fromkeys(("launch_gap_s", "blocked_s"))
    ranked = {
        "where": "r.json.gz",
        "window_s": 0.04 * steps * factor,
        "steps": steps,
        "devices": [0],
        "derived": derived,
    }
    dropped = ["cudaEventDestroy"] if device == "cuda" else []
    content = {
        "source": "kineto",
        "ranks": [{"rank": rank} | ranked for rank in range(ranks)],
        "rows": rows,
    }
    return content | {"not_recorded": dropped, "steps": steps, "first_step": 12}


def oom() -> dict[str, Any]:
    """What a record has otherwise where memory ran out; its figures so far stay,
    and must not be shown.
    """
    return {"status": "oom", "cause": {"message": "CUDA out of memory"}, "profile": None}


def drawn(folder: Path, name: str, mix: bool = False) -> list[Chart]:
    experiment = experiments.load_experiment(name)
    return figures.experiment_figures(
        experiment, experiments.panels(experiment, data.read_runs([folder]).runs, mix)
    )


def svg(figure: Chart) -> str:
    return vl_convert.vegalite_to_svg(figure.spec, config=vega.theme("light"))


def texts(figure: Chart) -> str:
    """What is written in it, in one line: Vega makes an element of each line."""
    return " ".join(re.findall(r">([^<>]+)</t", svg(figure)))


# The papers' own figures: a run for each cell that they print, with all settings that they print

PRINTED = {
    "total_s": lambda s: {"total_s": s},
    "test_accuracy": lambda share: {"test_accuracy": share},
}
PRINTED["step_s"] = lambda s: {"iteration_s": formulas.statistics([s] * 10, 1)}


def papers_setting(name: str) -> dict[str, Any]:
    """What the builders of `tests.helpers.records` take for the setting of an experiment,
    without its axes.
    """
    known = load_experiment(name).papers.all
    return {
        column.replace(".", "__"): value
        for column, value in known.items()
        if not isinstance(value, list)
    }


def write_papers(folder: Path, name: str, **changes: Any) -> Path:
    """Write a run for each cell of an experiment with a printed time."""
    build = {"vision": records.vision, "llm": records.llm}[load_experiment(name).kind]
    for index, figure in enumerate(printed.figures(name, "total_s")):
        cell = {column.replace(".", "__"): value for column, value in figure.cell.items()}
        found = {
            measure: printed.at(printed.figures(name, measure), figure.cell) for measure in PRINTED
        }
        known = [PRINTED[measure](one.value) for measure, one in found.items() if one is not None]
        readings = {key: value for one in known for key, value in one.items()}
        records.write(
            folder / f"{index:02d}", build(**papers_setting(name) | cell | readings | changes)
        )
    return folder
