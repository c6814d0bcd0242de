"""`best --train`: train the recommended setting in full, keep its model, and say how to load it.

The training runs in a child process, as if its command were typed, and prints what a run prints.
For a script, the script's own command under the setting is printed instead, because only the script
knows its model.
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
    """Train the recommended setting of some runs, and return the exit code of the training.

    Raises:
        ValueError: nothing can be recommended, or the runs are of several workloads.
    """
    answer = _only_answer([answer_for(ranking) for ranking in rankings(runs, mix, asked)])
    if answer.failings:
        raise Refusal("train.not-recommended", answer.sentence, setting=answer.setting)
    if answer.command is None:
        text = (
            "the folder of these runs does not hold their command; run it again with `save=model`,"
            " or `save=adapter`"
        )
        raise Refusal("train.no-command", text, setting=answer.setting)
    say(answer.sentence)
    kind = answer.best.runs[0]["kind"]
    words, shortening = training_command.in_full(
        answer.command, answer.best.runs[0].folder.parent.name
    )
    if shortening:
        note = f"In full: without {' '.join(shortening)}."
        say(Message("train.in-full", note, words=shortening))
    entry = KINDS[kind].entry
    words, config = _compose_training(entry, words)
    if isinstance(config, ScriptConfig):
        say(
            Message(
                "train.script",
                f"To train: `{script_command(config)}`",
                command=script_command(config),
            )
        )
        return 0
    command = f"{typed(entry)} {shlex.join(words)}"
    say(Message("train.command", f"Training: `{command}`", command=command))
    code = child_command.run_to_end([sys.executable, str(ROOT / entry), *words])
    model_folder = folder_of_kept_model(
        Path("multirun") / words[-1].partition("=")[2], config.identity()
    )
    if code == 0 and model_folder is not None:
        say(
            Message(
                "train.load",
                f"The model is in {model_folder}. These lines load it:",
                folder=str(model_folder),
            )
        )
        say("\n".join(f"  {line}" for line in _lines_to_load(model_folder)))
    return code


def _only_answer(answers: Sequence[Answer]) -> Answer:
    """Return the only answer.

    Raises:
        Refusal: there are several workloads. It names a command for each, to choose from.
    """
    if len(answers) == 1:
        return answers[0]
    commands = [f"{answer.work}: {answer.command or answer.setting}" for answer in answers]
    text = (
        f"--train: {len(answers)} workloads were measured; name the folder of one sweep, or run one"
        " of these: "
    )
    raise Refusal(
        "train.several", text + "; ".join(map(clean, commands)), key="--train", works=len(answers)
    )


def _compose_training(entry: str, words: list[str]) -> tuple[list[str], Any]:
    """Add the word that keeps the model or the adapter, and compose the run's configuration."""
    from multicard import workloads
    from multicard.cli import command_line
    from multicard.llm import methods
    from multicard.run import prepare
    from multicard.sweep.compositions import task_of

    workloads.register()
    workload = workloads.of_entry(entry)

    def typed_config(typed_words: list[str]) -> Any:
        cfg = workloads.composed(entry, command_line.switched(typed_words, workload))
        return prepare.typed(workload, task_of(cfg))

    config = typed_config(words)
    if isinstance(config, ScriptConfig):
        return words, config
    has_adapters = isinstance(config, LlmConfig) and methods.chosen(config).adapters
    save = "save=adapter" if has_adapters else "save=model"
    words = [*words[:-1], save, words[-1]]
    return words, typed_config(words)


def script_command(config: ScriptConfig) -> str:
    """Return a script's own command, with a configuration's words, variables and GPUs."""
    from multicard.script import words

    module = words.module(config)
    script = ["-m", module] if module else [config.script]
    if config.launch is ScriptLaunch.torchrun:
        launcher = ["torchrun", "--nproc-per-node", str(config.gpus)]
        if config.nodes > 1:
            launcher += ["--nnodes", str(config.nodes)]
    else:
        launcher = ["python"]
    variables: Mapping[str, str] = words.variables(config)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*assignments, shlex.join([*launcher, *script, *words.words(config)])])


def folder_of_kept_model(sweep: Path, identity: str) -> Path | None:
    """Return the folder of a sweep's run with an identity, if the run kept its model."""
    for path in sorted(sweep.glob(f"*/{run_folder.RESULT}")):
        run = run_folder.read_run(path.parent)
        saved = getattr(run.record, "saved", None) if run is not None else None
        if (
            run is not None
            and saved is not None
            and saved.folder is not None
            and run.record.identity == identity
        ):
            return path.parent
    return None


def _lines_to_load(folder: Path) -> list[str]:
    if (kept.place_of(folder) / kept.TUNED_MODEL).is_file():
        from multicard.llm import kept_model as tuned_model

        return tuned_model.lines_to_load(folder)
    from multicard.vision import kept_model

    return kept_model.lines_to_load(folder)
