"""Answers to requests for simulated steps: from a cache on disk, or from processes. No torch.

A simulated step runs real code on fake tensors, which have sizes but no values.
"""

import hashlib
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import IO

import msgspec

from multicard.config import schema
from multicard.config.base import RunConfig, plain
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.estimate.memory.facts import Facts
from multicard.machine.environment import cores
from multicard.messages import Message
from multicard.records import run_folder
from multicard.records.rank_files import ModelSizes
from multicard.repository import PACKAGES

LEAST_PER_PROCESS = 3  # Answers per process, because a process takes seconds to start.
MOST_PROCESSES = 8  # Each takes 1 GB.
NOT_COMPUTED = Message("memory.not-computed", "not computed yet")
# The files of multicard that a simulated step runs. An edit of any of them empties the cache, and
# no other edit does.
SIMULATED_FILES = (
    "estimate/memory/*.py",
    "llm/*.py",
    "llm/trl/*.py",
    "vision/*.py",
    "vision/data/batch.py",
    "vision/data/device_loader.py",
    "ranks/process.py",
    "measure/timing.py",
)


class Active(msgspec.Struct, frozen=True):
    """The tensors of a simulated step, in bytes.

    Fields:
        active_bytes: bytes at the peak, as `torch.cuda.max_memory_allocated` counts them, without
            the workspaces of libraries.
        by_kind: bytes at the peak by kind (`tracker.KINDS`).
        sizes: sizes of a folder's model, by which its operations are counted. Otherwise None.
    """

    active_bytes: int
    by_kind: dict[str, int]
    sizes: ModelSizes | None = None


Answer = Active | str  # The text is the reason why there is no peak.


class Request(msgspec.Struct, frozen=True):
    """A step to simulate.

    Fields:
        memory_bytes: the GPU's memory, which limits how much of the data set stays on it. None
            means unlimited.
    """

    config: RunConfig
    facts: Facts
    device: str = "cuda"
    memory_bytes: int | None = None


def identity(request: Request) -> str:
    """Return a digest of a request's relevant keys, the libraries and the code.

    Requests that share an answer have the same digest.
    """
    config = plain(request.config)
    facts = msgspec.to_builtins(request.facts)
    memory_bytes = request.memory_bytes
    ranks = config["gpus"] * config["nodes"]
    loader = config.get("loader", {}).get("name")
    if loader != "device":  # Only this loader keeps data in a share of the GPU's memory.
        memory_bytes = None
        facts.pop("test", None)
    in_processes = request.config.processes == request.config.gpus
    if loader not in (None, "device") and in_processes:
        # A replica under DDP takes the same memory on any number of ranks above one.
        ranks = min(ranks, 2)
    memory_keys = {key: config[key] for key in schema.own(type(request.config), Role.memory)}
    parts = [
        request.config.kind,
        memory_keys,
        ranks,
        facts,
        request.device,
        memory_bytes,
        _versions(),
    ]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


# no roles: packages that a simulated step may use
OPTIONAL_PACKAGES = ("trl", "transformers", "accelerate", "peft", "bitsandbytes", "liger_kernel")


@cache
def _versions() -> list[str]:
    installed = [name for name in OPTIONAL_PACKAGES if find_spec(name) is not None]
    libraries = [
        version(name)
        for name in ("torch", "torchvision", "timm", "torchtune", "torchao", *installed)
    ]
    code = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(chain.from_iterable(root.glob(pattern) for pattern in SIMULATED_FILES)):
        code.update(path.read_bytes())
    return [*libraries, code.hexdigest()]


def answer_all(requests: Sequence[Request], compute: bool = True) -> list[Answer]:
    """Return an answer to each request, computing equal requests once.

    Args:
        compute: False to answer NOT_COMPUTED to requests that the cache lacks.
    """
    paths = [run_folder.cache("memory") / f"{identity(request)}.json" for request in requests]
    answers: dict[Path, Answer] = {}
    for path in dict.fromkeys(paths):
        with suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            answers[path] = msgspec.json.decode(path.read_bytes(), type=Active)
    missing = {
        path: request for path, request in zip(paths, requests, strict=True) if path not in answers
    }
    if not compute:
        answers |= dict.fromkeys(missing, NOT_COMPUTED)
    elif missing:
        for path, answer in zip(
            missing, _with_progress(compute_answers([*missing.values()]), len(missing)), strict=True
        ):
            answers[path] = answer
            if isinstance(answer, Active):
                with suppress(OSError):
                    run_folder.write_json(path, msgspec.to_builtins(answer))
    return [answers[path] for path in paths]


def compute_answers(requests: Sequence[Request]) -> Iterator[Answer]:
    """Yield the answers in the order of the requests, as soon as they are ready.

    They come from separate processes: this process imports no torch.
    """
    count = max(1, min(cores(), len(requests) // LEAST_PER_PROCESS, MOST_PROCESSES))
    with ExitStack() as stack:
        # Neighboring requests are similar, so each process gets equally many slow ones.
        answers = [
            stack.enter_context(_running_process(requests[index::count])) for index in range(count)
        ]
        for index in range(len(requests)):
            yield next(answers[index % count])


@contextmanager
def _running_process(requests: Sequence[Request]) -> Iterator[Iterator[Answer]]:
    """Start a process that answers these requests, and yield its answers."""
    command = [sys.executable, "-m", "multicard.estimate.memory.simulate"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with TemporaryFile() as log, TemporaryFile() as questions:
        pickle.dump(requests, questions)
        questions.seek(0)
        with Popen(
            command, stdin=questions, stdout=PIPE, stderr=log, cwd=PACKAGES, env=env
        ) as process:
            try:
                yield _read_answers(process, log, len(requests))
            finally:
                process.kill()  # Has no effect on a process that has ended.


def _read_answers(process: Popen[bytes], log: IO[bytes], count: int) -> Iterator[Answer]:
    answered = 0
    for answered, line in enumerate(process.stdout or (), start=1):  # noqa: B007
        yield msgspec.json.decode(line, type=Answer)
    code = process.wait()
    log.seek(0)
    last = (log.read().decode(errors="replace").splitlines() or ["no output"])[-1]
    reason = Message(
        "memory.process-ended", f"the process ended with {code}: {last}", exit_code=code, last=last
    )
    yield from [reason] * (count - answered)


def _with_progress(answers: Iterable[Answer], total: int) -> Iterable[Answer]:
    """Pass the answers on, with a progress bar on a terminal's standard error.

    The bar disappears after the last answer.
    """
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    words = f"predicting the memory of {count(total, 'setting')}"
    return track(
        answers, words, total, console=console, transient=True, disable=not console.is_terminal
    )
