"""What a loader keeps on the device: the data set of loader=device, and the batches ahead of the step."""

from collections.abc import Iterator

import torch

from multicard.config.vision import VisionConfig
from multicard.estimate.memory.facts import ImageFacts
from multicard.estimate.memory.tracker import Tracker
from multicard.vision.data.batch import Batch
from multicard.vision.data.device_loader import BUDGET_SHARE
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES, Share


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
        ready, following = following or batch(), None
        following = batch() if sent_ahead else None
        yield ready
        del ready
