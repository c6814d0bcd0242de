"""Count evaluations that follow one another without a training step between them."""

from multicard.script.passes import Pass


class EvaluationPasses:
    """The passes since the last step that seem to be evaluations.

    A limit of batches leaves a pass before its end. The pass is then over when the next one begins.
    Passes that take turns, as with `zip`, are one evaluation.

    Attributes:
        count: number of evaluations.
    """

    def __init__(self) -> None:
        self.count = 0
        self._separate_passes = list[Pass]()
        self._joined_passes = list[Pass]()

    def begin(self, data_pass: Pass) -> None:
        """A batch of a pass is asked for while no evaluation seems to go on."""
        self._separate_passes = [data_pass]
        self._joined_passes = []
        self.count = 1

    def resume(self, data_pass: Pass) -> bool:
        """Return True if this pass belongs to the evaluations that seemed to be over.

        With `zip` and `zip_longest`, other passes go on when the first one has ended.
        """
        known_passes = [*self._separate_passes, *self._joined_passes]
        return _index_of(data_pass, known_passes) is not None

    def forget(self) -> None:
        """Training goes on: passes that go on later are other evaluations."""
        self._separate_passes = []
        self._joined_passes = []

    def draw(self, data_pass: Pass) -> int:
        """A batch of a pass is asked for during an evaluation.

        Returns:
            How many more evaluations there are than it seemed. It is negative if passes that were
            counted one by one turn out to take turns.
        """
        count_before = self.count
        index = _index_of(data_pass, self._separate_passes)
        if index is not None:
            # An earlier pass goes on, so the passes after it take turns with it.
            self._joined_passes += self._separate_passes[index + 1 :]
            del self._separate_passes[index + 1 :]
        elif _index_of(data_pass, self._joined_passes) is None:
            self._separate_passes.append(data_pass)
        self.count = len(self._separate_passes)
        return self.count - count_before


def _index_of(data_pass: Pass, passes: list[Pass]) -> int | None:
    """Return the place of this very pass. Equal passes may be different ones."""
    for index, other in enumerate(passes):
        if other is data_pass:
            return index
    return None
