"""Measure the cost of evaluating held-out rows: the same tuning with a tenth held out, and without.

    python -m benchmarks.held_out [--rounds 10] [--steps 60] [--batch-size 8] [--length 64]

Both take turns. They tune a small Llama in fp32 on rows of one length and on one rank, with each
method and engine. Both train the same number of steps of the same size. The output has the ratio
of their median steps, round by round, which is 1 if evaluation does not change the steps. It also
has the time of a held-out token relative to a trained token.

A weight has three matrix products: the forward pass, its gradient and the gradient of its input.
An evaluation needs only the first. The expected ratio for a held-out token is therefore a third
with full tuning, and a half with LoRA.
"""

from functools import partial
from statistics import median
from typing import NamedTuple

from benchmarks import device_here, interleaved, machine, measured_run, parser, quartiles, ratios
from benchmarks.engine import SIZES

SHARE = 0.1  # the share of rows that is held out


class TuningTimes(NamedTuple):
    """The median step of a tuning run in seconds, and the relative time of a held-out token.

    `held_out_share` is the time of a held-out token divided by the time of a trained token. It is 0
    if no rows are held out.
    """

    step_s: float
    held_out_share: float


def tuning_times(
    words: list[str], steps: int, batch_size: int, length: int, share: float
) -> TuningTimes:
    """Measure a tuning run. The first quarter of its steps is left out."""
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
        return TuningTimes(step_s, 0.0)
    assert record["held_out"]["rows"] == held_out and len(record["held_out"]["evaluations"]) == 1
    token_s = record["evaluate_s"] / (held_out * length)
    return TuningTimes(step_s, token_s / (step_s / (batch_size * length)))


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
            turn = partial(tuning_times, words, args.steps, args.batch_size, args.length)
            turns = {"none": partial(turn, 0.0), "held out": partial(turn, SHARE)}
            sides = interleaved(turns, args.rounds)
            steps = {name: [times.step_s for times in side] for name, side in sides.items()}
            low, middle, high = quartiles(ratios(steps["held out"], steps["none"]))
            summary = (
                f"step with held-out rows / without: {middle:.3f} (quartiles {low:.3f} to"
                f" {high:.3f})"
            )
            low, middle, high = quartiles([times.held_out_share for times in sides["held out"]])
            summary += (
                f"; a held-out token takes {middle:.2f} ({low:.2f} to {high:.2f}) of the time of a"
                " trained one"
            )
            print(f"method={method} engine={engine}: {summary}", flush=True)


if __name__ == "__main__":
    main()
