"""Runs a rank's part of a run: starts the script as torchrun does, and measures it."""

import atexit
import gc
import importlib
import multiprocessing
import os
import runpy
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from multicard.config.script import DASHED_STYLES, STYLE, ScriptConfig
from multicard.messages import Refusal
from multicard.ranks import os_calls
from multicard.ranks.process import Rank, end_children, log_file
from multicard.repository import IS_INSTALLED, PACKAGES
from multicard.script import false_options, hooks, launch, option_names, words
from multicard.script.recorder import EndedError, Recorder

# Python's words for a relative import in a file that is run by its path.
NO_PARENT = "no known parent package"
USAGE_CODE = 2  # The exit code of argparse and click for arguments that a script does not take.

# ---- refusals of what a script may not do


def no_step(config: ScriptConfig) -> Refusal:
    return Refusal(
        "script.no-step",
        f"script={config.script}: torch's hooks saw no step of an optimiser on this rank; "
        "mark steps with multicard.step(), and train in the processes that torchrun would start",
        key="script",
        value=config.script,
    )


def nothing_left(config: ScriptConfig, files: Sequence[str]) -> Refusal:
    """Return the refusal of a script that made an optimizer and computed no gradients."""
    where = "in its working folder, which all runs of a command share"
    remains = f"what an earlier run left {where}" if not files else f"{', '.join(files)} {where}"
    return Refusal(
        "script.nothing-left",
        f"script={config.script}: made an optimiser, but computed no gradients on this rank: it may"
        f" have found {remains}, and had nothing left to train; have each run start anew",
        key="script",
        value=config.script,
        files=[*files],
    )


def own_ranks(config: ScriptConfig) -> Refusal:
    """Return the refusal: such ranks would wait for one another at the run's address."""
    return Refusal(
        "script.own-ranks",
        f"script={config.script}: starts its own ranks by torch.multiprocessing; "
        "have it train in the process in which it is started, as under torchrun",
        key="script",
        value=config.script,
    )


def relative_import(config: ScriptConfig) -> Refusal:
    return Refusal(
        "script.relative-import",
        f"script={config.script}: imports relative to its package; "
        "start it as a module by `'script=-m PACKAGE.MODULE'`, from the folder of the package",
        key="script",
        value=config.script,
    )


def replaced(config: ScriptConfig) -> Refusal:
    """Return the refusal: the agent would wait forever for such a rank's result."""
    return Refusal(
        "script.replaced",
        f"script={config.script}: replaces its process by another program (os.exec); "
        "set the variables that it sets before the command instead",
        key="script",
        value=config.script,
    )


def exited(config: ScriptConfig, code: object, log: str = "") -> Refusal:
    """Return the refusal of a script that exited with a code other than 0, or with a text.

    Args:
        log: what the script printed, which says why it does not take its arguments.
    """
    if not isinstance(code, int):
        return Refusal(
            "script.exited-saying",
            f"script={config.script}: exited with the message {str(code)!r}",
            key="script",
            value=config.script,
            said=str(code),
        )
    error, usage = option_names.usage_error(log) if code == USAGE_CODE else ("", "")
    if error:
        respelled = _respelled(config, usage)
        remedy = f"; use `{respelled}`" if respelled else ""
        return Refusal(
            "script.usage",
            f"script={config.script}: does not take these arguments ({error}){remedy}",
            key=respelled.partition("=")[0] or "script",
            value=config.script,
            said=error,
            remedy=respelled,
        )
    hint = ", as for arguments that it does not take; its log names them"
    return Refusal(
        "script.exited",
        f"script={config.script}: exited with code {code}{hint if code == USAGE_CODE else ''}",
        key="script",
        value=config.script,
        exit_code=code,
    )


def _respelled(config: ScriptConfig, usage: str) -> str:
    """Return the arguments that the script only takes with other dashes, as it takes them."""
    if config.args[STYLE] not in DASHED_STYLES:
        return ""
    options = option_names.options_of(str(words.file(config))) | option_names.options_in(usage)
    respelled = []
    for word in words.overrides(config):
        key, _, value = word.partition("=")
        name = key.removeprefix("args.")
        spelled = option_names.spelling(name, options)
        if name not in (key, spelled):
            respelled.append(shlex.quote(f"args.{spelled}={value}"))
    return " ".join(respelled)


# ---- the run


def run(rank: Rank, config: ScriptConfig, folder: Path) -> None:
    """Run the script as `__main__` to its end, or to the step after which it is to stop.

    Leaves the rank's report and steps in the run folder.

    Raises:
        ValueError: the script exited with a code other than 0, or took no step.
    """
    os_calls.adopt_orphans()
    os_calls.unblock_in_children()
    # Run what the script registers for its exit, but nothing of the process that was forked.
    atexit._clear()
    # Use Python's default start method: a rank inherits the method by which it was started.
    multiprocessing.set_start_method(None, force=True)
    if rank.device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # We set it. Programs of the script import modules that lie beside them.
    os.environ.pop("PYTHONSAFEPATH", None)
    os.environ.update(words.variables(config))
    sys.argv = [config.script, *words.words(config)]
    own = Path.cwd() if words.module(config) else Path(config.script).resolve().parent
    places = sys.path
    if not IS_INSTALLED:  # A checkout comes last: a script may have its own `analysis`.
        places = [*(path for path in sys.path if path != str(PACKAGES)), str(PACKAGES)]
    sys.path = [str(own), *places]
    recorder = Recorder(rank, config, folder)
    # A process that hangs would outlive a rank that is killed.
    os_calls.before_end += [recorder.close, end_children]
    try:
        with hooks.installed(recorder), launch.variables(config, rank):
            _call(config, log_file(folder, rank.rank))
            atexit._run_exitfuncs()
    except BaseException as error:
        with suppress(Exception):  # Keep what was measured, unless a broken device cannot be read.
            recorder.close()
        other = None if recorder.progress.steps else launch.failed_at_start(config, rank, error)
        if other is None:
            raise
        raise other from error
    recorder.close(is_whole=True)
    gc.collect()  # Loaders end their workers.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_children()
    # The process does not wait for threads of the script.
    threading._shutdown = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    if recorder.progress.steps:
        return
    if recorder.left_files.makes_optimizer and not recorder.draws.backwards:
        raise nothing_left(config, recorder.left_files.read)
    raise no_step(config)


def _call(config: ScriptConfig, log: Path) -> None:
    own = os.getpid()
    exit_at_once = os._exit

    def exit_as_rank(code: int) -> NoReturn:
        """Exit as a rank does in place of `os._exit`.

        The agent would wait forever for the result of a process that is gone.
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
        """Create the store at an address, served by rank 0 if the script chose the address itself.

        The agent of the ranks serves another address.
        """
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = of_agent if str(port) == agent else ""
        return create_store(hostname, port, *arguments)

    # A process that the script forked ends with this code if an exception ends it.
    code: object = 1
    try:
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(os, "_exit", exit_as_rank))
            for name in ("execv", "execve"):  # All other functions of this kind call them.
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
            patches.enter_context(false_options.refused(config))
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
            sys.stderr.flush()
            raise exited(config, code, option_names.end_of(log)) from end
    finally:
        if os.getpid() != own:  # This is a process that the script forked, and no rank.
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            exit_at_once(code if isinstance(code, int) else 1)
