"""Predicted peak memory against the truth on the CPU.

Each cell's steps are taken twice: with tensors that have no values, as `multicard.estimate.memory`
does, and for real, by the project's own loop, torchtune's own recipes and TRL's own trainers, in 1
or 2 ranks with gloo. The truth is torch's own MemTracker; where that cannot follow (FSDP, frozen
weights, NF4, TRL), our counter on the real tensors. Gloo's threads hold gathered weights for longer
in some runs than in others: tuning on 2 ranks is measured three times, and the least counts.
"""

import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicard.estimate.memory import tuning_step

# isort: split
import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed._tools.mem_tracker import MemTracker

from benchmarks import configuration
from multicard.config.llm import Engine, LlmConfig
from multicard.config.vision import VisionConfig
from multicard.estimate.memory.facts import ImageFacts, TextFacts
from multicard.estimate.memory.simulate import crossing_channels, simulate
from multicard.estimate.memory.tracker import Tracker
from multicard.llm import int4, methods, recipes, torchtune_config
from multicard.llm.no_trace import without_trace
from multicard.llm.torchtune_engine import TorchtuneEngine
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.vision import models, optim
from multicard.vision.data.batch import Batch
from multicard.vision.loop import Loop, memory_format
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES

STEPS, AGAIN = 3, 3
IMAGES, ROWS = ImageFacts(96, 16, 10, 8, 1), TextFacts(2304, 96)
MODELS = {"tiny": ("model.width=0.25", "dataset.image_size=64"), "full": ("dataset.image_size=96",)}


Cell = tuple[int, str, tuple[str, ...]]  # GPUs, entry and words


def cells() -> Iterator[Cell]:
    for gpus in (1, 2):
        yield from (
            (gpus, "train_vision", ("dataset=digits", *words)) for words in vision_cells(gpus)
        )
        tuning = (*tuning_cells(gpus), *trl_cells(gpus))
        yield from ((gpus, "tune_llm", ("model=llama3_tiny", *words)) for words in tuning)


def vision_cells(gpus: int) -> Iterator[tuple[str, ...]]:
    """Words of the command line, one tuple a cell."""
    strategies = ("strategy=ddp_ds",)
    if gpus > 1:
        strategies = (*strategies, "strategy=ddp_rr", "strategy=ddp")
    grid = itertools.product(
        MODELS, ("fp32", "fp64", "bf16", "fp16"), strategies, ("nchw", "nhwc"), (4, 12)
    )
    for model, precision, strategy, layout, batch in grid:
        yield (
            *MODELS[model],
            f"precision={precision}",
            strategy,
            f"layout={layout}",
            f"batch_size={batch}",
        )
    for optimizer in ("adamw", "sgd optimizer.momentum=0.9"):
        yield (*MODELS["full"], *f"optimizer={optimizer}".split(), "batch_size=4")
    if gpus > 1:
        yield (*MODELS["full"], "strategy.gradient_as_bucket_view=true", "batch_size=4")


def tuning_cells(gpus: int) -> Iterator[tuple[str, ...]]:
    heads = "model.num_kv_heads=4"  # so that NF4's blocks divide over 2 ranks
    grid = itertools.product(
        ("lora", "qlora", "dpo", "qat", "full"), ("fp32", "bf16"), ("false", "true")
    )
    for method, precision, again in grid:
        yield (
            f"method={method}",
            f"precision={precision}",
            f"activation_checkpointing={again}",
            heads,
        )
    for method in ("lora", "qlora", "full"):
        yield f"method={method}", "optimizer.name=adamw_8bit", heads
    yield "method=full", "optimizer_in_bwd=true"
    yield "method=lora", "gradient_accumulation_steps=2"
    yield "method=lora", "packed=true", f"max_seq_len={ROWS.length}"


