"""Commands of `multicard` as other programs call theirs: `train`, `finetune`, `run`, `plot`.

They are answered by the commands that they mean, each with the words that followed, as they are
typed here.
"""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multicard.messages import INSTALLED, Message, typed

# no roles: what other programs call these commands, or what is asked for
CALLED = {
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
# What sets a word of the command beside: `sweep` is a training of each combination
WITH = {
    "sweep": "-m",
    "multirun": "-m",
    "grid": "-m",
    "predict": "predict=true",
    "estimate": "predict=true",
    "sbatch": "hydra/launcher=submitit_slurm",
    "submit": "hydra/launcher=submitit_slurm",
    "slurm": "hydra/launcher=submitit_slurm",
}
ENTRIES = {  # the file of each command that is an entry
    command.removeprefix("multicard "): entry
    for entry, command in INSTALLED.items()
    if entry.endswith(".py")
}
OF_ANALYSIS = ("best", "report", "list", "compare", "figure", "table", "claims", "sync")
NUMBERED = re.compile(r"(table|fig)(?:ure)?[. _-]*\d+", re.IGNORECASE)  # of the papers
PLANS = (".yaml", ".yml")
HELP = ("-h", "--help")
BESIDE = re.compile(r" \([\w.]+\)$")  # the file of an entry, which ends its line of help


class MeantCommand(NamedTuple):
    """A command that may be meant, as it is typed.

    foreign: what was typed that it does not know.
    """

    command: str
    line: str
    foreign: tuple[str, ...] = ()


def unknown_command(
    name: str, rest: Sequence[str], commands: Mapping[str, str], own: str = "-m multicard"
) -> Message:
    """What to type in place of a command that is none.

    Args:
        rest: the words that followed.
        commands: what each command does.
        own: whose command it is: `-m multicard`, or `-m analysis`.
    """
    found = (
        _by_meaning(name, rest, own)
        or _by_spelling(name, rest, [*commands], own)
        or _of_entries([*ENTRIES], [name, *rest], most_foreign=0)
    )
    uses = []
    for each in found:
        what = BESIDE.sub("", commands.get(each.command, "version"))
        without = f", without {', '.join(each.foreign)}" if each.foreign else ""
        uses.append(f"`{each.line}` ({what}{without})")
    use = f"use {', or '.join(uses)}; " if found else ""
    return Message(
        "command.unknown",
        f"refused: {name}: no such command; {use}`{typed('-m multicard')} --help` lists all",
        name=name,
        near=[each.command for each in found],
        commands=[each.line for each in found],
    )


def _by_meaning(name: str, rest: Sequence[str], own: str) -> list[MeantCommand]:
    called = name.lower().replace("-", "").replace("_", "")
    if called in WITH:
        return _of_entries([*ENTRIES], [WITH[called], *rest])
    numbered = NUMBERED.fullmatch(name)
    if numbered is not None:
        command = "table" if numbered[1].lower() == "table" else "figure"
        return [_of_others(command, [name, *rest], own)]
    if name.endswith(PLANS):
        return [_of_others("plan", [name, *rest], own)]
    if _is_word_of_entry(name):
        return _of_entries([*ENTRIES], [name, *rest])
    meant = [
        command
        for command, names in CALLED.items()
        if called in (each.replace("_", "") for each in names)
    ]
    entries = _of_entries([command for command in meant if command in ENTRIES], rest)
    others = [_of_others(command, rest, own) for command in meant if command not in ENTRIES]
    return [*entries, *others]


def _by_spelling(
    name: str, rest: Sequence[str], commands: Sequence[str], own: str
) -> list[MeantCommand]:
    near = difflib.get_close_matches(name, [*commands, "--version"], n=1)
    if near and near[0] in ENTRIES:
        return _of_entries(near, rest)
    return [_of_others(command, rest, own) for command in near]


def _is_word_of_entry(name: str) -> bool:
    """True for what may follow the name of an entry, which was left out: a path, a flag, a pair."""
    from multicard.cli import paths_as_values  # with the workloads, which take a second

    is_flag = name.startswith("--") and not difflib.get_close_matches(name, ["--version"])
    return is_flag or "=" in name or name.endswith(".py") or paths_as_values.is_path(name)


def _of_others(command: str, words: Sequence[str], own: str) -> MeantCommand:
    start = typed(own if command in OF_ANALYSIS else "-m multicard")
    return MeantCommand(command, f"{start} {shlex.join([command, *words])}")


def _of_entries(
    entries: Sequence[str], words: Sequence[str], most_foreign: int | None = None
) -> list[MeantCommand]:
    """The entries that know most of the words, each with its whole command."""
    if not entries:
        return []
    from multicard import workloads
    from multicard.cli import guesses

    helped = [word for word in words if word in HELP]
    found = []
    for command in entries:
        workload = workloads.of_entry(ENTRIES[command])
        proposed = guesses.proposed([word for word in words if word not in HELP], workload)
        has_script = any(word.startswith("script=") for word in proposed.words)
        if command == "script" and len(entries) > 1 and not has_script:
            continue
        line = " ".join([proposed.command, *helped])
        found.append(MeantCommand(command, line, tuple(proposed.foreign)))
    fewest = min((len(each.foreign) for each in found), default=0)
    if most_foreign is not None and fewest > most_foreign:
        return []
    return [each for each in found if len(each.foreign) == fewest]
