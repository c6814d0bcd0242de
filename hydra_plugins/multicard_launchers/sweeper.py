"""Hydra's basic sweeper without its check that composes every cell, since the launchers compose all of them before the
first runs. With `scale=smoke` it shrinks the axes of an experiment."""

from collections.abc import Mapping, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class CellSweeper(BasicSweeper):
    def __init__(
        self,
        max_batch_size: int | None,
        params: Mapping[str, object] | None = None,
        smoke: Mapping[str, object] | None = None,
        entry: str | None = None,  # read by `multicard.workloads`, before a sweep is composed
        view: Mapping[str, object] | None = None,  # for the analysis
    ) -> None:
        super().__init__(max_batch_size)
        self.axes, self.smoke = dict(params or {}), dict(smoke or {})

    def _parse_config(self) -> list[str]:
        """The overrides before those of the command, which win where both name a key."""
        assert self.config is not None
        shrunk = self.smoke if self.config.scale == "smoke" else {}
        words = self.axes | shrunk
        return [f"{key}={value}" for key, value in words.items() if value is not None]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher."""
