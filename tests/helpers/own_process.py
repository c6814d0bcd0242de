"""A command in a process of its own, forked where torch is imported already."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard.ranks import os_calls


def run(module: str, words: Sequence[str], log: Path) -> int | None:
    """`python -m MODULE WORDS`, which sees no GPU and appends its output to `log`; its exit code."""
    child = multiprocessing.get_context("forkserver").Process(target=_run, args=(module, words, log))
    child.start()
    child.join()
    return child.exitcode


def _run(module: str, words: Sequence[str], log: Path) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os_calls.redirect(log)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__")
