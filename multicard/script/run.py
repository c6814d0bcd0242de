"""A rank's part of a run: start the script as torchrun does, and measure it."""

import atexit
import gc
import os
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path

from multicard.config.script import ScriptConfig
from multicard.ranks import os_calls
from multicard.ranks.process import Rank, end_children
from multicard.script import hooks, words
from multicard.script.recorder import EndedError, Recorder

NO_STEP = (
    "no optimiser of this rank took a step that torch's hooks saw; mark steps with multicard.step(), and have the "
    "script train in the processes that it is started in, as under torchrun"
)


def run(rank: Rank, config: ScriptConfig, folder: Path) -> None:
    """Run the script as `__main__` to its end, or to the step at which it is to stop, and leave rank files and steps.

    Raises:
        ValueError: the script exited with a code other than 0, or took no step.
    """
    os_calls.adopt_orphans()
    atexit._clear()  # what the script registers is run at its end, but nothing of the process that was forked
    if rank.device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.update(words.variables(config))
    path = Path(config.script)
    sys.argv = [config.script, *words.words(config)]
    sys.path.insert(0, str(path.resolve().parent))
    recorder = Recorder(rank, config, folder)
    try:
        with hooks.installed(recorder):
            _call(path, config)
            atexit._run_exitfuncs()
    except BaseException:
        with suppress(Exception):  # what was measured before; a broken device may not tell it
            recorder.close()
        raise
    recorder.close()
    gc.collect()  # loaders end their own workers
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_children()
    if not recorder.steps:
        raise ValueError(f"script={config.script}: {NO_STEP}")


def _call(path: Path, config: ScriptConfig) -> None:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except EndedError:
        return
    except SystemExit as end:
        if end.code is None or (isinstance(end.code, int) and not end.code):
            return
        said = f"exited with code {end.code}" if isinstance(end.code, int) else f"exited, saying {str(end.code)!r}"
        raise ValueError(f"script={config.script}: {said}") from end
