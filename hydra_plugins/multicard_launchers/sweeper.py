"""Hydra's basic sweeper without its check that composes every cell, since the launchers compose all of them before the
first runs. Repetitions are the outermost axes, so that all cells are measured once before any is measured again: what
the machine drifts by meanwhile is in all of them. With `scale=smoke` it shrinks the axes of an experiment."""

from collections.abc import Mapping, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from multicard.config.repetition import check, count

OUTERMOST = ("repetition", "seed")


class CellSweeper(BasicSweeper):
    def __init__(
        self,
        max_batch_size: int | None,
        params: Mapping[str, object] | None = None,
        smoke: Mapping[str, object] | None = None,
        exclude: Sequence[Mapping[str, object]] | None = None,  # read by the launchers, which compose the cells
        entry: str | None = None,  # read by `multicard.workloads`, before a sweep is composed
        view: Mapping[str, object] | None = None,  # for the analysis
    ) -> None:
        super().__init__(max_batch_size)
        self.axes, self.smoke = dict(params or {}), dict(smoke or {})

    def _parse_config(self) -> list[str]:
        """The overrides before those of the command, which win where both name a key.

        Raises:
            ValueError: repetitions that no cell can have, before anything of the sweep is written.
        """
        assert self.config is not None
        check(self.config.repeat, self.config.repeat_error, self.config.repeat_max)
        shrunk = self.smoke if self.config.scale == "smoke" else {}
        words = self.axes | shrunk
        axes = [f"{key}={value}" for key, value in words.items() if value is not None]
        times = count(self.config.repeat)  # 0 of auto: the launcher repeats
        return [*axes, *([f"repetition={','.join(map(str, range(1, times + 1)))}"] if times > 1 else [])]

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        def place(override: Override) -> int:
            key = override.get_key_element()
            return OUTERMOST.index(key) if key in OUTERMOST else len(OUTERMOST)

        return BasicSweeper.split_arguments(sorted(overrides, key=place), max_batch_size)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher."""
