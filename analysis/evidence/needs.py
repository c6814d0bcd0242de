"""Why a place leaves a step out: what the step needs and the machine has not.
Empty where it has all.
"""

from importlib.util import find_spec
from pathlib import Path

from multicard.machine import environment
from multicard.measure import memory
from multicard.messages import ROOT, Message
from multicard.records.text_table import in_bytes

from .place import Circumstances

LARGE = 40e9  # bytes of a GPU's memory, from which the papers' batches of 500 px in fp64 fit


def a_gpu(place: Circumstances) -> str:
    return "" if place.is_cuda else Message("evidence.needs-gpu", "it needs a GPU")


def several_gpus(place: Circumstances) -> str:
    return "" if place.gpus > 1 else Message("evidence.needs-several", "it needs two GPUs")


def memory_for_fp64(place: Circumstances) -> str:
    """Of the papers' batches in fp64, on the device and in the shared memory of the loader's
    workers, which hold two each beside the one in use.
    """
    if not place.is_cuda:
        return ""
    if place.memory_bytes < LARGE:
        said = f"fp64 at 500 px needs a GPU of {LARGE / 1e9:.0f} GB"
        return Message("evidence.needs-memory", said, needed_bytes=LARGE)
    batches = 2 * min(8, environment.cores()) + 1
    needed_bytes = batches * 32 * (3 * 500**2 * 8 + 8)
    free_bytes = memory.free_shared_memory_bytes()
    if free_bytes is None or free_bytes >= needed_bytes:
        return ""
    have = f"/dev/shm has {in_bytes(free_bytes)} free, fp64 needs {in_bytes(needed_bytes)}"
    sentence = f"{have}; start the container with a larger `--shm-size=SIZE`, or with `--ipc=host`"
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
    """The tests that need a GPU, where they are installed."""
    folder = Path("tests", "gpu")
    return [str(folder / "test_cuda.py"), str(folder)] if (ROOT / folder).is_dir() else []
