"""What a prediction needs to know beside the configuration: sizes of the data set, and the machine. No torch."""

from typing import NamedTuple

import msgspec

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig, StoredTextConfig
from multicard.config.vision import DatasetConfig, VisionConfig
from multicard.estimate.memory import row_lengths
from multicard.llm import preflight
from multicard.llm.data import tokenizer
from multicard.vision.data.datasets import DATASETS


class ImageFacts(msgspec.Struct, frozen=True):
    """Sizes of a set of images: numbers of training and test images and of classes; `side`, `channels` as stored, of
    photographs as they are decoded."""

    train: int
    test: int
    classes: int
    side: int
    channels: int


class TextFacts(msgspec.Struct, frozen=True):
    """Sizes of a text data set under its tokenizer: the model's vocabulary, and the tokens of the longest row, whose
    batch has the peak. `low`, `high`: between which that is, where nobody could look at the rows; else None."""

    vocabulary: int
    length: int
    low: int | None = None
    high: int | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length, and the ends of its interval."""
        ends = () if self.low is None or self.high is None else (self.low, self.high)
        return (self.length, *ends)


Facts = ImageFacts | TextFacts
ASSUMED_TOKENS = (256, 1024)  # of the longest row at least, and expected, where the rows are not at hand


class Machine(NamedTuple):
    """Where a run is to be: "cuda" or "cpu"; the GPU's name, as NVIDIA's driver gives it, and its memory."""

    device_type: str = "cuda"
    gpu: str = ""
    memory_bytes: int | None = None


MNIST = ImageFacts(60_000, 10_000, 10, 28, 1)  # which need not be at hand


def image_facts(config: VisionConfig) -> ImageFacts:
    """The sizes of a data set of images; of photographs the folders are listed, and none is decoded."""
    options = config.dataset
    whole = MNIST if options.name == "mnist" else _whole(options)
    limits = (whole.train, options.train_limit), (whole.test, options.test_limit)
    train, test = (min(count, limit or count) for count, limit in limits)
    return msgspec.structs.replace(whole, train=train, test=test)


def _whole(options: DatasetConfig) -> ImageFacts:
    key = msgspec.json.encode(options)
    if key not in _IMAGES:
        data = DATASETS[options.name].read(options)
        images = data.train.images
        is_stored = not isinstance(images, list)
        side, channels = (images.shape[1], images.shape[3] if images.ndim == 4 else 1) if is_stored else (0, 3)
        sizes = len(data.train), len(data.test), data.classes
        _IMAGES[key] = ImageFacts(*sizes, side or options.image_size, channels)
    return _IMAGES[key]


_IMAGES: dict[bytes, ImageFacts] = {}  # of whole data sets, which the cells of a sweep mostly share


def text_facts(config: LlmConfig) -> TextFacts:
    """The model's vocabulary, and the tokens of its longest batch: of packed rows `max_seq_len`, of rows on this
    machine the longest row's, else an interval that ends with the most that the run would take."""
    parts = (config.dataset, config.template, config.tokenizer, config.model, config.method.name, config.packed)
    key = msgspec.json.encode([*map(msgspec.to_builtins, parts), config.seed, config.max_seq_len]).decode()
    if key not in _TEXT:
        if len(_TEXT) > 100:
            _TEXT.clear()
        _TEXT[key] = _text_facts(config)
    return _TEXT[key]


_TEXT: dict[str, TextFacts] = {}  # cells of a sweep mostly have the same rows


def _text_facts(config: LlmConfig) -> TextFacts:
    limit = config.max_seq_len or config.model.max_seq_len
    data, options = config.dataset, config.tokenizer
    rows, vocabulary = None, config.model.vocab_size
    if not (isinstance(data, StoredTextConfig) and data.data_files is None):  # what is on the hub is not fetched for it
        inputs = preflight.prepare(config)
        rows, vocabulary = row_lengths.longest(config, inputs), inputs.vocabulary
    vocabulary = vocabulary or tokenizer.vocabulary(options, getattr(options, "vocab_size", 0))
    if config.packed or rows is not None:
        return TextFacts(vocabulary, limit if config.packed else min(rows or limit, limit))
    least, expected = (min(tokens, limit) for tokens in ASSUMED_TOKENS)
    return TextFacts(vocabulary, expected, least, limit)


def of(config: RunConfig) -> Facts:
    """The sizes of a run's data set.

    Raises:
        ValueError: where it is not there, with the key and the remedy.
    """
    if isinstance(config, LlmConfig):
        return text_facts(config)
    assert isinstance(config, VisionConfig)
    return image_facts(config)
