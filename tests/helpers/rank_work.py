"""What tests have ranks do; each writes what it saw to `folder/<rank>.pt`."""

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
import torch._dynamo.utils
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from multicard.config.vision import VisionConfig
from multicard.machine.load import own_cpu_s
from multicard.observe import diagnosis
from multicard.ranks.process import Rank
from multicard.records import rank_files
from multicard.vision import compiling, kept_model, models, optim
from multicard.vision.data import datasets, splits
from multicard.vision.data.batch import Input, LoaderInput
from multicard.vision.data.host_loader import TransformedSamples
from multicard.vision.data.loaders import LOADERS
from multicard.vision.loop import Loop
from multicard.vision.precision import PRECISIONS
from multicard.vision.strategy import STRATEGIES, Share
from multicard.vision.train import train
from tests.helpers.gpu_stand_ins import stand_ins


def save(rank: Rank, folder: Path, value: Any) -> None:
    torch.save(value, folder / f"{rank.rank}.pt")


def leaves_spins(rank: Rank, folder: Path) -> None:
    """What libgomp found as it was loaded: the environment
    with which the fork server was started.
    """
    variables = dict(
        line.split("=", 1)
        for line in Path("/proc/self/environ").read_text().split("\0")
        if "=" in line
    )
    (folder / "spins.txt").write_text(variables.get("GOMP_SPINCOUNT", "libgomp's own"))


def reads(rank: Rank, configs: list[VisionConfig], folder: Path, sizes: list[int]) -> None:
    """For each strategy, loader and number of samples: the samples in each batch of two epochs,
    those trained on, and the steps of an epoch.
    """
    seen = {}
    for name, config, samples in product(("ddp_ds", "ddp_rr", "ddp"), configs, sizes):
        images = np.random.default_rng(0).integers(0, 256, (samples, 8, 8), np.uint8)
        numbered = splits.Split(images, np.arange(samples))
        sharded = STRATEGIES[name].shards and rank.world_size > 1
        strategy = replace(config.strategy, name=name)
        share = STRATEGIES[name].share(
            nn.Linear(1, 1), samples, replace(config, strategy=strategy), rank
        )
        sampler = splits.Remaining(share.sampler, samples)
        source = LoaderInput(
            numbered, sampler, config.batch_size, 0, config, torch.float32, sharded=sharded
        )
        loaded, epochs = LOADERS[config.loader.name].load(source), []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([batch.labels.tolist() for batch in loaded])
        trained = [
            [n for batch in epoch[share.turn :: share.batches_per_step] for n in batch]
            for epoch in epochs
        ]
        facts = {"batches": epochs, "trained": trained, "facts": loaded.facts, "steps": share.steps}
        seen[name, config.loader.name, samples] = facts
    save(rank, folder, seen)


def feed(
    split: splits.Split,
    sampler: splits.RankSampler,
    config: VisionConfig,
    transfer: torch.dtype = torch.float32,
) -> Input:
    return LOADERS[config.loader.name].load(
        LoaderInput(split, sampler, config.rank_batch_size, 0, config, transfer)
    )


def quiet_model(config: VisionConfig) -> nn.Module:
    """The model with BatchNorm in evaluation mode and no
    dropout: a step depends on nothing but the batch.
    """
    torch.manual_seed(0)
    model = models.build(config.model, 10, config.dataset.image_size)
    model = model.to(PRECISIONS[config.precision.name].model_dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.Dropout):
            module.eval()
            module.train = lambda mode=True, module=module: module  # pyright: ignore[reportAttributeAccessIssue]
    return model


def loop_of(
    rank: Rank, config: VisionConfig, folder: Path, model: nn.Module, samples: int
) -> tuple[Loop, Share]:
    share = STRATEGIES[config.strategy.name].share(model, samples, config, rank)
    scale_loss = PRECISIONS[config.precision.name].scale_loss
    optimisation = optim.build(
        share.model, config, config.epochs * share.steps, scale_loss, rank.device
    )
    return Loop(rank, config, share, optimisation, folder), share


def train_quietly(rank: Rank, config: VisionConfig, folder: Path) -> None:
    """Train `epochs` with the quiet model; parameters, momentum and losses of this rank."""
    content = datasets.load(config.dataset, config.seed)
    loop, share = loop_of(rank, config, folder, quiet_model(config), len(content.train))
    precision = PRECISIONS[config.precision.name]
    batches = feed(content.train, share.sampler, config, precision.transfer_dtype)
    losses = []
    for epoch in range(config.epochs):
        share.sampler.set_epoch(epoch)
        losses += loop.train_epoch(epoch, batches)["loss"]
    parameters = [p.detach() for p in share.plain.parameters()]
    momentum = [state["momentum_buffer"] for state in loop.optim.optimizer.state.values()]
    scale = loop.optim.scaler.get_scale()
    save(
        rank,
        folder,
        {"parameters": parameters, "momentum": momentum, "losses": losses, "scale": scale},
    )


