"""The special tokens of a model that its chat template writes."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_tokenizers import Qwen25TokenizerConfig
from multicard.llm.data.tokenizer import SPECIAL, check_folder, special_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TextEnds(NamedTuple):
    """The special tokens that begin and end a text without special tokens."""

    begin: str
    end: str


class ModelTokens(NamedTuple):
    """The special tokens of a model.

    Fields:
        special: the texts of all of them.
        named: the tokens with a role that templates write, by role, as `bos_token`. Templates
            write nothing for a role that the model lacks.
        begin_and_end: returns the tokens before and after a text without special tokens. It is a
            function, because a folder's tokenizer has to be run to find them.
    """

    special: tuple[str, ...]
    named: Mapping[str, str]
    begin_and_end: Callable[[], TextEnds]

    def named_beside(self, others: Mapping[str, str]) -> "ModelTokens":
        """Add the roles that files beside a template give to tokens of this model.

        Other tokens of these files would be plain letters to the model.
        """
        named = {
            **self.named,
            **{role: token for role, token in others.items() if token in self.special},
        }
        return self._replace(named=named, begin_and_end=partial(_named_begin_and_end, named))


def model_tokens_of(config: LlmConfig) -> ModelTokens:
    """Return the special tokens of the run's tokenizer.

    Raises:
        Refusal: the tokenizer of a folder cannot be read.
    """
    if isinstance(config.model, HfConfig):
        tokenizer = check_folder(config.model)
        return ModelTokens(
            tuple(special_of(tokenizer)),
            tokenizer.special_tokens_map,
            cache(partial(_tokens_around, tokenizer)),
        )
    if isinstance(config.tokenizer, Qwen25TokenizerConfig):
        named = {"eos_token": "<|im_end|>"}
        special = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
    else:
        named = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
        special = SPECIAL
    return ModelTokens(special, named, partial(_named_begin_and_end, named))


def _tokens_around(tokenizer: "PreTrainedTokenizerFast") -> TextEnds:
    """Return the text that a folder's tokenizer adds before a text, and the token that ends one."""
    tokens: list[str] = tokenizer.backend_tokenizer.encode("x").tokens
    plain_tokens: list[str] = tokenizer.backend_tokenizer.encode(
        "x", add_special_tokens=False
    ).tokens
    added_before = 0
    for place in range(len(tokens)):
        if tokens[place : place + len(plain_tokens)] == plain_tokens:
            added_before = place
            break
    end = tokenizer.special_tokens_map.get("eos_token", "")
    return TextEnds("".join(tokens[:added_before]), end)


def _named_begin_and_end(named: Mapping[str, str]) -> TextEnds:
    return TextEnds(named.get("bos_token", ""), named.get("eos_token", ""))
