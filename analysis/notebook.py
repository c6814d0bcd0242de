"""Runs in Python and in notebooks: what `multicard.load` returns.

Methods are the commands of `python -m analysis`, with their arguments and their refusals (a
ValueError). What they return prints as the command does, shows tables in a notebook, and gives its
values as Arrow or pandas. Units are in the
names of columns: seconds (`_s`), bytes (`_bytes`), joules; accuracies and shares are from 0 to 1.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Refusal
from multicard.records import steps, text_table
from multicard.records.figures import GOALS
from multicard.records.output import Output, skipped_lines

from . import cli
from .commands import best, compare, compared_cells, list_runs
from .runs import by_int4, load, sql
from .runs.load import FoundRuns, Run

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from .answers import Answer

ARGUMENTS = (  # options in refusals, as what is written in Python
    (r"--(common|mix)\b", r"\1=True"),
    (r"--by ([\w.,]*\w)", r'by="\1"'),
    ("--price ", "price="),
    ("--by:", "by:"),
    ('--where (?=")', "condition="),
    ("--where", "condition"),
    ("--sort", "sort"),
    ("`[^`]* list --csv FILE` writes", "`to_arrow()` has"),
)
KEYS = {"--where": "condition"}  # arguments that are called otherwise than their options


@contextmanager
def refusing() -> Iterator[None]:
    """Refusals in which an option is the argument of the
    same name: `--by layout` is by="layout".
    """
    try:
        yield
    except Refusal as refusal:
        said = str(refusal.message.sentence)
        for option, argument in ARGUMENTS:
            said = re.sub(option, argument, said)
        key = None if refusal.key is None else KEYS.get(refusal.key, refusal.key.removeprefix("--"))
        raise refusal.reworded(said, key) from None


class ShownOutput:
    """What a command found: its lines in a terminal, its tables in a notebook,
    its rows as Arrow and pandas.
    """

    def __init__(self, output: Output) -> None:
        self._output = output

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [*self._output.rows]

    def to_arrow(self) -> pa.Table:
        """The values, typed; null where there is none."""
        names = self._output.columns or dict.fromkeys(chain.from_iterable(self._rows))
        return sql.as_arrow(self._rows, [*names])

    def to_pandas(self) -> "pd.DataFrame":
        """The values, typed; NaN or None where there is none."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return "\n".join([*self._output.lines(text_table.terminal_width()), *self._output.notes])

    def _repr_html_(self) -> str:
        return "\n".join(table.html() for table in self._output.tables())


