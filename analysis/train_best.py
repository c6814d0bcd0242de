"""`best --train`: run the recommended setting in full, keep its model, and say how it is loaded.

The command runs as a process of its own, as it would be typed: what it prints is what a run prints.
Of a script, whose model is its own, the script's command under the setting is printed.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multicard.config.llm import LlmConfig
from multicard.config.script import ScriptConfig, ScriptLaunch
from multicard.messages import ROOT, Message, Refusal, say, typed
from multicard.ranks import child_command
from multicard.records import kept, run_folder
from multicard.records.text_table import clean

from . import training_command
from .answers import Answer, answer_for
from .commands.best import rankings
from .commands.ranking import Limits
from .runs.columns import KINDS
from .runs.load import Run


def train(runs: Sequence[Run], asked: Limits, mix: bool) -> int:
    """Train what is recommended of some runs; returns the exit code of the run.

    Raises:
        ValueError: nothing can be recommended, or there are recommendations for several workloads.
    """
    answer = _of_one_workload([answer_for(ranking) for ranking in rankings(runs, mix, asked)])
    if answer.failings:
        raise Refusal("train.not-recommended", answer.sentence, setting=answer.setting)
    if answer.command is None:
        said = (
            "the command of these runs is not left beside them; run it again with `save=model`, or"
            " `save=adapter`"
        )
        raise Refusal("train.no-command", said, setting=answer.setting)
    say(answer.sentence)
    kind = answer.best.runs[0]["kind"]
    words, shortening = training_command.in_full(
        answer.command, answer.best.runs[0].folder.parent.name
    )
    if shortening:
        left_out = f"In full: without {' '.join(shortening)}."
        say(Message("train.in-full", left_out, words=shortening))
    entry = KINDS[kind].entry
    words, config = _composed(entry, words)
    if isinstance(config, ScriptConfig):
        say(
            Message(
                "train.script",
                f"To train: `{script_command(config)}`",
                command=script_command(config),
            )
        )
        return 0
    shown = f"{typed(entry)} {shlex.join(words)}"
    say(Message("train.command", f"Training: `{shown}`", command=shown))
    code = child_command.run_to_end([sys.executable, str(ROOT / entry), *words])
    place = kept_by(Path("multirun") / words[-1].partition("=")[2], config.identity())
    if code == 0 and place is not None:
        say(
            Message(
                "train.load", f"The model is in {place}. These lines load it:", folder=str(place)
            )
        )
        say("\n".join(f"  {line}" for line in _lines(place)))
    return code


def _of_one_workload(found: Sequence[Answer]) -> Answer:
    """The only answer; of several workloads each has its own command,
    of which one is to be chosen.
    """
    if len(found) == 1:
        return found[0]
    several = [f"{answer.work}: {answer.command or answer.setting}" for answer in found]
    said = (
        f"--train: {len(found)} workloads were measured; name the folder of one sweep, or run one"
        " of: "
    )
    raise Refusal(
        "train.several", said + "; ".join(map(clean, several)), key="--train", works=len(found)
    )


def _composed(entry: str, words: list[str]) -> tuple[list[str], Any]:
    """The words with what is to be kept, and the run's configuration."""
    from multicard import workloads
    from multicard.cli import command_line
    from multicard.llm import methods
    from multicard.run import prepare
    from multicard.sweep.compositions import task_of

    workloads.register()
    workload = workloads.of_entry(entry)

    def typed_of(own: list[str]) -> Any:
        cfg = workloads.composed(entry, command_line.switched(own, workload))
        return prepare.typed(workload, task_of(cfg))

    config = typed_of(words)
    if isinstance(config, ScriptConfig):
        return words, config
    has_adapters = isinstance(config, LlmConfig) and methods.chosen(config).adapters
    save = "save=adapter" if has_adapters else "save=model"
    words = [*words[:-1], save, words[-1]]
    return words, typed_of(words)


def script_command(config: ScriptConfig) -> str:
    """The command of a script itself, under a configuration's words,
    variables and number of GPUs.
    """
    from multicard.script import words

    module = words.module(config)
    script = ["-m", module] if module else [config.script]
    if config.launch is ScriptLaunch.torchrun:
        starts = ["torchrun", "--nproc-per-node", str(config.gpus)]
        if config.nodes > 1:
            starts += ["--nnodes", str(config.nodes)]
    else:
        starts = ["python"]
    variables: Mapping[str, str] = words.variables(config)
    named = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*named, shlex.join([*starts, *script, *words.words(config)])])


def kept_by(sweep: Path, identity: str) -> Path | None:
    """The folder of the run of a sweep that has an identity, if it kept its model."""
    for path in sorted(sweep.glob(f"*/{run_folder.RESULT}")):
        run = run_folder.read(path.parent)
        saved = getattr(run.record, "saved", None) if run is not None else None
        if (
            run is not None
            and saved is not None
            and saved.folder is not None
            and run.record.identity == identity
        ):
            return path.parent
    return None


def _lines(folder: Path) -> list[str]:
    if (kept.place_of(folder) / kept.TUNED_MODEL).is_file():
        from multicard.llm import kept_model as tuned_model

        return tuned_model.lines_to_load(folder)
    from multicard.vision import kept_model

    return kept_model.lines_to_load(folder)
