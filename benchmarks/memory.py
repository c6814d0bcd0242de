"""Memory of an additional rank on photographs, which are mapped so that the ranks of a node share them.

    python -m benchmarks.memory [--images 4000] [--image-size 300] [--ranks 1 2 4] [--loaders device]

Every rank reads all images once through its loader; then the proportional set size of all ranks is summed (a page that
k processes map counts 1/k in each). What the same ranks hold after reading a few images as often is subtracted:
interpreters, torch, batch buffers, and the allocator's caches of those, which grow for some dozens of batches. The last
column is the remaining growth per rank, as a share of the data set.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.common import configuration, machine, parser
from benchmarks.input import make_jpegs
from multicard.config.placement import Placement
from multicard.config.vision import VisionConfig
from multicard.machine.environment import cores
from multicard.ranks import elastic
from multicard.ranks.process import Job, Rank
from multicard.records.progress import Board

FEW = 128  # images: a set of almost no size
BATCH = 32


def hold(rank: Rank, options: VisionConfig, images: int, folder: Path) -> None:
    """The work of a rank: read `images` images, and write its memory while all ranks hold theirs."""
    import torch

    from multicard.measure import memory
    from multicard.ranks.meeting import meet
    from multicard.vision.data import datasets
    from multicard.vision.data.batch import Source
    from multicard.vision.data.loaders import LOADERS
    from multicard.vision.data.samplers import Strided

    content = datasets.load(options.dataset, 0)
    order = Strided(len(content.train), 0, 1)
    batches = LOADERS[options.loader.name].load(Source(content.train, order, BATCH, 0, options, torch.float32))
    for _ in range(-(-images // len(content.train))):
        for batch in batches:
            assert batch.images.shape[1:] == (3, options.dataset.image_size, options.dataset.image_size)
    meet(rank)
    held = memory.proportional_memory_bytes()
    meet(rank)
    (folder / f"{rank.rank}.json").write_text(json.dumps(held))


def held_bytes(ranks: int, options: VisionConfig, images: int) -> int:
    """The proportional set size of all ranks once each has read `images`."""
    elastic.warm_up("cpu", ["multicard.vision.train"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Board(folder, ranks, create=True)
        job = Job(folder, "cpu", "gloo", 0, max(1, cores() // ranks), "tuned")
        place = Placement("cpu", "gloo", ranks, False)
        failure = elastic.launch("benchmarks.memory:hold", (options, images, folder), place, job)
        if failure is not None:
            raise SystemExit("\n".join([failure.message, *failure.log_tail]))
        return sum(json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=4000)
    options.add_argument("--image-size", type=int, default=300)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--loaders", nargs="+", default=["torch", "batched", "device"])
    args = options.parse_args()
    whole = args.images * args.image_size**2 * 3
    print(f"{machine()}; {args.images} images, {whole / 1e6:,.0f} MB")
    print("\n| loader | cache | ranks | held in all, MB | a rank more, of the data set |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        make_jpegs(Path(folder) / "set", args.images, (args.image_size, args.image_size))
        words = (f"dataset.root={folder}/set", f"dataset.image_size={args.image_size}", "device=cpu", "dataset=images")
        for loader in args.loaders:
            for cache in ("mmap", "ram"):
                first = None
                for ranks in args.ranks:
                    overrides = (*words, f"loader={loader}", f"dataset.cache={cache}", f"gpus={ranks}")
                    held = held_bytes(ranks, configuration("train_vision", *overrides), args.images)
                    few = configuration("train_vision", *overrides, f"dataset.train_limit={FEW}")
                    data = held - held_bytes(ranks, few, args.images)
                    first = data if first is None else first
                    more = f"{(data - first) / (ranks - args.ranks[0]) / whole:.1%}" if ranks > args.ranks[0] else "-"
                    print(f"| {loader} | {cache} | {ranks} | {held / 1e6:,.0f} | {more} |", flush=True)


if __name__ == "__main__":
    main()
