"""Extends Hydra's own configuration: adds experiments, and checks folders before creating them."""

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

_CREATED_FOLDERS: list[Path] = []  # Folders that this command created, the innermost first.
_COMMAND_FOLDERS: list[Path] = []  # The folder of this command's run or sweep, once it is known.


@dataclass
class ExperimentConfig:
    """Properties of an experiment other than its axes, which are in `hydra.sweeper.params`.

    They are not in `hydra.sweeper`, because other sweepers (Hydra's own, Optuna's, Ax's) refuse
    unknown keys.
    """

    entry: Optional[str] = key(None, "the command that the experiment belongs to", Role.beside)
    view: Any = key(None, "how the analysis lays out what it measured", Role.beside)
    smoke: dict[str, Any] = key(
        dict,
        "scale=smoke: values that replace those of the axes, key by key; null drops a key",
        Role.beside,
    )
    exclude: list[Any] = key(list, "values of cells to leave out", Role.beside)
    parts: list[str] = key(
        list,
        "axes of which a cell has all first values, one other value, or all last values; []:"
        " the full grid",
        Role.beside,
    )


@dataclass
class HydraWithExperiment(HydraConf):
    """Hydra's own configuration, extended by `hydra.experiment`."""

    experiment: ExperimentConfig = key(ExperimentConfig, "the experiment of a command", Role.beside)


class RefusedByCallback(BaseException):
    """A refusal by a callback. Not an `Exception`, which Hydra would turn into a warning."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class WritableFolder(Callback):
    """Refuses in one line what Hydra would report in many: a folder that cannot be created or
    written to, and values with broken references.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_references(config)
        _create_folder(Path(config.hydra.run.dir), "hydra.run.dir", str(config.name))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_references(config)
        folder = Path(config.hydra.sweep.dir)
        _create_folder(folder, "hydra.sweep.dir", str(config.name))
        try:
            # Hydra writes the sweep's own configuration there.
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
    """Resolve every value of the run's configuration, without Hydra's own part."""
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
    """Return the folder of this command's run or sweep; before it is known, the working folder."""
    return _COMMAND_FOLDERS[-1] if _COMMAND_FOLDERS else Path.cwd()


def _create_folder(folder: Path, key: str, name: str) -> None:
    _COMMAND_FOLDERS.append(folder)
    try:
        check_name(name)
        str(folder.absolute()).encode()
        missing = [
            path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()
        ]
        folder.mkdir(parents=True, exist_ok=True)
    except UnicodeEncodeError:  # Arrow cannot open files in such a folder.
        raise RefusedByCallback(
            Message(
                "folder.no-text",
                f"{key}={folder.absolute()}: is not valid UTF-8; choose another folder",
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
                f"{key}={folder}: cannot be created ({error.strerror}); choose another folder",
                key=key,
                value=str(folder),
                reason=error.strerror,
            )
        ) from None
    _CREATED_FOLDERS.extend(missing)


def remove_unused() -> None:
    """Remove the folders that this command created but in which nothing was measured."""
    for folder in _CREATED_FOLDERS:
        # Another command of the same second and name may have removed it, or may be writing to it.
        with suppress(OSError):
            if {path.name for path in folder.iterdir()} <= {"multirun.yaml"}:
                (folder / "multirun.yaml").unlink(missing_ok=True)
                folder.rmdir()
    _CREATED_FOLDERS.clear()
