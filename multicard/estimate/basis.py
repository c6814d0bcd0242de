"""What an estimate rests on, from the best to the poorest, and what that allows."""

from enum import StrEnum

from multicard.records.schema_parts import Prediction


class Basis(StrEnum):
    """Basis of an estimated quantity, best first: the order is its rank."""

    measured = "measured"  # runs of the same cell
    probed = "probed"  # probes of the same cell
    scaled = "scaled"  # other cells of this machine
    published = "published"  # printed figures
    computed = "computed"  # memory, by a step without values
    unknown = "unknown"

    @property
    def rank(self) -> int:
        return [*Basis].index(self)

    @property
    def is_own(self) -> bool:
        """True where the figures are of this machine."""
        return self.rank <= Basis.scaled.rank

    @property
    def may_exclude(self) -> bool:
        """True where the very cell ran: only then may an estimate decide that a cell is not measured."""
        return self.rank <= Basis.probed.rank


def of_memory(prediction: Prediction) -> Basis:
    """The basis of a prediction's memory, which may be another than that of its times."""
    return Basis.measured if prediction.memory_basis.startswith(Basis.measured) else Basis.computed
