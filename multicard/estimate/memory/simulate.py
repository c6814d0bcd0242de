"""Simulate a cell's step on fake tensors, which have sizes but no values.

As a program, it serves `answers.compute_answers`: it reads pickled requests from standard input
and writes answers as JSON to standard output.
"""

import importlib
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch import nn

from multicard.config.base import RunConfig
from multicard.config.llm import Attention, Kernels, LlmConfig, Sharding
from multicard.config.vision import VisionConfig
from multicard.estimate.memory import answers, eight_bit_states, liger_kernels
from multicard.estimate.memory.answers import Active
from multicard.estimate.memory.facts import Facts, ImageFacts, TextFacts
from multicard.estimate.memory.torch_internals import (
    CPU,
    GPU,
    fake,
    fake_ranks,
    patched,
    replicated,
)
from multicard.estimate.memory.tracker import CUDA_BLOCK_BYTES, HOST, Tracker
from multicard.llm import engines
from multicard.measure.timing import FORWARD
from multicard.messages import Message, install
from multicard.ranks.process import Rank
from multicard.vision import models, optim
from multicard.vision.data.batch import Batch
from multicard.vision.data.device_loader import BUDGET_SHARE
from multicard.vision.loop import COUNTS, Loop, memory_format
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES, Share, compiles

PRODUCTS = ("aten::convolution", "aten::addmm", "aten::mm", "aten::linear")
EIGHT_BIT_STEPS = (
    "bitsandbytes::optimizer_update_8bit_blockwise",
    "bitsandbytes::optimizer_update_32bit",
)
# They hold the same tensors as sdpa's fused kernel: its output and a sum per row.
SIMULATED_AS_SDPA = (Attention.flash, Attention.flex)
MATH_ATTENTION = "aten::_safe_softmax"  # Only attention that is not fused calls this operator.


class FellBackError(Exception):
    """A simulated step did not run the same code as a real one."""


def simulate(
    config: RunConfig, facts: Facts, device_type: str, memory_bytes: int | None = None
) -> Active:
    """Simulate a cell's step as rank 0 takes it, and return its peak.

    Raises FellBackError if the simulated step differs from a real one.

    Args:
        device_type: "cuda", which needs no GPU, or "cpu" to compare with real steps.
        memory_bytes: see `answers.Request`.
    """
    device = GPU if device_type == "cuda" else CPU
    on_cuda = device_type == "cuda"
    offloads = on_cuda and isinstance(config, LlmConfig) and config.offloads
    tracker = Tracker(device_type, CUDA_BLOCK_BYTES if on_cuda else 1, offloads)
    if isinstance(config, VisionConfig):
        assert isinstance(facts, ImageFacts)
        syncs_batchnorm = (
            getattr(config.strategy, "sync_batchnorm", False) and config.gpus * config.nodes > 1
        )
        if syncs_batchnorm:
            sentence = (
                "strategy.sync_batchnorm=true: torch has no such operators for tensors without"
                " values"
            )
            raise FellBackError(
                Message("memory.sync-batchnorm", sentence, key="strategy.sync_batchnorm")
            )
        with fake(device):
            train(config, facts, device, tracker, memory_bytes)
    else:
        assert isinstance(config, LlmConfig) and isinstance(facts, TextFacts)
        tune(config, facts, device, tracker)
    _check_as_real(config, device, tracker)
    kinds = {kind: size for kind, size in tracker.peak_now.items() if size}
    return Active(tracker.peak_bytes, kinds, tracker.sizes)


def tune(config: LlmConfig, facts: TextFacts, device: torch.device, tracker: Tracker) -> None:
    """Simulate a tuning step of rank 0 under `tracker`."""
    patches = dict[str, Any]()
    restored_modules = nullcontext()
    if config.optimizer.has_8_bits:
        patches |= eight_bit_states.WITHOUT_VALUES
    if config.kernels is Kernels.liger:
        if device.type == "cpu" or find_spec("liger_kernel") is None:
            sentence = (
                f"kernels=liger: its layers are simulated for a GPU, with `{install('liger')}`"
            )
            raise FellBackError(Message("memory.kernels", sentence, key="kernels"))
        patches |= liger_kernels.WITHOUT_VALUES
        restored_modules = liger_kernels.restored_modules()
    if config.attention in SIMULATED_AS_SDPA:
        config = replace(config, attention=Attention.sdpa)
    if config.offloads:  # The steps are the same, and `tracker` leaves out the host's memory.
        config = replace(config, sharding=Sharding.fsdp)
    # The import takes seconds.
    step = importlib.import_module(engines.kind_of(config).memory_module)
    ranks = fake_ranks(config.world_size, device) if config.distributed else nullcontext()
    with ranks as mesh, fake(device), patched(patches), restored_modules:
        step.run(config, facts, device, tracker, mesh)


