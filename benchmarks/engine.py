"""Measure the overhead of `engine=trl`: the same steps by `tune_llm.py` and by a bare TRL script.

    python -m benchmarks.engine [--rounds 10] [--steps 60] [--batch-size 8] [--length 64]

Both take turns. They train all weights of a small Llama in fp32, on rows of one length and on one
rank. `measure_script.py` runs the script `benchmarks.bare_sft`; `benchmarks.script` measures the
cost of its hooks. The output is the median step of both, and their ratio round by round.
"""

from functools import partial
from statistics import median

from benchmarks import device_here, interleaved, machine, measured_run, parser, quartiles, ratios

SIZES = {
    "vocab_size": 2048,
    "embed_dim": 256,
    "intermediate_dim": 768,
    "num_layers": 4,
    "num_heads": 4,
}
SIZES |= {"num_kv_heads": 2}
# The script's options for the same sizes, in the same order.
SCRIPT_OPTIONS = ("vocabulary", "hidden", "intermediate", "layers", "heads", "kv_heads")
PARAMETERS = 4 * (256 * 768 + 3 * 256 * 768) + 2 * 2048 * 256 + 9 * 256


def step_s(steps: int, tokens: int, entry: str, *words: str) -> float:
    """Return the seconds of the median step. The first quarter of the steps is left out.

    Args:
        steps: the number of steps that the run must have.
        tokens: the number of tokens that each step must have.
    """
    record, steps_table = measured_run(entry, *words, "gpus=1", "cpus_per_gpu=1")
    # The record of a script does not know its parameters, and its steps have 0 tokens.
    assert record["parameters"] in (None, PARAMETERS), record["parameters"]
    assert {*steps_table["tokens"].to_pylist()} <= {0, tokens} and len(steps_table) == steps
    return median(steps_table["step_s"].to_pylist()[steps // 4 :])


def main() -> None:
    options = parser(__doc__, rounds=10)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--length", type=int, default=64)
    args = options.parse_args()
    model = [f"model.{name}={value}" for name, value in SIZES.items()]
    work = [
        f"batch_size={args.batch_size}",
        f"max_seq_len={args.length}",
        f"max_steps={args.steps}",
    ]
    rows = f"dataset.rows={args.steps * args.batch_size}"
    script_options = {"steps": args.steps, "batch": args.batch_size, "length": args.length}
    script_options |= dict(zip(SCRIPT_OPTIONS, SIZES.values(), strict=True))
    bare = [
        "script=benchmarks/bare_sft.py",
        *(f"args.{name}={value}" for name, value in script_options.items()),
    ]
    turn = partial(step_s, args.steps, args.batch_size * args.length)
    turns = {
        "bare TRL": partial(turn, "measure_script.py", *bare),
        "engine=trl": partial(
            turn, "tune_llm.py", "engine=trl", "method=full", "fit=off", rows, *work, *model
        ),
    }
    print(machine(device_here()))
    steps_s = interleaved(turns, args.rounds)
    for name, seconds in steps_s.items():
        low, middle, high = quartiles([1e3 * step for step in seconds])
        print(f"{name}: step of {middle:.2f} ms (quartiles {low:.2f} to {high:.2f})")
    low, middle, high = quartiles(ratios(steps_s["engine=trl"], steps_s["bare TRL"]))
    print(f"ratio, round by round: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
