"""What multicard adds to Hydra's own configuration: experiments,
and a check of folders before one is made.
"""

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from hydra.conf import HydraConf
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from multicard.config.base import check_name
from multicard.config.keys import key
from multicard.config.roles import Role
from multicard.messages import Message

_MADE: list[Path] = []  # by this command, the innermost first
_FOLDER: list[Path] = []  # of this command's run or sweep, once it is known


@dataclass
class ExperimentConfig:
    """Properties of an experiment beside its axes, which are in `hydra.sweeper.params`. They are no
    part of `hydra.sweeper`, as other sweepers (Hydra's own, Optuna's,
    Ax's) refuse keys that are not theirs.
    """

    entry: Optional[str] = key(None, "the command that the experiment belongs to", Role.beside)
    view: Any = key(None, "how the analysis lays out what it measured", Role.beside)
    smoke: dict[str, Any] = key(
        dict,
        "scale=smoke: values that take the place of the axes', key by key; null leaves a key out",
        Role.beside,
    )
    exclude: list[Any] = key(list, "values of cells that are left out", Role.beside)
    parts: list[str] = key(
        list,
        "axes of which a cell has all first values, one that is another, or all last values; []:"
        " the grid",
        Role.beside,
    )


@dataclass
class HydraWithExperiment(HydraConf):
    """Hydra's own configuration, and `hydra.experiment`."""

    experiment: ExperimentConfig = key(ExperimentConfig, "the experiment of a command", Role.beside)


class RefusedByCallback(BaseException):
    """A refusal by a callback. Hydra turns an `Exception` there into a warning, and goes on."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class WritableFolder(Callback):
    """Refuse in one line what Hydra would say in many: a folder that cannot be made, or written to
    by a sweep, and values that refer to nothing.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_references(config)
        _make(Path(config.hydra.run.dir), "hydra.run.dir", str(config.name))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_references(config)
        folder = Path(config.hydra.sweep.dir)
        _make(folder, "hydra.sweep.dir", str(config.name))
        try:
            # Hydra writes the sweep's own configuration there
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise RefusedByCallback(
                Message(
                    "folder.read-only",
                    f"hydra.sweep.dir={folder}: cannot be written to ({error.strerror}); choose"
                    " another folder",
                    key="hydra.sweep.dir",
                    value=str(folder),
                    reason=error.strerror,
                )
            ) from None


def _check_references(config: DictConfig) -> None:
    """Resolve each value of the run's own part."""
    for name in config:
        key = str(name)
        if key == "hydra" or OmegaConf.is_missing(config, key):
            continue
        try:
            value = config[key]
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            full_key = error.full_key or key
            problem = str(error).splitlines()[0].rstrip(".")
            raise RefusedByCallback(
                Message(
                    "config.reference",
                    f"{full_key}: {problem}; write the value, or the name of a key",
                    key=full_key,
                    reason=problem,
                )
            ) from None


def folder_of_command() -> Path:
    """The folder of this command's run or sweep; before that is known, the working folder."""
    return _FOLDER[-1] if _FOLDER else Path.cwd()


def _make(folder: Path, key: str, name: str) -> None:
    _FOLDER.append(folder)
    try:
        check_name(name)
        str(folder.absolute()).encode()
        missing = [
            path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()
        ]
        folder.mkdir(parents=True, exist_ok=True)
    except UnicodeEncodeError:  # Arrow opens no file there
        raise RefusedByCallback(
            Message(
                "folder.no-text",
                f"{key}={folder.absolute()}: is no text in UTF-8; choose another folder",
                key=key,
                value=str(folder.absolute()),
            )
        ) from None
    except ValueError as error:
        raise RefusedByCallback(str(error)) from None
    except OSError as error:
        raise RefusedByCallback(
            Message(
                "folder.cannot-be-made",
                f"{key}={folder}: cannot be made ({error.strerror}); choose another folder",
                key=key,
                value=str(folder),
                reason=error.strerror,
            )
        ) from None
    _MADE.extend(missing)


def remove_unused() -> None:
    """Remove the folders that were made for this command and in which nothing was measured."""
    for folder in _MADE:
        # another command of the same second and name may have removed it, or write into it
        with suppress(OSError):
            if {path.name for path in folder.iterdir()} <= {"multirun.yaml"}:
                (folder / "multirun.yaml").unlink(missing_ok=True)
                folder.rmdir()
    _MADE.clear()
