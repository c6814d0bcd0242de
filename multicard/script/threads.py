"""Finds out which thread trains, and which passes other threads draw from.

Another thread that draws batches waits for them, so nobody sees how long the training waits.
"""

from collections.abc import Set as AbstractSet
from threading import get_ident

from multicard.script.passes import Pass


class Threads:
    """The thread that trains, and the passes that another thread draws from.

    Attributes:
        waits_known: no other thread draws batches of the training.
    """

    def __init__(self) -> None:
        self.waits_known = True
        self._training = get_ident()
        self._passes: list[Pass] = []

    def is_elsewhere(self) -> bool:
        """Return True in another thread than the one that trains."""
        return get_ident() != self._training

    def train_in_this_thread(self) -> bool:
        """Take this thread for the one that trains, since it computes the first gradients.

        What it drew before is the training's, too. Return whether it was taken for another thread.
        """
        if not self.is_elsewhere():
            return False
        self._training = get_ident()
        self.waits_known = True
        for data_pass in self._passes:
            data_pass.in_thread = False
        self._passes = []
        return True

    def note_read(self, data_pass: Pass, steps: int) -> None:
        """Note that another thread draws a batch of this pass, after so many steps."""
        if not data_pass.in_thread:
            data_pass.in_thread = True
            data_pass.begun_at = steps
            self._passes.append(data_pass)

    def untrained_passes(self) -> list[Pass]:
        """Return the passes that nobody trained on."""
        return [data_pass for data_pass in self._passes if not any(data_pass.trains)]

    def begun_before(self, steps: int) -> AbstractSet[int]:
        """Return the steps before which another thread began a pass.

        What came between is not seen. Empty if that concerns most of the `steps` steps.
        """
        begun = {data_pass.begun_at for data_pass in self._passes if 0 < data_pass.begun_at < steps}
        return begun if 2 * len(begun) <= steps else set()
