"""The cells of a sweep, by the axes of an experiment and the words of the command, which win."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from multicard.config.job import count
from multicard.messages import say
from multicard.workloads import CONF

OUTERMOST = ("repetition", "seed")  # so that all cells are measured once before any is measured again
Cells = list[list[str]]  # the overrides of each


@dataclass(frozen=True)
class Axes:
    """The parts of `hydra.sweeper` and `hydra.experiment` that make cells.

    params: keys to their values, separated by commas. smoke: the same, instead of these, with `scale=smoke`; null
    leaves a key out. exclude: values of some axes that cannot be together.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[Mapping[str, Any]] = ()

    @staticmethod
    def of_experiment(name: str, smoke: Mapping[str, Any]) -> "Axes":
        """The axes of a file of conf/experiment, whose `smoke` wins over that of the entry."""
        hydra = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra
        own = hydra.experiment
        return Axes(hydra.sweeper.params, {**smoke, **own.get("smoke", {})}, own.get("exclude", ()))

    def cells(self, words: Sequence[str], shrunk: bool, times: int, tell: Callable[[str], None] = say) -> Cells:
        """The overrides of each cell.

        Args:
            words: of the command.
            shrunk: True with `scale=smoke`.
            times: measurements of each; 0 where the launcher decides.
            tell: called with a line about cells that are left out.
        """
        values = {**self.params, **(self.smoke if shrunk else {})}
        axes = [f"{key}={value}" for key, value in values.items() if value is not None]
        axes += [f"repetition={','.join(map(str, range(1, times + 1)))}"] if times > 1 else []
        cells = product(OverridesParser.create().parse_overrides([*axes, *words]))
        for entry in self.exclude:
            named = {f"{key}={value}" for key, value in entry.items()}
            within = [overrides for overrides in cells if not named <= {*overrides}]
            if len(within) < len(cells):
                tell(f"{count(len(cells) - len(within), 'cell')} left out by the experiment: {' '.join(sorted(named))}")
            cells = within
        return cells


def product(overrides: Sequence[Override]) -> Cells:
    """Every combination of the values of all keys; the last values of a key that is there twice."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    def place(override: Override) -> int:
        key = override.get_key_element()
        return OUTERMOST.index(key) if key in OUTERMOST else len(OUTERMOST)

    (cells,) = BasicSweeper.split_arguments(sorted(overrides, key=place), None)
    return cells
