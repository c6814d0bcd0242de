"""Refusals before any model is built, and the inputs of a run: rows and tokenizer. No torch."""

from dataclasses import dataclass

from multicard.config.keys import require
from multicard.config.llm import EmbeddedTokenizerConfig, LlmConfig, StoredTextConfig
from multicard.config.sweeps import starts_nothing
from multicard.llm import methods, pretrained
from multicard.llm.data import row_sources, templates, tokenizer

SAMPLE_ROWS = 2000  # that the embedded tokenizer is trained on, at most


@dataclass(frozen=True)
class Inputs:
    """Inputs of a run beside its configuration.

    rows: None for a whole data set of the hub.
    token_ranks: the embedded tokenizer's tokens, by rank; None for another tokenizer.
    """

    rows: list[row_sources.Row] | None
    token_ranks: list[bytes] | None
    vocabulary: int


_LATEST: dict[str, Inputs] = {}  # by identity: checking and writing a run need the same


def refuse(config: LlmConfig) -> None:
    """Refuse a method or a template that does not go with the other options."""
    methods.check(config)
    templates.check(config)


def check(config: LlmConfig) -> None:
    """See that rows, tokenizer, weights and model fit each other; a command that starts nothing fetches none."""
    data = config.dataset
    if starts_nothing(config) and isinstance(data, StoredTextConfig) and data.data_files is None:
        row_sources.check_source(data)
        tokenizer.check_files(config.tokenizer)
    else:
        prepare(config)


def prepare(config: LlmConfig) -> Inputs:
    """Read or generate the rows, train the tokenizer, and see that all of it fits the model.

    Raises:
        ValueError: what does not, with the key and the remedy.
    """
    identity = config.identity()
    if identity not in _LATEST:
        tokenizer.check_files(config.tokenizer)
        rows = row_sources.load(config)
        if rows is not None and not config.packed:
            check_steps(config, len(rows))
        token_ranks = train_tokenizer(config, rows)
        vocabulary = model_vocabulary(config, len(token_ranks or []))
        pretrained.check_weights(config.model, vocabulary)
        _LATEST.clear()
        _LATEST[identity] = Inputs(rows, token_ranks, vocabulary)
    return _LATEST[identity]


def check_steps(config: LlmConfig, rows: int) -> None:
    needed = config.batch_size * config.world_size * config.gradient_accumulation_steps
    product = "batch_size x gpus x gradient_accumulation_steps"
    require(rows >= needed, f"dataset.rows={rows}: is less than one step ({product} = {needed}); use {needed} or more")


def train_tokenizer(config: LlmConfig, rows: list[row_sources.Row] | None) -> list[bytes] | None:
    """The embedded tokenizer's tokens, by rank; None for another tokenizer."""
    options = config.tokenizer
    if not isinstance(options, EmbeddedTokenizerConfig):
        return None
    sample = row_sources.sample(config, SAMPLE_ROWS) if rows is None else rows[:SAMPLE_ROWS]
    headers = [role for role in tokenizer.ROLES for _ in sample]
    return tokenizer.train([*row_sources.texts(config, sample), *headers], options.vocab_size)


def model_vocabulary(config: LlmConfig, ranks: int) -> int:
    """The model's vocabulary: the tokenizer's, unless the model fixes its own.

    Raises:
        ValueError: where the model's is too small for the tokenizer.
    """
    needed, fixed = tokenizer.vocabulary(config.tokenizer, ranks), config.model.vocab_size
    remedy = f"use {needed} or more, or another tokenizer"
    problem = f"model.vocab_size={fixed}: tokenizer={config.tokenizer.name} has {needed} tokens"
    require(fixed is None or fixed >= needed, f"{problem}; {remedy}")
    return fixed or needed
