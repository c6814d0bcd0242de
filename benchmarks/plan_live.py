"""A plan that is carried out on this machine: eight real jobs, training and tuning mixed, their makespan against the
plan's, and against that of the same jobs one after the other on all GPUs.

    python -m benchmarks.plan_live [FOLDER]

Jobs run on two CPU ranks where there is no GPU. Their times come from probes (`--probe`), as does the slowdown of runs
side by side. Use a quiet machine: a busy one takes longer than its probes tell, or shorter. Half an hour on two cores;
the same FOLDER again goes on.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, machine, parser
from multicard.measure.timing import clock_s
from multicard.records import text_table

WITHIN = 0.10
VISION = "train_vision.py dataset=digits tracker.mode=disabled"
TUNING = "tune_llm.py method=lora tracker.mode=disabled"
JOBS = (
    *(f"{VISION} epochs={epochs} seed={seed}" for seed, epochs in enumerate((8, 10, 12, 14), 1)),
    *(f"{TUNING} epochs={epochs} seed={seed}" for seed, epochs in enumerate((4, 6, 6, 8), 1)),
)
GPUS = 2
NAME = "jobs"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="of the records")
    folder = (options.parse_args().folder or Path(tempfile.mkdtemp(prefix="plan-"))).absolute()
    print(f"{machine()}; records: {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {f"job{number}": {"run": words, "gpus": [1, GPUS]} for number, words in enumerate(JOBS, 1)}
    (folder / f"{NAME}.yaml").write_text(json.dumps({"node": {"gpus": GPUS}, "jobs": jobs}))
    plan = [f"{NAME}.yaml", "--json", "plan.json"]
    _command(folder, "-m", "multicard", "plan", *plan, "--probe")
    _command(folder, "-m", "multicard", "plan", *plan, "--run")
    in_turn_s = sum(_in_turn_s(folder, number, words) for number, words in enumerate(JOBS, 1))
    shown = rows(json.loads((folder / "plan.json").read_text()), in_turn_s)
    print("\n".join(["", *text_table.text(("makespan", "goal", "reached", "met"), shown, 120)]))
    return 0


def rows(plan: dict[str, Any], in_turn_s: float) -> list[tuple[str, str, str, str]]:
    """The table of a plan that was carried out, from its JSON, and of what its jobs took in turn."""
    real_s, planned_s = plan["carried_out"]["makespan_s"], plan["carried_out"]["planned_makespan_s"]
    shown = []
    for what, other_s in (("planned", planned_s), ("likely", plan["expected_makespan_s"]["value"])):
        off = real_s / other_s - 1
        reached = f"{real_s:.0f} s, {what} {other_s:.0f} s: {off:+.1%}"
        shown.append((f"by the {what} one", f"within {WITHIN:.0%}", reached, "yes" if abs(off) <= WITHIN else "no"))
    reached = f"{real_s:.0f} s, in turn {in_turn_s:.0f} s: {real_s / in_turn_s - 1:+.1%}"
    return [*shown, ("by that in turn, measured", "shorter", reached, "yes" if real_s < in_turn_s else "no")]


def _in_turn_s(folder: Path, number: int, words: str) -> float:
    """Seconds of a job alone on all GPUs, as a user would start it."""
    entry, *overrides = words.split()
    began_s = clock_s()
    _command(folder, str(ROOT / entry), *overrides, f"gpus={GPUS}", f"name=in-turn-{number}", "rerun=true")
    return clock_s() - began_s


def _command(folder: Path, *words: str) -> None:
    """Run `python WORDS` in `folder`; its output is this one's.

    Raises:
        SystemExit: it fails.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if code := subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=False).returncode:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
