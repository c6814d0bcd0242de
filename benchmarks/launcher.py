"""Time that the launchers add to a sweep beside composing its cells, which Hydra has to do.

    python -m benchmarks.launcher [--cells 200] [--submit]

Each cell is composed once. Printed is what the launcher adds to that, a cell: its folder and identity, the search for
earlier records, and with `--submit` the jobs, submitted to SLURM on hold and cancelled at once. The goal is at most
20 ms a cell.
"""

import subprocess
import tempfile
from pathlib import Path

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import setup_globals
from hydra.types import HydraContext, RunMode

from benchmarks.common import ROOT, machine, parser, spread
from multicard import workloads
from multicard.measure.timing import clock_s
from multicard.sweep import cells as sweep_cells
from multicard.sweep import slurm_submit
from multicard.sweep.command import Command
from multicard.vision.workload import WORKLOAD


def cells(count: int) -> list[list[str]]:
    return [[f"seed={seed}", f"gpus={1 + seed % 4}"] for seed in range(count)]


def measure(count: int, folder: Path, to_slurm: bool) -> tuple[float, float, float]:
    """Seconds to compose all cells and no more; to plan them, composition included; and to submit them."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        words = [f"hydra.sweep.dir={folder}", "name=benchmark", "hydra/launcher=submitit_slurm", "device=cpu"]
        words += ["hydra.launcher.additional_parameters={hold: true}"]
        master = hydra.compose_config("train_vision", words, run_mode=RunMode.MULTIRUN)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())
        setup_globals()
        started_s = clock_s()
        for overrides in cells(count):
            context.config_loader.load_sweep_config(master, overrides)
        composed_s = clock_s()
        sweep = sweep_cells.compose(Command(WORKLOAD), context, master, cells(count), 0)
        sweep_cells.settle(sweep)
        planned_s = clock_s()
        jobs = slurm_submit.submit(sweep) if to_slurm else {}
        submitted_s = clock_s()
        if jobs:
            subprocess.run(["scancel", *{job.partition("_")[0] for job in jobs.values()}], check=True)
    return composed_s - started_s, planned_s - composed_s, submitted_s - planned_s


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--cells", type=int, default=200)
    options.add_argument("--submit", action="store_true", help="to the SLURM that sbatch finds")
    args = options.parse_args()
    workloads.register()
    print(f"{machine()}, {args.cells} cells")
    rounds = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as temporary:
            rounds.append(measure(args.cells, Path(temporary) / "sweep", args.submit))
    names = ("composing", "planning, composing included", "submitting")
    for name, seconds in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name + ', ms a cell:':42}{spread([1e3 * s / args.cells for s in seconds])}")
    added = [1e3 * (planned_s + submitted_s - composed_s) / args.cells for composed_s, planned_s, submitted_s in rounds]
    print(f"{'the launcher adds, ms a cell:':42}{spread(added)}")


if __name__ == "__main__":
    main()
