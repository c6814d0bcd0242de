"""A step of an image model without values: the project's own model, strategy, optimiser and loop, what the loader keeps
on the device, and what stands for DistributedDataParallel and DataParallel without a network: the same tensors, at the
same times."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from multicard.config.vision import VisionConfig
from multicard.estimate.memory.facts import ImageFacts
from multicard.estimate.memory.torch_internals import ddp_buckets, patched
from multicard.estimate.memory.tracker import Tracker
from multicard.measure.timing import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER
from multicard.ranks.process import Rank
from multicard.vision import models, optim
from multicard.vision.data.batch import Batch
from multicard.vision.data.device_loader import BUDGET_SHARE
from multicard.vision.loop import Loop, memory_format
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES, Share

PHASES = {DATA: "data", H2D: "data", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}


class DryLoop(Loop):
    """The loop of training without what surrounds it: clocks, the controller's board, files."""

    def __init__(self, rank: Rank, config: VisionConfig, share: Share, optimisation: Any, tracker: Tracker) -> None:
        self.rank, self.config, self.share, self.optim, self.tracker = rank, config, share, optimisation, tracker
        self.precision = choose(config.precision.name, rank.device)
        self.memory_format = memory_format(config)
        self.compiled = self.cuda_graphs = False
        self.timer: Any = SimpleNamespace(begin=lambda phase: setattr(tracker, "phase", PHASES[phase]))
        self.peek: Any = SimpleNamespace(offer=lambda loss: None)
        self.losses = torch.zeros(share.steps, dtype=torch.float64, device=rank.device)

    def move(self, batch: Any, counts: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        moved = super().move(batch, counts)
        self.tracker.note(moved, "batch")
        return moved


def run(
    config: VisionConfig, facts: ImageFacts, device: torch.device, tracker: Tracker, memory_bytes: int | None = None
) -> None:
    """Train for a step as rank 0 does, under `tracker`. Call it within `fake(device)`."""
    strategy = STRATEGIES[config.strategy.name]
    ranks = 1 if strategy.one_process else config.gpus * config.nodes
    rank = Rank(0, 0, ranks, device, "gloo", 1)
    precision = choose(config.precision.name, device)
    with device:
        model = models.build(config.model, facts.classes, config.dataset.image_size)
    convert(model, precision.model_dtype, memory_format(config))
    wrappers: dict[str, Any] = {
        "torch.nn.parallel.DistributedDataParallel": partial(Replicated, tracker),
        "torch.nn.DataParallel": FirstOfParallel,
    }
    with tracker, patched(wrappers):
        tracker.note_model(model)
        share = strategy.share(model, facts.train, config, rank)
        kept = resident(config, facts, share, device, memory_bytes)
        tracker.note(kept, "resident")
        optimisation = optim.build(share.model, config, config.epochs * share.steps, precision.scale_loss, device)
        tracker.make_states(optimisation.optimizer)
        loop = DryLoop(rank, config, share, optimisation, tracker)
        share.model.train()
        loaded = batches(config, facts, share, device, tracker)
        tracker.restart_peak()
        loop.step(loaded)


def convert(model: nn.Module, dtype: torch.dtype, form: torch.memory_format) -> None:
    """`model.to(dtype).to(memory_format=form)`, by hand: fake parameters cannot be swapped in place."""
    with torch.no_grad():
        for module in model.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    layout = form if value.dim() == 4 else torch.preserve_format
                    changed = nn.Parameter(value.detach().to(dtype, memory_format=layout), value.requires_grad)
                    module._parameters[name] = changed
            for name, value in module._buffers.items():
                if value is not None and value.is_floating_point():
                    module._buffers[name] = value.to(dtype)


# ---- the data


def crossing_channels(config: VisionConfig, facts: ImageFacts) -> int:
    """Channels of an image that crosses to the device: 1 of a grey one whose channels are normalised alike, unless
    torchvision's transforms make it three."""
    alike = len(set(config.dataset.mean)) == len(set(config.dataset.std)) == 1
    return 1 if facts.channels == 1 and alike and config.loader.name != "torch" else 3


def resident(
    config: VisionConfig, facts: ImageFacts, share: Share, device: torch.device, memory_bytes: int | None
) -> list[torch.Tensor]:
    """Images, labels and order of what stays on a GPU, by the rules of `device_loader.Resident`.

    Args:
        memory_bytes: of the GPU, for the budget where the configuration names none; None: as if all fitted.
    """
    if config.loader.name != "device" or device.type != "cuda":
        return []
    image_bytes, budget = facts.side**2 * facts.channels, config.dataset.device_budget_bytes
    if budget is None:
        budget = None if memory_bytes is None else int(BUDGET_SHARE * memory_bytes)
    ranks = config.gpus * config.nodes
    sharded = STRATEGIES[config.strategy.name].shards and ranks > 1
    one_process = STRATEGIES[config.strategy.name].one_process
    tested = facts.test if one_process else -(-facts.test // ranks)
    kept: list[torch.Tensor] = []
    for images, order in ((len(share.sampler) if sharded else facts.train, len(share.sampler)), (tested, tested)):
        if budget is None or images * image_bytes <= budget:
            kept.append(torch.empty(images * image_bytes, dtype=torch.uint8, device=device))
            kept += [torch.empty(size, dtype=torch.int64, device=device) for size in (images, order)]
    return kept


def batches(
    config: VisionConfig, facts: ImageFacts, share: Share, device: torch.device, tracker: Tracker
) -> Iterator[Batch]:
    """Full batches without end, with the next one on the device already where the loader sends it ahead."""
    channels, side = crossing_channels(config, facts), config.dataset.image_size
    dtype = choose(config.precision.name, device).transfer_dtype
    on_cuda, loader = device.type == "cuda", config.loader.name
    sent_ahead = on_cuda and (loader == "device" or (loader == "batched" and config.pin_memory))
    place = device if sent_ahead or loader == "dali" else torch.device("cpu")

    def batch() -> Batch:
        images = torch.empty(share.batch_size, channels, side, side, dtype=dtype, device=place)
        if facts.channels == 3 and loader != "torch":
            images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(share.batch_size, dtype=torch.int64, device=place)
        tracker.note([images, labels], "batch")
        return Batch(images, labels, images.nbytes, labels.nbytes)

    following = batch() if sent_ahead else None
    while True:
        ready = following or batch()
        following = batch() if sent_ahead else None
        yield ready
        del ready


# ---- the strategies' wrappers


class Replicated(nn.Module):
    """A module under DistributedDataParallel: a flat bucket beside the gradients of each group of parameters, or, with
    `gradient_as_bucket_view`, in their place."""

    def __init__(
        self, tracker: Tracker, module: nn.Module, bucket_cap_mb: float, gradient_as_bucket_view: bool, **_: Any
    ) -> None:
        super().__init__()
        self.module = module
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.buckets: list[torch.Tensor] = []
        for members in ddp_buckets(parameters, bucket_cap_mb):
            inside = [parameters[i] for i in members]
            size = sum(p.numel() for p in inside)
            bucket = torch.empty(size, dtype=inside[0].dtype, device=inside[0].device)
            self.buckets.append(bucket)
            tracker.note(bucket, "buckets")
            if gradient_as_bucket_view:
                offset = 0
                for parameter in inside:
                    view = bucket.as_strided(parameter.size(), parameter.stride(), offset)
                    parameter.register_post_accumulate_grad_hook(lambda p, view=view: setattr(p, "grad", view))
                    offset += parameter.numel()

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)


class _Broadcast(torch.autograd.Function):
    """Replicas of the parameters, and the sum of their gradients in memory of its own (`ReduceAddCoalesced`)."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(parameter.detach() for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(gradient) for gradient in gradients)


class FirstOfParallel(nn.Module):
    """A module under DataParallel, as its first GPU sees it: all of the batch and the outputs, a share of the work, and
    the gradients twice, its own and the sum."""

    def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
        super().__init__()
        self.module, self.devices = module, len(device_ids)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parameters = dict(self.module.named_parameters())
        copies = _Broadcast.apply(*parameters.values())
        part = images.chunk(self.devices)[0]
        outputs = torch.func.functional_call(self.module, dict(zip(parameters, copies, strict=True)), (part,))
        return torch.cat([outputs] * self.devices)[: len(images)]
