"""Sizes of a run's data set, which a prediction needs beside the configuration. No torch.

The longest row's tokens are counted in the rows with the most text alone, by the tokenizer's own
merges; a few tokens off where a template's text and a column's meet within a token.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from multicard.config import schema
from multicard.config.base import RunConfig, TrainingConfig, plain
from multicard.config.llm import LlmConfig
from multicard.config.llm_models import DecoderConfig, HfConfig
from multicard.config.llm_texts import StoredTextConfig
from multicard.config.llm_tokenizers import EmbeddedTokenizerConfig, Qwen25TokenizerConfig
from multicard.config.roles import Role
from multicard.config.vision import VisionConfig
from multicard.llm import methods, preflight
from multicard.llm.data import pairs, row_sources, templates, tokenizer
from multicard.llm.preflight import Inputs
from multicard.messages import Message, Refusal
from multicard.vision.data.datasets import DATASETS


class ImageFacts(msgspec.Struct, frozen=True):
    """Sizes of a set of images: training and test images, classes; `side` and `channels` as stored,
    of photographs as they are decoded.
    """

    train: int
    test: int
    classes: int
    side: int
    channels: int


class TextFacts(msgspec.Struct, frozen=True):
    """Sizes of a text data set under its tokenizer: the model's vocabulary, and the tokens of the
    longest row, whose batch has the peak; `low`, `high`: its interval, where the rows are not at
    hand, else None. `folder`: a digest of config.json, of a folder's model. `evaluates`: rows are
    held out, of which batches are scored after the steps.
    `rows`: the tokens of rows that lie evenly among those trained on, uncut; of a pair each
    answer's; no memory depends on them. None where the rows are not at hand.
    """

    vocabulary: int
    length: int
    low: int | None = None
    high: int | None = None
    folder: str | None = None
    evaluates: bool = False
    rows: tuple[int, ...] | None = None

    @property
    def of_memory(self) -> "TextFacts":
        """The facts on which memory depends."""
        return msgspec.structs.replace(self, rows=None)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length, and the ends of its interval."""
        ends = () if self.low is None or self.high is None else (self.low, self.high)
        return (self.length, *ends)


Facts = ImageFacts | TextFacts
CANDIDATES = 16  # rows with the most text; one of them has the most tokens
SAMPLED = 256  # rows by which the tokens of a step are estimated
# header and end of a message; begin and end of a row
MESSAGE_TOKENS = 5
ROW_TOKENS = 2
# of the longest row, at least and expected, where the rows are not at hand
ASSUMED_TOKENS = (256, 1024)
MNIST = ImageFacts(60_000, 10_000, 10, 28, 1)  # known even where it is not at hand
_SIZES: dict[bytes, Facts] = {}  # the cells of a sweep mostly have the same data


