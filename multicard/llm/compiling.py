"""Compile the engines' layers with torch.compile before the training starts.

Neither the time nor the energy of the training should include compilation. torch.compile only works
when a model is called, and again for the backward pass and for another length of rows. The engine's
own loop therefore takes a few steps on the first rows, which leave the model unchanged.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from unittest import mock

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX

from multicard.config.llm import LlmConfig
from multicard.llm import engines
from multicard.llm.after_tuning import train_on
from multicard.llm.batches import Batch, map_tensors
from multicard.llm.step_probe import Probe
from multicard.llm.tuning_engine import TuningEngine
from multicard.measure import memory, timing
from multicard.messages import Message
from multicard.ranks.failures import compile_explained

# Shares of the first rows' length. At the second length, torch compiles for all lengths.
LENGTH_SHARES = (1.0, 0.75)
RECOMPILE_LIMIT = 64


def compiles(probe: Probe) -> bool:
    """Return True if anything is compiled.

    On GPUs, torchtune compiles the attention of packed rows even without `compile`.
    """
    return bool(probe.config.compile) or (probe.config.packed and probe.rank.device.type == "cuda")


def compile_now(engine: TuningEngine, probe: Probe) -> float:
    """Make the engine compile what its steps call, and return the seconds that this took.

    All ranks must call it together. If torch cannot compile here, the run is refused.
    """
    device = probe.rank.device
    started_s = timing.clock_s()
    compile_option = probe.config.compile
    generators = [device] if device.type == "cuda" else []
    with (
        compile_explained(compile_option),
        limit_recompiles(probe.config),
        without_updates(engine),
        torch.random.fork_rng(generators),
    ):
        train_on(engine, probe, iter(first_batches(engine, probe)))
    for parameter in engine.model.parameters():
        parameter.grad = None
    timing.synchronize(device)
    memory.reset_peak_memory(device)
    return timing.clock_s() - started_s


def first_batches(engine: TuningEngine, probe: Probe) -> list[Batch]:
    """Return batches of the first rows, with a shorter second one if lengths vary.

    The rows do not come from the loader, because the training needs its order of the rows.
    """
    config = probe.config
    loader = engine.batches.loader
    rows = [loader.dataset[index % len(loader.dataset)] for index in range(config.batch_size)]
    masks_padding = engines.kind_of(config).masks_padding
    if config.packed and not masks_padding:
        return [probe.to_device(map_tensors(loader.collate_fn(rows), lambda values: values))]
    if config.packed:
        batch = loader.collate_fn(rows)
        return [probe.to_device(split_into_rows(batch, count)) for count in (2, 1)]

    def shortened(share: float) -> Batch:
        return map_tensors(
            loader.collate_fn(rows),
            lambda values: values[:, : round(share * values.shape[1])].clone(),
        )

    if not masks_padding:
        return [probe.to_device(shortened(share)) for share in LENGTH_SHARES]
    padding_options = [True, False] if probe.pairs or config.batch_size > 1 else [False]
    return [
        probe.to_device(pad_or_fill(shortened(share), probe.pad_id, is_padded))
        for is_padded, share in product(padding_options, LENGTH_SHARES)
    ]


def pad_or_fill(batch: Batch, pad_id: int, is_padded: bool) -> Batch:
    """Return the batch with its last row padded, or with all padding replaced by tokens."""
    tokens, labels = batch if isinstance(batch, tuple) else (batch["tokens"], batch["labels"])
    if is_padded:
        tokens[-1, -2:] = pad_id
        labels[-1, -2:] = CROSS_ENTROPY_IGNORE_IDX
    else:
        tokens[tokens == pad_id] = tokens[0, 0]
    return batch


def split_into_rows(batch: Batch, count: int) -> Batch:
    """Return the packed batch as if each sequence (B, S) held `count` rows of equal length."""
    positions = batch["input_pos"]
    length = -(-positions.shape[1] // count)
    rows = torch.arange(positions.shape[1]) % length
    return map_tensors(
        batch | {"input_pos": rows.expand_as(positions).contiguous()}, lambda values: values
    )


def count_graphs(probe: Probe) -> int:
    """Return how many graphs this process has compiled so far, or 0 if nothing is compiled."""
    return counters["stats"]["unique_graphs"] if compiles(probe) else 0


@contextmanager
def limit_recompiles(config: LlmConfig) -> Iterator[None]:
    """Let torch compile a layer as often as rows and masks need it.

    Beyond RECOMPILE_LIMIT, torch would silently go on uncompiled. This raises an error instead.
    dynamo's own limit of 8 is too low: layers share their code, and all of them count together.
    """
    if not config.compile:
        yield
        return
    try:
        with torch._dynamo.config.patch(
            recompile_limit=RECOMPILE_LIMIT, fail_on_recompile_limit_hit=True
        ):
            yield
    except FailOnRecompileLimitHit as error:
        message = Message(
            "llm.recompile-limit",
            f"compile=true: torch compiled a layer {RECOMPILE_LIMIT} times, and would go on"
            " uncompiled; use `compile=false`",
            key="compile",
            limit=RECOMPILE_LIMIT,
        )
        raise RuntimeError(message) from error


@contextmanager
def without_updates(engine: TuningEngine) -> Iterator[None]:
    """Keep weights and learning rate unchanged while the engine takes steps."""
    with ExitStack() as stack:
        for stepper in (*engine.optimizers, engine.scheduler):
            if stepper is not None:
                stack.enter_context(mock.patch.object(stepper, "step", lambda *_, **__: None))
        yield
