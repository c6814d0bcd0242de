"""A check that Hydra calls before it makes a folder."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from multicard.config.base import check_name


class WritableFolder(Callback):
    """Refuse in one line a folder that cannot be made, or written to by a sweep; Hydra would print a traceback."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _make(Path(config.hydra.run.dir), "hydra.run.dir", str(config.name))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        _make(folder, "hydra.sweep.dir", str(config.name))
        try:
            with tempfile.TemporaryFile(dir=folder):  # Hydra writes the sweep's own configuration there
                pass
        except OSError as error:
            problem = f"cannot be written to ({error.strerror}); choose another folder"
            print(f"refused: hydra.sweep.dir={folder}: {problem}", file=sys.stderr)
            sys.exit(1)


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
