"""What the tests' fork server imports last: what each of their hundreds of ranks would do again."""

import gc
import os
import runpy
import sys
from pathlib import Path

import scipy.io  # noqa: F401  which `datasets` imports as it opens rows

import tests.rank_work_llm  # noqa: F401  with torchtune
from multicard.ranks import os_calls


def run_module(name: str, words: list[str], log: Path) -> None:
    """`python -m NAME WORDS` in a process of this server's, which no setting of it outlives; no GPU is seen."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os_calls.redirect(log)
    sys.argv = [name, *words]
    runpy.run_module(name, run_name="__main__")


gc.collect()
gc.freeze()  # a rank's own collections do not go through all of torch
