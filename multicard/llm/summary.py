"""The summary in result.json, from the ranks' files and steps."""

from typing import Any

import numpy as np

from multicard.config.llm import LlmConfig
from multicard.config.placement import Placement
from multicard.llm import methods, models
from multicard.measure import compile_cache, formulas, losses
from multicard.ranks.meeting import peak_memory
from multicard.records.steps import COLUMNS

REWARDS = {"chosen": "rewards_chosen", "rejected": "rewards_rejected", "accuracy": "rewards_accuracies"}
TOKENS = {"all": "tokens", "non_padding": "non_padding", "loss_bearing": "loss_bearing"}


def axes(config: Any, device: str) -> dict[str, Any]:
    """The settings that runs are compared by. Takes the composed configuration of a refused run, too."""
    accepted = isinstance(config, LlmConfig)
    template = config.template_name if accepted else getattr(config.template, "name", None)
    return {
        "method": str(config.method.name),
        "recipe": config.recipe_name if accepted else str(config.recipe),
        "template": None if template is None else str(template),
        "dataset": str(config.dataset.name),
        "rows": getattr(config.dataset, "rows", None),
        "model": str(config.model.name),
        "weights": getattr(config.model, "weights", None),
        "tokenizer": str(config.tokenizer.name),
        "precision": str(config.precision.name),
        "gpus": config.gpus,
        "nodes": config.nodes,
        "pin_memory": config.pin_memory,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "max_seq_len": config.max_seq_len,
        "max_steps": config.max_steps,
        "packed": config.packed,
        "activation_checkpointing": config.activation_checkpointing,
        "optimizer_in_bwd": config.optimizer_in_bwd,
        "compile": config.compile,
        "lr": config.lr,
        "epochs": config.epochs,
        "seed": config.seed,
        "scale": str(config.scale),
        "device": device,
    }


def summarise(
    config: LlmConfig, placement: Placement, ranks: list[dict[str, Any]], steps: Any, joules: float | None = None
) -> dict[str, Any]:
    """The summary of a run, whole or cut short.

    Args:
        ranks: the rank files, by rank.
        steps: the steps of all ranks (an Arrow table), or None where no epoch ended.
        joules: of all GPUs while it trained; None where that is not known.
    """
    table = {} if steps is None else {name: steps[name].to_numpy() for name in steps.column_names}
    first = ranks[0] if ranks else {}
    ended = min((len(rank["epochs"]) for rank in ranks), default=0)  # epochs, on all ranks
    table = {name: column[table["epoch"] < ended] for name, column in table.items()} if ended else {}
    epochs = [_epoch(index, ranks, table) for index in range(ended)]
    speed = _speed(ranks, table, config.skip_steps)
    tokens = speed["tokens"]["non_padding"]
    total_s = epochs[-1]["ended_s"] if epochs else None
    return {
        "total_s": total_s,
        # a run that is stopped starts anew: it is measured in one piece
        "segments": [{"first_step": 0, "steps": sum(epoch["steps"] for epoch in epochs), "trained_s": total_s}],
        "epochs": epochs,
        **speed,
        "joules_per_token": None if joules is None or not tokens else joules / tokens,
        "loss": _loss(table),
        **_judged(table, len(ranks), methods.of(config).pairs),
        "text_rows": first.get("text_rows"),
        **({"rewards": _rewards(table)} if methods.of(config).pairs else {}),
        "peak_memory_bytes": peak_memory(ranks, placement.device) | _phases(ranks),
        "transfer_bytes": _transfers(table, placement),
        "communication_bytes": _communication(ranks),
        "parameters": first.get("parameters"),
        "trainable_parameters": first.get("trainable_parameters"),
        "nf4_tensors": first.get("nf4_tensors"),
        "fake_quantised_linears": first.get("fake_quantised_linears"),
        "cuda_graphs": first.get("cuda_graphs"),
        **_work(config, ranks, table, speed),
        "compile_s": max((rank["compile_s"] for rank in ranks if "compile_s" in rank), default=None),
        "compile_cache": compile_cache.over_ranks(rank.get("compile_cache") for rank in ranks),
        "warmup_steps": first.get("warmup_steps"),
        "threads": first.get("threads"),
        "oversubscribed": placement.oversubscribed,
    }


def _epoch(index: int, ranks: list[dict[str, Any]], table: dict[str, np.ndarray]) -> dict[str, Any]:
    """One epoch over all ranks: times are the slowest rank's."""
    by_rank = [rank["epochs"][index] for rank in ranks]
    rows = table["epoch"] == index
    return {
        "epoch": index,
        "steps": by_rank[0]["steps"],
        "train_s": max(epoch["train_s"] for epoch in by_rank),
        "ended_s": max(epoch["ended_s"] for epoch in by_rank),
        "train_loss": float(table["loss"][rows & (table["rank"] == 0)].mean()) if rows.any() else None,
        "samples": int(table["samples"][rows].sum()),
    }


def _numbers(table: dict[str, np.ndarray]) -> np.ndarray:
    """The number of each row's step in the run, counted over the epochs."""
    per_epoch = int(table["step"].max()) + 1
    return table["epoch"] * per_epoch + table["step"]


