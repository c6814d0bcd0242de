"""What a prediction needs to know beside the configuration: sizes of the data set, and the machine. No torch."""

from typing import NamedTuple

import msgspec

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.vision import VisionConfig
from multicard.llm import preflight
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
    batch has the peak. `assumed`: nobody looked at the rows."""

    vocabulary: int
    length: int
    assumed: bool = False


Facts = ImageFacts | TextFacts
ASSUMED_TOKENS = 1024  # of the longest row, where the rows are not at hand


class Machine(NamedTuple):
    """Where a run is to be: "cuda" or "cpu"; the GPU's name, as NVIDIA's driver gives it, and its memory."""

    device_type: str = "cuda"
    gpu: str = ""
    memory_bytes: int | None = None


def image_facts(config: VisionConfig) -> ImageFacts:
    """Read the sizes of a data set of images; of photographs the folders are listed, and none is decoded."""
    options = config.dataset
    data = DATASETS[options.name].read(options)
    limits = (data.train, options.train_limit), (data.test, options.test_limit)
    train, test = (min(len(split), limit or len(split)) for split, limit in limits)
    images = data.train.images
    if isinstance(images, list):
        return ImageFacts(train, test, data.classes, options.image_size, 3)
    return ImageFacts(train, test, data.classes, images.shape[1], images.shape[3] if images.ndim == 4 else 1)


def text_facts(config: LlmConfig) -> TextFacts:
    """The vocabulary that the run's model has, and the length of its longest batch: of packed rows `max_seq_len`, else
    assumed, at most `max_seq_len`. Whoever knows the rows sets `length` to what they have."""
    inputs = preflight.prepare(config)
    limit = config.max_seq_len
    if config.packed and limit is not None:
        return TextFacts(inputs.vocabulary, limit)
    return TextFacts(inputs.vocabulary, min(limit or ASSUMED_TOKENS, ASSUMED_TOKENS), assumed=True)


def of(config: RunConfig) -> Facts:
    """The sizes of a run's data set.

    Raises:
        ValueError: where it is not there, with the key and the remedy.
    """
    if isinstance(config, LlmConfig):
        return text_facts(config)
    assert isinstance(config, VisionConfig)
    return image_facts(config)