def _check_as_real(config: RunConfig, device: torch.device, tracker: Tracker) -> None:
    """Raise FellBackError unless the step ran like a real one.

    Products need the run's type, the optimizer must have stepped, and attention must be a GPU's.
    """
    operators = tracker.operators
    keeps_state = True
    if isinstance(config, VisionConfig):
        precision = choose(config.precision.name, device)
        expected = getattr(torch, precision.autocast or precision.model)
        keeps_state = config.optimizer.name != "sgd" or getattr(config.optimizer, "momentum", 0) > 0
    else:
        assert isinstance(config, LlmConfig)
        expected = torch.bfloat16 if config.formats.products == "bf16" else torch.float32
        steps = EIGHT_BIT_STEPS if config.optimizer.has_8_bits else ("aten::_fused_adamw_",)
        if not any(name in operators for name in steps):
            raise FellBackError(Message("memory.not-fused", "AdamW was not fused"))
    products = [name for name in PRODUCTS if name in operators]
    if not products:
        raise FellBackError(
            Message(
                "memory.no-products", "the step ran neither convolutions nor products of matrices"
            )
        )
    for name in products:
        if operators[name] != {expected}:
            sentence = f"{name} gave {operators[name]}, not {expected}"
            raise FellBackError(
                Message("memory.product-type", sentence, operator=name, expected=str(expected))
            )
    if keeps_state and not tracker.kinds & {"optimizer", HOST}:
        raise FellBackError(
            Message("memory.no-step", "the optimiser made no state, so it did not step")
        )
    if device.type == "cuda" and expected is not torch.float64 and MATH_ATTENTION in operators:
        sentence = "attention fell back to matrices of sequence x sequence"
        raise FellBackError(Message("memory.attention", sentence))


def answer(request: answers.Request) -> answers.Answer:
    """Return the peak of a request's step, or in one line the reason why there is none."""
    try:
        return simulate(request.config, request.facts, request.device, request.memory_bytes)
    except FellBackError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


# ---- A step of an image model runs the project's own model, strategy, optimizer and loop, and adds
# the data that the loader keeps on the device. Replacements for DistributedDataParallel and
# DataParallel hold the same tensors without a network.


