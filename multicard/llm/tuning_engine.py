"""Define the interface of an engine, which runs the training loop of a tuning run.

An engine is a module with a function `prepared(probe, cfg, run_cfg)`. This is a context manager
that yields a `TuningEngine`, ready to train. Its `EngineKind` names the
module.

`prepared` must do up to three things with the probe:

- Call `recipes.record_rows` with the loader of the rows, which also sets `pad_id`.
- Set `report.content.warmup_steps` if the learning rate has a schedule.
- Set `copies` if the engine does not copy each batch to the device exactly once.

`run_cfg` is `cfg` as torchtune's recipes run it: with multicard's logger, and a cache of the rows
in the run folder.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from multicard.llm.parts import TrainedParts
from multicard.llm.step_probe import MeasuredBatches


class TuningEngine(Protocol):
    """A model with its optimizer and its rows, ready to train.

    Attributes:
        model: The model that a step calls, inside the wrappers of FSDP or DDP.
        optimizers: The optimizers that update the model. There is one for each weight if the
            weights are updated in the backward pass, and otherwise a single one.
        scheduler: The scheduler of the learning rate, or None if the rate is constant.
        batches: The measured batches. Each pass over the rows draws from them.
        steps_per_epoch: Number of optimizer steps in an epoch.
    """

    model: torch.nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    scheduler: Any
    batches: MeasuredBatches
    steps_per_epoch: int

    def train(self, epochs: int) -> None:
        """Train for `epochs` epochs.

        After each step, rank 0 calls the probe's `log` with the figures of `epoch_marks.LOGGED`
        that it knows, at least with `loss`. After each epoch, all ranks call the probe's
        `end_epoch`. The exceptions that it raises end the training.
        """
        ...

    def train_pass(self) -> None:
        """Train on the batches until they end, without changing the counters of the training."""
        ...

    def check_built(self) -> dict[str, Any]:
        """Return figures of the model for the rank's report.

        They include at least `parameters`, `trainable_parameters` and `parameter_bytes`.

        Raises:
            RuntimeError: The built model differs from the configuration.
        """
        ...

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row: the sum over its labelled tokens, in nats.

        Args:
            tokens: Shape (rows, S), padded with the probe's `pad_id`.
            labels: Shape (rows, S), not yet shifted.

        Returns:
            Shape (rows,), float64, on the CPU.
        """
        ...

    def reference(self) -> AbstractContextManager[Any]:
        """Within this context, losses are those of DPO's reference model."""
        ...

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]:
        """Within this context, the model computes as if it were quantised to int4.

        Args:
            groupsize: Number of weights that share a scale.

        Yields:
            The failures of single layers (see `int4.computing`).
        """
        ...

    def trained(self) -> TrainedParts:
        """Return the trained tensors, by the names of PEFT and transformers."""
        ...

    def close(self) -> None:
        """Release all resources of the engine. No method is called afterwards."""
        ...
