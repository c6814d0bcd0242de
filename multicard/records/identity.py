"""The cells of a sweep: which folder each has, and which of them are measured already."""

import re
from copy import copy, deepcopy
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from multicard.config.base import NOT_IDENTITY
from multicard.records import run_folder

LONGEST = 120  # characters of the changed axes that a folder's name shows
REFUSED = "0" * 8  # the identity of a configuration that is to be refused


def name(digits: str, overrides: list[str], repetition: int, probe: bool = False) -> str:
    """The folder of a cell: the changed axes and its identity, `gpus=2,precision=fp16-1a2b3c4d`.

    A repetition has its number, and a probe says that it is one: `gpus=2-1a2b3c4d-r2`, `gpus=2-1a2b3c4d-probe`.
    """
    hidden = {*NOT_IDENTITY, "experiment", "hydra", "+hydra", "~hydra"}
    changed = (o for o in overrides if re.split(r"[=./@]", o, maxsplit=1)[0] not in hidden)
    keys = sorted(re.sub(r"^[\w+/]*\.", "", o) for o in changed)  # the key without its group
    text = re.sub(r"=[._]+", "=", re.sub(r"[^\w.,=+-]", "_", ",".join(keys)))[:LONGEST] or "default"
    return f"{text}-{digits}" + (f"-r{repetition}" if repetition > 1 else "") + ("-probe" if probe else "")


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
