"""What the loss of held-out rows costs: the same tuning with a
tenth of the rows held out and without, by turns.

    python -m benchmarks.held_out [--rounds 10] [--steps 60] [--batch-size 8] [--length 64]

A small Llama in fp32 on rows of one length, on one rank, by method and engine. Both sides train the
same number of steps of the same size. Prints the ratio of their median steps, round by round, which
is 1 where evaluation changes no step; and what a held-out token takes beside one that is trained
on. Of the three matrix products of a weight, forward, its gradient and its input's,
an evaluation has the first: a third is expected of full tuning, half of LoRA.
"""

from functools import partial
from statistics import median
from typing import NamedTuple

from benchmarks import device_here, interleaved, machine, measured_run, parser, quartiles, ratios
from benchmarks.engine import SIZES

SHARE = 0.1  # of the rows


class Taken(NamedTuple):
    """Seconds of the median step, and of a held-out token beside a
    token of that step (0: no rows are held out).
    """

    step_s: float
    held_out_share: float


def taken(words: list[str], steps: int, batch_size: int, length: int, share: float) -> Taken:
    """One tuning, without the first quarter of its steps."""
    rows = steps * batch_size
    held_out = round(rows * share / (1 - share))
    split = held_out / (rows + held_out)
    amount = [f"dataset.rows={rows + held_out}", f"dataset.split={split:.6f}", f"max_steps={steps}"]
    record, run = measured_run(
        "tune_llm.py", *words, *amount, "gpus=1", "cpus_per_gpu=1", "fit=off"
    )
    assert len(run) == steps and {*run["tokens"].to_pylist()} == {batch_size * length}
    step_s = median(run["step_s"].to_pylist()[steps // 4 :])
    if not held_out:
        assert record["held_out"] is None
        return Taken(step_s, 0.0)
    assert record["held_out"]["rows"] == held_out and len(record["held_out"]["evaluations"]) == 1
    token_s = record["evaluate_s"] / (held_out * length)
    return Taken(step_s, token_s / (step_s / (batch_size * length)))


def main() -> None:
    options = parser(__doc__, rounds=10)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--length", type=int, default=64)
    args = options.parse_args()
    model = [f"model.{name}={value}" for name, value in SIZES.items()]
    work = [f"batch_size={args.batch_size}", f"max_seq_len={args.length}", *model]
    print(machine(device_here()))
    for method in ("full", "lora"):
        for engine in ("torchtune", "trl"):
            words = [f"method={method}", f"engine={engine}", *work]
            turn = partial(taken, words, args.steps, args.batch_size, args.length)
            turns = {"none": partial(turn, 0.0), "held out": partial(turn, SHARE)}
            sides = interleaved(turns, args.rounds)
            steps = {name: [one.step_s for one in side] for name, side in sides.items()}
            low, middle, high = quartiles(ratios(steps["held out"], steps["none"]))
            said = (
                f"step with held-out rows / without: {middle:.3f} (quartiles {low:.3f} to"
                f" {high:.3f})"
            )
            low, middle, high = quartiles([one.held_out_share for one in sides["held out"]])
            said += (
                f"; a held-out token takes {middle:.2f} ({low:.2f} to {high:.2f}) of one that is"
                " trained on"
            )
            print(f"method={method} engine={engine}: {said}", flush=True)


if __name__ == "__main__":
    main()