def _speed(ranks: list[dict[str, Any]], table: dict[str, np.ndarray], skip: int) -> dict[str, Any]:
    """Iteration times, tokens, and tokens/s after the warm-up."""
    if not table or not len(table["step"]):
        nothing = dict.fromkeys(TOKENS)
        empty = {"iteration_s": formulas.statistics([], skip), "data_s": None}
        return empty | {"tokens": nothing, "tokens_per_s": dict(nothing)}
    number = _numbers(table)
    steps_s = formulas.step_times_s(*(table[name] for name in COLUMNS))
    measured = number >= skip
    by_rank = [measured & (table["rank"] == rank["rank"]) for rank in ranks]
    seconds = [table["step_s"][rows].sum() for rows in by_rank]
    return {
        "iteration_s": formulas.statistics(steps_s, skip),
        "data_s": float(table["data_s"][measured].mean()) if measured.any() else None,  # mean over the ranks
        "tokens": {name: int(table[column].sum()) for name, column in TOKENS.items()},
        "tokens_per_s": {
            name: formulas.throughput_per_s([table[column][rows].sum() for rows in by_rank], seconds)
            for name, column in TOKENS.items()
        },
    }


def _first_rank(table: dict[str, np.ndarray], column: str) -> np.ndarray:
    return table[column][table["rank"] == 0] if table else np.empty(0)


def last_tenth(values: np.ndarray) -> np.ndarray:
    return values[-max(1, len(values) // 10) :]


def _loss(table: dict[str, np.ndarray]) -> dict[str, float | None]:
    """Of all ranks together, as rank 0 logs it; DPO's is divided by the world size, over which torchtune sums it."""
    logged = _first_rank(table, "loss")
    if not len(logged):
        return {"first": None, "last": None, "mean_of_last_tenth": None}
    last = float(last_tenth(logged).mean())
    return {"first": float(logged[0]), "last": float(logged[-1]), "mean_of_last_tenth": last}


def _judged(table: dict[str, np.ndarray], ranks: int, pairs: bool) -> dict[str, Any]:
    """What is said of losses that are not finite; of several ranks only the loss of all together is known.

    DPO's rewards count too: its loss is 0 where the margin between them is infinite.
    """
    if not table:
        return losses.UNKNOWN
    logged = {name: _first_rank(table, name) for name in table}
    columns = ("loss", "rewards_chosen", "rewards_rejected") if pairs else ("loss",)
    judged = losses.judge(logged, np.all([np.isfinite(logged[column]) for column in columns], axis=0))
    if judged["divergence"] is not None and ranks > 1:
        judged["divergence"]["rank"] = None
    return judged


def _rewards(table: dict[str, np.ndarray]) -> dict[str, float | None]:
    """DPO's implicit rewards and the share of pairs that they order rightly: means of the last tenth of the steps.

    torchtune's single-device recipe logs those of the last batch of each step, the distributed one the ranks' mean.
    """
    rewards: dict[str, float | None] = {}
    for name, column in REWARDS.items():
        values = _first_rank(table, column)
        rewards[name] = float(last_tenth(values).mean()) if len(values) else None
    chosen, rejected = rewards["chosen"], rewards["rejected"]
    return rewards | {"margin": None if chosen is None or rejected is None else chosen - rejected}


def _phases(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The maxima while the model was built and while it was trained."""
    peaks = {}
    for phase in ("setup", "train"):
        by_rank = [rank.get(f"{phase}_peak_memory_bytes") for rank in ranks]
        peaks[phase] = max((peak for peak in by_rank if peak is not None), default=None)
    return peaks


def _transfers(table: dict[str, np.ndarray], placement: Placement) -> dict[str, Any]:
    """Batches that the recipes handed to their devices, over all ranks."""
    source = "counted" if placement.device == "cuda" else "counted: what would cross to a device"
    moved = int(table["h2d_bytes"].sum()) if table else 0
    return {"h2d": moved, "d2h": None, "d2d": None, "source": source}


def _communication(ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Bytes that a rank receives in collectives while it trains, the highest of the ranks; None where none finished."""
    counted = [rank["communication_bytes"] for rank in ranks if "communication_bytes" in rank]
    if not counted:
        return None
    return {kind: max(count[kind] for count in counted) for kind in counted[0]} | {"per": "rank", "source": "counted"}


def _work(
    config: LlmConfig, ranks: list[dict[str, Any]], table: dict[str, np.ndarray], speed: dict[str, Any]
) -> dict[str, Any]:
    """`flops_per_token` (of all tokens, padding too) and the share of the devices' peak that it makes."""
    if not table or not table["tokens"].sum():
        return {"flops_per_token": None, "mfu": None}
    vocabulary, rate = ranks[0]["vocabulary"], speed["tokens_per_s"]["all"]
    length = float(table["attended"].sum() / table["tokens"].sum())
    adapters, passes = methods.adapter_parameters(config, vocabulary), methods.of(config).reference_passes
    flops = models.flops_per_token(config.model, vocabulary, length, adapters, passes)
    peak = peak_flops_per_s(ranks[0]["device"], config.precision.name)
    share = None if peak is None or rate is None else flops * rate / (len(ranks) * peak)
    return {"flops_per_token": flops, "mfu": share}


# Dense matrix peaks in operations a second (NVIDIA's data sheets): fp32 without TF32, as torchtune computes, and bf16
PEAK_FLOPS_PER_S: dict[str, dict[str, float]] = {
    "H200": {"fp32": 67e12, "bf16": 989e12},
    "H100 80GB HBM3": {"fp32": 67e12, "bf16": 989e12},
    "H100 NVL": {"fp32": 60e12, "bf16": 835e12},
    "H100 PCIe": {"fp32": 51e12, "bf16": 756e12},
    "A100": {"fp32": 19.5e12, "bf16": 312e12},
}


def peak_flops_per_s(device: str, precision: str) -> float | None:
    """The peak of a device by its name as CUDA gives it; None where it is not known."""
    return next((peaks[precision] for name, peaks in PEAK_FLOPS_PER_S.items() if name in device), None)
