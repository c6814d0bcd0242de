"""A check that Hydra calls before it makes a folder."""

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from multicard.config.base import check_name


class WritableFolder(Callback):
    """Refuse in one line a folder of a run or sweep that cannot be made; Hydra would print a traceback."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _make(Path(config.hydra.run.dir), "hydra.run.dir", str(config.name))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _make(Path(config.hydra.sweep.dir), "hydra.sweep.dir", str(config.name))


def _make(folder: Path, key: str, name: str) -> None:
    try:
        check_name(name)
        folder.mkdir(parents=True, exist_ok=True)
    except ValueError as error:
        print(f"refused: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(f"refused: {key}={folder}: cannot be made ({error.strerror}); choose another folder", file=sys.stderr)
        sys.exit(1)