class DryLoop(Loop):
    """The training loop without its surroundings: clocks, the controller's board, files."""

    def __init__(
        self, rank: Rank, config: VisionConfig, share: Share, optimisation: Any, tracker: Tracker
    ) -> None:
        self.rank = rank
        self.config = config
        self.share = share
        self.optim = optimisation
        self.tracker = tracker
        self.precision = choose(config.precision.name, rank.device)
        self.memory_format = memory_format(config)
        self.compiled = self.cuda_graphs = False
        self.timer: Any = SimpleNamespace(
            begin=lambda phase: setattr(tracker, "is_forward", phase == FORWARD)
        )
        self.peek: Any = SimpleNamespace(offer=lambda loss: None)
        self.losses = torch.zeros(share.steps, dtype=torch.float64, device=rank.device)

    def move(self, batch: Any, counts: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        moved = super().move(batch, counts)
        self.tracker.note(moved, "batch")
        return moved


def train(
    config: VisionConfig,
    facts: ImageFacts,
    device: torch.device,
    tracker: Tracker,
    memory_bytes: int | None = None,
) -> None:
    """Simulate a training step of rank 0 under `tracker`. Call it within `fake(device)`."""
    strategy = STRATEGIES[config.strategy.name]
    rank = Rank(0, 0, config.processes * config.nodes, device, "gloo", 1)
    precision = choose(config.precision.name, device)
    with device:
        model = models.build(config.model, facts.classes, config.dataset.image_size)
    convert(model, precision.model_dtype, memory_format(config))
    replacements: dict[str, Any] = {
        "torch.nn.parallel.DistributedDataParallel": replicated(tracker.note),
        "torch.nn.DataParallel": FirstOfParallel,
    }
    with tracker, patched(replacements):
        tracker.note_model(model)
        share = strategy.share(model, facts.train, config, rank)
        resident_data = resident_tensors(config, facts, share, device, memory_bytes)
        tracker.note(resident_data, "resident")
        optimisation = optim.build(
            share.model, config, config.epochs * share.steps, precision.scale_loss, device
        )
        tracker.make_states(optimisation.optimizer)
        loop = DryLoop(rank, config, share, optimisation, tracker)
        share.model.train()
        batch_stream = batches(config, facts, share, device, tracker)
        tracker.restart_peak()
        loop.step(batch_stream)
        tracker.is_forward = False
        share.evaluation_model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        # With a frozen backbone, evaluation may take more memory than a step. A batch
        # stays in memory until the next one has come, so evaluate two.
        with torch.no_grad():
            loop.add_tested(islice(batch_stream, 2), sums, dict.fromkeys(COUNTS, 0))


def convert(model: nn.Module, dtype: torch.dtype, form: torch.memory_format) -> None:
    """Do `model.to(dtype).to(memory_format=form)` without swapping tensors in place.

    Fake parameters cannot be swapped.
    """
    with torch.no_grad():
        for module in model.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    layout = form if value.dim() == 4 else torch.preserve_format
                    converted = nn.Parameter(
                        value.detach().to(dtype, memory_format=layout), value.requires_grad
                    )
                    module._parameters[name] = converted
            for name, value in module._buffers.items():
                if value is not None and value.is_floating_point():
                    module._buffers[name] = value.to(dtype)


# ---- the data


def crossing_channels(config: VisionConfig, facts: ImageFacts) -> int:
    """Return the channels of an image that moves to the device.

    It is 1 for a grey image whose channels are normalized equally, unless torchvision's transforms
    make it three.
    """
    return (
        1 if facts.channels == 1 and config.dataset.alike and config.loader.name != "torch" else 3
    )


def resident_tensors(
    config: VisionConfig,
    facts: ImageFacts,
    share: Share,
    device: torch.device,
    memory_bytes: int | None,
) -> list[torch.Tensor]:
    """Return images, labels and order of the data sets that stay on a GPU.

    `device_loader.Resident` has the same rules.

    Args:
        memory_bytes: the GPU's memory. It sets the budget if the configuration names none. None
            means that everything fits.
    """
    if config.loader.name != "device" or device.type != "cuda":
        return []
    image_bytes = facts.side**2 * facts.channels
    budget = config.dataset.device_budget_bytes
    if budget is None:
        budget = None if memory_bytes is None else int(BUDGET_SHARE * memory_bytes)
    ranks = config.processes * config.nodes
    is_sharded = STRATEGIES[config.strategy.name].shards and ranks > 1
    test_images = -(-facts.test // ranks)
    tensors: list[torch.Tensor] = []
    for images, order in (
        (len(share.sampler) if is_sharded else facts.train, len(share.sampler)),
        (test_images, test_images),
    ):
        if budget is None or images * image_bytes <= budget:
            tensors.append(torch.empty(images * image_bytes, dtype=torch.uint8, device=device))
            tensors += [
                torch.empty(size, dtype=torch.int64, device=device) for size in (images, order)
            ]
    return tensors


def batches(
    config: VisionConfig, facts: ImageFacts, share: Share, device: torch.device, tracker: Tracker
) -> Iterator[Batch]:
    """Yield full batches without end.

    If the loader sends batches ahead, the next one is already on the device.
    """
    channels = crossing_channels(config, facts)
    side = config.dataset.image_size
    dtype = choose(config.precision.name, device).transfer_dtype
    on_cuda = device.type == "cuda"
    loader = config.loader.name
    is_sent_ahead = on_cuda and (loader == "device" or (loader == "batched" and config.pin_memory))
    made_on = device if is_sent_ahead or loader == "dali" else torch.device("cpu")
    layout = (
        torch.channels_last
        if facts.channels == 3 and loader != "torch"
        else torch.contiguous_format
    )
    # One kernel augments the images and writes them in the layout that the model reads.
    if on_cuda and loader == "device" and compiles(config, device.type):
        channels = 3
        layout = memory_format(config)

    def make_batch() -> Batch:
        images = torch.empty(share.batch_size, channels, side, side, dtype=dtype, device=made_on)
        images = images.contiguous(memory_format=layout)
        labels = torch.zeros(share.batch_size, dtype=torch.int64, device=made_on)
        tracker.note([images, labels], "batch")
        return Batch(images, labels, images.nbytes, labels.nbytes)

    next_batch = make_batch() if is_sent_ahead else None
    while True:
        batch = next_batch or make_batch()
        next_batch = make_batch() if is_sent_ahead else None
        yield batch
        del batch


# ---- DataParallel


class _Broadcast(torch.autograd.Function):
    """Copy the parameters to replicas, and sum their gradients into new memory.

    DataParallel does the latter in `ReduceAddCoalesced`.
    """

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(parameter.detach() for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(gradient) for gradient in gradients)


class FirstOfParallel(nn.Module):
    """A module under DataParallel, as its first GPU holds it.

    It holds all of the batch and the outputs, a share of the work, and the gradients twice: its own
    and their sum.
    """

    def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
        super().__init__()
        self.module = module
        self.devices = len(device_ids)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parameters = dict(self.module.named_parameters())
        copies = _Broadcast.apply(*parameters.values())
        part = images.chunk(self.devices)[0]
        outputs = torch.func.functional_call(
            self.module, dict(zip(parameters, copies, strict=True)), (part,)
        )
        return torch.cat([outputs] * self.devices)[: len(images)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    requests: list[answers.Request] = pickle.load(sys.stdin.buffer)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Recipes print, which must not mix with the answers.
    for request in requests:
        out.write(msgspec.json.encode(answer(request)) + b"\n")
        out.flush()
