"""usage: multicard COMMAND ...; multicard COMMAND --help says more

vision KEY=VALUE...      train and measure image recognition (train_vision.py)
tune KEY=VALUE...        tune a language model and measure it (tune_llm.py)
script script=FILE ...   measure your own PyTorch script (measure_script.py)
best [FOLDER...]         what to run, and all settings ranked
report [FOLDER...]       an HTML page about runs; --watch follows those that run
list [FOLDER...]         your runs
compare A [B]            two sweeps cell by cell
table NAME [FOLDER...]   a table or figure of the papers
figure NAME [FOLDER...]  the papers' figures, of your runs
claims [FOLDER...]       the papers' claims, tested
predictions [FOLDER...]  how well runs were predicted
dashboard                a workspace in Weights & Biases
export [FOLDER...]       measured rows to share, without names
import FILE              rows that others measured
sync [FOLDER...]         bring records to Weights & Biases
plan JOBS.yaml           what runs where and when on a node
profile FILE...          the metrics of profiler files as one table
completion SHELL         a script that completes commands in bash, zsh or fish
"""

import difflib
import re
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from multicard import __version__
from multicard.messages import ROOT, Message, say, usage
from multicard.ranks import interruption

ENTRIES = {"vision": "train_vision", "tune": "tune_llm", "script": "measure_script"}
ANALYSIS = "analysis.__main__"  # named, not imported: it is above this package
MODULES = ENTRIES | {
    "plan": "multicard.decide.plan.command",
    "profile": "multicard.observe.profiles.command",
    "completion": "multicard.completion",
}
OWN_PACKAGES = ("analysis", *ENTRIES.values())
USAGE = usage(__doc__, __file__)
COMMANDS = dict(re.findall(r"^(\w+)(?: \S+)*  +(.+)$", USAGE, re.MULTILINE))  # and what each does


class OwnPackages:
    """Finds multicard's packages where it is itself: a user's package of such a name may come first on Python's path,
    from the working folder or PYTHONPATH. Only this process has it: ranks import a user's own."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if name in OWN_PACKAGES else None


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    interruption.end_at_once()  # while the rest is imported
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name in COMMANDS:
        module = MODULES.get(name, ANALYSIS)
        if OwnPackages not in sys.meta_path:
            sys.meta_path.insert(0, OwnPackages)
        sys.argv[1:] = [name, *rest] if module == ANALYSIS else rest  # where Hydra reads them
        return import_module(module).main()
    if name in ("-h", "--help", "--version"):
        say(f"multicard {__version__}" if name == "--version" else USAGE.rstrip())
        return 0
    near = difflib.get_close_matches(name, [*COMMANDS, "--version"], n=1)
    question = f"did you mean `multicard {near[0]}`? " if near else ""
    say(
        Message(
            "command.unknown",
            f"refused: {name}: no such command; {question}`multicard --help` lists all",
            name=name,
            near=near,
        ),
        error=True,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
