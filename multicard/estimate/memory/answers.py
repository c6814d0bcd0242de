"""Answers of the process that predicts: from a cache on the disk, or computed together. No torch."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import NamedTuple

import msgspec

from multicard.estimate.memory import requests
from multicard.estimate.memory.progress import Progress
from multicard.estimate.memory.requests import Request
from multicard.estimate.memory.result import Active
from multicard.records import run_folder

ROOT = Path(__file__).parents[3]
NOT_COMPUTED = "not computed yet"
LENGTHS = (64, 512, 4096)  # tokens of a row: multiples of 8, in which torchtune cuts its output
Answer = Active | str


class Between(NamedTuple):
    """A request between two others: of a row length that lies `share` of the way from `below`'s to `above`'s."""

    below: Request
    above: Request
    share: float


def between(request: Request) -> Between:
    """The requests that are computed for one. On a GPU the peak of a phase is linear in the length of rows, so that two
    lengths of LENGTHS stand for all between them, and data sets share answers. Attention on a CPU is not linear."""
    length = request.facts.get("length")
    if length is None or request.device != "cuda" or length in LENGTHS:
        return Between(request, request, 0.0)
    below = max((tokens for tokens in LENGTHS if tokens < length), default=LENGTHS[0])
    most = request.config["model"]["max_seq_len"]
    above = min(next((tokens for tokens in LENGTHS if tokens > length), most), most)
    if not below < length < above:
        return Between(request, request, 0.0)
    first, last = (
        msgspec.structs.replace(request, facts=request.facts | {"length": tokens}) for tokens in (below, above)
    )
    return Between(first, last, (length - below) / (above - below))


def of(asked: Sequence[Request], compute: bool = True) -> list[Answer]:
    """An answer to each request, those alike computed once, all in one process.

    Args:
        compute: False: only what is in the cache; NOT_COMPUTED for the others.
    """
    parts = [between(request) for request in asked]
    known = _answers([request for part in parts for request in part[:2]], compute)
    ends = zip(known[::2], known[1::2], parts, strict=True)
    return [_mixed(below, above, part.share) for below, above, part in ends]


def _mixed(below: Answer, above: Answer, share: float) -> Answer:
    if isinstance(below, str) or isinstance(above, str):
        return below if isinstance(below, str) else above

    def mixed(name: str) -> dict[str, int]:
        ends: tuple[dict[str, int], ...] = getattr(below, name), getattr(above, name)
        first, last = ends
        return {key: round((1 - share) * first.get(key, 0) + share * last.get(key, 0)) for key in first | last}

    kinds, nearer = mixed("by_kind"), above if share > 0.5 else below
    seconds = below.seconds + (above.seconds if share else 0.0)
    return Active(sum(kinds.values()), kinds, nearer.phase, nearer.operator, mixed("by_phase"), seconds)


def cache_folder() -> Path:
    """Where answers are kept, as JSON: nothing that is read from it is run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multicard" / "memory"


def _answers(asked: Sequence[Request], compute: bool) -> list[Answer]:
    paths = [cache_folder() / f"{requests.identity(request)}.json" for request in asked]
    answers: dict[Path, Answer] = {}
    for path in dict.fromkeys(paths):
        with suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            answers[path] = msgspec.json.decode(path.read_bytes(), type=Active)
    left = {path: request for path, request in zip(paths, asked, strict=True) if path not in answers}
    if not compute:
        answers |= dict.fromkeys(left, NOT_COMPUTED)
    elif left:
        progress = Progress(len(left))
        for done, (path, answer) in enumerate(zip(left, computed(list(left.values())), strict=True), start=1):
            progress.show(done)
            answers[path] = answer
            if isinstance(answer, Active):
                with suppress(OSError):
                    run_folder.write_json(path, msgspec.to_builtins(answer))
        progress.end()
    return [answers[path] for path in paths]


def computed(asked: Sequence[Request]) -> Iterator[Answer]:
    """Answers, each as soon as it is there, from a process of its own: this one imports no torch."""
    command, answered, last = [sys.executable, "-m", "multicard.estimate.memory"], 0, "it said nothing"
    with TemporaryFile() as log, TemporaryFile() as questions:
        questions.write(msgspec.json.encode(asked))
        questions.seek(0)
        env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        with Popen(command, stdin=questions, stdout=PIPE, stderr=log, cwd=ROOT, env=env) as process:
            for answered, line in enumerate(process.stdout or (), start=1):  # noqa: B007
                yield msgspec.json.decode(line, type=Answer)
        log.seek(0)
        last = (log.read().decode(errors="replace").splitlines() or [last])[-1]
    yield from [f"the process ended with {process.returncode}: {last}"] * (len(asked) - answered)
