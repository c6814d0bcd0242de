"""The marks that a script sets itself: `multicard.step` and `multicard.log`.

Outside a run they have no effect, and do not import torch.
"""

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch

    Loss = float | torch.Tensor | None


_listening: list[Any] = []  # The recorder, in a rank of a run.


def listen(recorder: Any) -> None:
    """Send the marks of this process to a recorder; None: to nobody."""
    _listening[:] = [] if recorder is None else [recorder]


class step:  # noqa: N801  Scripts call this context manager like a function.
    """Marks a step of training: `with multicard.step(samples=len(images)) as step: ...;
    step.loss = loss`.

    A step is the block, and the wait for the batches that were drawn since the last step. Steps of
    optimizers are no longer counted then. Arguments that are only known within the block may be set
    on the object.

    Args:
        samples: samples on which this rank trains in the step; None: as many as its DataLoaders
            handed out for it.
        tokens: tokens on which this rank trains in the step; None: nobody knows.
        loss: the loss of this rank. A tensor is read at the end of the run, so that nothing waits
            for it in the step.
    """

    __slots__ = ("loss", "samples", "tokens")

    def __init__(
        self, samples: int | None = None, tokens: int | None = None, loss: "Loss" = None
    ) -> None:
        self.samples = samples
        self.tokens = tokens
        self.loss = loss

    def __enter__(self) -> Self:
        for listener in _listening:
            listener.begin_step()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for listener in _listening:
                listener.end_step(self)


def log(**values: "Loss") -> None:
    """Report figures of the training.

    Args:
        values: `loss` of the step that is under way or has just ended; `accuracy` on test data (0
            to 1); and others, of which the record keeps the last value by name.
    """
    for listener in _listening:
        listener.log(values)
