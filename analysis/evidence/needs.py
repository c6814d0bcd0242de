"""Say why a place skips a step: each check returns what the machine lacks, or an empty string."""

from importlib.util import find_spec
from pathlib import Path

from multicard.machine import environment
from multicard.measure import memory
from multicard.messages import ROOT, Message
from multicard.records.text_table import in_bytes

from .place import Circumstances

FP64_MEMORY_BYTES = 40e9  # GPUs with this much memory hold the papers' batches in fp64.


def a_gpu(place: Circumstances) -> str:
    return "" if place.is_cuda else Message("evidence.needs-gpu", "it needs a GPU")


def several_gpus(place: Circumstances) -> str:
    return "" if place.gpus > 1 else Message("evidence.needs-several", "it needs two GPUs")


def memory_for_fp64(place: Circumstances) -> str:
    """Check the memory for the papers' batches in fp64, on the device and in shared memory.

    In shared memory, each worker of the loader holds two batches, and one more is in use.
    """
    if not place.is_cuda:
        return ""
    if place.memory_bytes < FP64_MEMORY_BYTES:
        text = f"fp64 at 500 px needs a GPU of {FP64_MEMORY_BYTES / 1e9:.0f} GB"
        return Message("evidence.needs-memory", text, needed_bytes=FP64_MEMORY_BYTES)
    batches = 2 * min(8, environment.cores()) + 1
    needed_bytes = batches * 32 * (3 * 500**2 * 8 + 8)
    free_bytes = memory.free_shared_memory_bytes()
    if free_bytes is None or free_bytes >= needed_bytes:
        return ""
    lack = f"/dev/shm has {in_bytes(free_bytes)} free, fp64 needs {in_bytes(needed_bytes)}"
    sentence = f"{lack}; start the container with a larger `--shm-size=SIZE`, or with `--ipc=host`"
    return Message(
        "evidence.shared-memory", sentence, free_bytes=free_bytes, needed_bytes=needed_bytes
    )


def llama3_8b(place: Circumstances) -> str:
    if not place.is_cuda or place.model == "llama3_8b":
        return ""
    return Message("evidence.needs-8b", "Llama3-8B needs a GPU of 70 GB")


def tests_of_gpus(place: Circumstances) -> str:
    if not place.is_cuda:
        return a_gpu(place)
    if not find_spec("pytest"):
        return Message("evidence.needs-pytest", "pytest is not installed: `pip install pytest`")
    return "" if gpu_tests() else Message("evidence.needs-tests", "the tests are not installed")


def liger(place: Circumstances) -> str:
    is_there = find_spec("trl") and find_spec("liger_kernel")
    return a_gpu(place) or (
        "" if is_there else Message("evidence.needs-liger", "TRL or Liger is not installed")
    )


def gpu_tests() -> list[str]:
    """Return the paths of the tests that need a GPU, if they are installed."""
    folder = Path("tests", "gpu")
    return [str(folder / "test_cuda.py"), str(folder)] if (ROOT / folder).is_dir() else []
