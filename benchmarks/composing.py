"""Measure how long the cells of a sweep take to compose, compared with Hydra's own composition.

    python -m benchmarks.composing [--cells 200 2000] [--rounds 3]

The cells are `seed=range(0,N/2) precision=fp32,bf16`. Both ways take turns. Hydra takes a tenth of
a second for each cell, so it composes at most --most cells a turn. The table has the median over
the rounds, and the quartiles.
"""

from functools import partial

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from benchmarks import interleaved, machine, parser, quartiles
from multicard import workloads
from multicard.config import CONF
from multicard.measure.timing import clock_s
from multicard.records import text_table
from multicard.sweep.compositions import Compositions, task_of

ENTRY = "train_vision"


def words_of(cells: int) -> list[list[str]]:
    return [
        [f"seed={number // 2}", f"precision={('fp32', 'bf16')[number % 2]}"]
        for number in range(cells)
    ]


def composed_s(cells: int, by_hydra: bool) -> float:
    """Return the seconds to compose `cells` cells."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration(ENTRY, [], RunMode.MULTIRUN)
    started_s = clock_s()
    if by_hydra:
        for words in words_of(cells):
            task_of(loader.load_sweep_config(sweep, words))
    else:
        compositions = Compositions(loader, sweep)
        for words in words_of(cells):
            compositions.of(words)
    return clock_s() - started_s


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--cells", type=int, nargs="+", default=[200, 2000])
    options.add_argument(
        "--most", type=int, default=100, help="most cells that Hydra composes in a turn"
    )
    args = options.parse_args()
    workloads.register()
    turns = {
        ("groups once", cells): partial(composed_s, cells, by_hydra=False) for cells in args.cells
    }
    few = min(args.most, *args.cells)
    turns["Hydra", few] = partial(composed_s, few, by_hydra=True)
    rows = []
    for (way, cells), seconds in interleaved(turns, args.rounds).items():
        low, middle, high = quartiles(seconds)
        rows.append(
            (
                way,
                str(cells),
                f"{middle:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{1000 * middle / cells:.1f}",
            )
        )
    print(machine())
    print("\n".join(text_table.text(("composed by", "cells", "s", "quartiles", "ms a cell"), rows)))


if __name__ == "__main__":
    main()
