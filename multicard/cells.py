"""The cells of a sweep: which folder each has, and which of them are measured already."""

import re
from copy import deepcopy
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from multicard import record
from multicard.config import NOT_IDENTITY, RunConfig

LONGEST = 120  # characters of the changed axes that a folder's name shows


def folder_name(cfg: DictConfig, overrides: list[str]) -> str:
    """The changed axes and 8 hex digits of the whole configuration: `gpus=2,precision=fp16-1a2b3c4d`."""
    hidden = {*NOT_IDENTITY, "hydra", "+hydra", "~hydra"}
    kept = (o for o in overrides if re.split(r"[=./@]", o, maxsplit=1)[0] not in hidden)
    shown = sorted(re.sub(r"^[\w+/]*\.", "", o) for o in kept)  # the key without its group
    text = re.sub(r"=[._]+", "=", re.sub(r"[^\w.,=+-]", "_", ",".join(shown)))[:LONGEST] or "default"
    return f"{text}-{identity(cfg)}"


def identity(cfg: DictConfig) -> str:
    """What the cell measures, as 8 hex digits; all zeros for a configuration that is to be refused."""
    try:
        config = OmegaConf.to_object(task_of(cfg))
    except (ValueError, OmegaConfBaseException):
        return "0" * 8
    assert isinstance(config, RunConfig)
    return config.identity()


def task_of(cfg: DictConfig) -> DictConfig:
    """The configuration of the run itself, resolved, without Hydra's part, which is there while a sweep is composed."""
    task = deepcopy(cfg)
    OmegaConf.resolve(task)
    with open_dict(task):
        task.pop("hydra", None)
    return task


def find(sweep: Path, name: str) -> Path:
    """The folder of a cell in `sweep`: the one in which the same configuration was measured, else a new one."""
    digits = name.rpartition("-")[2]
    known = record.find_cell(sweep, digits) if digits.strip("0") else None
    return known or sweep / name
