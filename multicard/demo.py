"""Try multicard in two minutes, without a GPU and without downloads.

    multicard demo

It tunes a small model once, plans a list of the papers' trainings on four GPUs, and runs a small
sweep. It prints what was measured, and writes a page about the runs. Records and page are in
`multirun/` of the working folder.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from multicard.messages import Message, Parser, say, typed, usage
from multicard.ranks import child_command, interruption
from multicard.repository import ROOT

SWEEP = "-m layout=nchw,nhwc gpus=1,2 batch_size=32 epochs=2 model.width=0.5 dataset.image_size=40"


def commands() -> Iterator[list[str]]:
    """The words of each command after `multicard`, in their order."""
    jobs = ROOT / "docs" / "jobs.yaml"
    shown = jobs.relative_to(Path.cwd()) if jobs.is_relative_to(Path.cwd()) else jobs
    yield ["tune", "method=qlora", "template=grammar", "max_steps=40"]
    yield ["plan", str(shown), "--seconds", "2"]
    yield ["vision", *SWEEP.split()]
    yield ["report"]


def main() -> int:
    """Run the commands, each as this one was started; the
    exit code of the first that fails, or 0.
    """
    raw = argparse.RawDescriptionHelpFormatter
    Parser(
        f"{typed('-m multicard')} demo", description=usage(__doc__, __file__), formatter_class=raw
    ).parse_args()
    # As this command was started: its own words are "demo", which `__main__` took away, and options
    own_words = len(sys.argv)
    start = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - own_words]]
    try:
        with interruption.answered(lambda number: KeyboardInterrupt(signal.Signals(number).name)):
            for words in commands():
                shown = f"{typed('-m multicard')} {shlex.join(words)}"
                say("")
                say(Message("demo.command", f"$ {shown}", command=shown))
                code = child_command.run_to_end([*start, *words])
                if code != 0:
                    return code
    except KeyboardInterrupt:
        return 1
    return 0
