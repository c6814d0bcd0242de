"""The training and evaluation loops, and the collectives that ranks call in them outside of DDP."""

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

# The counts of a step: samples trained, samples loaded, and bytes copied to the device.
COUNTS: tuple[str, ...] = ("samples", "loaded", "h2d_images_bytes", "h2d_labels_bytes")


class Loop:
    """Trains and evaluates on one rank, and keeps count of its progress.

    All ranks take a step together, which is called a round. In a round a rank loads up to
    `share.batches_per_step` batches, and trains on at most one of them.

    Args:
        prepared: Number of batches that the loader makes ahead of the step that asks for them.
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
            # The prepared batches are enough for this number of steps, rounded up.
            prepared=-(-prepared // share.batches_per_step),
            weight=share.distinct_part(rank.world_size),
            last_loss=lambda: self.last_loss,
        )

    @property
    def last_loss(self) -> float:
        """The loss of the last step. Reading it makes the host wait for the device.

        It is NaN if this rank had no batch in that step, or has not trained yet.
        """
        steps = self.progress.steps
        return self.losses[(steps - 1) % len(self.losses)].item() if steps else math.nan

    def train_epoch(
        self, epoch: int, batches: Iterable[Batch], first_step: int = 0
    ) -> dict[str, Any]:
        """Train on every batch once, to the end of the epoch, or until the board asks for a stop.

        Args:
            first_step: The epoch's step, from 0, at which `batches` begins.

        Returns:
            A dictionary with `train_s` (without pauses), `paused_s`, and `first_batch_s` (the time
            until the first batch arrived). `phases_s`, `loss` and `COUNTS` have an entry for each
            step of this rank.
        """
        share = self.share
        timer = self.timer
        progress = self.progress
        rows: dict[str, list[int]] = {key: [] for key in COUNTS}
        self.losses.fill_(math.nan)  # The loss of a round stays NaN if this rank had no batch.
        share.model.train()
        progress.epoch = epoch
        progress.post()
        garbage.epoch_began()
        progress.start_epoch()
        timer.start()
        loaded, first_batch_s = wait_for_first_batch(batches)
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
            The counts of this rank, and its loss, which stays on the device. The loss is None if
            the round has no batch for this rank.
        """
        share = self.share
        optim = self.optim
        timer = self.timer
        counts = dict.fromkeys(COUNTS, 0)
        own_batch = None
        loss = None
        ranks_with_batch = 0
        for turn, batch in enumerate(islice(batches, share.batches_per_step)):
            timer.begin(H2D)
            moved = self.move(batch, counts)
            timer.begin(DATA)
            ranks_with_batch += 1
            if turn == share.turn:
                own_batch = moved
        every_rank = ranks_with_batch == share.batches_per_step

        timer.begin(FORWARD)
        optim.optimizer.zero_grad(set_to_none=True)
        if own_batch is not None:
            images, labels = own_batch
            counts["samples"] = len(labels)
            # If some rank has no batch, DDP would wait for it forever. The plain model trains
            # instead, and `average_gradients` exchanges its gradients.
            loss = self.loss(share.model if every_rank else share.plain, images, labels)

        timer.begin(BACKWARD)  # DDP exchanges gradients during the backward pass.
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
        """Move a batch to the device, and add its samples and bytes to `counts`.

        Returns:
            Images (B, 3, S, S) and labels (B,).
        """
        counts["loaded"] += len(batch.labels)
        counts["h2d_images_bytes"] += batch.images_bytes
        counts["h2d_labels_bytes"] += batch.labels_bytes
        batch.wait()
        images, labels = (
            part.to(self.rank.device, non_blocking=True) for part in (batch.images, batch.labels)
        )
        return images.expand(-1, 3, -1, -1), labels  # A grey image may have one channel only.

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch, as a scalar on the device."""
        outputs = self.outputs(model, images)
        with self.precision.arithmetic(self.rank.device):
            return cross_entropy(outputs, labels)

    def outputs(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return the outputs (B, classes) for images (B, 3, S, S).

        A smaller last batch runs uncompiled: compiling for its shape would cost more than it gains.
        """
        images = images.contiguous(memory_format=self.memory_format)
        is_smaller_batch = self.compiled and len(images) != self.share.batch_size
        if self.cuda_graphs:
            # The outputs of earlier steps are no longer needed: the graphs may reuse their memory.
            torch.compiler.cudagraph_mark_step_begin()
        with (
            self.precision.arithmetic(self.rank.device),
            torch.compiler.set_stance("force_eager") if is_smaller_batch else nullcontext(),
        ):
            return model(images)

    @torch.no_grad()  # Tensors of inference_mode would make torch.compile compile again.
    def evaluate(self, batches: Iterable[Batch], diverged: bool = False) -> dict[str, Any]:
        """Return loss and accuracy on the test set.

        Every sample is evaluated on one rank. The sums are reduced over all ranks, and then
        divided.

        Args:
            diverged: True if this rank's last training loss is not finite.

        Returns:
            The figures, and `diverged`, which is True if the training loss of any rank diverged.
        """
        model = self.share.evaluation_model
        started_s = timing.clock_s()
        self.ranges.open("evaluate")
        self.progress.post(evaluating=True)
        broadcast_statistics(self.share.plain, self.rank)
        model.eval()
        # The sums are: loss, right answers, samples, ranks that diverged.
        sums = torch.tensor([0, 0, 0, diverged], dtype=torch.float64, device=self.rank.device)
        counts = dict.fromkeys(COUNTS, 0)
        loaded, first_batch_s = wait_for_first_batch(batches)
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
        """Evaluate batches, and add their loss, right answers and samples to the first `sums`."""
        for batch in batches:
            images, labels = self.move(batch, counts)
            outputs = self.outputs(self.share.evaluation_model, images)
            sums[0] += cross_entropy(outputs.double(), labels, reduction="sum")
            sums[1] += (outputs.argmax(dim=1) == labels).sum()
            sums[2] += len(labels)


def wait_for_first_batch(batches: Iterable[Batch]) -> tuple[Iterator[Batch], float]:
    """Wait for the first batch. Return all batches, and the seconds that the first one took."""
    started_s = timing.clock_s()
    loaded = iter(batches)
    first = list(islice(loaded, 1))
    return _first_then_others(first, loaded), timing.clock_s() - started_s


def _first_then_others(first: list[Batch], later_batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches of both arguments, and release the first batch once it is taken.

    `itertools.chain` would keep the first batch in the GPU's memory until the last one was taken.
    """
    while first:
        yield first.pop()
    yield from later_batches


def memory_format(config: VisionConfig) -> torch.memory_format:
    """Return the memory format of images and weights that the run's layout asks for."""
    return torch.channels_last if config.layout.name is LayoutName.nhwc else torch.contiguous_format


def average_gradients(model: nn.Module, ranks_with_batch: int) -> None:
    """Average the gradients of a round in which some ranks have no batch.

    The average is taken over the ranks that have a batch. The others contribute zeros, and all
    ranks step the optimizer. torch's Join would answer DDP's collectives on ranks without a batch.
    But these ranks would not step: their momentum and loss scale would differ from then on.
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
    """Copy the BatchNorm statistics of rank 0 to all ranks, so that all evaluate the same model."""
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if rank.world_size == 1 or not buffers:
        return
    flat = _flatten_dense_tensors(buffers)
    dist.broadcast(flat, src=0)
    for buffer, value in zip(buffers, _unflatten_dense_tensors(flat, buffers), strict=True):
        buffer.copy_(value)
