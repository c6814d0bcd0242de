"""What `engine=trl` costs beside bare TRL: the same step of
`tune_llm.py` and of a script of `SFTTrainer`, by turns.

    python -m benchmarks.engine [--rounds 10] [--steps 60] [--batch-size 8] [--length 64]

A small Llama, all weights trained in fp32 on rows of one length, on one rank. The script,
`benchmarks.bare_sft`, is run by `measure_script.py`, whose hooks cost it what `benchmarks.script`
shows. Prints the median step of both and the ratio round by round.
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
# of these, in the script
NAMES = ("vocabulary", "hidden", "intermediate", "layers", "heads", "kv_heads")
PARAMETERS = 4 * (256 * 768 + 3 * 256 * 768) + 2 * 2048 * 256 + 9 * 256


def step_s(steps: int, tokens: int, entry: str, *words: str) -> float:
    """Seconds of the median step of so many tokens, without the first quarter of the steps."""
    record, taken = measured_run(entry, *words, "gpus=1", "cpus_per_gpu=1")
    assert record["parameters"] in (None, PARAMETERS), record["parameters"]  # None: of a script
    assert {*taken["tokens"].to_pylist()} <= {0, tokens} and len(taken) == steps  # 0: of a script
    return median(taken["step_s"].to_pylist()[steps // 4 :])


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
    given = {"steps": args.steps, "batch": args.batch_size, "length": args.length}
    given |= dict(zip(NAMES, SIZES.values(), strict=True))
    bare = [
        "script=benchmarks/bare_sft.py",
        *(f"args.{name}={value}" for name, value in given.items()),
    ]
    turn = partial(step_s, args.steps, args.batch_size * args.length)
    turns = {
        "bare TRL": partial(turn, "measure_script.py", *bare),
        "engine=trl": partial(
            turn, "tune_llm.py", "engine=trl", "method=full", "fit=off", rows, *work, *model
        ),
    }
    print(machine(device_here()))
    taken = interleaved(turns, args.rounds)
    for name, seconds in taken.items():
        low, middle, high = quartiles([1e3 * each for each in seconds])
        print(f"{name}: step of {middle:.2f} ms (quartiles {low:.2f} to {high:.2f})")
    low, middle, high = quartiles(ratios(taken["engine=trl"], taken["bare TRL"]))
    print(f"ratio, round by round: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
