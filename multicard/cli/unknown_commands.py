"""Recognizes other programs' names for the commands of `multicard`: `train`, `run`, `plot`, etc.

The answer names the commands that may be meant, with the words that followed, as they are typed
here.
"""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multicard.cli.launcher_words import SLURM_WORD
from multicard.messages import INSTALLED, Message, typed

# no roles: other programs' names for these commands, and words that users ask with.
OTHER_NAMES = {
    "vision": ("train", "fit", "classify", "images", "image", "train_vision"),
    "tune": ("train", "fit", "finetune", "finetuning", "sft", "lora", "llm", "tune_llm"),
    "script": ("train", "run", "torchrun", "launch", "exec", "measure", "start", "measure_script"),
    "best": ("recommend", "rank", "ranking", "winner", "top"),
    "report": ("show", "plot", "html", "page", "view", "open", "summary", "summarize", "watch"),
    "list": ("ls", "show", "runs", "status", "history", "ps", "summary"),
    "compare": ("diff", "versus"),
    "figure": ("plot", "fig", "chart", "graph", "draw"),
    "table": ("tab", "latex"),
    "claims": ("reproduce", "replicate"),
    "plan": ("schedule", "queue", "jobs"),
    "evidence": ("bench", "benchmark", "gpus", "gpu", "hardware", "info"),
    "sync": ("upload", "push", "wandb"),
    "profile": ("trace", "nsys", "kineto"),
    "demo": ("quickstart", "example", "examples", "try", "init", "tutorial"),
}
# Names that stand for a word of an entry: `sweep` is a training with `-m`.
OVERRIDE_OF_NAME = {
    "sweep": "-m",
    "multirun": "-m",
    "grid": "-m",
    "predict": "predict=true",
    "estimate": "predict=true",
    "sbatch": SLURM_WORD,
    "submit": SLURM_WORD,
    "slurm": SLURM_WORD,
}
ENTRIES = {  # The file of each command that is an entry.
    command.removeprefix("multicard "): entry
    for entry, command in INSTALLED.items()
    if entry.endswith(".py")
}
OF_ANALYSIS = ("best", "report", "list", "compare", "figure", "table", "claims", "sync")
# A table or figure of the papers, as in "table2" and "Fig. 16".
NUMBERED = re.compile(r"(table|fig)(?:ure)?[. _-]*\d+", re.IGNORECASE)
PLANS = (".yaml", ".yml")
HELP = ("-h", "--help")
ENTRY_FILE = re.compile(r" \([\w.]+\)$")  # The entry's file, at the end of its line in the help.


class MeantCommand(NamedTuple):
    """A command that may be meant, as it is typed. It does not know the words in `foreign`."""

    command: str
    line: str
    foreign: tuple[str, ...] = ()


def unknown_command(
    name: str, rest: Sequence[str], commands: Mapping[str, str], own: str = "-m multicard"
) -> Message:
    """Return what to type instead of a command that does not exist.

    Args:
        rest: the words that followed.
        commands: a description of each command.
        own: the program: `-m multicard` or `-m analysis`.
    """
    meant_commands = (
        _by_meaning(name, rest, own)
        or _by_spelling(name, rest, [*commands], own)
        or _meant_entries([*ENTRIES], [name, *rest], most_foreign=0)
    )
    uses = []
    for meant in meant_commands:
        description = ENTRY_FILE.sub("", commands.get(meant.command, "version"))
        without = f", without {', '.join(meant.foreign)}" if meant.foreign else ""
        uses.append(f"`{meant.line}` ({description}{without})")
    use = f"use {', or '.join(uses)}; " if meant_commands else ""
    return Message(
        "command.unknown",
        f"refused: {name}: no such command; {use}`{typed('-m multicard')} --help` lists all",
        name=name,
        near=[meant.command for meant in meant_commands],
        commands=[meant.line for meant in meant_commands],
    )


def _by_meaning(name: str, rest: Sequence[str], own: str) -> list[MeantCommand]:
    normalized_name = name.lower().replace("-", "").replace("_", "")
    if normalized_name in OVERRIDE_OF_NAME:
        return _meant_entries([*ENTRIES], [OVERRIDE_OF_NAME[normalized_name], *rest])
    numbered = NUMBERED.fullmatch(name)
    if numbered is not None:
        command = "table" if numbered[1].lower() == "table" else "figure"
        return [_meant_other_command(command, [name, *rest], own)]
    if name.endswith(PLANS):
        return [_meant_other_command("plan", [name, *rest], own)]
    if _is_word_of_entry(name):
        return _meant_entries([*ENTRIES], [name, *rest])
    commands = [
        command
        for command, names in OTHER_NAMES.items()
        if normalized_name in (other_name.replace("_", "") for other_name in names)
    ]
    entries = _meant_entries([command for command in commands if command in ENTRIES], rest)
    other_commands = [
        _meant_other_command(command, rest, own) for command in commands if command not in ENTRIES
    ]
    return [*entries, *other_commands]


def _by_spelling(
    name: str, rest: Sequence[str], commands: Sequence[str], own: str
) -> list[MeantCommand]:
    close_matches = difflib.get_close_matches(name, [*commands, "--version"], n=1)
    if close_matches and close_matches[0] in ENTRIES:
        return _meant_entries(close_matches, rest)
    return [_meant_other_command(command, rest, own) for command in close_matches]


def _is_word_of_entry(name: str) -> bool:
    """True for a path, a flag or a pair: the name of an entry may have been left out before it."""
    from multicard.cli import paths_as_values  # Imports the workloads, which takes a second.

    is_flag = name.startswith("--") and not difflib.get_close_matches(name, ["--version"])
    return is_flag or "=" in name or name.endswith(".py") or paths_as_values.is_path(name)


def _meant_other_command(command: str, words: Sequence[str], own: str) -> MeantCommand:
    start = typed(own if command in OF_ANALYSIS else "-m multicard")
    return MeantCommand(command, f"{start} {shlex.join([command, *words])}")


def _meant_entries(
    entries: Sequence[str], words: Sequence[str], most_foreign: int | None = None
) -> list[MeantCommand]:
    """Return the entries that know the most of the words, each with its whole command."""
    if not entries:
        return []
    from multicard import workloads
    from multicard.cli import guesses

    help_flags = [word for word in words if word in HELP]
    meant_commands = []
    for command in entries:
        workload = workloads.of_entry(ENTRIES[command])
        proposed = guesses.proposed([word for word in words if word not in HELP], workload)
        has_script = any(word.startswith("script=") for word in proposed.words)
        if command == "script" and len(entries) > 1 and not has_script:
            continue
        line = " ".join([proposed.command, *help_flags])
        meant_commands.append(MeantCommand(command, line, tuple(proposed.foreign)))
    fewest = min((len(meant.foreign) for meant in meant_commands), default=0)
    if most_foreign is not None and fewest > most_foreign:
        return []
    return [meant for meant in meant_commands if len(meant.foreign) == fewest]
