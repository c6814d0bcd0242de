"""The most memory that a run takes, by kind, predicted in seconds without weights or a GPU.

    predict(config, Machine("cuda", "NVIDIA H100", 94 * 10**9)).fits(94 * 10**9)

The steps of the run are taken with tensors that have no values, in a process of its own: this one imports no torch.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import msgspec

from multicard.config import compilation
from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.vision import VisionConfig
from multicard.predict.memory import extras, facts, requests
from multicard.predict.memory.facts import Facts, Machine
from multicard.predict.memory.result import Active, PeakMemory
from multicard.records import run_folder
from multicard.vision.strategy import compiles

ERROR = {
    True: 0.02,
    False: 0.10,
}  # half-width of the 90 % interval of active bytes, as a share; by whether length known
ROOT = Path(__file__).parents[3]


class UnpredictableError(Exception):
    """No prediction; the text says why."""


def predict(
    config: RunConfig,
    machine: Machine | None = None,
    known: Facts | None = None,
    measured: Sequence[extras.Measured] = (),
) -> PeakMemory:
    """The peak of one rank's memory in a run.

    Args:
        machine: where it is to run; a GPU of unknown memory if not said.
        known: sizes of the data set; read if not said.
        measured: runs of this machine like it; three or more replace the stated extras that torch's allocator knows.

    Raises:
        UnpredictableError: the steps cannot be taken without values, or not as a real run takes them.
        ValueError: from reading the data set, with the key and the remedy.
    """
    (answer,) = predict_all([config], machine, None if known is None else [known], measured)
    if isinstance(answer, str):
        raise UnpredictableError(answer)
    return answer


def predict_all(
    configs: Sequence[RunConfig],
    machine: Machine | None = None,
    known: Sequence[Facts] | None = None,
    measured: Sequence[extras.Measured] = (),
    compute: bool = True,
) -> list[PeakMemory | str]:
    """As `predict`, of several runs by one process; of one that has no prediction, the reason.

    Args:
        compute: False: take answers of earlier calls alone, and start no process.
    """
    machine = machine or Machine()
    sizes = known or [facts.of(config) for config in configs]
    asked = [requests.request(config, size, machine) for config, size in zip(configs, sizes, strict=True)]
    answers = _answers(asked) if compute else _earlier(asked)
    return [
        answer if isinstance(answer, str) else _with_extras(config, machine, size, answer, measured)
        for config, size, answer in zip(configs, sizes, answers, strict=True)
    ]


def cache_folder() -> Path:
    """Where answers are kept, as JSON: nothing that is read from it is run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multicard" / "memory"


def _answers(asked: Sequence[requests.Request]) -> list[Active | str]:
    """Answers from the cache, or else from a process."""
    paths = _paths(asked)
    answers: dict[Path, Active | str] = {**_cached(paths)}
    left = {path: request for path, request in zip(paths, asked, strict=True) if path not in answers}
    if left:
        for path, answer in zip(left, _computed(list(left.values())), strict=True):
            answers[path] = answer
            if isinstance(answer, Active):
                with suppress(OSError):
                    run_folder.write_json(path, msgspec.to_builtins(answer))
    return [answers[path] for path in paths]


def _earlier(asked: Sequence[requests.Request]) -> list[Active | str]:
    """Answers from the cache alone."""
    paths = _paths(asked)
    answers = _cached(paths)
    return [answers.get(path, "not computed before") for path in paths]


def _paths(asked: Sequence[requests.Request]) -> list[Path]:
    return [cache_folder() / f"{requests.identity(request)}.json" for request in asked]


def _cached(paths: Sequence[Path]) -> dict[Path, Active]:
    answers = {}
    for path in paths:
        with suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            answers[path] = msgspec.json.decode(path.read_bytes(), type=Active)
    return answers


def _computed(asked: Sequence[requests.Request]) -> list[Active | str]:
    done = subprocess.run(
        [sys.executable, "-m", "multicard.predict.memory"],
        input=msgspec.json.encode(asked),
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    answers = [msgspec.json.decode(line, type=Active | str) for line in done.stdout.splitlines()]
    last = (done.stderr.decode(errors="replace").splitlines() or ["it said nothing"])[-1]
    return answers + [f"the process ended with {done.returncode}: {last}"] * (len(asked) - len(answers))


def _with_extras(
    config: RunConfig, machine: Machine, size: Facts, active: Active, measured: Sequence[extras.Measured]
) -> PeakMemory:
    added = extras.of(_situation(config, machine, size, active)) if machine.device_type == "cuda" else {}
    allocated = {name: extra for name, extra in added.items() if extras.TERMS[name].allocated}
    certain = not getattr(size, "assumed", False)
    basis = (
        "steps without values"
        if certain
        else f"steps without values, rows of {getattr(size, 'length', 0)} tokens assumed"
    )
    learned = extras.learned(measured)
    if learned is not None and allocated:
        allocated = {"learned": learned}
        added = allocated | {name: extra for name, extra in added.items() if not extras.TERMS[name].allocated}
        basis += f", extras of {len(measured)} runs of this machine"
    error = ERROR[certain]
    return PeakMemory(
        active_bytes=active.active_bytes,
        by_kind=active.by_kind,
        phase=active.phase,
        operator=active.operator,
        by_phase=active.by_phase,
        extras=added,
        basis=basis,
        seconds=active.seconds,
        **_interval("allocated", extras.summed(active.active_bytes, allocated, error)),
        **_interval("", extras.summed(active.active_bytes, added, error)),
    )


def _interval(prefix: str, values: tuple[int, int, int]) -> dict[str, int]:
    names = (
        ("allocated_bytes", "allocated_low_bytes", "allocated_high_bytes")
        if prefix
        else ("total_bytes", "low_bytes", "high_bytes")
    )
    return dict(zip(names, values, strict=True))


def _situation(config: RunConfig, machine: Machine, size: Facts, active: Active) -> extras.Situation:
    major, minor = version("torch").split(".")[:2]
    made = sum(active.by_kind.get(kind, 0) for kind in ("activations", "temporaries"))
    compile_value = getattr(config, "compile", False)
    is_vision = isinstance(config, VisionConfig)
    compiled = compiles(config, machine.device_type) if isinstance(config, VisionConfig) else bool(compile_value)
    dali = is_vision and config.loader.name == "dali"
    return extras.Situation(
        active.active_bytes,
        made,
        (int(major), int(minor)),
        machine.gpu,
        config.gpus * config.nodes if is_vision or not isinstance(config, LlmConfig) else config.world_size,
        convolutions=is_vision,
        benchmark=bool(getattr(config, "cudnn_benchmark", False)),
        compiled=compiled,
        cuda_graphs=compiled and compilation.has_cuda_graphs(compile_value),
        dali_bytes=active.by_kind.get("batch", 0) * 3 if dali else 0,
    )
