"""Tokens of a data set's longest row, from rows at hand. No torch.

Counted of the rows with the most text alone, by the tokenizer's own merges; a few tokens off where a template's text
and a column's meet within a token.
"""

import base64
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from multicard.config.llm import EmbeddedTokenizerConfig, LlmConfig, Qwen25TokenizerConfig
from multicard.llm import methods
from multicard.llm.data import templates, tokenizer
from multicard.llm.preflight import Inputs

CANDIDATES = 16  # rows with the most text, one of which has the most tokens
MESSAGE_TOKENS, ROW_TOKENS = 5, 2  # a message's header and end; a row's begin and end
Encode = Callable[[str], int]


def longest(config: LlmConfig, inputs: Inputs) -> int | None:
    """Tokens of the longest row, or answer of a pair, uncut; None without rows."""
    if not inputs.rows:
        return None
    texts = [parts for row in inputs.rows for parts in _texts(config, row)]
    count = _counter(config, inputs)
    most = sorted(texts, key=lambda parts: sum(map(len, parts[0])))[-CANDIDATES:]
    return max(sum(map(count, words)) + MESSAGE_TOKENS * messages for words, messages in most) + ROW_TOKENS


def _texts(config: LlmConfig, row: dict[str, Any]) -> list[tuple[list[str], int]]:
    """The texts of a row with its template's, and how many messages they make; of a pair, for each answer."""
    around = _around(config, row)
    if methods.of(config).pairs:
        answers = (row[answer] for answer in ("chosen", "rejected"))
        return [([*around, *(turn["content"] for turn in answer)], len(answer)) for answer in answers]
    if "conversations" in row:
        return [([*around, *(turn["value"] for turn in row["conversations"])], len(row["conversations"]))]
    return [([*around, *(value for value in row.values() if isinstance(value, str))], 2)]


def _around(config: LlmConfig, row: dict[str, Any]) -> tuple[str, ...]:
    template = templates.of(config)
    if template is None:
        return ()
    pairs = methods.of(config).pairs
    is_instruction = isinstance(template.pair_template, dict)  # whose text is another without an input
    return tuple(templates.INSTRUCT_PAIRS) if is_instruction and (pairs or not row.get("input")) else template.around


def _counter(config: LlmConfig, inputs: Inputs) -> Encode:
    options = config.tokenizer
    if isinstance(options, Qwen25TokenizerConfig):
        return _qwen(str(options.path), str(options.merges_file))
    if isinstance(options, EmbeddedTokenizerConfig):
        return _tiktoken({token: rank for rank, token in enumerate(inputs.token_ranks or [])})
    return _llama3(str(getattr(options, "path", "")))


@lru_cache(maxsize=1)
def _llama3(path: str) -> Encode:
    lines = (line.split() for line in Path(path).expanduser().read_bytes().splitlines())
    return _tiktoken({base64.b64decode(token): int(rank) for token, rank in lines})


@lru_cache(maxsize=1)
def _qwen(vocabulary: str, merges: str) -> Encode:
    """A counter by Qwen's files.

    Raises:
        ValueError: they cannot be read.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    files = (str(Path(path).expanduser()) for path in (vocabulary, merges))
    try:
        merged = Tokenizer(models.BPE.from_file(*files))
    except Exception as error:  # of tokenizers, which has no class of its own for it
        remedy = "give the paths of Qwen 2.5's vocab.json and merges.txt"
        raise ValueError(f"tokenizer.path, tokenizer.merges_file={merges}: {error}; {remedy}") from None
    merged.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    return lambda text: len(merged.encode(text).ids)


def _tiktoken(ranks: dict[bytes, int]) -> Encode:
    import tiktoken

    encoding = tiktoken.Encoding("rows", pat_str=tokenizer.PATTERN, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))
