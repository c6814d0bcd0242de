"""Sizes of a run's data set, which a prediction needs in addition to the configuration. No torch.

The tokenizer's merges count the tokens of the longest row, among the rows with the most text only.
The count may be a few tokens off: a token can span the end of a template and the start of a column.
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
    """Sizes of a set of images.

    Fields:
        train, test: numbers of images.
        classes: number of classes.
        side, channels: of an image as stored, or of a photograph as decoded.
    """

    train: int
    test: int
    classes: int
    side: int
    channels: int


class TextFacts(msgspec.Struct, frozen=True):
    """Sizes of a text data set under its tokenizer.

    Fields:
        vocabulary: the model's vocabulary size.
        length: tokens of the longest row. Its batch has the peak memory.
        low, high: interval of `length` if the rows are not available, else None.
        folder: digest of a folder model's config.json.
        evaluates: True if rows are held out. Batches of them are scored after the steps.
        rows: tokens of training rows, sampled evenly and uncut. Each answer of a pair is a row.
            None if the rows are not available. Memory does not depend on it.
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
        """The facts that affect memory."""
        return msgspec.structs.replace(self, rows=None)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length and the ends of its interval."""
        interval = () if self.low is None or self.high is None else (self.low, self.high)
        return (self.length, *interval)


Facts = ImageFacts | TextFacts
CANDIDATE_ROWS = 16  # Rows with the most text. One of them has the most tokens.
SAMPLED_ROWS = 256  # Rows from which the tokens of a step are estimated.
# Header and end of a message, and begin and end of a row.
MESSAGE_TOKENS = 5
ROW_TOKENS = 2
# The least and the expected length of the longest row if the rows are not available.
ASSUMED_TOKENS = (256, 1024)
MNIST = ImageFacts(60_000, 10_000, 10, 28, 1)  # Known even if it is not downloaded.
_SIZES: dict[bytes, Facts] = {}  # A cache, because the cells of a sweep mostly share their data.


def sizes(config: RunConfig) -> Facts | str:
    """Return the sizes of a run's data set, or why they cannot be read.

    Runs with the same data share one reading.
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
    """Return the sizes of a set of images. Folders of photographs are listed but not decoded."""
    assert isinstance(config, VisionConfig)
    options = config.dataset
    image_facts = MNIST
    if options.name != "mnist":
        data = DATASETS[options.name].read(options, config.seed)
        images = data.train.images
        is_stored = not isinstance(images, list)
        side, channels = (
            (images.shape[1], images.shape[3] if images.ndim == 4 else 1) if is_stored else (0, 3)
        )
        image_facts = ImageFacts(
            len(data.train), len(data.test), data.classes, side or options.image_size, channels
        )
    limits = (image_facts.train, options.train_limit), (image_facts.test, options.test_limit)
    train, test = (min(count, limit or count) for count, limit in limits)
    return msgspec.structs.replace(image_facts, train=train, test=test)


def _text_facts(config: LlmConfig) -> TextFacts:
    """Return the sizes of a text data set.

    The longest batch of packed sequences has `max_seq_len` tokens. Rows on this machine give the
    longest row. Without rows, the length is an interval up to the most that the run would take.
    """
    limit = config.max_seq_len or config.model.max_seq_len
    data = config.dataset
    options = config.tokenizer
    rows = None
    vocabulary = config.model.vocab_size
    sampled_tokens: tuple[int, ...] | None = None
    evaluates = bool(data.split) or bool(getattr(data, "test_files", None))
    # An estimate does not download data from the hub.
    if not (isinstance(data, StoredTextConfig) and data.data_files is None):
        inputs = preflight.prepare(config)
        rows = max(_row_tokens(config, inputs), default=None)
        vocabulary = inputs.vocabulary
        sampled_tokens = tuple(_sampled_tokens(config, inputs)) or None
        evaluates = inputs.held_out is not None
    vocabulary = vocabulary or tokenizer.vocabulary(options, getattr(options, "vocab_size", 0))
    folder = _folder_digest(config.model)
    if config.packed or rows is not None:
        longest = limit if config.packed else min(rows or limit, limit)
        return TextFacts(
            vocabulary, longest, folder=folder, evaluates=evaluates, rows=sampled_tokens
        )
    least, expected = (min(tokens, limit) for tokens in ASSUMED_TOKENS)
    return TextFacts(vocabulary, expected, least, limit, folder, evaluates)


def _folder_digest(model: DecoderConfig) -> str | None:
    """Return a digest of a folder model's config.json, or None for a model known by name."""
    if not isinstance(model, HfConfig):
        return None
    return hashlib.sha256(
        (Path(str(model.path)).expanduser() / "config.json").read_bytes()
    ).hexdigest()


