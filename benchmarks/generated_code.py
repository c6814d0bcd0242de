"""The code that Inductor generates for a training step on an H200: bytes, launches and expected
milliseconds, without a GPU.

    python -m benchmarks.generated_code [OVERRIDE ...] [--option NAME=VALUE ...] [--kernels N]
        [--json]

Overrides are those of train_vision.py, beside `preset=fast`: `model=resnet50
dataset.image_size=224`. `--option` sets
options of Inductor: `--option realize_reads_threshold=8`. A C compiler is needed.

The rows are the forward and the backward pass, and inference as in evaluation. Bytes are counted
kernel by kernel as
Inductor counts them: each tensor once in each kernel that reads or writes it. Of a library (cuDNN,
cuBLAS) these are the tensors of the call; the gradients of a convolution are two kernels. Launches
of a library are at least those.

Expected milliseconds are the bytes at the rates that an H200 reached in a compiled step of
MobileNetV2 (64 images of 500 px, fp16), relative to the 4,291 GB/s of a copy: elementwise kernels
87 %, reductions 64 %, libraries 54 %. They are no measurement, and small kernels and large matrix
products take longer than their bytes.

What Inductor decides by trials on the device is left out: padded products, and what
`compile=max-autotune` tunes.
"""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks import absent_gpu, configuration, parser
from multicard.config import compilation
from multicard.messages import Refusal
from multicard.records import text_table

if TYPE_CHECKING:
    from benchmarks.counted_step import StepCount
    from benchmarks.kernel_bytes import Graph

COPY_BYTES_PER_S = 4.291e12  # measured on an H200: docs/studies/h200.md
SHARES_OF_COPY = {"elementwise": 0.87, "reductions": 0.64, "combined": 0.87, "library": 0.54}
ALWAYS = ("preset=fast", "dataset.device_budget_bytes=1000000000")
# no roles: headings
HEADINGS = ("part", "elementwise, GB", "reductions", "library", "sum", "launches", "expected, ms")


def expected_ms(moved_bytes: dict[str, int]) -> float:
    """Milliseconds of kernels that move so many bytes, by their kind, at the rates above."""
    as_copies = sum(moved / SHARES_OF_COPY[kind] for kind, moved in moved_bytes.items())
    return 1e3 * as_copies / COPY_BYTES_PER_S


def figures(graph: "Graph") -> dict[str, Any]:
    """A graph's figures, for a row and as JSON."""
    moved_bytes = {kind: graph.moved_bytes(kind) for kind in SHARES_OF_COPY}
    return {
        "part": graph.part,
        "moved_bytes": moved_bytes,
        "launches": graph.launches,
        "expected_ms": expected_ms(moved_bytes),
    }


def row(found: dict[str, Any]) -> tuple[str, ...]:
    moved = found["moved_bytes"]
    elementwise = moved["elementwise"] + moved["combined"]
    amounts = (elementwise, moved["reductions"], moved["library"], sum(moved.values()))
    written = [f"{amount / 1e9:.2f}" for amount in amounts]
    return (found["part"], *written, str(found["launches"]), f"{found['expected_ms']:.1f}")


def options() -> argparse.ArgumentParser:
    result = parser(__doc__)
    result.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    of_inductor = "an option of Inductor"
    result.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help=of_inductor
    )
    largest = "show the N kernels that move most"
    result.add_argument("--kernels", type=int, default=0, metavar="N", help=largest)
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def count(overrides: list[str], chosen: list[str]) -> "StepCount":
    """What is counted of a configuration, with these options of Inductor ("NAME=VALUE")."""
    config = configuration("train_vision", *ALWAYS, *overrides)
    if compilation.mode(config.compile).startswith("max-autotune"):
        raise Refusal(
            "generated-code.max-autotune",
            f"compile={config.compile}: chooses by trials on a GPU; use `compile=true`",
            key="compile",
            value=config.compile,
        )
    absent_gpu.load_runtime()
    from torch._inductor import config as inductor_config

    from benchmarks.counted_step import count_step  # torch finds the runtime that was just loaded

    inductor_options = {}
    for word in chosen:
        name, _, value = word.partition("=")
        if not hasattr(inductor_config, name.partition(".")[0]) or not value:
            raise Refusal(
                "generated-code.option",
                f"--option {word}: is none of torch._inductor.config; give one as `--option"
                " realize_reads_threshold=8`",
                key="--option",
                value=word,
            )
        inductor_options[name] = yaml.safe_load(value)
    return count_step(config, inductor_options)


def main() -> None:
    args = options().parse_intermixed_args()  # overrides may stand between and behind options
    try:
        counted = count(args.overrides, args.option)
    except Refusal as refusal:
        raise SystemExit(str(refusal)) from None
    parts = [figures(graph) for graph in counted.graphs]
    outside = {"batch": counted.batch, "step": counted.step, "evaluation": counted.evaluation}
    if args.json:
        kernels = {
            graph.part: [asdict(kernel) for kernel in graph.kernels] for graph in counted.graphs
        }
        print(json.dumps({"parts": parts, "outside": outside, "kernels": kernels}))
        return
    print("\n".join(text_table.text(HEADINGS, [row(part) for part in parts])))
    for name, launches in outside.items():
        listed = ", ".join(f"{operation} {count}" for operation, count in launches.items())
        print(f"launches outside generated code, {name}: {sum(launches.values())} ({listed})")
    for graph in counted.graphs:
        largest = sorted(graph.kernels, key=lambda kernel: -kernel.moved_bytes)[: args.kernels]
        for kernel in largest:
            print(
                f"{graph.part}: {kernel.moved_bytes / 1e9:.3f} GB, {kernel.launches} launches,"
                f" {kernel.name}"
            )


if __name__ == "__main__":
    main()
