"""How many samples and tokens each step trains on, as the script's marks say."""

from collections.abc import Sequence

import numpy as np

from multicard.script.batches import DrawnBatch
from multicard.script.passes import StepData


class StepAmounts:
    """The samples and tokens that `multicard.step` was given for each step.

    Args:
        races_tokens: the rank posts its tokens, since a race compares tokens per second.
    """

    def __init__(self, races_tokens: bool) -> None:
        self._races_tokens = races_tokens
        self._marked: list[tuple[int | None, int | None]] = []

    def add(self, samples: int | None, tokens: int | None, drawn: Sequence[DrawnBatch]) -> int:
        """Add a step.

        Args:
            samples: as marked; None if the batches that were drawn show them.
            tokens: as marked; None if nobody knows.
            drawn: the batches that were handed out for the step.

        Returns:
            The samples of the step, or its tokens, to post.
        """
        self._marked.append((samples, tokens))
        if self._races_tokens:
            return tokens or 0
        if samples is not None:
            return samples
        return sum(batch.size or 0 for batch in drawn)

    def add_unmarked(self) -> None:
        """Add a step without a mark, which is found to count after it has ended."""
        self._marked.append((None, None))

    @property
    def has_all_samples(self) -> bool:
        """True if the marks give the samples of every step."""
        return all(samples is not None for samples, _ in self._marked)

    def tokens(self, steps: int) -> np.ndarray:
        """Return the tokens of each step (steps,), 0 if nobody knows."""
        return np.array([tokens or 0 for _, tokens in self._marked[:steps]], dtype=np.int64)

    def replace_samples(self, data: StepData) -> None:
        """Replace the samples that batches show by the marked ones."""
        for number, (samples, _) in enumerate(self._marked):
            if samples is not None:
                data.samples[number] = samples
                data.unknown[number] = False