def sizes(config: RunConfig) -> Facts | str:
    """The sizes of a run's data set, read once for all runs that have the same, or the reason for
    which they cannot be read.
    """
    if not isinstance(config, TrainingConfig):
        return Message("memory.script", "the steps of a script are not known before it runs")
    values = plain(config)
    groups = schema.own(LlmConfig, Role.text) if isinstance(config, LlmConfig) else ("dataset",)
    key = msgspec.json.encode([values.get(group) for group in groups])
    try:
        if key not in _SIZES:
            _SIZES[key] = (
                _text_facts(config) if isinstance(config, LlmConfig) else _image_facts(config)
            )
        return _SIZES[key]
    except (ValueError, OSError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return Message(
            "memory.data-unreadable", f"the data cannot be read ({reason})", reason=reason
        )


def _image_facts(config: RunConfig) -> ImageFacts:
    """The sizes of a data set of images; of photographs the folders are listed,
    and none is decoded.
    """
    assert isinstance(config, VisionConfig)
    options = config.dataset
    whole = MNIST
    if options.name != "mnist":
        data = DATASETS[options.name].read(options, config.seed)
        images = data.train.images
        is_stored = not isinstance(images, list)
        side, channels = (
            (images.shape[1], images.shape[3] if images.ndim == 4 else 1) if is_stored else (0, 3)
        )
        whole = ImageFacts(
            len(data.train), len(data.test), data.classes, side or options.image_size, channels
        )
    limits = (whole.train, options.train_limit), (whole.test, options.test_limit)
    train, test = (min(count, limit or count) for count, limit in limits)
    return msgspec.structs.replace(whole, train=train, test=test)


def _text_facts(config: LlmConfig) -> TextFacts:
    """The model's vocabulary, and the tokens of its longest batch: of packed rows `max_seq_len`, of
    rows on this machine the longest row's, else an interval that ends with the most that the run
    would take.
    """
    limit = config.max_seq_len or config.model.max_seq_len
    data = config.dataset
    options = config.tokenizer
    rows = None
    vocabulary = config.model.vocab_size
    sampled: tuple[int, ...] | None = None
    evaluates = bool(data.split) or bool(getattr(data, "test_files", None))
    # what is on the hub is not fetched for it
    if not (isinstance(data, StoredTextConfig) and data.data_files is None):
        inputs = preflight.prepare(config)
        rows = max(_row_tokens(config, inputs), default=None)
        vocabulary = inputs.vocabulary
        sampled = tuple(_sampled_tokens(config, inputs)) or None
        evaluates = inputs.held_out is not None
    vocabulary = vocabulary or tokenizer.vocabulary(options, getattr(options, "vocab_size", 0))
    folder = _digest(config.model)
    if config.packed or rows is not None:
        longest = limit if config.packed else min(rows or limit, limit)
        return TextFacts(vocabulary, longest, folder=folder, evaluates=evaluates, rows=sampled)
    least, expected = (min(tokens, limit) for tokens in ASSUMED_TOKENS)
    return TextFacts(vocabulary, expected, least, limit, folder, evaluates)


def _digest(model: DecoderConfig) -> str | None:
    """Of what a folder says of its model's sizes; None of a model that is known by its name."""
    if not isinstance(model, HfConfig):
        return None
    return hashlib.sha256(
        (Path(str(model.path)).expanduser() / "config.json").read_bytes()
    ).hexdigest()


def all_tokens(config: LlmConfig) -> int | None:
    """Tokens of all rows, uncut; None where they are not at hand."""
    if isinstance(config.dataset, StoredTextConfig) and config.dataset.data_files is None:
        return None
    return sum(_row_tokens(config, preflight.prepare(config), every=True))


def _row_tokens(config: LlmConfig, inputs: Inputs, every: bool = False) -> list[int]:
    """Tokens of the rows with the most text, those held out too, or of every row that is trained
    on, uncut; of pairs each answer counts as a row.
    """
    if not inputs.rows:
        return []
    rows = inputs.rows
    if inputs.held_out is not None and not every:
        # An evaluation has batches as large as a step's, of rows as long as the longest
        rows = [*rows, *inputs.held_out.rows]
    rows = _answers(config, rows)
    texts = [_texts(config, row) for row in rows]
    longest = sorted(range(len(rows)), key=lambda place: sum(map(len, texts[place])))[
        0 if every else -CANDIDATES :
    ]
    count = _counter(config, inputs)
    return [_tokens(rows[place], texts[place], count) for place in longest]


def _sampled_tokens(config: LlmConfig, inputs: Inputs) -> list[int]:
    """Tokens of rows that lie evenly among those that are trained on, uncut;
    of pairs of each answer.
    """
    rows = inputs.rows or []
    rows = _answers(config, rows[:: max(1, len(rows) // SAMPLED)][:SAMPLED])
    count = _counter(config, inputs) if rows else len
    return [_tokens(row, _texts(config, row), count) for row in rows]


def _answers(config: LlmConfig, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The rows; of pairs each answer as a row."""
    if not methods.chosen(config).pairs:
        return rows
    return [{name: row[name]} for row, name in product(rows, pairs.CHOICES)]


def _texts(config: LlmConfig, row: dict[str, Any]) -> list[str]:
    return [*_around(config, row), *row_sources.strings(row)]


def _tokens(row: dict[str, Any], texts: Sequence[str], count: Callable[[str], int]) -> int:
    messages = 2
    if "pieces" in row:
        messages = 0
    else:
        messages = next((len(value) for value in row.values() if isinstance(value, list)), messages)
    return sum(map(count, texts)) + MESSAGE_TOKENS * messages + ROW_TOKENS


def _around(config: LlmConfig, row: dict[str, Any]) -> Sequence[str]:
    """The text of the row's template, which is another for instructions without an input."""
    template = templates.chosen(config)
    if template is None:
        return ()
    is_instruction = isinstance(template.pair_template, dict)
    return template.around if not is_instruction or row.get("input") else templates.INSTRUCT_PAIRS


def _counter(config: LlmConfig, inputs: Inputs) -> Callable[[str], int]:
    """The number of tokens of a text, by the tokenizer's files;
    a Refusal says that they cannot be read.
    """
    import tiktoken
    from tokenizers import Tokenizer, models, pre_tokenizers

    options = config.tokenizer
    if isinstance(config.model, HfConfig):
        own = tokenizer.FolderTokenizer(str(config.model.path))
        return lambda text: len(own.encode(text)[0])
    if isinstance(options, Qwen25TokenizerConfig):
        files = (str(Path(str(path)).expanduser()) for path in (options.path, options.merges_file))
        try:
            merged = Tokenizer(models.BPE.from_file(*files))
        except Exception as error:  # of tokenizers, which has no class of its own for it
            raise Refusal(
                "memory.tokenizer-files",
                f"tokenizer.path, tokenizer.merges_file={options.merges_file}: {error};"
                " give the paths of Qwen 2.5's vocab.json and merges.txt",
                key="tokenizer.merges_file",
                value=options.merges_file,
                reason=str(error),
            ) from None
        merged.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
        merged.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
        return lambda text: len(merged.encode(text).ids)
    if isinstance(options, EmbeddedTokenizerConfig):
        ranks = {token: rank for rank, token in enumerate(inputs.token_ranks or [])}
    else:
        lines = Path(str(getattr(options, "path", ""))).expanduser().read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    # in the text of chats
    special = {name: len(ranks) + place for place, name in enumerate(tokenizer.SPECIAL)}
    encoding = tiktoken.Encoding(
        "rows", pat_str=tokenizer.PATTERN, mergeable_ranks=ranks, special_tokens=special
    )
    return lambda text: len(encoding.encode(text, allowed_special="all"))
