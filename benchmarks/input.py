"""Images per second of each loader, and bytes per image that move to the device; nothing is trained.

    python -m benchmarks.input --image-size 500 [--rounds 7] [--sets grey jpeg cached] [--mnist ROOT] [--images ROOT]

On grey images of 28 x 28 (MNIST's from --mnist, else synthetic) and on JPEGs of about 500 x 400 (those under --images,
else synthetic), decoded each time and, with the cache, once. A plain script is measured too: PIL, torchvision's
transforms and a DataLoader. Rounds are interleaved, each with new workers, after four batches. Prints medians over
the rounds, and the ratio to `torch` at its best number of workers, round by round. The images are ready for the model
on this machine's training device: (B, 3, S, S), grey ones expanded without a copy where the loader moves one channel.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from benchmarks.common import configuration, device_here, interleaved, machine, parser, quartiles, ratios
from multicard.config.vision import VisionConfig
from multicard.machine.environment import cores
from multicard.measure import timing
from multicard.ranks import os_calls
from multicard.records import text_table
from multicard.vision.data import datasets
from multicard.vision.data.batch import Source
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.splits import Split

BATCH = 64
SETS = ["grey", "jpeg", "cached"]
SECONDS = 1.5  # a loader's least duration in a round
Turn = Callable[[], tuple[float, float]]  # images per second, bytes per image


class Plain(Dataset[Any]):
    """A data set as a tutorial would write it."""

    def __init__(self, split: Split, options: VisionConfig) -> None:
        form = options.dataset
        steps = [transforms.Resize([form.image_size] * 2), transforms.ToTensor()]
        self.transform = transforms.Compose([*steps, transforms.Normalize(form.mean, form.std)])
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Any:
        stored = self.split.images[index]
        image = Image.fromarray(stored) if isinstance(stored, np.ndarray) else Image.open(stored.open("rb"))
        return self.transform(image.convert("RGB")), int(self.split.labels[index])


def plain(split: Split, options: VisionConfig, workers: int) -> Turn:
    def turn() -> tuple[float, float]:
        context = "fork" if workers else None
        loader = DataLoader(Plain(split, options), BATCH, True, num_workers=workers, multiprocessing_context=context)
        return timed(lambda: ((images, images.nbytes) for images, _ in loader))

    return turn


def ours(split: Split, options: VisionConfig, workers: int, device: torch.device) -> Turn:
    def turn() -> tuple[float, float]:
        pin = device.type == "cuda"
        source = Source(split, RandomSampler(split), BATCH, workers, options, torch.float32, pin, device)  # pyright: ignore[reportArgumentType]
        loader = LOADERS[options.loader.name].load(source)

        def epoch() -> Iterator[tuple[torch.Tensor, int]]:
            for batch in loader:
                batch.wait()
                yield batch.images.to(device, non_blocking=True).expand(-1, 3, -1, -1), batch.images_bytes

        rate, each = timed(epoch, device)
        return rate, each + loader.setup_bytes / len(split)  # as if for one epoch

    return turn


def timed(
    epoch: Callable[[], Iterable[tuple[torch.Tensor, int]]], device: torch.device | None = None
) -> tuple[float, float]:
    """Images per second and bytes per image, after four batches, over as many epochs as SECONDS takes."""
    batches = chain.from_iterable(epoch() for _ in repeat(None))
    for _ in islice(batches, 4):  # by then the memory of batches is used again
        pass
    started_s, images, moved = timing.clock_s(), 0, 0
    for content, count in batches:
        images, moved = images + len(content), moved + count
        if timing.clock_s() - started_s > SECONDS:
            break
    if device is not None:
        timing.synchronize(device)
    return images / (timing.clock_s() - started_s), moved / images


def vision_config(*overrides: str) -> VisionConfig:
    return configuration("train_vision", *overrides)


def grey_noise(count: int) -> Split:
    random = np.random.default_rng(0)
    return Split(random.integers(0, 256, (count, 28, 28), np.uint8), random.integers(0, 10, count))


def make_jpegs(root: Path, count: int, sides: tuple[int, int] = (500, 400)) -> None:
    """JPEGs of smooth noise, as large as those of photographs, in the folders of a data set."""
    random = np.random.default_rng(0)
    for part, number in (("train", count), ("validation", 2)):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
        for index in range(number):
            small = Image.fromarray(random.integers(0, 256, (sides[1] // 8, sides[0] // 8, 3), np.uint8))
            path = root / part / "ab"[index % 2] / f"{index:05}.jpg"
            small.resize(sides, Image.Resampling.BICUBIC).save(path, quality=90)


def candidates(split: Split, words: tuple[str, ...], device: torch.device) -> dict[str, Turn]:
    """A turn of each loader, by its name in the table."""
    turns = {f"plain script, {n} workers": plain(split, vision_config(*words), n) for n in (0, cores())}
    for name in ("torch", "batched"):
        for workers in sorted({0, max(1, cores() // 2), cores()}):
            turns[f"{name}, {workers} workers"] = ours(split, vision_config(*words, f"loader={name}"), workers, device)
    if isinstance(split.images, np.ndarray):
        turns["device"] = ours(split, vision_config(*words, "loader=device"), 0, device)
    dali = ours(split, vision_config(*words, "loader=dali"), 0, device)
    with suppress(ImportError):
        dali()
        turns["dali"] = dali
    return turns


def compare(title: str, turns: dict[str, Turn], rounds: int) -> None:
    figures = interleaved(turns, rounds)
    rates = {name: [rate for rate, _ in values] for name, values in figures.items()}
    best = max((name for name in turns if name.startswith("torch,")), key=lambda name: statistics.median(rates[name]))
    rows = []
    for name, values in rates.items():
        low, middle, high = quartiles(values)
        ratio = statistics.median(ratios(values, rates[best]))
        texts = f"{middle:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{ratio:.2f}", f"{figures[name][-1][1]:,.0f}"
        rows.append((name, *texts))
    headings = ("loader", "images/s", "quartiles", f"x {best}", "bytes an image")
    print("\n".join(["", title, *text_table.text(headings, rows)]))


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--image-size", type=int, default=500)
    options.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    options.add_argument("--mnist", help="a folder with MNIST/raw")
    options.add_argument("--images", help="a folder with train/<class>/ and validation/<class>/")
    args = options.parse_args()
    os_calls.tune_malloc()
    torch.set_num_threads(cores())
    device = device_here()
    print(f"{machine(device)}, {args.image_size} px, fp32, batches of {BATCH}")
    size = (f"dataset.image_size={args.image_size}",)

    if "grey" in args.sets:
        words = ("dataset=mnist", f"dataset.root={args.mnist}", *size)
        grey = datasets.load(vision_config(*words).dataset, 0).train if args.mnist else grey_noise(20_000)
        compare("28 x 28 grey", candidates(grey, words, device), args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(args.images or folder)
        if not args.images and len(args.sets) > ("grey" in args.sets):
            make_jpegs(root, 512)
        words = ("dataset=images", f"dataset.root={root}", f"dataset.cache_dir={folder}/cache", *size)
        titles = {"jpeg": ("JPEGs, decoded each time", "none"), "cached": ("JPEGs, decoded once", "mmap")}
        for title, cache in (titles[name] for name in args.sets if name in titles):
            of_set = (*words, f"dataset.cache={cache}")
            split = datasets.load(vision_config(*of_set).dataset, 0).train
            compare(title, candidates(split, of_set, device), args.rounds)


if __name__ == "__main__":
    main()
