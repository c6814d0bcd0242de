"""Hydra's own sweeper, which composes every cell once only to see whether it can be composed: our launchers compose
all of them anyway, before the first runs."""

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class CellSweeper(BasicSweeper):
    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher."""
