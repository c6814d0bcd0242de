"""The loops over training and test batches, and what ranks exchange in them outside DDP."""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.functional import cross_entropy

from multicard.config.base import ProfileName
from multicard.config.compilation import has_cuda_graphs
from multicard.config.vision import LayoutName, VisionConfig
from multicard.measure import garbage, timing
from multicard.measure.timing import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, Ranges, StepTimer
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.process import Rank
from multicard.records.progress import LossPeek
from multicard.run.training_progress import TrainingProgress
from multicard.vision.data.batch import Batch
from multicard.vision.optim import Optimisation
from multicard.vision.precision import choose
from multicard.vision.strategy import Share, compiles

# What a step counts: samples trained, samples loaded, and bytes handed to the device
COUNTS: tuple[str, ...] = ("samples", "loaded", "h2d_images_bytes", "h2d_labels_bytes")


class Loop:
    """Training and evaluation of one rank, and how far it has come. A round is one step of all
    ranks: up to `share.batches_per_step` batches are loaded,
    and each rank trains on at most one of them.

    Args:
        prepared: batches that the loader makes ahead of the step that asks for them.
    """

    def __init__(
        self,
        rank: Rank,
        config: VisionConfig,
        share: Share,
        optim: Optimisation,
        folder: Path,
        prepared: int = 0,
    ) -> None:
        self.rank = rank
        self.config = config
        self.share = share
        self.optim = optim
        self.precision = choose(config.precision.name, rank.device)
        self.memory_format = memory_format(config)
        self.compiled = compiles(config, rank.device.type)
        self.cuda_graphs = (
            self.compiled and rank.device.type == "cuda" and has_cuda_graphs(config.compile)
        )
        self.ranges = Ranges(rank.device, nvtx=config.profile.name is ProfileName.nsys)
        self.timer = StepTimer(rank.device, self.ranges)
        self.window = TrainingWindow(config.profile, rank, folder, self.ranges)
        self.losses = torch.zeros(share.steps, dtype=torch.float64, device=rank.device)
        self.peek = LossPeek(rank.device)
        self.progress = TrainingProgress(
            rank, folder, loss=lambda: self.peek.value, total=config.epochs * share.steps
        )
        self.progress.add_gate(
            config,
            rank.device,
            share.steps,
            config.warmup_steps,
            # Steps that the prepared batches are for, rounded up.
            prepared=-(-prepared // share.batches_per_step),
            weight=share.distinct_part(rank.world_size),
            last_loss=lambda: self.last_loss,
        )

    @property
    def last_loss(self) -> float:
        """The loss of the last step, for which the host waits; NaN where this rank had no batch,
        or has not trained.
        """
        steps = self.progress.steps
        return self.losses[(steps - 1) % len(self.losses)].item() if steps else math.nan

    def train_epoch(
        self, epoch: int, batches: Iterable[Batch], first_step: int = 0
    ) -> dict[str, Any]:
        """Train on every batch once, to the end of the epoch, or until the board asks for a stop.

        Args:
            first_step: of the epoch, from 0; the step of the first batch in `batches`.

        Returns:
            `train_s` (without pauses), `paused_s`, `first_batch_s` (until the first batch is
            there), and lists with an entry for each step of this rank: `phases_s`, `loss` and
            `COUNTS`.
        """
        share = self.share
        timer = self.timer
        progress = self.progress
        rows: dict[str, list[int]] = {key: [] for key in COUNTS}
        self.losses.fill_(math.nan)  # stays so where this rank has no batch in a round
        share.model.train()
        progress.epoch = epoch
        progress.post()
        garbage.epoch_began()
        progress.start_epoch()
        timer.start()
        loaded, first_batch_s = started(batches)
        for step in range(first_step, share.steps):
            self.window.step()
            counts, loss = self.step(loaded)
            self.window.count(counts["h2d_images_bytes"] + counts["h2d_labels_bytes"])
            if loss is not None:
                self.losses[step] = loss
            for key, value in counts.items():
                rows[key].append(value)
            garbage.step_ended(progress.steps + 1)
            paused_s = progress.end_step(counts["samples"])
            if paused_s:
                timer.leave_out(paused_s)
            if progress.is_stopped:
                break
        self.window.pause()
        train_s, phases_s = timer.stop()
        losses = self.losses[first_step : first_step + len(phases_s)].tolist()
        seconds = {"train_s": train_s, "paused_s": timer.paused_s, "first_batch_s": first_batch_s}
        return {**seconds, "phases_s": phases_s, "loss": losses, **rows}

    def step(self, batches: Iterator[Batch]) -> tuple[dict[str, int], torch.Tensor | None]:
        """Train on the next round: load `share.batches_per_step` batches and train on one of them.

        Returns:
            What this rank counted, and its loss, on the device;
            None where the round has no batch for this rank.
        """
        share = self.share
        optim = self.optim
        timer = self.timer
        counts = dict.fromkeys(COUNTS, 0)
        mine = None
        loss = None
        ranks_with_batch = 0
        for turn, batch in enumerate(islice(batches, share.batches_per_step)):
            timer.begin(H2D)
            moved = self.move(batch, counts)
            timer.begin(DATA)
            ranks_with_batch += 1
            if turn == share.turn:
                mine = moved
        every_rank = ranks_with_batch == share.batches_per_step

        timer.begin(FORWARD)
        optim.optimizer.zero_grad(set_to_none=True)
        if mine is not None:
            images, labels = mine
            counts["samples"] = len(labels)
            # where some rank has no batch, DDP's exchange would wait for it: see average_gradients
            loss = self.loss(share.model if every_rank else share.plain, images, labels)

        timer.begin(BACKWARD)  # DDP exchanges gradients meanwhile
        if loss is not None:
            optim.scaler.scale(loss).backward()
            loss = loss.detach()
            self.peek.offer(loss)
        if not every_rank:
            average_gradients(share.plain, ranks_with_batch)

        timer.begin(OPTIMIZER)
        optim.scaler.step(optim.optimizer)
        optim.scaler.update()
        optim.schedule.step()
        timer.begin(DATA)
        return counts, loss

    def move(self, batch: Batch, counts: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (B, 3, S, S) and labels (B,) on the device; what crosses is added to `counts`."""
        counts["loaded"] += len(batch.labels)
        counts["h2d_images_bytes"] += batch.images_bytes
        counts["h2d_labels_bytes"] += batch.labels_bytes
        batch.wait()
        images, labels = (
            part.to(self.rank.device, non_blocking=True) for part in (batch.images, batch.labels)
        )
        return images.expand(-1, 3, -1, -1), labels  # a grey image may come as one channel

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs = self.outputs(model, images)
        with self.precision.arithmetic(self.rank.device):
            return cross_entropy(outputs, labels)

    def outputs(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """(B, classes) of images (B, 3, S, S). An odd last batch runs
        uncompiled: its shape would be compiled anew.
        """
        images = images.contiguous(memory_format=self.memory_format)
        odd = self.compiled and len(images) != self.share.batch_size
        if self.cuda_graphs:
            # what earlier steps left in the graphs' memory may go
            torch.compiler.cudagraph_mark_step_begin()
        with (
            self.precision.arithmetic(self.rank.device),
            torch.compiler.set_stance("force_eager") if odd else nullcontext(),
        ):
            return model(images)

    @torch.no_grad()  # not inference_mode: torch.compile would compile again for its tensors
    def evaluate(self, batches: Iterable[Batch], diverged: bool = False) -> dict[str, Any]:
        """Loss and accuracy on the test set: each sample on one rank; sums over all ranks,
        divided at the end.

        Args:
            diverged: True if this rank's last training loss is not finite.

        Returns:
            The figures, and `diverged`: True if any rank's was not.
        """
        model = self.share.evaluated
        started_s = timing.clock_s()
        self.ranges.open("evaluate")
        self.progress.post(evaluating=True)
        broadcast_statistics(self.share.plain, self.rank)
        model.eval()
        # loss, right answers, samples, diverged ranks
        sums = torch.tensor([0, 0, 0, diverged], dtype=torch.float64, device=self.rank.device)
        counts = dict.fromkeys(COUNTS, 0)
        loaded, first_batch_s = started(batches)
        self.add_tested(loaded, sums, counts)
        if self.rank.world_size > 1:
            dist.all_reduce(sums)
        self.window.count(counts["h2d_images_bytes"] + counts["h2d_labels_bytes"])
        loss, right, samples, diverged_ranks = sums.tolist()
        self.ranges.close()
        self.progress.post()
        return {
            "evaluate_s": timing.clock_s() - started_s,
            "evaluate_first_batch_s": first_batch_s,
            "test_loss": loss / samples,
            "test_right": int(right),
            "test_samples": int(samples),
            "test_accuracy": right / samples,
            "diverged": diverged_ranks > 0,
            "evaluate_h2d_images_bytes": counts["h2d_images_bytes"],
            "evaluate_h2d_labels_bytes": counts["h2d_labels_bytes"],
        }

    def add_tested(
        self, batches: Iterable[Batch], sums: torch.Tensor, counts: dict[str, int]
    ) -> None:
        """Add the loss of some batches, their right answers
        and samples to the first three `sums`.
        """
        for batch in batches:
            images, labels = self.move(batch, counts)
            outputs = self.outputs(self.share.evaluated, images)
            sums[0] += cross_entropy(outputs.double(), labels, reduction="sum")
            sums[1] += (outputs.argmax(dim=1) == labels).sum()
            sums[2] += len(labels)


def started(batches: Iterable[Batch]) -> tuple[Iterator[Batch], float]:
    """The batches, and the seconds until the first of them was there."""
    started_s = timing.clock_s()
    loaded = iter(batches)
    first = list(islice(loaded, 1))
    return _with_first(first, loaded), timing.clock_s() - started_s


def _with_first(first: list[Batch], others: Iterator[Batch]) -> Iterator[Batch]:
    """The batches of both. `itertools.chain` would hold the first until the last was taken,
    in the GPU's memory.
    """
    while first:
        yield first.pop()
    yield from others


def memory_format(config: VisionConfig) -> torch.memory_format:
    return torch.channels_last if config.layout.name is LayoutName.nhwc else torch.contiguous_format


def average_gradients(model: nn.Module, ranks_with_batch: int) -> None:
    """Average the gradients of a round that has no batch for every rank,
    over the ranks that have one.

    torch's Join would let the others shadow DDP's collectives, but they would not step: their
    momentum, and the loss scale, would lag behind from then on. So all ranks take part here, with
    zeros where there was no batch, and all step.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = _flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat /= ranks_with_batch
    for gradient, average in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(average)


def broadcast_statistics(model: nn.Module, rank: Rank) -> None:
    """Give every rank the BatchNorm statistics of rank 0, so that all evaluate the same model."""
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if rank.world_size == 1 or not buffers:
        return
    flat = _flatten_dense_tensors(buffers)
    dist.broadcast(flat, src=0)
    for buffer, value in zip(buffers, _unflatten_dense_tensors(flat, buffers), strict=True):
        buffer.copy_(value)
