"""The optimizers whose steps count as steps of the training, and the others."""

from torch.optim import Optimizer


class CountedOptimizers:
    """Names what ends the steps of a run, and counts the optimizers that do not.

    Attributes:
        names: the calls that ended steps, for instance "SGD.step".
        skipped: steps that a GradScaler skipped.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.skipped = 0
        self._uncounted: set[int] = set()  # By id.

    @property
    def uncounted(self) -> int:
        """The number of optimizers whose steps do not count."""
        return len(self._uncounted)

    def add(self, optimizer: Optimizer, together: int = 1) -> None:
        """Count the steps of an optimizer.

        Args:
            together: its first steps that count as a single one.
        """
        self._uncounted.discard(id(optimizer))
        name = f"{type(optimizer).__name__}.step"
        if together > 1:
            name += f" (its first {together} as one)"
        if name not in self.names:
            self.names.append(name)

    def add_uncounted(self, optimizer: Optimizer) -> None:
        self._uncounted.add(id(optimizer))
