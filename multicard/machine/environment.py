"""Describe the environment of a run: commit, versions, devices and CPU.

It is read without torch and without touching CUDA.
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

COMMIT = "MULTICARD_COMMIT"  # This variable gives the commit of a copy that has no .git.
COMMIT_PATTERN = re.compile(r"(?P<commit>[0-9a-f]{40})(?:\+(?P<changes>[0-9a-f]{8}))?")
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
# The last three are used by users' scripts.
PACKAGES += ("pyarrow", "wandb", "transformers", "accelerate", "lightning")
PACKAGES += ("trl", "peft", "bitsandbytes")
PACKAGES += ("nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-dali-cuda130", "nvidia-nccl-cu13")


def collect() -> dict[str, Any]:
    """Return the facts about machine and code that readers of the figures need, ready for JSON."""
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
    """Refuse to compile if this machine lacks what compiled code needs.

    CPU ranks need a C++ compiler. On CUDA, Triton needs a C compiler and Python's headers
    (`triton/runtime/build.py`). Without them, torch would fail in the first step.

    Args:
        compile_value: The value of the key `compile`.
    """
    variable, package, *alternatives = ("CXX", "g++") if device == "cpu" else ("CC", "gcc", "clang")
    compiler = os.environ.get(variable, package)
    missing = (
        []
        if any(map(shutil.which, (compiler, *alternatives)))
        else [f"{compiler} (package {package})"]
    )
    if device != "cpu" and not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        missing.append(f"Python.h (package python{sysconfig.get_python_version()}-dev or -devel)")
    if missing:
        value = compilation.word(compile_value)
        raise Refusal(
            "compile.no-compiler",
            f"compile={value}: torch compiles with {' and '.join(missing)}, which this machine"
            " lacks; install it, or use `compile=false`",
            key="compile",
            value=value,
            missing=missing,
        )


def host() -> str:
    """Return this machine's name. In a SLURM job, it is SLURM's name of the node."""
    return of_slurm_job().get("SLURMD_NODENAME") or socket.gethostname()


def of_slurm_job() -> dict[str, str]:
    """Return the SLURM variables of the job to which this process belongs.

    They also reach processes in no job or in another one: through a shell that outlived its job, a
    copied environment, or `salloc` on a login node. Such processes get an empty dict.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or not _is_in_job(job):
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("SLURM")}


@cache
def _is_in_job(job: str) -> bool:
    """Tell whether SLURM started this process, by its control group or one of its ancestors."""
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
    except psutil.Error:
        # Other users' processes are hidden on this machine, so the node's name has to suffice.
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
    """Return the commit of the checkout that tracks `folder`, and whether its files changed.

    A wheel gives the commit from which it was built. Any other copy, such as one sent to another
    machine, gives the commit in the variable COMMIT, or None.
    """
    return repository.commit(folder) or _commit_in_variable(os.environ.get(COMMIT, "").strip())


@cache
def _commit_in_variable(text: str) -> dict[str, Any] | None:
    """Parse the commit that a caller names, with digits for local changes ("COMMIT+CHANGES").

    If the text is no commit, print a notice once and return None.
    """
    match = COMMIT_PATTERN.fullmatch(text)
    if match is not None:
        return {
            "commit": match["commit"],
            "dirty": match["changes"] is not None,
            "changes": match["changes"],
        }
    if text:
        sentence = f"{COMMIT}={text}: is no commit, so none is recorded; give all of its digits"
        say(Message("environment.commit", sentence, key=COMMIT, value=text), error=True)
    return None


def cores() -> int:
    """Count the CPU cores that this process may use.

    They are the cores of its affinity, but no more than its SLURM job was allocated: not every site
    enforces that.
    """
    job_cores = of_slurm_job().get("SLURM_CPUS_PER_TASK", "")
    affinity_cores = len(os.sched_getaffinity(0))
    return min(affinity_cores, int(job_cores)) if job_cores.isdecimal() else affinity_cores


def memory_bytes() -> int:
    """Return the machine's host memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def spans(numbers: Collection[int]) -> str:
    """Format numbers like Linux's lists of CPUs: "0-7,16-23"."""
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
    """Describe the visible GPUs: name, memory, clocks and driver. Unknown figures are None."""
    uuids = devices.visible_gpus()
    with devices.nvml() as library:
        return [] if library is None else [_gpu(library, uuid) for uuid in uuids]


def _gpu(library: Any, uuid: str) -> dict[str, Any]:
    ask = partial(devices.ask, library)
    handle = ask(library.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return {"uuid": uuid}  # NVML does not know older forms of MIG instances' names.
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
