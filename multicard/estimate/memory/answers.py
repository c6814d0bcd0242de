"""Answers to requests for steps without values: from a cache on the disk,
or computed in one process. No torch.
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

# answers of a process, which takes seconds to start; processes, of 1 GB each
FEWEST = 3
PROCESSES = 8
NOT_COMPUTED = Message("memory.not-computed", "not computed yet")
# Files of multicard that a step without values runs: an edit of one of them, and of no other,
# empties the cache
SIMULATED = (
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
    """The tensors of a step without values, in bytes.

    Fields:
        active_bytes: at the peak, as `torch.cuda.max_memory_allocated` counts them, without
            workspaces of libraries.
        sizes: of a folder's model that is tuned, by which its work is counted; None of others.
    """

    active_bytes: int
    by_kind: dict[str, int]
    sizes: ModelSizes | None = None


Answer = Active | str  # or the reason that there is none


class Request(msgspec.Struct, frozen=True):
    """A step to take without values.

    memory_bytes: of the GPU, which decides how much of the data set stays on it;
    None: as much as there is.
    """

    config: RunConfig
    facts: Facts
    device: str = "cuda"
    memory_bytes: int | None = None


def identity(request: Request) -> str:
    """Digest of a request's relevant keys, the libraries and the code;
    equal for requests that share an answer.
    """
    config = plain(request.config)
    facts = msgspec.to_builtins(request.facts)
    memory_bytes = request.memory_bytes
    ranks = config["gpus"] * config["nodes"]
    loader = config.get("loader", {}).get("name")
    if loader != "device":  # which keeps a share of the data set in a share of the GPU's memory
        memory_bytes = None
        facts.pop("test", None)
    in_processes = request.config.processes == request.config.gpus
    if loader not in (None, "device") and in_processes:
        ranks = min(ranks, 2)  # a replica under DDP takes the same on any number of ranks above one
    kept = {key: config[key] for key in schema.own(type(request.config), Role.memory)}
    matters = [request.config.kind, kept, ranks, facts, request.device, memory_bytes, _versions()]
    return hashlib.sha256(msgspec.json.encode(matters, order="sorted")).hexdigest()


# no roles: packages that a step without values may use
EXTRAS = ("trl", "transformers", "accelerate", "peft", "bitsandbytes", "liger_kernel")


@cache
def _versions() -> list[str]:
    extra = [name for name in EXTRAS if find_spec(name) is not None]
    libraries = [
        version(name) for name in ("torch", "torchvision", "timm", "torchtune", "torchao", *extra)
    ]
    code = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(chain.from_iterable(root.glob(pattern) for pattern in SIMULATED)):
        code.update(path.read_bytes())
    return [*libraries, code.hexdigest()]


def answer_all(asked: Sequence[Request], compute: bool = True) -> list[Answer]:
    """An answer to each request; equal ones are computed once, all in one process. Without
    `compute` those that the cache does not have are NOT_COMPUTED.
    """
    paths = [run_folder.cache("memory") / f"{identity(request)}.json" for request in asked]
    answers: dict[Path, Answer] = {}
    for path in dict.fromkeys(paths):
        with suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            answers[path] = msgspec.json.decode(path.read_bytes(), type=Active)
    left = {
        path: request for path, request in zip(paths, asked, strict=True) if path not in answers
    }
    if not compute:
        answers |= dict.fromkeys(left, NOT_COMPUTED)
    elif left:
        for path, answer in zip(
            left, _with_progress(computed([*left.values()]), len(left)), strict=True
        ):
            answers[path] = answer
            if isinstance(answer, Active):
                with suppress(OSError):
                    run_folder.write_json(path, msgspec.to_builtins(answer))
    return [answers[path] for path in paths]


def computed(asked: Sequence[Request]) -> Iterator[Answer]:
    """Answers in the order of the requests, each as soon as it is there, from processes of their
    own: this one imports no torch.
    """
    count = max(1, min(cores(), len(asked) // FEWEST, PROCESSES))
    with ExitStack() as stack:
        # neighbours are alike, so that each process has as many of those that take long
        answers = [stack.enter_context(_computing(asked[place::count])) for place in range(count)]
        for place in range(len(asked)):
            yield next(answers[place % count])


@contextmanager
def _computing(asked: Sequence[Request]) -> Iterator[Iterator[Answer]]:
    """Start a process that answers these requests. Yields its answers."""
    command = [sys.executable, "-m", "multicard.estimate.memory.simulate"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with TemporaryFile() as log, TemporaryFile() as questions:
        pickle.dump(asked, questions)
        questions.seek(0)
        with Popen(
            command, stdin=questions, stdout=PIPE, stderr=log, cwd=PACKAGES, env=env
        ) as process:
            try:
                yield _answers(process, log, len(asked))
            finally:
                process.kill()  # one that has ended is past it


def _answers(process: Popen[bytes], log: IO[bytes], count: int) -> Iterator[Answer]:
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
    """The answers as they come, with a bar on a terminal's
    standard error that goes with the last.
    """
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    words = f"predicting the memory of {count(total, 'setting')}"
    return track(
        answers, words, total, console=console, transient=True, disable=not console.is_terminal
    )
