"""The cells of a sweep: which folder each has, and which of them are measured already."""

import re
from copy import copy, deepcopy
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from multicard.config.base import NOT_IDENTITY, RunConfig
from multicard.records import run_folder

LONGEST = 120  # characters of the changed axes that a folder's name shows


REFUSED = "0" * 8  # the identity of a configuration that is to be refused


def folder_name(cfg: DictConfig, overrides: list[str]) -> str:
    """The changed axes and 8 hex digits of the whole configuration: `gpus=2,precision=fp16-1a2b3c4d`; of a repetition
    its number too, and of a probe that it is one: `gpus=2,precision=fp16-1a2b3c4d-r2`, `...-1a2b3c4d-probe`."""
    return name(identity(cfg), overrides, cfg.repetition, cfg.probe.enabled)


def name(digits: str, overrides: list[str], repetition: int, probe: bool = False) -> str:
    """The same, where the identity is known."""
    hidden = {*NOT_IDENTITY, "experiment", "hydra", "+hydra", "~hydra"}
    changed = (o for o in overrides if re.split(r"[=./@]", o, maxsplit=1)[0] not in hidden)
    keys = sorted(re.sub(r"^[\w+/]*\.", "", o) for o in changed)  # the key without its group
    text = re.sub(r"=[._]+", "=", re.sub(r"[^\w.,=+-]", "_", ",".join(keys)))[:LONGEST] or "default"
    return f"{text}-{digits}" + (f"-r{repetition}" if repetition > 1 else "") + ("-probe" if probe else "")


def identity(cfg: DictConfig) -> str:
    """What the cell measures, as 8 hex digits; all zeros where it is to be refused."""
    try:
        config = OmegaConf.to_object(cfg)
    except (ValueError, OmegaConfBaseException):
        return REFUSED
    assert isinstance(config, RunConfig)
    return config.identity()


def task_of(cfg: DictConfig) -> DictConfig:
    """The configuration of the run itself, resolved, without Hydra's part, which is there while a sweep is composed."""
    task = copy(cfg)
    with open_dict(task):
        task.pop("hydra", None)
    task = deepcopy(task)  # of the run's part alone: Hydra's is the larger
    OmegaConf.resolve(task)
    return task


def find(sweep: Path, folder: str) -> Path:
    """The folder of a cell in `sweep`: the one in which the same configuration was measured, else a new one."""
    ending = re.search(r"-(\w{8})(-r\d+)?(-probe)?$", folder)
    known = run_folder.find_cell(sweep, ending[0]) if ending is not None and ending[1] != REFUSED else None
    return known or sweep / folder