def trl_cells(gpus: int) -> Iterator[tuple[str, ...]]:
    shardings = ("fsdp", "ddp")[:gpus] if find_spec("trl") else ()
    grid = itertools.product(
        ("lora", "dpo", "full"), ("fp32", "bf16", "bf16_mixed"), ("false", "true"), shardings
    )
    for method, precision, again, sharding in grid:
        words = f"method={method}", f"precision={precision}", f"activation_checkpointing={again}"
        yield ("engine=trl", f"sharding={sharding}", *words)
    for sharding, method in itertools.product(shardings, ("lora", "full")):
        yield "engine=trl", f"sharding={sharding}", f"method={method}", "optimizer.name=adamw_8bit"
        yield "engine=trl", f"sharding={sharding}", f"method={method}", "attention=eager"
    for sharding in shardings:
        yield "engine=trl", f"sharding={sharding}", "method=full", "gradient_accumulation_steps=2"
        yield "engine=trl", f"sharding={sharding}", "packed=true", f"max_seq_len={ROWS.length}"


class Peaks:
    """The measured peak of a run, from `start` on: by torch's MemTracker,
    or by our counter on the real tensors.
    """

    def __init__(self, watches: bool = True) -> None:
        self.watches, self.most_bytes = watches, 0
        self.tracker, self.counter = MemTracker(), Tracker("cpu", 1)

    @contextmanager
    def watching(self, tracks: bool) -> Iterator[None]:
        """Follow the run: by MemTracker if `tracks`, else by the counter."""
        if not self.watches:
            yield
            return
        with self.tracker if tracks else self.counter:
            yield
        kinds = self.tracker.get_tracker_snapshot("peak").items() if tracks else ()
        tracked = [each["Total"] for device, each in kinds if device.type == "cpu"]
        self.most_bytes = max(tracked) if tracks else self.counter.peak_bytes

    def start(self) -> None:
        """Begin to count: training begins."""
        self.tracker._peak_mem.clear()
        self.counter.restart_peak()


def train_vision(config: VisionConfig, rank: Any, folder: Path, peaks: Peaks) -> None:
    precision = choose(config.precision.name, rank.device)
    with peaks.watching(tracks=True):
        model = models.build(config.model, IMAGES.classes, config.dataset.image_size)
        model = model.to(precision.model_dtype).to(memory_format=memory_format(config))  # pyright: ignore[reportCallIssue]
        share = STRATEGIES[config.strategy.name].share(model, IMAGES.train, config, rank)
        optimisation = optim.build(share.model, config, 100, precision.scale_loss, rank.device)
        if precision.scale_loss:
            # from 65536 the first steps would overflow, and make no momentum
            optimisation.scaler.update(1.0)
        loop = Loop(rank, config, share, optimisation, folder)
        share.model.train()

        def batches() -> Iterator[Batch]:
            side, channels = config.dataset.image_size, crossing_channels(config, IMAGES)
            while True:
                images = torch.rand(
                    share.batch_size, channels, side, side, dtype=precision.transfer_dtype
                )
                yield Batch(images, torch.zeros(share.batch_size, dtype=torch.int64), 0, 0)

        loaded = batches()
        peaks.start()
        for _ in range(STEPS):
            peaks.tracker.reset_mod_stats()  # it takes one forward pass a module otherwise
            loop.step(loaded)


def tune(config: LlmConfig, rank: Any, folder: Path, peaks: Peaks) -> None:
    cfg = tuning_step.recipe_configuration(config, ROWS, "cpu")
    inputs = tuning_step.preflight.Inputs([{}] * 64, None, ROWS.vocabulary)
    cfg.checkpointer = torchtune_config.torchtune_config(config, "cpu", inputs, folder)[
        "checkpointer"
    ]
    cfg.max_steps_per_epoch = STEPS
    module, recipe_class = recipes.load_recipe(config.recipe_name)
    if config.distributed and not dist.is_initialized():
        recipes.join_alone("gloo")

    def batch(_: Any) -> Any:
        peaks.tracker.reset_mod_stats()
        return tuning_step.batch(config, ROWS, rank.device, Tracker("cpu"))

    # it takes neither frozen weights, nor NF4, nor two forward passes a step,
    # and counts what DTensor tries out
    tracks = not (methods.chosen(config).adapters or config.distributed)
    with recipes.patched(module, torch.device("cpu")), peaks.watching(tracks):
        recipe = tuning_step.few_steps_recipe(recipe_class, config, STEPS, batch)(cfg=cfg)
        recipe.setup(cfg=cfg)
        peaks.start()
        recipe.train()


