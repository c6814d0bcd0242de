"""Failures that end a run, and the signals that interrupt it."""

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
from multicard.records.schema_parts import Cause as Failure


class Interrupted(BaseException):
    """A signal, or `end`, asked the controller to end. The agent ends its ranks by SIGTERM then."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


BINARY = re.compile(r"(\d+(?:\.\d+)?) ([KMGT])iB")  # sizes in torch's messages
_ENDING: list[Failure] = []


def end(failure: Failure) -> None:
    """Have the main thread raise `Interrupted` with this failure,
    called from any other while it is `interruptible`.
    """
    _ENDING.append(failure)
    main = main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


def interruptible() -> AbstractContextManager[None]:
    """Let a signal that asks this process to end, or `end`, raise `Interrupted`,
    once (see `interruption`).
    """
    _ENDING.clear()
    return interruption.answered(_interrupted, signal.SIGUSR1)


def _interrupted(number: int) -> Interrupted:
    by_signal = Failure("interrupt", signal.Signals(number).name, host=host())
    return Interrupted(_ENDING.pop() if _ENDING else by_signal)


def words_of(error: BaseException) -> str:
    """The text of an error: its `Message` where it was made of one."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, Message) else str(error)


def in_a_line(error: BaseException) -> str:
    """The error as a user reads it: the message of a ValueError, else type and message,
    with memory in GB.
    """
    from multicard.records.text_table import in_bytes  # imports rich

    if isinstance(words_of(error), Message):
        return words_of(error)
    text = printable(str(error)).strip()
    text = BINARY.sub(lambda size: in_bytes(float(size[1]) * 1024 ** " KMGT".index(size[2])), text)
    lines = text.splitlines() or [""]
    if lines[0].startswith("Caught ") and "DataLoader worker" in lines[0]:
        # the last line of the worker's own traceback
        return lines[-1].removeprefix("ValueError: ").removeprefix("multicard.messages.Refusal: ")
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def disk_full(error: BaseException) -> OSError | None:
    """The error of a full disk, or quota, behind an error; None where it has another cause."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            return link
        link = link.__cause__ or link.__context__
    return None


def no_space(error: BaseException, folder: Path) -> Message | None:
    """The message on the full disk behind an error of a run in `folder`: that of the file which the
    error names, else the fullest of those that a run writes to. None where it has another cause.
    """
    full = disk_full(error)
    if full is None:
        return None
    disks = [path for path in (folder, tempfile.gettempdir(), SHARED_MEMORY) if Path(path).exists()]
    fullest = str(full.filename or min(disks, key=lambda path: shutil.disk_usage(path).free))
    return Message(
        "disk.full",
        f"no space left on the disk of {fullest} ({full.strerror}); free some",
        path=fullest,
        reason=full.strerror,
    )


def unwritable(
    folder: Path, error: OSError | None = None, key: str = "hydra.run.dir", rank: int | None = None
) -> Message:
    """The message where nothing can be written to a folder.

    Args:
        error: the reason, where it is known.
        key: names the folder.
        rank: that cannot write; None: the controller.
    """
    reason = None if error is None else str(error.strerror or error)
    who = "" if rank is None else f"rank {rank} "
    why = "" if reason is None else f" ({reason})"
    return Message(
        "folder.unwritable",
        f"{key}: {who}cannot write to {folder}{why}; free some space, or choose another folder",
        key=key,
        folder=str(folder),
        reason=reason,
        rank=rank,
    )


# Words of errors for want of memory: of the host, by torch's allocator and the system; of torch,
# the driver and NCCL; of cuBLAS, cuDNN and cuSOLVER; of cuBLASLt
HOST_OOM = ("can't allocate memory", "cannot allocate memory")
OOM = ("out of memory", "alloc_failed", "oom trying to allocate", *HOST_OOM)
# Words of errors that have other causes too. torch tries cuDNN's engines one by one, and drops
# those whose workspace does not fit (try_plans, try_configs in ATen/native/cudnn/Conv_v8.cpp); a
# library that cannot load its kernels or make its handle has an internal error or is "not
# initialized"; NCCL may only say that a call to CUDA failed
OOM_IF_FULL = ("unable to find an engine", "no valid engine configs", "unhandled cuda error")
OOM_IF_FULL += (
    "cudnn_status_not_supported",
    "cudnn_status_internal_error",
    "cudnn_status_not_initialized",
)
OOM_IF_FULL += (
    "cudnn_status_execution_failed",
    "cublas_status_not_initialized",
    "cublas_status_internal_error",
)
# free on a GPU that counts as full: the larger of the two
LITTLE_BYTES = 1 << 30
LITTLE_SHARE = 0.02


def is_host_oom(error: BaseException) -> bool:
    """True where the host's memory ran out, by the errors of Python,
    of the system and of torch's allocator on CPU.
    """
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in HOST_OOM)


def is_oom(error: BaseException, memory: DeviceMemory | None = None) -> bool:
    """True where memory ran out, by the errors of torch, of the libraries below it, and of Python
    on the host. Errors that may have other causes are judged by the device's memory after them,
    where it is known.
    """
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError | OSError) else ""
    if any(words in text for words in OOM):
        return True
    if memory is None or not any(words in text for words in OOM_IF_FULL):
        return False
    little_bytes = max(LITTLE_BYTES, LITTLE_SHARE * memory.total_bytes)
    return memory.failed_allocations > 0 or memory.free_bytes < little_bytes


@contextmanager
def compile_explained(compile_value: bool | str | None) -> Iterator[None]:
    """Raise a ValueError that says in one line, with the remedy, that torch cannot compile the
    model here as the key `compile` asks.
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
