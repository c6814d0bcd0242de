"""Hydra's own sweeper, which composes every cell once only to see whether it can be composed: our launchers compose
all of them anyway, before the first runs. With `scale=smoke` it shrinks what an experiment says."""

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
        """The words that come before those of the command, which win where they name the same key."""
        assert self.config is not None
        shrunk = self.smoke if self.config.scale == "smoke" else {}
        words = self.axes | shrunk
        return [f"{key}={value}" for key, value in words.items() if value is not None]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher."""
