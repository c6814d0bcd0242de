"""Describe the failures that end a run, and raise an exception for signals that interrupt it."""

import errno
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import main_thread

from multicard.config import compilation
from multicard.machine.environment import host
from multicard.measure.memory import SHARED_MEMORY, DeviceMemory
from multicard.messages import Message, Refusal, printable
from multicard.ranks import interruption
from multicard.records.schema_parts import Failure


class Interrupted(BaseException):
    """A signal, or `end`, asked the controller to end. The agent then ends its ranks by SIGTERM."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


BINARY = re.compile(r"(\d+(?:\.\d+)?) ([KMGT])iB")  # Sizes in torch's messages.
_FAILURES_TO_RAISE: list[Failure] = []  # Failures that `end` hands to the main thread.


def end(failure: Failure) -> None:
    """Have the main thread raise `Interrupted` with this failure.

    Call it from any other thread while the main thread is `interruptible`.
    """
    _FAILURES_TO_RAISE.append(failure)
    main = main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


def interruptible() -> AbstractContextManager[None]:
    """Have a signal that asks this process to end, or `end`, raise `Interrupted`.

    It is raised only once (see `interruption`).
    """
    _FAILURES_TO_RAISE.clear()
    return interruption.answered(_interrupted, signal.SIGUSR1)


def _interrupted(number: int) -> Interrupted:
    by_signal = Failure("interrupt", signal.Signals(number).name, host=host())
    return Interrupted(_FAILURES_TO_RAISE.pop() if _FAILURES_TO_RAISE else by_signal)


def words_of(error: BaseException) -> str:
    """Return the text of an error, which is a `Message` if the error was made of one."""
    first_argument = error.args[0] if error.args else None
    return first_argument if isinstance(first_argument, Message) else str(error)


def in_a_line(error: BaseException) -> str:
    """Return an error as a user reads it, with memory in GB.

    For a ValueError this is its message. For others it is the type and the message.
    """
    from multicard.records.text_table import in_bytes  # This imports rich.

    if isinstance(words_of(error), Message):
        return words_of(error)
    text = printable(str(error)).strip()
    text = BINARY.sub(lambda size: in_bytes(float(size[1]) * 1024 ** " KMGT".index(size[2])), text)
    lines = text.splitlines() or [""]
    if lines[0].startswith("Caught ") and "DataLoader worker" in lines[0]:
        # The last line of the worker's own traceback has the message.
        return lines[-1].removeprefix("ValueError: ").removeprefix("multicard.messages.Refusal: ")
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def disk_full(error: BaseException) -> OSError | None:
    """Return the error of a full disk, or quota, that caused an error; None if nothing did so."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            return link
        link = link.__cause__ or link.__context__
    return None


def no_space(error: BaseException, folder: Path) -> Message | None:
    """Return the message that a disk is full, if that caused an error of a run in `folder`.

    It names the file that the error names, or else the fullest disk that a run writes to.
    """
    disk_error = disk_full(error)
    if disk_error is None:
        return None
    disks = [path for path in (folder, tempfile.gettempdir(), SHARED_MEMORY) if Path(path).exists()]
    fullest = str(disk_error.filename or min(disks, key=lambda path: shutil.disk_usage(path).free))
    return Message(
        "disk.full",
        f"no space left on the disk of {fullest} ({disk_error.strerror}); free some space",
        path=fullest,
        reason=disk_error.strerror,
    )


def unwritable(
    folder: Path, error: OSError | None = None, key: str = "hydra.run.dir", rank: int | None = None
) -> Message:
    """Return the message that nothing can be written to a folder.

    Args:
        error: The reason, if it is known.
        key: The key that names the folder.
        rank: The rank that cannot write; None for the controller.
    """
    reason = None if error is None else str(error.strerror or error)
    writer = "" if rank is None else f"rank {rank} "
    why = "" if reason is None else f" ({reason})"
    return Message(
        "folder.unwritable",
        f"{key}: {writer}cannot write to {folder}{why}; free some space, or choose another folder",
        key=key,
        folder=str(folder),
        reason=reason,
        rank=rank,
    )


# Words by which torch's CPU allocator and the system say that the host is out of memory. OOM_WORDS
# also has those of torch, the driver and NCCL; of cuBLAS, cuDNN and cuSOLVER; and of cuBLASLt.
HOST_OOM_WORDS = ("can't allocate memory", "cannot allocate memory")
OOM_WORDS = ("out of memory", "alloc_failed", "oom trying to allocate", *HOST_OOM_WORDS)
# Words of errors that may also have other causes. torch tries cuDNN's engines one by one, and skips
# those whose workspace does not fit (try_plans, try_configs in ATen/native/cudnn/Conv_v8.cpp). A
# library that cannot load its kernels or create its handle reports an internal error, or that it is
# "not initialized". NCCL may only say that a call to CUDA failed.
OOM_WORDS_IF_FULL = ("unable to find an engine", "no valid engine configs", "unhandled cuda error")
OOM_WORDS_IF_FULL += (
    "cudnn_status_not_supported",
    "cudnn_status_internal_error",
    "cudnn_status_not_initialized",
)
OOM_WORDS_IF_FULL += (
    "cudnn_status_execution_failed",
    "cublas_status_not_initialized",
    "cublas_status_internal_error",
)
# A GPU counts as full if it has less free memory than the larger of these.
FULL_BELOW_BYTES = 1 << 30
FULL_BELOW_SHARE = 0.02


def is_host_oom(error: BaseException) -> bool:
    """Return True if the host ran out of memory.

    Python, the system and torch's CPU allocator say so in their errors.
    """
    return isinstance(error, MemoryError) or any(
        words in str(error).lower() for words in HOST_OOM_WORDS
    )


def is_oom(error: BaseException, memory: DeviceMemory | None = None) -> bool:
    """Return True if memory ran out on a device or on the host.

    The errors of torch, of the libraries below it, and of Python say so. For errors that may have
    other causes, the device's memory after the error decides, if it is known.
    """
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError | OSError) else ""
    if any(words in text for words in OOM_WORDS):
        return True
    if memory is None or not any(words in text for words in OOM_WORDS_IF_FULL):
        return False
    full_below_bytes = max(FULL_BELOW_BYTES, FULL_BELOW_SHARE * memory.total_bytes)
    return memory.failed_allocations > 0 or memory.free_bytes < full_below_bytes


@contextmanager
def compile_explained(compile_value: bool | str | None) -> Iterator[None]:
    """Turn an error of torch's compiler into a refusal in one line, with the remedy.

    Raises:
        ValueError: torch cannot compile the model here as the key `compile` asks.
    """
    try:
        yield
    except Exception as error:
        if is_oom(error) or not type(error).__module__.startswith(
            ("torch._dynamo", "torch._inductor")
        ):
            raise
        line = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        value = compilation.word(compile_value)
        raise Refusal(
            "compile.failed",
            f"compile={value}: torch cannot compile the model here ({line}); install a C++ compiler"
            " (g++), or use `compile=false`",
            key="compile",
            value=value,
            reason=line,
        ) from error
