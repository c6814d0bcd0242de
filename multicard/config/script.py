"""The schema of `measure_script.py`."""

from dataclasses import dataclass
from enum import StrEnum

# OmegaConf supports Optional[...] in every Python version.
from typing import Any, ClassVar, Optional

from multicard.config.base import ProfileName, ProfileWindow, RunConfig, WindowConfig
from multicard.config.keys import key
from multicard.config.roles import Role
from multicard.messages import Refusal

STYLE = "style"  # The key of `args` that says how the other keys are passed to the script.


Style = StrEnum("Style", ["argparse", "equals", "hydra", "env"])
DASHED_STYLES = (Style.argparse, Style.equals)  # Styles that pass options with dashes.


class ScriptLaunch(StrEnum):
    """The program that starts a script on one GPU."""

    torchrun = "torchrun"
    python = "python"


AXES = ("script", "words", "gpus", "nodes", "scale")  # Axes of a run's record, in order of tables.


@dataclass
class ScriptConfig(RunConfig):
    """The composed configuration of `measure_script.py`."""

    kind: ClassVar[str] = "script"
    # A script takes no further steps after its end.
    default_window: ClassVar[ProfileWindow] = ProfileWindow.start

    script: str = key(
        "",
        "PyTorch script, relative to the working folder; it is started as by torchrun",
        Role.identity | Role.work | Role.content | Role.learning | Role.memory | Role.speed,
        also=("file", "main", "program", "entrypoint"),
    )
    args: dict[str, Any] = key(
        lambda: {STYLE: str(Style.argparse)},
        "args.lr=0.1 becomes --lr 0.1, true a flag, false and null nothing, a list several values; "
        "args.style: equals (--lr=0.1), hydra (lr=0.1) or env (variable LR)",
        Role.identity | Role.learning | Role.memory | Role.speed,
    )
    words: list[str] = key(
        list,
        "words between the script and its args, unchanged: subcommands, positionals, flags",
        Role.identity | Role.learning | Role.memory | Role.speed,
    )
    launch: ScriptLaunch = key(
        ScriptLaunch.torchrun,
        "how a script on one GPU is started: torchrun sets RANK and others; python does not, for "
        "scripts that take these for a sign of several GPUs",
        Role.identity | Role.speed,
        since=("words", ScriptLaunch.torchrun),
    )
    steps: Optional[int] = key(
        None,
        "end the script after this many optimiser steps; null: let it end by itself",
        Role.identity | Role.work | Role.length | Role.part | Role.learning | Role.trial,
        least=1,
    )
    warmup_steps: int = key(
        5,
        "number of first steps that step_s and samples_per_s leave out; records mark them",
        Role.identity,
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.script:
            raise Refusal(
                "config.script-missing",
                "script is not set: name the PyTorch script to start, as `script=train.py`",
                key="script",
            )
        style, styles = self.args.get(STYLE), [str(style) for style in Style]
        if style not in styles:
            raise Refusal(
                "config.script-style",
                f"args.style={style}: choose one of {', '.join(styles)}; for other forms, use"
                " `words=[WORD,...]`",
                key="args.style",
                value=style,
                choices=styles,
            )
        if self.diagnose:
            raise Refusal(
                "config.script-diagnose",
                "diagnose=true: cannot leave out parts of a script's steps; data_s and step_s show"
                " its data and time; use `profile=kineto`",
                key="diagnose",
            )
        from_start = isinstance(self.profile, WindowConfig) and self.profile.from_start
        if self.profile.name is not ProfileName.none and not from_start:
            raise Refusal(
                "config.script-window",
                "profile.window=after: a script takes no further steps after its end; use"
                " `profile.window=start`",
                key="profile.window",
            )
        figure = self.race.figure
        if figure is not None and self.steps is None:
            raise Refusal(
                "config.script-race-length",
                f"race={figure}: compares full runs of a known length; set their steps, as"
                " `steps=200`",
                key="race",
                value=figure,
            )
        if figure == "images_per_s":
            raise Refusal(
                "config.script-race-figure",
                "race=images_per_s: a script does not report images; use `race=samples_per_s` or"
                " `race=tokens_per_s`",
                key="race",
            )
