"""Define what is known about an engine before it is imported. Imports no torch."""

from abc import ABC, abstractmethod
from typing import ClassVar

from multicard.config.llm import LlmConfig
from multicard.messages import Refusal


class EngineKind(ABC):
    """What an engine supports, and how it differs from others.

    Attributes:
        module: The module that defines `prepared` (see `tuning_engine`).
        memory_module: The module whose `run` takes a step of this engine with tensors that have no
            values.
        memory_note: What is said about peaks that were computed in this way for a GPU, or "".
        masks_padding: True if the layers compute with a mask only if a batch is padded, or if a
            sequence holds several rows. The code that is compiled for the two cases differs.
        has_recipes: True if torchtune's recipes run, by a configuration of theirs.
        sums_pair_losses: True if the loss of pairs that several ranks log is the ranks' sum.
    """

    module: ClassVar[str]
    memory_module: ClassVar[str]
    memory_note: ClassVar[str] = ""
    masks_padding: ClassVar[bool] = False
    has_recipes: ClassVar[bool] = False
    sums_pair_losses: ClassVar[bool] = False

    def check(self, config: LlmConfig) -> None:
        """Refuse (ValueError) options that the engine does not support, or would ignore."""
        if config.compile and not self.compiles(config):
            method = config.method.name
            raise Refusal(
                "llm.recipe-compile",
                f"compile=true: the recipe of method={method} does not compile; use"
                " `compile=false`",
                key="compile",
                method=method,
            )
        self.check_own(config)

    @abstractmethod
    def check_own(self, config: LlmConfig) -> None:
        """Refuse (ValueError) all other options that this engine lacks."""

    @abstractmethod
    def compiles(self, config: LlmConfig) -> bool:
        """Return True if the engine supports `compile` with the selected method."""
