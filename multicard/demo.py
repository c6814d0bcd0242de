"""Try multicard in two minutes, without a GPU and without downloads.

    multicard demo

It runs a small sweep, says which setting to use, and writes a page about the runs. The records and
the page are in `multirun/` in the working folder.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Iterator

from multicard.messages import Message, Parser, say, typed, usage
from multicard.ranks import child_command, interruption

# At these sizes, two ranks learn as well as one: three epochs of small batches suffice.
SWEEP = (
    "-m name=demo layout=nchw,nhwc gpus=1,2 batch_size=16 epochs=3"
    " model.width=0.5 dataset.image_size=48"
)


def commands() -> Iterator[list[str]]:
    """Yield the words of each command after `multicard`, in the order in which they run."""
    yield ["vision", *SWEEP.split()]
    yield ["report", "multirun/demo"]


def main() -> int:
    """Run the commands, each started as this one was.

    Returns:
        The exit code of the first command that fails, or 0.
    """
    raw = argparse.RawDescriptionHelpFormatter
    Parser(
        f"{typed('-m multicard')} demo", description=usage(__doc__, __file__), formatter_class=raw
    ).parse_args()
    # Start the commands in the same way as this one, but without the words after the program:
    # "demo", which `__main__` removed, and options.
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