def evaluate_only(rank: Rank, config: VisionConfig, folder: Path) -> None:
    """Evaluate the same weights; rank 0 alone has the BatchNorm statistics that all must use."""
    content = datasets.load(config.dataset, config.seed)
    torch.manual_seed(0)
    model = models.build(config.model, 10, config.dataset.image_size)
    generator = torch.Generator().manual_seed(rank.rank)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_(0, 0.05, generator=generator)
    loop, share = loop_of(rank, config, folder, model, len(content.train))
    test = range(rank.rank, len(content.test), rank.world_size)
    batches = feed(content.test, test, config)
    save(rank, folder, {**loop.evaluate(batches), "mode": share.plain.training})


def buckets(rank: Rank, config: VisionConfig, folder: Path) -> None:
    """The sizes of DDP's own buckets after a few steps."""
    content = datasets.load(config.dataset, config.seed)
    loop, share = loop_of(
        rank, config, folder, models.build(config.model, 10, 32), len(content.train)
    )
    batches = feed(content.train, share.sampler, config)
    loop.train_epoch(0, batches)
    logged = share.model._get_ddp_logging_data()  # pyright: ignore[reportCallIssue]
    sizes = [int(size) for size in str(logged["rebuilt_bucket_sizes"]).split(",")]
    save(rank, folder, sum(sizes))


class Small(nn.Module):
    """A model with all that compiling must leave alone;
    torch does not compile a bare Sequential.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten()
        )
        self.classifier = nn.Linear(4 * 30 * 30, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


@contextmanager
def traces(loop: Loop) -> Iterator[dict[str, bool]]:
    """At its end, by name, whether each part of the training's state is as it was."""
    plain, left = loop.share.plain, dict[str, bool]()
    before, random = [value.clone() for value in plain.state_dict().values()], torch.get_rng_state()
    scale = loop.optim.scaler.state_dict()
    yield left
    left["state"] = all(
        torch.equal(a, b) for a, b in zip(before, plain.state_dict().values(), strict=True)
    )
    left["random"] = torch.equal(random, torch.get_rng_state())
    left["gradients"] = all(parameter.grad is None for parameter in plain.parameters())
    left["scale"] = loop.optim.scaler.state_dict() == scale


def compile_and_compare(rank: Rank, config: VisionConfig, folder: Path) -> None:
    """What the compiled model gives for a full and for an odd batch,
    and what compiling left behind.
    """
    torch.manual_seed(0)
    model = Small()
    eager = deepcopy(model).eval()
    compiling.compile_model(model, config, rank.device.type)
    loop, _ = loop_of(rank, config, folder, model, 64)
    with traces(loop) as traceless:
        compile_s = compiling.prepare(loop, 10)
    counted = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model.eval()
    with torch.no_grad():
        images = [
            torch.randn(size, 3, 32, 32) for size in (config.batch_size, config.batch_size - 1)
        ]
        differ = [
            (loop.outputs(model, batch) - eager(batch)).abs().max().item() for batch in images
        ]
    again = torch._dynamo.utils.counters["stats"]["unique_graphs"] - counted
    compiled = {"compile_s": compile_s, **compiling.cuda_graphs(rank.device, config.compile)}
    save(
        rank,
        folder,
        {**compiled, "left": traceless, "differ": differ, "graphs": counted, "again": again},
    )


def warm_up_and_train(
    rank: Rank, config: VisionConfig, folder: Path, samples: int, evaluated: int
) -> None:
    """The shapes that the model is run on before training, and those of an epoch with its
    evaluation: the size of the batch, whether the model trains, and whether autograd records it.
    Nothing is compiled.
    """
    seen: list[tuple[int, bool, bool]] = []
    model = Small()
    model.register_forward_pre_hook(
        lambda module, inputs: seen.append(
            (len(inputs[0]), module.training, torch.is_grad_enabled())
        )
    )
    loop, share = loop_of(rank, config, folder, model, samples)
    split = splits.Split(np.zeros((samples, 8, 8), np.uint8), np.zeros(samples, np.int64))
    test = range(rank.rank, evaluated, rank.world_size)
    with traces(loop) as traceless:
        compiling.prepare(loop, len(test))
    warmed = {*seen}
    seen.clear()
    transfer = PRECISIONS[config.precision.name].transfer_dtype
    loop.train_epoch(0, feed(split, share.sampler, config, transfer))
    loop.evaluate(feed(split, test, config, transfer))
    save(rank, folder, {"warmed": warmed, "seen": {*seen}, "traceless": traceless})


