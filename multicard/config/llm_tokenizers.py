"""The tokenizers of `tune_llm.py`: their files, or the size of one that is trained.

Does not import torch.
"""

from dataclasses import dataclass
from typing import Optional

from multicard.config.base import GroupOption
from multicard.config.keys import key
from multicard.config.roles import DATA_FILES, MODEL_SIZE
from multicard.messages import Refusal


@dataclass
class TokenizerConfig(GroupOption):
    """The keys of every tokenizer. Tokenizers with more keys extend it."""


@dataclass
class EmbeddedTokenizerConfig(TokenizerConfig):
    """A byte-level BPE tokenizer that is trained on the run's own text."""

    vocab_size: int = key(
        2048,
        "number of bytes and merges, learnt from the run's text; special tokens not included",
        MODEL_SIZE,
    )

    def __post_init__(self) -> None:
        size = self.vocab_size
        if size < 256:
            raise Refusal(
                "config.tokenizer-vocab-size",
                f"tokenizer.vocab_size={size}: must be 256 or more, one for each byte",
                key="tokenizer.vocab_size",
                value=size,
                least=256,
            )


@dataclass
class Llama3TokenizerConfig(TokenizerConfig):
    """Llama 3's tokenizer, from its `tokenizer.model`."""

    path: Optional[str] = key(
        None,
        "Llama 3's tokenizer.model file",
        DATA_FILES,
    )

    def __post_init__(self) -> None:
        if self.path is None:
            raise Refusal(
                "config.tokenizer-llama3-path",
                "tokenizer.path is not set: give Llama 3's tokenizer.model, `tokenizer.path=FILE`",
                key="tokenizer.path",
            )


@dataclass
class Qwen25TokenizerConfig(TokenizerConfig):
    """Qwen 2.5's tokenizer, from its `vocab.json` and `merges.txt`."""

    path: Optional[str] = key(
        None,
        "Qwen 2.5's vocab.json file",
        DATA_FILES,
    )
    merges_file: Optional[str] = key(
        None,
        "Qwen 2.5's merges.txt file",
        DATA_FILES,
    )

    def __post_init__(self) -> None:
        if self.path is None:
            raise Refusal(
                "config.tokenizer-qwen-path",
                "tokenizer.path is not set: give Qwen 2.5's vocab.json, `tokenizer.path=FILE`",
                key="tokenizer.path",
            )
        if self.merges_file is None:
            raise Refusal(
                "config.tokenizer-qwen-merges",
                "tokenizer.merges_file is not set: give Qwen 2.5's merges.txt,"
                " `tokenizer.merges_file=FILE`",
                key="tokenizer.merges_file",
            )


TOKENIZERS: dict[str, type[TokenizerConfig]] = {
    "embedded": EmbeddedTokenizerConfig,
    "llama3": Llama3TokenizerConfig,
    "qwen2_5": Qwen25TokenizerConfig,
    "own": TokenizerConfig,
}
