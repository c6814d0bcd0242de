"""The record's comparison of a tuning step with the published rates of its GPU."""

from typing import Annotated

from msgspec import Struct

from multicard.records.schema_types import Float, Number


class Arithmetic(Struct):
    """How much of a tuning step its computation and memory traffic explain, at the published rates
    of the GPU.

    `cause` and the keys after it are present if matrix products take under a third of the step,
    nothing else disturbed the run, and no diagnosis was made: a diagnosis knows more.
    """

    share: Annotated[
        Float,
        "time of matrix products at the GPU's peak, recomputed ones included, / the median step",
    ]
    moved_share: Annotated[
        Number,
        "time of reading and updating the weights at the memory's peak rate, / the median step",
    ]
    tokens: Annotated[Float, "tokens that a rank computes in a step, including padding"]
    cause: Annotated[
        str | None, "what takes the rest of the step: host, memory, input or unknown"
    ] = None
    finding: Annotated[str | None, "the cause in words"] = None
    tries: Annotated[
        list[str], "overrides to try next, ready to type, the most promising first"
    ] = []
    sentence: Annotated[str | None, "the finding with what to try next"] = None
