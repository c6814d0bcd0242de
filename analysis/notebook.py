"""Runs in Python and in notebooks: what `multicard.load` returns.

The methods are the commands of `python -m analysis`, with their arguments and their refusals (a
ValueError). Their results print as the commands do, show tables in a notebook, and convert to Arrow
or pandas. Names of columns have their units: seconds (`_s`), bytes (`_bytes`), joules. Accuracies
and shares are from 0 to 1.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Refusal
from multicard.records import steps, text_table
from multicard.records.figures import GOALS
from multicard.records.output import Output, skipped_lines
from multicard.records.short_names import MULTIRUN, folder_of_runs

from . import cli
from .commands import best, compare, compared_cells, list_runs
from .runs import by_int4, load, sql
from .runs.load import FoundRuns, Run

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from .answers import Answer

# Patterns that turn the options in a refusal into Python arguments.
ARGUMENT_PATTERNS = (
    (r"--(common|mix)\b", r"\1=True"),
    (r"--by ([\w.,]*\w)", r'by="\1"'),
    ("--price ", "price="),
    ("--by:", "by:"),
    ('--where (?=")', "condition="),
    ("--where", "condition"),
    ("--sort", "sort"),
    ("`[^`]* list --csv FILE` writes", "`to_arrow()` has"),
)
RENAMED_KEYS = {"--where": "condition"}  # Arguments whose names differ from their options.


@contextmanager
def python_refusals() -> Iterator[None]:
    """Word refusals for Python: an option becomes the argument of the same name.

    For example, `--by layout` becomes by="layout".
    """
    try:
        yield
    except Refusal as refusal:
        text = str(refusal.message.sentence)
        for option, argument in ARGUMENT_PATTERNS:
            text = re.sub(option, argument, text)
        key = (
            None
            if refusal.key is None
            else RENAMED_KEYS.get(refusal.key, refusal.key.removeprefix("--"))
        )
        raise refusal.reworded(text, key) from None


class ShownOutput:
    """The output of a command.

    It shows lines in a terminal and tables in a notebook, and converts its rows to Arrow and
    pandas.
    """

    def __init__(self, output: Output) -> None:
        self._output = output

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [*self._output.rows]

    def to_arrow(self) -> pa.Table:
        """Return the values with their types; a missing value is null."""
        names = self._output.columns or dict.fromkeys(chain.from_iterable(self._rows))
        return sql.as_arrow(self._rows, [*names])

    def to_pandas(self) -> "pd.DataFrame":
        """Return the values with their types; a missing value is NaN or None."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return "\n".join([*self._output.lines(text_table.terminal_width()), *self._output.notes])

    def _repr_html_(self) -> str:
        return "\n".join(table.html() for table in self._output.tables())