class Runs(ShownOutput):
    """Runs, each with its columns (`runs[0]["total_s"]`): those
    that `python -m analysis list --csv` writes.

    found: the runs as a list, and the run folders that could not be read.
    """

    def __init__(self, found: FoundRuns) -> None:
        self.found = found
        super().__init__(
            replace(list_runs.output(found, found.runs, None), notes=skipped_lines(found.skipped))
        )

    def __len__(self) -> int:
        return len(self.found.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.found.runs)

    def __getitem__(self, index: int) -> Run:
        return self.found.runs[index]

    def to_pandas(self, all_columns: bool = False) -> "pd.DataFrame":
        """Return a row for each run: what tells the runs apart, status, main figures and marks.

        Args:
            all_columns: return every column of `list --csv`, with all keys of the configuration.
        """
        frame = super().to_pandas()
        if all_columns or not self.found.runs:
            return frame
        return frame.loc[:, list_runs.main_columns(self.found.runs)]

    def plot(
        self, y: str = "total_s", x: str | None = None, color: str | None = None
    ) -> "alt.Chart":
        """Draw a point for each run that ended ok: a figure against a setting.

        Args:
            y: the column of a figure, such as "total_s", "images_per_s" or "test_accuracy".
            x: the column of a setting. By default it is `gpus` if that varies, else the first
                setting that does.
            color: another setting. By default it is the next one that varies.

        Raises:
            ValueError: no such column, or no run with a value to draw.
        """
        from .figures import points  # altair, which takes a second

        return points.chart(self.found.runs, y, x, color)

    @refusing()
    def where(self, condition: str | None = None, sort: str | None = None) -> "Runs":
        """The runs for which an SQL expression over their
        columns is true: `"gpus>=2 and precision='fp16'"`.

        Args:
            sort: the order: `"gpus, total_s desc"`.

        Raises:
            ValueError: an expression that SQL or the columns do not allow.
        """
        return Runs(FoundRuns(sql.select(self.found.runs, condition, sort), []))

    @refusing()
    def best(
        self,
        goal: str | None = None,
        accuracy: float | str | None = None,
        memory: float | str | None = None,
        gpus: int | None = None,
        mix: bool = False,
        loss: float | str | None = None,
        by: str | None = None,
    ) -> ShownOutput:
        """What to run, and the settings that did the same work, by the least time, memory,
        energy or cost of a run.

        Args:
            goal: "time", "memory", "energy" or "cost"; None ranks by time, and shows the others.
            accuracy: the least test accuracy: 0.99 or "99%".
            memory: the most memory of a GPU: "80GB", "80GiB" or bytes.
            gpus: the most GPUs, on all nodes together.
            mix: rank, and average, runs of several commits or machines together.
            loss: the highest loss of held-out rows, in nats a token.
            by: "int4" judges by the loss of the models once they are quantised.

        Raises:
            ValueError: an argument that is no such value, or nothing can be ranked,
                with the reason.
        """
        from .answers import sentences  # and Parquet's file systems, which take a tenth of a second

        if goal not in (None, *GOALS):
            raise Refusal(
                "notebook.goal",
                f"goal={goal}: choose one of {', '.join(GOALS)}",
                key="goal",
                value=goal,
                known=[*GOALS],
            )
        if by not in (None, *by_int4.SCORES):
            known = ", ".join(by_int4.SCORES)
            raise Refusal(
                "notebook.by",
                f"by={by}: choose {known}",
                key="by",
                value=by,
                known=[*by_int4.SCORES],
            )
        size_bytes = (
            _parsed("memory", cli.size_bytes, memory) if isinstance(memory, str) else memory
        )
        limits = best.Limits(
            _parsed("accuracy", cli.share, accuracy),
            size_bytes,
            _parsed("gpus", cli.count, gpus),
            _parsed("loss", cli.loss, loss),
        )
        return ShownOutput(best.output(self.found.runs, goal, limits, mix, sentences, by))

    def answers(self, mix: bool = False) -> "list[Answer]":
        """What to run for each workload (`answer.sentence`), the one that was measured last first.

        Args:
            mix: rank, and average, runs of several commits or machines together.
        """
        from .answers import answers

        return answers(self.found.runs, mix)

    @refusing()
    def compare(
        self,
        other: "Runs | str | PathLike[str] | None" = None,
        by: str | None = None,
        common: bool = False,
        mix: bool = False,
        margin: float | str = MARGIN,
    ) -> ShownOutput:
        """This sweep (A) and another (B) cell by cell, by the mean time of a step.

        Args:
            other: runs, or their folder; without it, values of `by` are compared within these runs.
            by: keys that differ on purpose: "layout" or "layout,gpus".
            common: leave out cells that only one side has.
            mix: average runs of several commits or machines in a cell.
            margin: the difference up to which two cells are equal: 0.05 or "5%".

        Raises:
            ValueError: sweeps that did different work, cells that only one has,
                runs that must not be averaged.
        """
        keys = _parsed("by", cli.names, by) or []
        share = _parsed("margin", cli.share, margin)
        b = self if other is None else other if isinstance(other, Runs) else read(other)
        return ShownOutput(
            compare.output(
                compared_cells.compare(self.found.runs, b.found.runs, keys, common, mix, share),
                share,
            )
        )

    def steps(self, run: Run | int) -> "pd.DataFrame":
        """A row for each step of each rank of a run, with its seconds (`step_s`, and those of its
        phases as far as they are known) and whether it belongs to the warm-up that means leave out.

        Raises:
            ValueError: the run has no steps that can be read.
        """
        run = self[run] if isinstance(run, int) else run
        return steps.table(run.folder, run.record()).to_pandas()

    def figure(self, name: str = "trade_off", mix: bool = False) -> "alt.VConcatChart":
        """The figures of a name as `python -m analysis figure` draws them, below one another,
        as a chart of Altair.

        Args:
            name: an experiment, "effects", "trade_off", "losses", "phases",
                "efficiency" or "timelines".

        Raises:
            ValueError: no such figure, or nothing to draw.
        """
        from .figures import draw, vega  # altair, which takes a second

        return vega.chart(draw.make(name, self.found.runs, mix)[0])


def read(*folders: str | PathLike[str], price: float | None = None) -> Runs:
    """See `multicard.load`."""
    paths = [Path(folder) for folder in folders or ("multirun",)]
    return Runs(load.read(paths, price=_parsed("price", cli.price, price)))


def _parsed(name: str, parse: Callable[[str], Any], value: float | str | None) -> Any:
    """A value as the command line reads it; raises ValueError where it is none."""
    try:
        return None if value is None else parse(str(value))
    except argparse.ArgumentTypeError as error:
        raise Refusal(
            "notebook.argument", f"{name}: {error}", key=name, reason=error.args[0]
        ) from None
