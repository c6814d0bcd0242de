"""Faults caused for real, one after the other: what each does to a tiny command, and what is true afterwards.

    python -m benchmarks.faults [--only NAME ...] [--slurm] [--out multirun/faults]
    python -m benchmarks.faults --list
    python -m benchmarks.faults --soak 10

Ranks are killed, disks filled, networks taken away, data broken, keys mistyped. Each fault is caused at a point that
the command has come to, and the same command is typed again afterwards, without the fault. The table says what
happened (the statuses of the records, or the exit code, and the line that says why), how many records were lost, how
many cells were measured twice, how many seconds passed until the command knew, and how many processes and files are
left. A line in red, marked with "!", is not as it should be; below the table it says why, and the exit code is 1.
Folders and output of each fault are in `--out`.

--slurm: those of SLURM too, on the one that `tests/slurm/cluster up` has started. Some faults need root.
--soak: a sweep of 20 tiny cells a minute on that SLURM, with a random fault every few seconds; every cell has to end
measured once.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import ROOT, parser
from benchmarks.faults import data, disk, interruptions, network, observe, processes, refusals, slurm, soak
from benchmarks.faults.fault import Fault, Outcome
from multicard.ranks import interruption
from multicard.records import run_folder, text_table

GROUPS: dict[str, Sequence[Fault]] = {
    "processes": processes.FAULTS,
    "interruptions": interruptions.FAULTS,
    "disk": disk.FAULTS,
    "data": data.FAULTS,
    "refusals": refusals.FAULTS,
    "network": network.FAULTS,
    "slurm": slurm.FAULTS,
}
WIDTH = 120
RED, PLAIN = "\x1b[31m", "\x1b[0m"


def cause(faults: Sequence[Fault], out: Path) -> list[Outcome]:
    """Cause one fault after the other. Their outcomes, which are written to `out` too."""
    outcomes = []
    for fault in faults:
        outcome = observe.take(fault, out)
        outcomes.append(outcome)
        run_folder.write_json(out / f"{fault.name}.json", asdict(outcome) | {"what": fault.what})
        state = (outcome.skipped and f"skipped: {outcome.skipped}") or ("wrong" if outcome.wrong else "holds")
        print(f"{fault.name}: {fault.what}: {state}", flush=True)
    return outcomes


def table(outcomes: Sequence[Outcome], colour: bool) -> list[str]:
    """A line for each fault, of `WIDTH` cells at most; red where something is wrong."""
    headings = ["", "fault", "what happened", "lost", "twice", "s", "left"]
    rows = []
    for outcome in outcomes:
        knew = "-" if outcome.knew_s is None else f"{outcome.knew_s:.1f}"
        figures = [str(outcome.lost), str(outcome.twice), knew, str(outcome.left)]
        happened = f"skipped: {outcome.skipped}" if outcome.skipped else outcome.happened
        rows.append(["!" * bool(outcome.wrong), outcome.name, happened, *(["-"] * 4 if outcome.skipped else figures)])
    head, *lines = text_table.text(headings, rows, WIDTH, align="lllrrrr")
    pairs = zip(lines, outcomes, strict=True)
    return [head, *(f"{RED}{line}{PLAIN}" if outcome.wrong and colour else line for line, outcome in pairs)]


def show(outcomes: Sequence[Outcome], colour: bool) -> int:
    """Print the table, and what is wrong. Returns the exit code."""
    print("\n".join(["", *table(outcomes, colour)]))
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    for outcome in wrong:
        print(f"{outcome.name}: {'; '.join(outcome.wrong)}")
    lost, twice, left = (sum(getattr(outcome, key) for outcome in outcomes) for key in ("lost", "twice", "left"))
    print(
        f"{len(outcomes) - skipped} faults, {len(wrong)} of them wrong: {lost} records lost, {twice} cells measured "
        f"twice, {left} processes or files left; {skipped} skipped"
    )
    return 1 if wrong else 0


def main() -> None:
    options = parser(__doc__)
    names = [fault.name for faults in GROUPS.values() for fault in faults]
    options.add_argument("--only", nargs="+", choices=[*GROUPS, *names], metavar="NAME", help="faults or groups")
    options.add_argument("--list", action="store_true", help="the faults; cause none")
    options.add_argument("--slurm", action="store_true", help="those of SLURM too")
    options.add_argument("--soak", type=float, metavar="MINUTES")
    options.add_argument("--seed", type=int, default=0, help="of the soak")
    options.add_argument("--out", type=Path, metavar="FOLDER", default=ROOT / "multirun" / "faults")
    args = options.parse_args()
    groups = {name: faults for name, faults in GROUPS.items() if args.slurm or args.only or name != "slurm"}
    chosen = [
        (group, fault)
        for group, faults in groups.items()
        for fault in faults
        if not args.only or {group, fault.name} & {*args.only}
    ]
    if args.list:
        for group, fault in chosen:
            print(f"{group:14} {fault.name:24} {fault.what}")
        return
    for number in interruption.SIGNALS:  # a shell ignores some of them for what it starts beside itself
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # by way of what a trial undoes
    if args.soak is not None:
        sys.exit(soak.run(args.soak, args.seed, args.out.absolute() / "soak"))
    outcomes = cause([fault for _, fault in chosen], args.out.absolute())
    sys.exit(show(outcomes, sys.stdout.isatty()))


if __name__ == "__main__":
    main()
