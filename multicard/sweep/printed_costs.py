"""What a cell takes on the papers' node, by the times, rows and sizes that the papers print.

Known are the times of Tables 2 and 3 (MNIST at 500 px for 20 epochs), the iterations of Table 5 (LoRA in fp32), and by
how much DPO is slower. They are scaled by epochs, rows and GPUs. Whatever that leaves open is taken as the longer of
what the papers say of it; where they say nothing, the time is not known.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from papers.printed import FILE

GPUS, HOST_BYTES = 4, 768e9  # of the papers' node
TABLE_SIZE, TABLE_EPOCHS = 500, 20  # of Tables 2 and 3; the size is inferred
DPO_OVER_LORA = 1.4  # LoRA is 30 to 40 % faster
MNIST_BYTES = 54_950_048  # its four files
PHOTOGRAPHS_SIZE = 300  # for which the papers print the bytes of scenario B
PROFILED_STEP_BYTES = 135_000  # of a trace of kineto, a rank's, as measured on CPU ranks: GPUs add their kernels
STEP_BYTES = 100  # of steps.parquet, a rank's

Settings = Mapping[str, Any]  # a run's configuration: options by their group


def seconds(config: Settings) -> float | None:
    """Of a run on 1 to 4 GPUs of the node, without its start; None where the papers tell nothing of it."""
    if not 1 <= config["gpus"] <= GPUS or config["nodes"] != 1 or config["scale"] != "full":
        return None
    return _tuning_s(config) if "method" in config else _training_s(config)


def data_bytes(config: Settings) -> tuple[str, float | None]:
    """The data set and its bytes on disk; None where these are not known."""
    name = config["dataset"]["name"]
    if name in ("digits", "synthetic"):
        return name, 0.0
    if name == "mnist":
        return name, MNIST_BYTES
    if name == "images":
        size_gb = _printed("dataset_on_disk_gb", {"dataset.image_size": str(PHOTOGRAPHS_SIZE)})
        return name, None if size_gb is None else 1e9 * size_gb
    size_mb = _printed("size_mb", {"dataset": name})
    return name, None if size_mb is None else 1e6 * size_mb


def record_bytes(config: Settings) -> float:
    """Of the steps of all ranks, and of their traces, which are no larger than their budget."""
    steps = _iterations(config) if "method" in config else _training_steps(config)
    bytes_of_steps = STEP_BYTES * config["gpus"] * (steps or 0)
    profile = config["profile"]
    if profile["name"] == "none":
        return bytes_of_steps
    trace_bytes = PROFILED_STEP_BYTES * profile["steps"] if profile.get("steps") else profile.get("budget_bytes") or 0
    return bytes_of_steps + config["gpus"] * trace_bytes


def host_bytes(config: Settings) -> float:
    """Memory of the node for a copy of the data set a process; 0 without one."""
    if config["dataset"].get("cache") != "process":
        return 0.0
    copy_gb = _printed("dataset_as_tensors_gb", {"dataset.image_size": str(PHOTOGRAPHS_SIZE)}) or math.nan
    return 1e9 * copy_gb * config["gpus"] * (config["dataset"]["image_size"] / PHOTOGRAPHS_SIZE) ** 2


def _training_s(config: Settings) -> float | None:
    """Images below 500 px are taken as 500 px, larger ones by their pixels; DDP and DDP-RR, which hardly scale, as one
    GPU; pinned memory that is not printed as none."""
    dataset, strategy = config["dataset"], config["strategy"]["name"]
    usual = config["loader"]["name"] == "torch" and config["model"]["name"] == "mobilenet_v2"
    if dataset["name"] != "mnist" or dataset["train_limit"] is not None or not usual or config["batch_size"] != 32:
        return None
    gpus = {"ddp_ds": config["gpus"], "ddp_rr": 1, "ddp": 1}.get(strategy)
    precision = config["precision"]["name"]
    known = (
        _printed("total_s", {"precision": precision, "gpus": str(gpus)}),  # Table 2, unpinned
        _printed("total_s", {"pin_memory": str(config["pin_memory"]).lower(), "gpus": str(gpus)}, "table3"),
    )
    table2_s, table3_s = known
    time_s = table3_s if precision == "fp32" and (config["pin_memory"] or table2_s is None) else table2_s
    if time_s is None:
        return None
    return time_s * config["epochs"] / TABLE_EPOCHS * max(1.0, (dataset["image_size"] / TABLE_SIZE) ** 2)


def _tuning_s(config: Settings) -> float | None:
    """Iterations of other rows are taken as long as those of alpaca-cleaned, which only SlimOrca's take longer than."""
    if config["precision"]["name"] != "fp32" or config["model"]["name"] != "llama3_8b" or config["batch_size"] != 2:
        return None
    factor = {"lora": 1.0, "dpo": DPO_OVER_LORA}.get(config["method"]["name"])
    where = {"pin_memory": str(config["pin_memory"]).lower(), "gpus": str(config["gpus"])}
    iterations, step_s = _iterations(config), _printed("step_s", where, "table5")
    if factor is None or iterations is None or step_s is None or config["dataset"]["name"] == "slimorca":
        return None
    return factor * iterations * step_s


def _training_steps(config: Settings) -> float:
    return config["epochs"] * 60_000 / config["batch_size"] / config["gpus"]


def _iterations(config: Settings) -> float | None:
    """Of a tuning run; None where the rows are not known."""
    rows = config["dataset"].get("rows") or _printed("rows", {"dataset": config["dataset"]["name"]})
    if rows is None:
        return None
    each = math.ceil(rows / config["batch_size"] / config["gpus"])
    return config["epochs"] * min(each, config["max_steps"] or each)


def _printed(measure: str, cell: Mapping[str, str], experiment: str | None = None) -> float | None:
    """The printed figure of a cell, named as in the file; None where there is none."""
    for row in _rows():
        words = dict(word.split("=") for word in row["cell"].split())
        if (row["measure"], words) == (measure, {**cell}) and experiment in (None, row["experiment"]):
            return float(row["low"])
    return None


@cache
def _rows() -> tuple[dict[str, str], ...]:
    with FILE.open(newline="") as lines:
        return tuple(csv.DictReader(lines))
