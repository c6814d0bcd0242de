"""How many steps a run takes, and how much it evaluates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multicard.config.base import RunConfig, plain
from multicard.config.llm import LlmConfig, SyntheticConfig
from multicard.config.vision import VisionConfig
from multicard.estimate import history
from multicard.estimate.alike import Alike
from multicard.estimate.history import PastRun
from multicard.records.schema import LlmRecord, VisionRecord
from multicard.vision.strategy import STRATEGIES

IMAGES = ("dataset.name", "dataset.root", "dataset.skip_broken")  # keys that a data set's number of images follows from
TEXT = ("dataset", "tokenizer", "template", "max_seq_len", "packed")  # of texts, the groups and keys
MOST_STEPS = 10**12
Sizes = Callable[[RunConfig], Any]


@dataclass(frozen=True)
class Length:
    """steps: of an epoch. last_share: of the last one's batch, how much of a full one it is. test: samples that all
    ranks evaluate after an epoch."""

    steps: int
    last_share: float = 1.0
    test: int = 0


def ranks(config: RunConfig) -> int:
    return config.gpus * config.nodes


def of_images(config: VisionConfig, train: int, test: int) -> Length:
    """An epoch on so many images, as the strategies share them (`multicard.vision.strategy`)."""
    strategy, batch = STRATEGIES[config.strategy.name], config.batch_size
    if strategy.one_process:
        batch *= config.gpus
    if strategy.shards:
        train = -(-train // ranks(config))
    batches = -(-train // batch)
    last_share = (train - (batches - 1) * batch) / batch
    return Length(-(-batches // ranks(config)) if strategy.takes_turns else batches, last_share, test)


def of_rows(config: LlmConfig, rows: int) -> Length:
    """An epoch on so many rows, or packed sequences: torchtune drops what is left for less than a step."""
    batches = -(-rows // ranks(config)) // config.batch_size
    steps = batches // config.gradient_accumulation_steps
    return Length(min(steps, config.max_steps or steps))


def length(config: RunConfig, alike: Alike, runs: Sequence[PastRun], sizes: Sizes | None = None) -> Length | None:
    """How long an epoch of the run is; None where the size of its data is not known.

    Args:
        runs: of any settings, for the sizes of their data.
        sizes: reads that of a configuration, where runs do not tell it; gives a reason instead where it cannot.
    """
    known = (count for run in reversed(alike.of_this_cell()) if (count := steps_per_epoch(run)))
    steps = next((count for count in known if 0 < count < MOST_STEPS), None)
    if isinstance(config, LlmConfig):
        rows = _rows(config, runs)
        if steps is None and rows is None:
            return None if config.max_steps is None else Length(config.max_steps)
        return of_rows(config, rows) if steps is None and rows is not None else Length(steps or 0)
    assert isinstance(config, VisionConfig)
    train, test = (_images(config, runs, part) for part in ("train", "test"))
    if sizes is not None and None in (train, test):
        read = sizes(config)
        train, test = (None, None) if isinstance(read, str) else (read.train, read.test)
    if test is None or (train is None and steps is None):
        return None
    computed = of_images(config, train, test) if train is not None else Length(steps or 0, test=test)
    return computed if steps is None else replace(computed, steps=steps)


def steps_per_epoch(run: PastRun) -> int | None:
    """The steps of an epoch of a run, or of the run that a probe stands for."""
    record = run.record
    if record.probe is not None:
        return record.probe.steps_per_epoch
    if isinstance(record, LlmRecord):
        return record.epochs[0].steps if record.epochs else None
    stats, epochs = record.steps, len(record.epochs)
    steps = (stats.count or 0) + (stats.warmup_count or 0) if stats is not None else 0
    return steps // epochs if epochs and steps % epochs == 0 else None


def _images(config: VisionConfig, runs: Sequence[PastRun], part: str) -> int | None:
    """The images of a part of the data set, by a run on the same; None where none tells."""
    own = history.setting(plain(config))
    limit = getattr(config.dataset, f"{part}_limit")
    for run in reversed(runs):
        if all(run.setting.get(key) == own.get(key) for key in IMAGES):
            count = _images_of(run, part)
            theirs = run.record.config["dataset"].get(f"{part}_limit")
            is_whole = count is not None and (theirs is None or count < theirs)
            if count is not None and (is_whole or (limit is not None and count >= limit)):
                return min(count, limit or count)
    return None


def _images_of(run: PastRun, part: str) -> int | None:
    epochs = run.record.epochs if isinstance(run.record, VisionRecord) else []
    if part == "test":
        return next((epoch.test_samples for epoch in epochs if epoch.test_samples and not run.is_raced), None)
    return next((epoch.samples for epoch in epochs if epoch.samples and not run.is_probe), None)


def _rows(config: LlmConfig, runs: Sequence[PastRun]) -> int | None:
    """The rows of the data set that have a label, or the sequences that they are packed into; None: not known."""
    own = history.setting(plain(config))
    groups = tuple(key for key in own if key.partition(".")[0] in TEXT)
    for run in reversed(runs):
        if all(run.setting.get(key) == own[key] for key in groups):
            rows = _rows_of(run)
            if rows is not None:
                return rows
    # of stored data `rows` is the most that are taken
    return config.dataset.rows if isinstance(config.dataset, SyntheticConfig) and not config.packed else None


def _rows_of(run: PastRun) -> int | None:
    """Of a run with packed rows, the sequences; older records do not have them."""
    rows = getattr(run.record, "text_rows", None)
    if rows is None or run.record.config.get("packed"):
        return None if rows is None else rows.sequences
    return None if rows.read is None else rows.read - (rows.left_out or 0)
