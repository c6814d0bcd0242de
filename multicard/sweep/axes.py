"""Make the cells of a sweep from its axes: the overrides of each cell."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from multicard.config import CONF, schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.messages import Message, Refusal, say

Cells = list[list[str]]  # The overrides of each cell.


@dataclass(frozen=True)
class Axes:
    """The parts of `hydra.sweeper` and `hydra.experiment` that make cells.

    Attributes:
        params: keys with their values, separated by commas.
        smoke: replaces `params` key by key with `scale=smoke`; null leaves a key out.
        exclude: values of some axes that cannot be combined.
        parts: axes that are tried one by one (`one_by_one`) instead of in all combinations.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[Mapping[str, Any]] = ()
    parts: Sequence[str] = ()

    @staticmethod
    def of_experiment(name: str, smoke: Mapping[str, Any]) -> "Axes":
        """Return the axes of a file of conf/experiment. Its `smoke` overrides the entry's."""
        hydra = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra
        experiment = hydra.experiment
        return Axes(
            hydra.sweeper.params,
            {**smoke, **experiment.get("smoke", {})},
            experiment.get("exclude", ()),
            experiment.get("parts", ()),
        )

    def cells(
        self, words: Sequence[str], shrunk: bool, times: int, tell: Callable[[str], None] = say
    ) -> Cells:
        """Return the overrides of each cell.

        Args:
            words: the words of the command.
            shrunk: True with `scale=smoke`.
            times: number of measurements of each cell; 0 if the launcher decides.
            tell: called with a line about cells that are left out.
        """
        values = {**self.params, **(self.smoke if shrunk else {})}
        axes = [f"{key}={value}" for key, value in values.items() if value is not None]
        if times > 1:
            axes.append(f"repetition={','.join(map(str, range(1, times + 1)))}")
        cells = one_by_one(
            product(OverridesParser.create().parse_overrides([*axes, *words])), self.parts
        )
        for entry in self.exclude:
            excluded_words = {f"{key}={value}" for key, value in entry.items()}
            remaining = [overrides for overrides in cells if not excluded_words <= {*overrides}]
            left_out = len(cells) - len(remaining)
            if left_out > 0:
                message = Message(
                    "cells.excluded",
                    f"{count(left_out, 'cell')} left out by the experiment:"
                    f" {' '.join(sorted(excluded_words))}",
                    cells=left_out,
                    values=sorted(excluded_words),
                )
                tell(message)
            cells = remaining
        return cells


def product(overrides: Sequence[Override]) -> Cells:
    """Return every combination of the values of all keys. The last of two equal keys counts."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    # Repetitions are the outermost axis: all cells are measured once before any is measured again.
    repeats = schema.keys(Role.repetition)

    def place(override: Override) -> int:
        key = override.get_key_element()
        return repeats.index(key) if key in repeats else len(repeats)

    (cells,) = BasicSweeper.split_arguments(sorted(overrides, key=place), None)
    return cells


def one_by_one(cells: Cells, parts: Sequence[str]) -> Cells:
    """Return the cells of a grid in which at most one part differs from its first value.

    The cell with the last value of each part is returned, too. n parts with two values therefore
    take n + 2 cells instead of 2^n. Keys that are not parts keep all their values.

    Raises:
        Refusal: a part is not a key of any cell.
    """
    values: dict[str, list[str]] = {}
    for overrides in cells:
        for override in overrides:
            part, _, value = override.partition("=")
            if part in parts and value not in values.setdefault(part, []):
                values[part].append(value)
    unknown = [part for part in parts if part not in values]
    if unknown:
        raise Refusal(
            "cells.no-such-part",
            f"hydra.experiment.parts: {', '.join(unknown)} is not an axis of this sweep; leave it"
            " out",
            key="hydra.experiment.parts",
            unknown=unknown,
        )

    def is_kept(overrides: list[str]) -> bool:
        value_of_part = dict(override.split("=", 1) for override in overrides)
        changed_parts = [part for part in values if value_of_part[part] != values[part][0]]
        return len(changed_parts) <= 1 or all(
            value_of_part[part] == values[part][-1] for part in values
        )

    return [overrides for overrides in cells if is_kept(overrides)]