class Runs(ShownOutput):
    """Runs with their columns (`runs[0]["total_s"]`), which `python -m analysis list --csv` writes.

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
        """Return a row for each run: columns that distinguish it, status, main figures and marks.

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
            ValueError: there is no such column, or no run with a value to draw.
        """
        from .figures import points  # It imports Altair, which takes a second.

        return points.chart(self.found.runs, y, x, color)

    @python_refusals()
    def where(self, condition: str | None = None, sort: str | None = None) -> "Runs":
        """Return the runs for which an SQL expression over their columns is true.

        Args:
            condition: an expression such as `"gpus>=2 and precision='fp16'"`.
            sort: the order: `"gpus, total_s desc"`.

        Raises:
            ValueError: SQL or the columns do not allow an expression.
        """
        return Runs(FoundRuns(sql.select(self.found.runs, condition, sort), []))

    @python_refusals()
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
        """Return what to run, and a ranking of the settings that did the same work.

        They are ranked by the least time, memory, energy or cost of a run.

        Args:
            goal: "time", "memory", "energy" or "cost"; None ranks by time, and shows the others.
            accuracy: the least test accuracy: 0.99 or "99%".
            memory: the most memory of a GPU: "80GB", "80GiB" or bytes.
            gpus: the most GPUs, on all nodes together.
            mix: rank, and average, runs of several commits or machines together.
            loss: the highest loss of held-out rows, in nats a token.
            by: "int4" judges by the loss of the models once they are quantised.

        Raises:
            ValueError: an argument is invalid, or nothing can be ranked. The message says why.
        """
        from .answers import sentences  # It imports Parquet's file systems, which takes 0.1 s.
        from .recommended import failings

        if goal not in (None, *GOALS):
            raise Refusal(
                "notebook.goal",
                f"goal={goal}: choose one of {', '.join(GOALS)}",
                key="goal",
                value=goal,
                known=[*GOALS],
            )
        if by not in (None, *by_int4.SCORES):
            known_values = ", ".join(by_int4.SCORES)
            raise Refusal(
                "notebook.by",
                f"by={by}: choose {known_values}",
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
        return ShownOutput(best.output(self.found.runs, goal, limits, mix, sentences, by, failings))

    def answers(self, mix: bool = False) -> "list[Answer]":
        """Return what to run for each workload (`answer.sentence`), the last measured one first.

        Args:
            mix: rank, and average, runs of several commits or machines together.
        """
        from .answers import answers

        return answers(self.found.runs, mix)

    @python_refusals()
    def compare(
        self,
        other: "Runs | str | PathLike[str] | None" = None,
        by: str | None = None,
        common: bool = False,
        mix: bool = False,
        margin: float | str = MARGIN,
    ) -> ShownOutput:
        """Compare this sweep (A) and another (B) cell by cell, by the mean time of a step.

        Args:
            other: runs, or their folder or the name of their sweep. Without it, values of `by` are
                compared within these runs.
            by: keys that differ on purpose: "layout" or "layout,gpus".
            common: leave out cells that only one side has.
            mix: average runs of several commits or machines in a cell.
            margin: the difference up to which two cells are equal: 0.05 or "5%".

        Raises:
            ValueError: the sweeps did different work, only one of them has a cell, or runs must not
                be averaged.
        """
        keys = _parsed("by", cli.names, by) or []
        share = _parsed("margin", cli.share, margin)
        b = self if other is None else other if isinstance(other, Runs) else read_runs(other)
        return ShownOutput(
            compare.output(
                compared_cells.compare(self.found.runs, b.found.runs, keys, common, mix, share),
                share,
            )
        )

    def steps(self, run: Run | int) -> "pd.DataFrame":
        """Return a row for each step of each rank of a run.

        It has the seconds of the step (`step_s`) and of its phases, if they are known. It also says
        if the step belongs to the warm-up, which is left out of means.

        Raises:
            ValueError: the run has no steps that can be read.
        """
        run = self[run] if isinstance(run, int) else run
        return steps.steps_table(run.folder, run.record()).to_pandas()

    def figure(self, name: str = "trade_off", mix: bool = False) -> "alt.VConcatChart":
        """Draw the figures of a name, below one another, as a chart of Altair.

        `python -m analysis figure` draws the same figures.

        Args:
            name: an experiment, "effects", "trade_off", "losses", "phases",
                "efficiency" or "timelines".

        Raises:
            ValueError: there is no such figure, or nothing to draw.
        """
        from .figures import draw, vega  # They import Altair, which takes a second.

        return vega.chart(draw.make(name, self.found.runs, mix)[0])


def read_runs(*folders: str | PathLike[str], price: float | None = None) -> Runs:
    """See `multicard.load`."""
    paths = [folder_of_runs(folder) for folder in folders or (MULTIRUN,)]
    return Runs(load.read_runs(paths, price=_parsed("price", cli.price, price)))


def _parsed(name: str, parse: Callable[[str], Any], value: float | str | None) -> Any:
    """Parse a value as the command line does.

    Raises:
        ValueError: the value is invalid.
    """
    try:
        return None if value is None else parse(str(value))
    except argparse.ArgumentTypeError as error:
        raise Refusal(
            "notebook.argument", f"{name}: {error}", key=name, reason=error.args[0]
        ) from None
