"""Estimate a training step on an H200 from the code that Inductor generates, without a GPU.

    python -m benchmarks.generated_code [OVERRIDE ...] [--option NAME=VALUE ...] [--kernels N]
        [--json]

Overrides are as for train_vision.py and are added to `preset=fast`: for example, `model=resnet50
dataset.image_size=224`. `--option` sets options of Inductor: `--option realize_reads_threshold=8`.
A C compiler is needed.

The table has bytes, launches and expected milliseconds of the forward pass, the backward pass, and
inference as in evaluation. Bytes are counted kernel by kernel, as Inductor does: each tensor counts
once in each kernel that reads or writes it. For a library (cuDNN, cuBLAS), these are the tensors of
the call, and the gradients of a convolution are two kernels. The launches of a library are a lower
bound.

Expected milliseconds follow from the bytes at the rates that an H200 reached in a compiled step of
MobileNetV2 (64 images of 500 px, fp16). Relative to a copy at 4,291 GB/s, elementwise kernels
reached 87 %, reductions 64 %, and libraries 54 %. This is not a measurement: small kernels and
large matrix products take longer than their bytes.

Decisions that Inductor makes by trials on the device are left out. These are padded products, and
the choices of `compile=max-autotune`.
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
    """Return the milliseconds of kernels that move these bytes, by kind, at the rates above."""
    as_copies = sum(moved / SHARES_OF_COPY[kind] for kind, moved in moved_bytes.items())
    return 1e3 * as_copies / COPY_BYTES_PER_S


def figures(graph: "Graph") -> dict[str, Any]:
    """Return the figures of a graph, for a row of the table and for JSON."""
    moved_bytes = {kind: graph.moved_bytes(kind) for kind in SHARES_OF_COPY}
    return {
        "part": graph.part,
        "moved_bytes": moved_bytes,
        "launches": graph.launches,
        "expected_ms": expected_ms(moved_bytes),
    }


def row(graph_figures: dict[str, Any]) -> tuple[str, ...]:
    moved = graph_figures["moved_bytes"]
    elementwise = moved["elementwise"] + moved["combined"]
    amounts = (elementwise, moved["reductions"], moved["library"], sum(moved.values()))
    gigabytes = [f"{amount / 1e9:.2f}" for amount in amounts]
    return (
        graph_figures["part"],
        *gigabytes,
        str(graph_figures["launches"]),
        f"{graph_figures['expected_ms']:.1f}",
    )


def options() -> argparse.ArgumentParser:
    result = parser(__doc__)
    result.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    inductor_help = "an option of Inductor"
    result.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help=inductor_help
    )
    kernels_help = "show the N kernels that move the most bytes"
    result.add_argument("--kernels", type=int, default=0, metavar="N", help=kernels_help)
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def count(overrides: list[str], option_words: list[str]) -> "StepCount":
    """Count the launches and bytes of a configuration.

    Args:
        option_words: options of Inductor, as "NAME=VALUE".
    """
    config = configuration("train_vision", *ALWAYS, *overrides)
    if compilation.mode(config.compile).startswith("max-autotune"):
        raise Refusal(
            "generated-code.max-autotune",
            f"compile={config.compile}: tunes by trials on a GPU; use `compile=true`",
            key="compile",
            value=config.compile,
        )
    absent_gpu.load_runtime()
    from torch._inductor import config as inductor_config

    # This imports torch, which then finds the runtime that was just loaded.
    from benchmarks.counted_step import count_step

    inductor_options = {}
    for word in option_words:
        name, _, value = word.partition("=")
        if not hasattr(inductor_config, name.partition(".")[0]) or not value:
            raise Refusal(
                "generated-code.option",
                f"--option {word}: not in torch._inductor.config; give one as `--option"
                " realize_reads_threshold=8`",
                key="--option",
                value=word,
            )
        inductor_options[name] = yaml.safe_load(value)
    return count_step(config, inductor_options)


def main() -> None:
    # "Intermixed" allows overrides between and after options.
    args = options().parse_intermixed_args()
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