def run_as_with_cuda_graphs(rank: Rank, config: VisionConfig, folder: Path) -> None:
    """How often the model is run before training, and how often CUDA graphs are told so.
    Nothing is compiled.
    """
    model, calls = Small(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    loop, _ = loop_of(rank, config, folder, model, 19)
    loop.cuda_graphs = True  # which CPU ranks have not
    with mock.patch.object(torch.compiler, "cudagraph_mark_step_begin") as mark:
        compiling.prepare(loop, 9)
    graphs = compiling.cuda_graphs(rank.device, config.compile)
    save(rank, folder, {**graphs, "marks": mark.call_count, "calls": len(calls)})


def train_and_skip_cuda_graphs(
    rank: Rank, config: VisionConfig, folder: Path, workers: int
) -> None:
    """As `train`, with a CUDA graph left out in each step; what the rank reports.
    Nothing is compiled.
    """
    step, skips = Loop.step, torch._dynamo.utils.counters["inductor"]

    def skip_one(loop: Loop, batches: Any) -> Any:
        skips["cudagraph_skips"] += 1
        return step(loop, batches)

    with mock.patch.object(compiling, "compile_model"), mock.patch.object(Loop, "step", skip_one):
        train_slowly(rank, config, folder, workers)
    (report,) = rank_files.read_reports(folder)
    flags = {
        name: value for name, value in (report.flags or {}).items() if name.startswith("inductor_")
    }
    seen = {"steps": skips["cudagraph_skips"], "cuda_graphs": report.cuda_graphs}
    save(rank, folder, {**seen, "flags": flags})


def train_on_stand_ins(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """As `train`, with GPUs that are not there for DataParallel;
    the bytes that it copied between them.
    """
    with stand_ins() as moved:
        train_slowly(rank, config, folder, workers)
    save(rank, folder, dict(moved))


def train_deterministically(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # which torch asks for
    torch.use_deterministic_algorithms(True, warn_only=True)
    train(rank, config, folder, workers)


def lose_the_compiler(folder: Path) -> None:
    from torch._inductor import config as inductor

    # where nothing was compiled before
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    inductor.cpp.cxx = ("/nowhere/g++",)  # pyright: ignore[reportAttributeAccessIssue]


def compile_without_a_compiler(rank: Rank, config: VisionConfig, folder: Path) -> None:
    lose_the_compiler(folder)
    compile_and_compare(rank, config, folder)


def fail(rank: Rank, how: str) -> None:
    """Rank 1 ends in the given way while the others wait for it in a collective."""
    print(f"rank {rank.rank} was here", flush=True)
    if rank.rank == 1:
        if how == "raise":
            raise KeyError("no such thing")
        if how == "refuse":
            raise ValueError("photo.jpg: cannot be decoded")
        if how == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if how == "exit":
            os._exit(7)
        if how == "worker":  # and another one as that is reported

            def ended(*_: object) -> None:
                raise RuntimeError("DataLoader worker (pid 9) is killed by signal: Killed. ")

            signal.signal(signal.SIGCHLD, ended)
            traceback.print_exc = lambda: signal.raise_signal(signal.SIGCHLD)
            signal.raise_signal(signal.SIGCHLD)
        os.kill(os.getpid(), getattr(signal, how))
    dist.all_reduce(torch.ones(1))
    dist.barrier()


SLOW_S = 0.3  # the slow part of a step


def train_slowly(*work: Any) -> None:
    """Train a model whose own steps take some ms even on a busy machine,
    with few rounds of ablations.
    """
    torch.set_num_threads(1)  # threads that wait for one another are slow on a busy machine
    with (
        mock.patch.object(diagnosis, "ROUNDS", 3),
        mock.patch.object(models, "build", lambda *_: Small()),
    ):
        train(*work)


def train_with_bad_losses(
    rank: Rank, config: VisionConfig, folder: Path, workers: int, bad: list[tuple[int, int]]
) -> None:
    """As `train`, with NaN in place of the losses of `bad`: rank, and step of the run from 0."""
    step = Loop.step

    def step_badly(loop: Loop, batches: Any) -> Any:
        counts, loss = step(loop, batches)
        return counts, torch.tensor(torch.nan) if (rank.rank, loop.progress.steps) in bad else loss

    with mock.patch.object(Loop, "step", step_badly):
        train_slowly(rank, config, folder, workers)


def train_on_slow_data(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """As `train`, with SLOW_S for each batch to read."""
    read = TransformedSamples.__getitem__

    def read_slowly(samples: TransformedSamples, draw: int) -> tuple[torch.Tensor, int]:
        time.sleep(SLOW_S / config.batch_size)
        return read(samples, draw)

    with mock.patch.object(TransformedSamples, "__getitem__", read_slowly):
        train_slowly(rank, config, folder, workers)


def train_with_a_slow_optimiser(
    rank: Rank, config: VisionConfig, folder: Path, workers: int
) -> None:
    """As `train`, with SLOW_S for each step of the optimiser, however small the batch; no step may
    run uncompiled, by TorchDynamo, without Inductor.
    """
    build = optim.build

    def build_slow(*arguments: Any) -> optim.Optimisation:
        optimisation = build(*arguments)
        optimisation.optimizer.register_step_pre_hook(lambda *_: time.sleep(SLOW_S))
        return optimisation

    eager = AssertionError("a step ran uncompiled")
    quickly = lambda model, *_: model.compile(dynamic=False, backend="aot_eager")  # noqa: E731
    with (
        mock.patch.object(compiling, "compile_model", quickly),
        mock.patch.object(optim, "build", build_slow),
        mock.patch.object(torch.compiler, "set_stance", side_effect=eager),
    ):
        train_slowly(rank, config, folder, workers)


class SlowDdp(DistributedDataParallel):
    """Its all-reduces take SLOW_S longer than gloo's."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.register_comm_hook(None, self.slowly)

    @staticmethod
    def slowly(
        _: Any,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage] - DDP insists on this annotation
    ) -> torch.futures.Future[torch.Tensor]:
        time.sleep(SLOW_S)
        return allreduce_hook(dist.distributed_c10d._get_default_group(), bucket)


def train_over_slow_gloo(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """As `train`, with a network that is slow to exchange gradients."""
    with mock.patch.object(torch.nn.parallel, "DistributedDataParallel", SlowDdp):
        train_slowly(rank, config, folder, workers)


def says_hello(rank: Rank, folder: Path, word: str) -> None:
    print(f"rank {rank.rank} of {rank.world_size}: {word}", flush=True)
    (folder / f"{rank.rank}.txt").write_text(word)


def print_to_a_full_disk(_: Rank) -> None:
    sys.stdout = sys.stderr = open("/dev/full", "w", buffering=1)  # noqa: SIM115, PTH123
    print("hello")


def compile_in_workers(_: Rank, folder: Path) -> None:
    """Have a process of Inductor's, as Triton's kernels are compiled in, compute;
    leave the CPU seconds of all.
    """
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    with config.patch(compile_threads=2):
        AsyncCompile.process_pool()
        AsyncCompile.wakeup()
        AsyncCompile.wait_pool_ready()
    (folder / "cpu_s.txt").write_text(str(own_cpu_s()))


def leave_listeners(rank: Rank, folder: Path) -> None:
    """The addresses at which the controller, and all processes below it,
    listen while both ranks are here.
    """
    dist.barrier()
    if rank.rank == 0:
        controller = psutil.Process().parents()[1]  # the parent is the fork server
        processes = [controller, *controller.children(recursive=True)]
        sockets = [socket for process in processes for socket in process.net_connections("tcp")]
        addresses = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
        (folder / "listeners.txt").write_text("\n".join(addresses))
    dist.barrier()


def train_and_leave_listeners(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    train(rank, config, folder, workers)
    leave_listeners(rank, folder)


def leave_environment(_: Rank, folder: Path) -> None:
    lines = [f"{name}={value}" for name, value in os.environ.items()]
    (folder / "environment.txt").write_text("\n".join(lines))


@contextmanager
def full_disk(module: Any, name: str) -> Iterator[None]:
    """Have no file grow beyond 64 kB while a function of `module` writes: the system ends a write
    with an error, in the middle of a file, as it does where a disk is full.
    """
    write = getattr(module, name)

    def bounded(*arguments: Any) -> Any:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            return write(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with mock.patch.object(module, name, bounded):
        yield


def train_on_a_full_disk(rank: Rank, *arguments: Any) -> None:
    with full_disk(kept_model, "keep"):
        train(rank, *arguments)
