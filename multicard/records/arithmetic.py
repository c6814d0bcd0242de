"""What of a tuning step the published rates of its GPU explain,
and what is said where that is little.
"""

from typing import Annotated

from msgspec import Struct

from multicard.records.schema_parts import Float, Number


class Arithmetic(Struct):
    """A tuning step beside what its GPU computes and moves in it at its published rates.

    `cause` and what follows it are there where products take under a third of the step, nothing
    else disturbed the run, and no diagnosis measured what bounds it: a diagnosis knows more.
    """

    share: Annotated[
        Float, "of the median step, its products at the GPU's peak; recomputed ones count"
    ]
    moved_share: Annotated[
        Number, "likewise reading the weights and updating them, at its memory's rate"
    ]
    tokens: Annotated[Float, "that a rank computes in a step, padding too"]
    cause: Annotated[str | None, "host, memory, input or unknown: what the rest of the step is"] = (
        None
    )
    finding: Annotated[str | None, "the same in words"] = None
    tries: Annotated[list[str], "overrides to try next, the best first, as they are typed"] = []
    sentence: Annotated[str | None, "finding and what to try next"] = None