def all_tokens(config: LlmConfig) -> int | None:
    """Return the tokens of all rows, uncut, or None if the rows are not available."""
    if isinstance(config.dataset, StoredTextConfig) and config.dataset.data_files is None:
        return None
    return sum(_row_tokens(config, preflight.prepare(config), every=True))


def _row_tokens(config: LlmConfig, inputs: Inputs, every: bool = False) -> list[int]:
    """Return the tokens of the rows with the most text, held-out rows included, uncut.

    Each answer of a pair counts as a row.

    Args:
        every: True to count all training rows instead.
    """
    if not inputs.rows:
        return []
    rows = inputs.rows
    if inputs.held_out is not None and not every:
        # An evaluation has batches as large as a step's, and its rows may be the longest.
        rows = [*rows, *inputs.held_out.rows]
    rows = _split_pairs(config, rows)
    texts = [_texts(config, row) for row in rows]
    longest = sorted(range(len(rows)), key=lambda index: sum(map(len, texts[index])))[
        0 if every else -CANDIDATE_ROWS :
    ]
    count = _counter(config, inputs)
    return [_tokens(rows[index], texts[index], count) for index in longest]


def _sampled_tokens(config: LlmConfig, inputs: Inputs) -> list[int]:
    """Return the tokens of evenly sampled training rows, uncut.

    Each answer of a pair counts as a row.
    """
    rows = inputs.rows or []
    rows = _split_pairs(config, rows[:: max(1, len(rows) // SAMPLED_ROWS)][:SAMPLED_ROWS])
    count = _counter(config, inputs) if rows else len
    return [_tokens(row, _texts(config, row), count) for row in rows]


def _split_pairs(config: LlmConfig, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the rows, with each answer of a pair as a row."""
    if not methods.chosen(config).pairs:
        return rows
    return [{name: row[name]} for row, name in product(rows, pairs.CHOICES)]


def _texts(config: LlmConfig, row: dict[str, Any]) -> list[str]:
    return [*_template_texts(config, row), *row_sources.strings(row)]


def _tokens(row: dict[str, Any], texts: Sequence[str], count: Callable[[str], int]) -> int:
    messages = 2
    if "pieces" in row:
        messages = 0
    else:
        messages = next((len(value) for value in row.values() if isinstance(value, list)), messages)
    return sum(map(count, texts)) + MESSAGE_TOKENS * messages + ROW_TOKENS


def _template_texts(config: LlmConfig, row: dict[str, Any]) -> Sequence[str]:
    """Return the text of the row's template. Instructions without an input have another one."""
    template = templates.chosen(config)
    if template is None:
        return ()
    is_instruction = isinstance(template.pair_template, dict)
    return (
        template.around
        if not is_instruction or row.get("input")
        else templates.INSTRUCT_AROUND_PAIRS
    )


def _counter(config: LlmConfig, inputs: Inputs) -> Callable[[str], int]:
    """Return a function that counts a text's tokens by the tokenizer's files.

    Raises a Refusal if they cannot be read.
    """
    import tiktoken
    from tokenizers import Tokenizer, models, pre_tokenizers

    options = config.tokenizer
    if isinstance(config.model, HfConfig):
        folder_tokenizer = tokenizer.FolderTokenizer(str(config.model.path))
        return lambda text: len(folder_tokenizer.encode(text)[0])
    if isinstance(options, Qwen25TokenizerConfig):
        files = (str(Path(str(path)).expanduser()) for path in (options.path, options.merges_file))
        try:
            qwen_tokenizer = Tokenizer(models.BPE.from_file(*files))
        except Exception as error:  # tokenizers has no exception class of its own for it.
            raise Refusal(
                "memory.tokenizer-files",
                f"tokenizer.path, tokenizer.merges_file={options.merges_file}: {error};"
                " give the paths of Qwen 2.5's vocab.json and merges.txt",
                key="tokenizer.merges_file",
                value=options.merges_file,
                reason=str(error),
            ) from None
        qwen_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
        qwen_tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
        return lambda text: len(qwen_tokenizer.encode(text).ids)
    if isinstance(options, EmbeddedTokenizerConfig):
        ranks = {token: rank for rank, token in enumerate(inputs.token_ranks or [])}
    else:
        lines = Path(str(getattr(options, "path", ""))).expanduser().read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    # Special tokens occur in the text of chats.
    special = {name: len(ranks) + index for index, name in enumerate(tokenizer.SPECIAL)}
    encoding = tiktoken.Encoding(
        "rows", pat_str=tokenizer.PATTERN, mergeable_ranks=ranks, special_tokens=special
    )
    return lambda text: len(encoding.encode(text, allowed_special="all"))
