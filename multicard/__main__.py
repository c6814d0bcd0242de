"""usage: multicard COMMAND ...; multicard COMMAND --help says more

vision KEY=VALUE...      train and measure image recognition (train_vision.py)
tune KEY=VALUE...        tune a language model and measure it (tune_llm.py)
script script=FILE ...   measure your own PyTorch script (measure_script.py)
best [FOLDER...]         recommend a setting, and rank all settings
report [FOLDER...]       an HTML page about runs; --watch follows running ones
list [FOLDER...]         your runs
compare A [B]            two sweeps cell by cell
table NAME [FOLDER...]   a table or figure of the papers
figure NAME [FOLDER...]  a figure of the papers, drawn from your runs
claims [FOLDER...]       test the claims of the papers on your runs
evidence                 measure the GPUs of this machine: a page, and a file to share
predictions [FOLDER...]  how well runs were predicted
dashboard                a workspace in Weights & Biases
export [FOLDER...]       measured rows to share, without names
import FILE              add rows that others measured
sync [FOLDER...]         upload records to Weights & Biases
plan JOBS.yaml           plan where and when jobs run on a node
profile FILE...          the metrics of profiler files as one table
demo                     a small run, a plan, a sweep and a page, in two minutes
completion SHELL         a script that completes commands in bash, zsh or fish
"""

import re
import sys
from importlib import import_module

from multicard import __version__, repository
from multicard.messages import say, usage
from multicard.ranks import program

# Modules of the repository's top level are given by name and not imported here: this package must
# not import from them.
ENTRIES = {"vision": "train_vision", "tune": "tune_llm", "script": "measure_script"}
TOP_LEVEL = ENTRIES | {"evidence": "analysis.evidence.command"}
ANALYSIS = "analysis.__main__"  # All other commands.
MODULES = {
    "plan": "multicard.decide.plan.command",
    "profile": "multicard.observe.profiles.command",
    "demo": "multicard.demo",
    "completion": "multicard.completion",
}
ALIASES = {"-h": "--help", "help": "--help", "-V": "--version", "version": "--version"}
USAGE = usage(__doc__, __file__)
# Each command, with what it does.
COMMANDS = dict(re.findall(r"^(\w+)(?: \S+)*  +(.+)$", USAGE, re.MULTILINE))


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    program.begin()  # First: a signal during the slow imports must end the process at once.
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name == "help" and rest:
        name, *rest = [*rest, "--help"]
    name = ALIASES.get(name, name)
    if name in COMMANDS:
        is_analysis = name not in {*TOP_LEVEL, *MODULES}
        sys.argv[1:] = [name, *rest] if is_analysis else rest  # Hydra reads them there.
        if name in MODULES:
            return import_module(MODULES[name]).main()
        return repository.module(TOP_LEVEL.get(name, ANALYSIS)).main()
    if name in ("--help", "--version"):
        say(_version() if name == "--version" else USAGE.rstrip())
        return 0
    from multicard.cli.unknown_commands import (
        unknown_command,
    )  # Imports Hydra; help does not need it.

    say(unknown_command(name, rest, COMMANDS), error=True)
    return 1


def _version() -> str:
    from multicard.machine import environment

    commit = environment.git()
    return f"multicard {__version__}" + (f" ({repository.in_words(commit)})" if commit else "")


if __name__ == "__main__":
    sys.exit(main())
