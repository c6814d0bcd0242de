"""The tokenizers of `tune_llm.py`: their files, or the size of one that is trained. No torch."""

from dataclasses import dataclass
from typing import Optional

from multicard.config.base import GroupOption
from multicard.config.keys import key
from multicard.config.roles import DATA_FILES, MODEL_SIZE
from multicard.messages import Refusal


@dataclass
class TokenizerConfig(GroupOption):
    """The keys of every tokenizer; those with more extend it."""


@dataclass
class EmbeddedTokenizerConfig(TokenizerConfig):
    """A byte-level BPE trained on the run's own text; `vocab_size` counts the merges and bytes,
    not special tokens.
    """

    vocab_size: int = key(
        2048,
        "bytes and merges, learnt from the run's own text, without special tokens",
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
    """Llama 3's own tokenizer, from its `tokenizer.model`."""

    path: Optional[str] = key(
        None,
        "file tokenizer.model of Llama 3",
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
    """Qwen 2.5's own tokenizer, from its `vocab.json` and `merges.txt`."""

    path: Optional[str] = key(
        None,
        "Qwen 2.5's vocab.json",
        DATA_FILES,
    )
    merges_file: Optional[str] = key(
        None,
        "Qwen 2.5's merges.txt",
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
