"""torch.compile of the engines' layers: all of its work before training starts, so that neither
time nor energy of training includes it.

torch.compile works when a model is called, and again for the backward pass and for another length
of rows. The engine's own loop therefore takes some steps on the first rows, which leave no trace.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from unittest import mock

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX

from multicard.config.llm import Engine, LlmConfig
from multicard.llm.after_tuning import train_on
from multicard.llm.batches import Batch, mapped
from multicard.llm.step_probe import Probe
from multicard.llm.tuning_engine import TuningEngine
from multicard.measure import memory, timing
from multicard.messages import Message
from multicard.ranks.failures import compile_explained

LENGTHS = (1.0, 0.75)  # of the first rows: at the second length, torch compiles for any
RECOMPILE_LIMIT = 64


def compiles(probe: Probe) -> bool:
    """True if anything is compiled: torchtune compiles the attention
    of packed rows on GPUs even without `compile`.
    """
    return bool(probe.config.compile) or (probe.config.packed and probe.rank.device.type == "cuda")


def compile_now(engine: TuningEngine, probe: Probe) -> float:
    """Have the engine compile what its steps call: the seconds that it took. All ranks call it.
    What torch cannot compile here is refused.
    """
    device = probe.rank.device
    started_s = timing.clock_s()
    asked = probe.config.compile
    generators = [device] if device.type == "cuda" else []
    with (
        compile_explained(asked),
        limited(probe.config),
        unchanged(engine),
        torch.random.fork_rng(generators),
    ):
        train_on(engine, probe, iter(first_batches(engine, probe)))
    for parameter in engine.model.parameters():
        parameter.grad = None
    timing.synchronize(device)
    memory.reset_peak_memory(device)
    return timing.clock_s() - started_s


def first_batches(engine: TuningEngine, probe: Probe) -> list[Batch]:
    """Batches of the first rows, made past the loader, whose order of rows the training needs.

    Where lengths differ, a second one is shorter.
    """
    config = probe.config
    loader = engine.batches.loader
    rows = [loader.dataset[index % len(loader.dataset)] for index in range(config.batch_size)]
    if config.packed and config.engine is Engine.torchtune:
        return [probe.to_device(mapped(loader.collate_fn(rows), lambda values: values))]
    if config.packed:  # transformers' layers have a mask where a sequence holds several rows
        batch = loader.collate_fn(rows)
        return [probe.to_device(of_rows(batch, count)) for count in (2, 1)]

    def cut(share: float) -> Batch:
        return mapped(
            loader.collate_fn(rows),
            lambda values: values[:, : round(share * values.shape[1])].clone(),
        )

    if config.engine is Engine.torchtune:
        return [probe.to_device(cut(share)) for share in LENGTHS]
    # transformers' layers have a mask where a batch is padded,
    # and none where no row is shorter than another
    forms = [True, False] if probe.pairs or config.batch_size > 1 else [False]
    return [
        probe.to_device(filled(cut(share), probe.pad_id, padded))
        for padded, share in product(forms, LENGTHS)
    ]


def filled(batch: Batch, pad_id: int, padded: bool) -> Batch:
    """The batch with padding at the end of its last row, or with tokens in place of all padding."""
    tokens, labels = batch if isinstance(batch, tuple) else (batch["tokens"], batch["labels"])
    if padded:
        tokens[-1, -2:] = pad_id
        labels[-1, -2:] = CROSS_ENTROPY_IGNORE_IDX
    else:
        tokens[tokens == pad_id] = tokens[0, 0]
    return batch


def of_rows(batch: Batch, count: int) -> Batch:
    """The packed batch as if each of its sequences (B, S) held so many rows of one length."""
    positions = batch["input_pos"]
    length = -(-positions.shape[1] // count)
    rows = torch.arange(positions.shape[1]) % length
    return mapped(
        batch | {"input_pos": rows.expand_as(positions).contiguous()}, lambda values: values
    )


def graphs(probe: Probe) -> int:
    """How many graphs this process has compiled so far; 0 where nothing is compiled."""
    return counters["stats"]["unique_graphs"] if compiles(probe) else 0


@contextmanager
def limited(config: LlmConfig) -> Iterator[None]:
    """Let torch compile a layer as often as rows and masks need it, and raise where it would go on
    uncompiled, in
    silence: layers share their code, and dynamo's own limit of 8 counts all of them together.
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
        said = Message(
            "llm.recompile-limit",
            f"compile=true: torch compiled a layer {RECOMPILE_LIMIT} times, and would go on"
            " without; use `compile=false`",
            key="compile",
            limit=RECOMPILE_LIMIT,
        )
        raise RuntimeError(said) from error


@contextmanager
def unchanged(engine: TuningEngine) -> Iterator[None]:
    """Keep weights, optimisers and schedule of the engine as they are while it takes steps."""
    with ExitStack() as stack:
        for stepping in (*engine.optimizers, engine.scheduler):
            if stepping is not None:
                stack.enter_context(mock.patch.object(stepping, "step", lambda *_, **__: None))
        yield
