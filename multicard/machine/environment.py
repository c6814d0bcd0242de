"""The environment of a run: commit, versions, devices, CPU;
read without torch and without touching CUDA.
"""

import os
import platform
import re
import shutil
import socket
import sysconfig
from collections.abc import Collection
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from multicard import repository
from multicard.config import compilation
from multicard.machine import devices, topology
from multicard.measure.timing import timestamp
from multicard.messages import Message, Refusal, say

COMMIT = "MULTICARD_COMMIT"  # the variable by which the commit travels with a copy that has no .git
NAMED_COMMIT = re.compile(r"(?P<commit>[0-9a-f]{40})(?:\+(?P<changes>[0-9a-f]{8}))?")
PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "hydra-core",
    "omegaconf",
    "torchtune",
    "torchao",
    "datasets",
    "numpy",
)
# the last three are of scripts
PACKAGES += ("pyarrow", "wandb", "transformers", "accelerate", "lightning")
PACKAGES += ("trl", "peft", "bitsandbytes")
PACKAGES += ("nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-dali-cuda130", "nvidia-nccl-cu13")


def collect() -> dict[str, Any]:
    """Facts about the machine and the code that readers of the figures need,
    as JSON-ready values.
    """
    return {
        "recorded_at": timestamp(),
        "host": host(),
        "git": git(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": {
            "model": cpu_model(),
            "cores": cores(),
            "cores_online": os.cpu_count(),
            "memory_bytes": memory_bytes(),
        },
        "gpus": gpus(),
        "topology": topology.collect(devices.visible_gpus()),
        "cuda_visible_devices": os.environ.get(devices.VISIBLE),
        "cuda_device_order": devices.device_order(),
        "slurm": {
            key: value
            for key, value in sorted(of_slurm_job().items())
            if key.startswith("SLURM_JOB")
        },
    }


def require_compilers(compile_value: bool | str | None, device: str) -> None:
    """Refuse the value of the key `compile` where this machine lacks what compiled code needs: a
    C++ compiler on CPU ranks, and on CUDA, for Triton (`triton/runtime/build.py`), a C compiler and
    Python's headers. Without them torch fails in the first step.
    """
    variable, package, *others = ("CXX", "g++") if device == "cpu" else ("CC", "gcc", "clang")
    compiler = os.environ.get(variable, package)
    missing = (
        [] if any(map(shutil.which, (compiler, *others))) else [f"{compiler} (package {package})"]
    )
    if device != "cpu" and not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        missing.append(f"Python.h (package python{sysconfig.get_python_version()}-dev or -devel)")
    if missing:
        value = compilation.word(compile_value)
        raise Refusal(
            "compile.no-compiler",
            f"compile={value}: torch compiles with {' and '.join(missing)}, absent here; install"
            " it, or use `compile=false`",
            key="compile",
            value=value,
            missing=missing,
        )


def host() -> str:
    """This machine's name, as SLURM calls it where it started this process."""
    return of_slurm_job().get("SLURMD_NODENAME") or socket.gethostname()


def of_slurm_job() -> dict[str, str]:
    """SLURM's variables of the job that this process is a part of. They also reach processes that
    are in no job, or in
    another: through a shell that outlived its job, a copied environment,
    or `salloc` on a login node. There, none.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or not _is_in_job(job):
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("SLURM")}


@cache
def _is_in_job(job: str) -> bool:
    """True where SLURM started this process, as its control group or one of its ancestors shows."""
    import psutil

    with suppress(OSError):
        if re.search(
            rf"/slurm.*/job_{re.escape(job)}(/|$)",
            Path("/proc/self/cgroup").read_text(),
            re.MULTILINE,
        ):
            return True
    try:
        return any(parent.name() == "slurmstepd" for parent in psutil.Process().parents())
    except psutil.Error:  # processes of others are hidden here: the name of the node has to do
        return (
            os.environ.get("SLURMD_NODENAME", "").partition(".")[0]
            == socket.gethostname().partition(".")[0]
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git(folder: Path = repository.PACKAGES) -> dict[str, Any] | None:
    """Commit of the checkout that tracks files of `folder`, and whether tracked files differ from
    it; in a wheel, of what it was built of. Otherwise, as in a copy that was sent to another
    machine, what COMMIT says; None where it says nothing.
    """
    return repository.commit(folder) or _of_variable(os.environ.get(COMMIT, "").strip())


@cache
def _of_variable(text: str) -> dict[str, Any] | None:
    """The commit that a caller names, with the digits of what was changed beside it
    ("COMMIT+CHANGES"). What is none is said, once, and not recorded.
    """
    found = NAMED_COMMIT.fullmatch(text)
    if found is not None:
        return {
            "commit": found["commit"],
            "dirty": found["changes"] is not None,
            "changes": found["changes"],
        }
    if text:
        sentence = f"{COMMIT}={text}: is no commit, so that none is recorded; give all its digits"
        say(Message("environment.commit", sentence, key=COMMIT, value=text), error=True)
    return None


def cores() -> int:
    """CPU cores that this process may use: those of its affinity, and no more than its SLURM job
    was allocated, which not every site enforces.
    """
    allocated = of_slurm_job().get("SLURM_CPUS_PER_TASK", "")
    affine = len(os.sched_getaffinity(0))
    return min(affine, int(allocated)) if allocated.isdecimal() else affine


def memory_bytes() -> int:
    """The host memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def spans(numbers: Collection[int]) -> str:
    """Numbers as Linux writes a list of CPUs: "0-7,16-23"."""
    firsts = [number for number in sorted(numbers) if number - 1 not in numbers]
    lasts = [number for number in sorted(numbers) if number + 1 not in numbers]
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def cpu_model() -> str | None:
    with suppress(OSError), Path("/proc/cpuinfo").open() as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


def gpus() -> list[dict[str, Any]]:
    """Name, memory, clocks and driver of the visible GPUs;
    None for a figure that NVML does not have.
    """
    chosen = devices.visible_gpus()
    with devices.nvml() as library:
        return [] if library is None else [_gpu(library, uuid) for uuid in chosen]


def _gpu(library: Any, uuid: str) -> dict[str, Any]:
    ask = partial(devices.ask, library)
    handle = ask(library.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return {"uuid": uuid}  # an older form of a MIG instance's name, say
    memory = ask(library.nvmlDeviceGetMemoryInfo, handle)
    return {
        "uuid": uuid,
        "name": ask(library.nvmlDeviceGetName, handle),
        "memory_bytes": None if memory is None else memory.total,
        "sm_clock_max_mhz": ask(library.nvmlDeviceGetMaxClockInfo, handle, library.NVML_CLOCK_SM),
        "memory_clock_max_mhz": ask(
            library.nvmlDeviceGetMaxClockInfo, handle, library.NVML_CLOCK_MEM
        ),
        "driver": ask(library.nvmlSystemGetDriverVersion),
    }
