"""Which thread trains, and what others draw for it: they wait for their batches, and nobody sees
how long it waits for them.
"""

from collections.abc import Set as AbstractSet
from threading import get_ident

from multicard.script.passes import Pass


class Threads:
    """The thread of the training, and passes of which another draws batches.

    Attributes:
        waits_known: no other thread drew batches of the training.
    """

    def __init__(self) -> None:
        self.waits_known = True
        self._training = get_ident()
        self._passes: list[Pass] = []

    def is_elsewhere(self) -> bool:
        """True in another thread than that of the training."""
        return get_ident() != self._training

    def trains_here(self) -> bool:
        """The first gradients are computed: the training is this thread's, and so is what it drew
        before. Returns whether another thread was taken for it.
        """
        if not self.is_elsewhere():
            return False
        self._training = get_ident()
        self.waits_known = True
        for one in self._passes:
            one.in_thread = False
        self._passes = []
        return True

    def reads_elsewhere(self, one: Pass, steps: int) -> None:
        """Another thread draws a batch of this pass, after so many steps."""
        if not one.in_thread:
            one.in_thread = True
            one.begun_at = steps
            self._passes.append(one)

    def evaluated(self) -> list[Pass]:
        """The passes that nobody trained on."""
        return [one for one in self._passes if not any(one.trains)]

    def begun_before(self, steps: int) -> AbstractSet[int]:
        """The steps, of so many, before which another thread began a pass: what came between is not
        seen. None where most are.
        """
        begun = {one.begun_at for one in self._passes if 0 < one.begun_at < steps}
        return begun if 2 * len(begun) <= steps else set()