def evaluate_images(config: VisionConfig, rank: Any, folder: Path, peaks: Peaks) -> None:
    """After a step, evaluate two batches of images; the counter counts from the evaluation on."""
    precision = choose(config.precision.name, rank.device)
    with peaks.watching(tracks=False):
        model = models.build(config.model, IMAGES.classes, config.dataset.image_size)
        model = model.to(precision.model_dtype).to(memory_format=memory_format(config))  # pyright: ignore[reportCallIssue]
        peaks.counter.note([*model.parameters(), *model.buffers()])
        share = STRATEGIES[config.strategy.name].share(model, IMAGES.train, config, rank)
        optimisation = optim.build(share.model, config, 100, precision.scale_loss, rank.device)
        loop = Loop(rank, config, share, optimisation, folder)
        share.model.train()
        side, channels = config.dataset.image_size, crossing_channels(config, IMAGES)

        def batches() -> Iterator[Batch]:
            while True:
                images = torch.rand(
                    share.batch_size, channels, side, side, dtype=precision.transfer_dtype
                )
                yield Batch(images, torch.zeros(share.batch_size, dtype=torch.int64), 0, 0)

        loop.step(batches())
        peaks.start()
        loop.evaluate(itertools.islice(batches(), 2))


def evaluate(config: LlmConfig, rank: Any, folder: Path, peaks: Peaks) -> None:
    """After a step, score a batch of rows as long as the longest, as they are held out, in int4 too
    where the method is scored so; the counter counts from the scoring on.
    """

    def score(engine: Any) -> None:
        parts = trl_step.batch(config, ROWS, rank.device, Tracker("cpu")) if by_trl else None
        plain = parts or tuning_step.batch(
            replace(config, packed=False), ROWS, rank.device, Tracker("cpu")
        )
        tokens, labels = plain if isinstance(plain, tuple) else (plain["tokens"], plain["labels"])
        groupsize = int4.groupsize(config, engine.model)
        peaks.start()
        with without_trace(engine.model):
            engine.row_losses(tokens, labels)
        if groupsize is not None:
            with without_trace(engine.model), engine.in_int4(groupsize):
                engine.row_losses(tokens, labels)

    by_trl = config.engine is Engine.trl
    if by_trl:
        from multicard.estimate.memory import trl_step

        batch = partial(trl_step.batch, config, ROWS, rank.device, Tracker("cpu"))
        with (
            peaks.watching(tracks=False),
            trl_step.engine_on_equal_batches(config, ROWS, rank, folder, 1, batch) as engine,
        ):
            peaks.counter.note([*engine.model.parameters(), *engine.model.buffers()])
            engine.train(config.epochs)
            score(engine)
        return
    cfg = tuning_step.recipe_configuration(config, ROWS, "cpu")
    inputs = tuning_step.preflight.Inputs([{}] * 64, None, ROWS.vocabulary)
    cfg.checkpointer = torchtune_config.torchtune_config(config, "cpu", inputs, folder)[
        "checkpointer"
    ]
    cfg.max_steps_per_epoch = 1
    module, recipe_class = recipes.load_recipe(config.recipe_name)
    if config.distributed and not dist.is_initialized():
        recipes.join_alone("gloo")
    made = lambda _: tuning_step.batch(config, ROWS, rank.device, Tracker("cpu"))  # noqa: E731
    with recipes.patched(module, torch.device("cpu")), peaks.watching(tracks=False):
        recipe = tuning_step.few_steps_recipe(recipe_class, config, 1, made)(cfg=cfg)
        recipe.setup(cfg=cfg)
        recipe.train()
        score(TorchtuneEngine(recipe, config, pad_id=0))


