"""The state of a training run between two steps, saved when it is stopped and put back when it goes on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from multicard.ranks import checkpoint
from multicard.vision.loop import Loop
from multicard.vision.rank_report import TrainingReport


@dataclass
class Start:
    """The point from which training starts: before the first step, or after the one at which it was stopped."""

    epoch: int = 0
    step: int = 0  # of the epoch
    elapsed_s: float = 0.0
    trained: dict[str, Any] | None = None  # of `Loop.train_epoch`, for the epoch's steps before the stop
    random: list[torch.Tensor] | None = None


def save(loop: Loop, report: TrainingReport, epoch: int, trained: dict[str, Any], elapsed_s: float) -> None:
    """Save everything that later steps depend on, and the measurements so far.

    Args:
        trained: of `Loop.train_epoch`, for all of the epoch's steps so far.
    """
    state = {
        "model": loop.share.plain.state_dict(),
        **loop.optim.state(),
        "random": get_random(loop.share.devices),
        "steps": loop.steps,
        "samples": loop.samples,
        "epoch": epoch,
        "step": len(trained["loss"]),
        "elapsed_s": elapsed_s,
        "trained": trained | {"phases_s": torch.from_numpy(trained["phases_s"])},
        "report": report.state(),
    }
    checkpoint.save(report.folder, loop.rank, loop.steps, state)


def restore(loop: Loop, report: TrainingReport) -> Start:
    """Restore the latest checkpoint, if there is one, except for the random numbers: see `set_random`."""
    state = checkpoint.load(report.folder, loop.rank)
    if state is None:
        return Start()
    loop.share.plain.load_state_dict(state["model"])  # each rank's own: BatchNorm's statistics differ
    loop.optim.restore(state)
    loop.steps, loop.samples = state["steps"], state["samples"]
    report.restore(state["report"])
    trained = state["trained"] | {"phases_s": state["trained"]["phases_s"].numpy()}
    return Start(state["epoch"], state["step"], state["elapsed_s"], trained, state["random"])


def joined(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """The measurements of an epoch from those before and after a stop: seconds added, steps concatenated."""
    if before is None:
        return after
    phases_s = np.concatenate([before["phases_s"], after["phases_s"]])
    return {key: before[key] + after[key] for key in after if key != "phases_s"} | {"phases_s": phases_s}


def get_random(devices: list[torch.device]) -> list[torch.Tensor]:
    """The states of the random number generators: the host's, then those of the CUDA devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda")]


def set_random(states: list[torch.Tensor], devices: list[torch.device]) -> None:
    """Restore the states that `get_random` returned."""
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=False):
        torch.cuda.set_rng_state(state, device)
