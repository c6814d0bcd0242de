"""A rank's part of a run: start the script as torchrun does, and measure it."""

import atexit
import gc
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from multicard.config.script import ScriptConfig
from multicard.messages import Refusal
from multicard.ranks import os_calls
from multicard.ranks.process import Rank, end_children
from multicard.repository import IS_INSTALLED, PACKAGES
from multicard.script import hooks, launch, words
from multicard.script.recorder import EndedError, Recorder

# Python's words for a relative import in a file that is run by its path
NO_PARENT = "no known parent package"

# ---- what a script may not do


def no_step(config: ScriptConfig) -> Refusal:
    return Refusal(
        "script.no-step",
        f"script={config.script}: torch's hooks saw no step of an optimiser on this rank; "
        "mark steps with multicard.step(), and train in the processes that torchrun would start",
        key="script",
        value=config.script,
    )


def nothing_left(config: ScriptConfig, files: Sequence[str]) -> Refusal:
    """The refusal of a script that made an optimiser and computed no gradients."""
    where = "in its working folder, which all runs of a command share"
    found = f"what an earlier run left {where}" if not files else f"{', '.join(files)} {where}"
    return Refusal(
        "script.nothing-left",
        f"script={config.script}: made an optimiser, but computed no gradients on this rank: it had"
        f" nothing left to train, as where it finds {found}; have each run start anew",
        key="script",
        value=config.script,
        files=[*files],
    )


def own_ranks(config: ScriptConfig) -> Refusal:
    """Such ranks would wait for one another at the address of the run's own."""
    return Refusal(
        "script.own-ranks",
        f"script={config.script}: starts ranks of its own by torch.multiprocessing; "
        "have it train in the process that it is started in, as under torchrun",
        key="script",
        value=config.script,
    )


def relative_import(config: ScriptConfig) -> Refusal:
    return Refusal(
        "script.relative-import",
        f"script={config.script}: imports from its own package; "
        "start it as a module by `'script=-m PACKAGE.MODULE'`, from the folder of the package",
        key="script",
        value=config.script,
    )


def replaced(config: ScriptConfig) -> Refusal:
    """The agent would wait for ever for what such a rank has to return."""
    return Refusal(
        "script.replaced",
        f"script={config.script}: replaces its process by another program (os.exec); "
        "set the variables that it sets before the command instead",
        key="script",
        value=config.script,
    )


def exited(config: ScriptConfig, code: object) -> Refusal:
    """The refusal of a script that exited with a code, or a text, other than 0."""
    if not isinstance(code, int):
        return Refusal(
            "script.exited-saying",
            f"script={config.script}: exited, saying {str(code)!r}",
            key="script",
            value=config.script,
            said=str(code),
        )
    hint = ", as for arguments that it does not take; its log says which" if code == 2 else ""
    return Refusal(
        "script.exited",
        f"script={config.script}: exited with code {code}{hint}",
        key="script",
        value=config.script,
        exit_code=code,
    )


# ---- the run


def run(rank: Rank, config: ScriptConfig, folder: Path) -> None:
    """Run the script as `__main__` to its end, or to the step at which it is to stop, and leave
    rank files and steps. A ValueError says that it exited with a code other than 0,
    or took no step.
    """
    os_calls.adopt_orphans()
    os_calls.unblock_in_children()
    # what the script registers is run at its end, but nothing of the process that was forked
    atexit._clear()
    # Python's own: a rank inherits the one that it was started by
    multiprocessing.set_start_method(None, force=True)
    if rank.device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # ours: programs of the script import what lies beside them
    os.environ.pop("PYTHONSAFEPATH", None)
    os.environ.update(words.variables(config))
    sys.argv = [config.script, *words.words(config)]
    own = Path.cwd() if words.module(config) else Path(config.script).resolve().parent
    places = sys.path
    if not IS_INSTALLED:  # a checkout comes last: a script may have an `analysis` of its own
        places = [*(path for path in sys.path if path != str(PACKAGES)), str(PACKAGES)]
    sys.path = [str(own), *places]
    recorder = Recorder(rank, config, folder)
    # a process that hangs would outlive a rank that is killed
    os_calls.before_end += [recorder.close, end_children]
    try:
        with hooks.installed(recorder), launch.variables(config, rank):
            _call(config)
            atexit._run_exitfuncs()
    except BaseException as error:
        with suppress(Exception):  # what was measured before; a broken device may not tell it
            recorder.close()
        other = None if recorder.progress.steps else launch.failed_at_start(config, rank, error)
        if other is None:
            raise
        raise other from error
    recorder.close(is_whole=True)
    gc.collect()  # loaders end their own workers
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_children()
    # the process does not wait for threads of the script
    threading._shutdown = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    if recorder.progress.steps:
        return
    if recorder.left_files.makes_optimizer and not recorder.draws.backwards:
        raise nothing_left(config, recorder.left_files.read)
    raise no_step(config)


def _call(config: ScriptConfig) -> None:
    own = os.getpid()
    exit_at_once = os._exit

    def exit_as_rank(code: int) -> NoReturn:
        """`os._exit` of the rank: its agent would wait for ever
        for what a process that is gone has to return.
        """
        if os.getpid() != own or threading.current_thread() is not threading.main_thread():
            exit_at_once(code)
        raise SystemExit(code)

    def exec_as_child(call: Callable[..., NoReturn], *arguments: Any) -> NoReturn:
        if os.getpid() == own:
            raise replaced(config)
        call(*arguments)

    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    create_store = rendezvous._create_c10d_store
    agent, of_agent = (
        os.environ.get(name, "") for name in ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
    )

    def store_of_port(hostname: str, port: int, *arguments: Any) -> Any:
        """An address of the script's own is served by its rank
        0: the agent of the ranks is at another.
        """
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = of_agent if str(port) == agent else ""
        return create_store(hostname, port, *arguments)

    code: object = 1  # of a process that the script forked, where an exception ends it
    try:
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(os, "_exit", exit_as_rank))
            for name in ("execv", "execve"):  # which all others call
                patches.enter_context(
                    mock.patch.object(os, name, partial(exec_as_child, getattr(os, name)))
                )
            patches.enter_context(
                mock.patch.object(rendezvous, "_create_c10d_store", store_of_port)
            )
            for part in ("", ".spawn"):
                launcher = importlib.import_module(f"torch.multiprocessing{part}")
                patches.enter_context(
                    mock.patch.object(launcher, "start_processes", side_effect=own_ranks(config))
                )
            if module := words.module(config):
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(Path(config.script).absolute()), run_name="__main__")
        code = 0
    except EndedError:
        return
    except ImportError as error:
        if NO_PARENT in str(error):
            raise relative_import(config) from error
        raise
    except SystemExit as end:
        code = end.code or 0
        if code:
            raise exited(config, code) from end
    finally:
        if os.getpid() != own:  # it is no rank
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            exit_at_once(code if isinstance(code, int) else 1)
