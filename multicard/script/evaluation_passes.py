"""How many evaluations follow one another without a step between them."""

from multicard.script.passes import Pass


class EvaluationPasses:
    """The passes since the last step that seem to be evaluations.

    A pass that is left before its end, as by a limit of batches, is over where the next one begins.
    Passes that are drawn from by turns, as by `zip`, are one evaluation.

    Attributes:
        count: evaluations among them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._passes = list[Pass]()
        self._joined = list[Pass]()

    def begins(self, one: Pass) -> None:
        """A pass is drawn from, and no evaluation seemed to go on."""
        self._passes = [one]
        self._joined = []
        self.count = 1

    def draws(self, one: Pass) -> int:
        """A pass is drawn from while one seems to go on. Returns how many evaluations there are
        more, or fewer, than it seemed.
        """
        before = self.count
        if _is_among(one, self._passes):
            place = next(at for at, each in enumerate(self._passes) if each is one)
            self._joined += self._passes[place + 1 :]
            del self._passes[place + 1 :]
        elif not _is_among(one, self._joined):
            self._passes.append(one)
        self.count = len(self._passes)
        return self.count - before


def _is_among(one: Pass, passes: list[Pass]) -> bool:
    return any(each is one for each in passes)