def tune_by_trl(config: LlmConfig, rank: Any, folder: Path, peaks: Peaks) -> None:
    from multicard.estimate.memory import nf4_layers, trl_step  # imports TRL, which takes seconds

    def batch() -> Any:
        return trl_step.batch(config, ROWS, rank.device, Tracker("cpu"))

    with (
        peaks.watching(tracks=False),
        trl_step.engine_on_equal_batches(config, ROWS, rank, folder, STEPS, batch) as engine,
    ):
        # threads have loaded them
        peaks.counter.note([*engine.model.parameters(), *engine.model.buffers()])
        peaks.counter.note(nf4_layers.scales(engine.model))
        peaks.start()
        engine.train(config.epochs)


def real_rank(
    local: int, ranks: int, entry: str, words: tuple[str, ...], folder: str, evaluates: bool
) -> None:
    """The body of a rank: a cell for real; rank 0, which alone is watched,
    leaves its peak in `folder`.
    """
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=local, world_size=ranks
        )
    rank = Rank(local, local, ranks, torch.device("cpu"), "gloo", 1)
    os.environ |= {"LOCAL_RANK": str(local), "RANK": str(local), "WORLD_SIZE": str(ranks)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    config, peaks = configuration(entry, *words), Peaks(local == 0)
    work: Callable[..., None] = train_vision
    if isinstance(config, LlmConfig):
        work = tune_by_trl if config.engine is Engine.trl else tune
    if evaluates:
        work = evaluate if isinstance(config, LlmConfig) else evaluate_images
    work(config, rank, Path(folder), peaks)
    if local == 0:
        Path(folder, "peak").write_text(str(peaks.most_bytes))


def real(entry: str, words: tuple[str, ...], ranks: int, evaluates: bool = False) -> int:
    """A cell's peak, of its steps or of an evaluation after them, in processes of its own:
    MemTracker's hooks keep each model that it saw, to the process's end.
    """
    multiprocessing.set_forkserver_preload(
        ["torch._dynamo", "multicard.vision.loop", "multicard.llm.tune", "trl"]
    )
    with tempfile.TemporaryDirectory() as folder:
        Board(Path(folder), ranks, create=True)
        arguments = ranks, entry, words, folder, evaluates
        processes.start_processes(real_rank, arguments, nprocs=ranks, start_method="forkserver")  # pyright: ignore[reportPrivateImportUsage]
        return int(Path(folder, "peak").read_text())


def error(gpus: int, entry: str, words: tuple[str, ...]) -> float:
    """The predicted peak over the real one, less 1."""
    words = (*words, f"gpus={gpus}", "device=cpu", "name=prediction")
    vision = entry == "train_vision"
    truth = min(real(entry, words, gpus) for _ in range(1 if vision or gpus == 1 else AGAIN))
    return (
        simulate(configuration(entry, *words), IMAGES if vision else ROWS, "cpu").active_bytes
        / truth
        - 1
    )


def evaluation(gpus: int, entry: str, words: tuple[str, ...]) -> float:
    """The real peak of an evaluation over the predicted one of its run."""
    words = (*words, f"gpus={gpus}", "device=cpu", "name=prediction")
    facts = IMAGES if entry == "train_vision" else msgspec.structs.replace(ROWS, evaluates=True)
    truth = min(real(entry, words, gpus, evaluates=True) for _ in range(1 if gpus == 1 else AGAIN))
    return truth / simulate(configuration(entry, *words), facts, "cpu").active_bytes
