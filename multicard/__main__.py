"""The one command of multicard: installed as `multicard`, and started by `python -m multicard` too."""

import difflib
import sys
from importlib import import_module
from typing import NamedTuple

from multicard import __version__
from multicard.messages import say
from multicard.ranks import interruption


class Command(NamedTuple):
    """Where a command's `main` is, what follows its name, and what it does."""

    module: str
    arguments: str
    summary: str


ENTRIES = ("vision", "tune")
ANALYSIS = "analysis.__main__"  # named, not imported: it is above this package
COMMANDS = {
    "vision": Command("train_vision", "KEY=VALUE...", "train and measure image recognition, as train_vision.py does"),
    "tune": Command("tune_llm", "KEY=VALUE...", "tune a language model and measure it, as tune_llm.py does"),
    "best": Command(ANALYSIS, "[FOLDER...]", "the settings to choose, ranked"),
    "report": Command(ANALYSIS, "[FOLDER...]", "an HTML page about all runs"),
    "list": Command(ANALYSIS, "[FOLDER...]", "your runs"),
    "compare": Command(ANALYSIS, "A [B]", "two sweeps cell by cell"),
    "table": Command(ANALYSIS, "NAME [FOLDER...]", "a table or figure of the papers"),
    "figure": Command(ANALYSIS, "NAME [FOLDER...]", "the papers' figures, of your runs"),
    "claims": Command(ANALYSIS, "[FOLDER...]", "the papers' claims, tested"),
    "predictions": Command(ANALYSIS, "[FOLDER...]", "how well runs were predicted"),
    "dashboard": Command(ANALYSIS, "", "a workspace and a report in Weights & Biases"),
    "sync": Command(ANALYSIS, "[FOLDER...]", "bring records to W&B"),
    "plan": Command("multicard.decide.plan.command", "JOBS.yaml", "what runs where and when on a node"),
    "profile": Command("multicard.observe.profiles.command", "FILE...", "the metrics of profiler files as one table"),
    "completion": Command("multicard.completion", "SHELL", "a script that completes commands in bash, zsh or fish"),
}


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    interruption.end_at_once()  # while the rest is imported
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name in ("-h", "--help"):
        say(help_text())
    elif name == "--version":
        say(f"multicard {__version__}")
    elif name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        say(f"refused: {name}: no such command; {f'did you mean {near[0]}? ' * bool(near)}"
            "multicard --help lists all", error=True)  # fmt: skip
        return 1
    else:
        module = COMMANDS[name].module
        sys.argv[1:] = [name, *rest] if module == ANALYSIS else rest  # where Hydra reads them
        return import_module(module).main()
    return 0


def help_text() -> str:
    """All commands, a line each."""
    lines = ["usage: multicard COMMAND ...; multicard COMMAND --help says more", ""]
    return "\n".join(lines + [f"  {f'{name} {one.arguments}':<24} {one.summary}" for name, one in COMMANDS.items()])


if __name__ == "__main__":
    sys.exit(main())
