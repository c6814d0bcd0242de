"""The setting of each table and figure, from `settings.yaml`."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("settings.yaml")


class Instead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment's value in place of the printed one; `comparable` if its figures may be compared all the same."""

    value: Any
    why: str
    comparable: bool = False


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns and their values; a list is an axis."""

    printed: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    instead: dict[str, Instead] = {}

    @property
    def all(self) -> dict[str, Any]:
        return self.chosen | self.printed


class Papers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file.

    hardware, versions: the papers' node and packages. templates: by text data set, as printed.
    extract: a part of the file that experiments share. kinds, experiments: settings by kind of run and by experiment.
    """

    hardware: str
    versions: dict[str, str]
    templates: dict[str, str]
    extract: dict[str, Any]
    kinds: dict[str, Settings]
    experiments: dict[str, Settings]

    def for_experiment(self, kind: str, experiment: str) -> Settings:
        """The settings of an experiment, with those of its kind."""
        common, own = self.kinds[kind], self.experiments.get(experiment, Settings())
        return Settings(common.printed | own.printed, common.chosen | own.chosen, common.instead | own.instead)


@cache
def read() -> Papers:
    return msgspec.yaml.decode(FILE.read_bytes(), type=Papers)
