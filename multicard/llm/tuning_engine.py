"""What multicard asks of an engine, whose loop tunes.

An engine is a module with a function `prepared(probe, cfg, run_cfg)`: a context manager that yields
a `TuningEngine`, ready to train. Its name stands in `engines.MODULES`.

`prepared` owes the probe three things: the rows, noted by `recipes.note`, which also sets `pad_id`;
`report.content.warmup_steps`, if the learning rate has a schedule; and `copies`, if the engine
copies a batch to the device other than once. `run_cfg` is `cfg` as torchtune's recipes run it: with
multicard's logger, and a cache of the rows in the run folder.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from multicard.llm.parts import TrainedParts
from multicard.llm.step_probe import MeasuredBatches


class TuningEngine(Protocol):
    """A model with its optimiser and its rows, ready to train.

    Attributes:
        model: as a step calls it, within the wrappers of FSDP or DDP.
        optimizers: those that update the model: one, or one for each weight where weights are
            updated in the backward pass.
        scheduler: of the learning rate; None where that is constant.
        batches: the measured batches. Each pass over the rows draws from them.
        steps_per_epoch: optimiser steps of an epoch.
    """

    model: torch.nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    scheduler: Any
    batches: MeasuredBatches
    steps_per_epoch: int

    def train(self, epochs: int) -> None:
        """Train for so many epochs.

        After each step rank 0 calls the probe's `log` with what it knows of `epoch_marks.LOGGED`,
        at least `loss`. After each epoch all ranks call its `end_epoch`, whose exceptions end the
        training.
        """
        ...

    def train_pass(self) -> None:
        """Train on the batches until they end, beside the training: counters stay as they are."""
        ...

    def check_built(self) -> dict[str, Any]:
        """Figures of the model for the report of a rank.

        At least `parameters`, `trainable_parameters` and `parameter_bytes`.

        Raises:
            RuntimeError: what runs is not what the configuration asks for.
        """
        ...

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Each row's loss: the sum over its labelled tokens, in nats.

        Args:
            tokens: (rows, S), padded with the probe's `pad_id`.
            labels: (rows, S), not yet shifted.

        Returns:
            (rows,), float64, on the CPU.
        """
        ...

    def reference(self) -> AbstractContextManager[Any]:
        """Within it, losses are those of DPO's reference model."""
        ...

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]:
        """Within it, the model computes as once it is quantised to int4.

        Args:
            groupsize: weights that share a scale.

        Yields:
            The failures of single layers (`int4.computing`).
        """
        ...

    def trained(self) -> TrainedParts:
        """The tensors that were trained, by the names of PEFT and transformers."""
        ...

    def close(self) -> None:
        """Release what the engine holds. No method is called afterwards."""
        ...
