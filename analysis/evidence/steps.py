"""The steps of `multicard evidence`, the most valuable first.

Each step has a command, and a claim that the command's runs test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import findings, needs
from .findings import ComparedRates, Read, extrapolated, joined
from .place import Circumstances, engines, has_dali
from .step_commands import (
    Words,
    comma_separated,
    images,
    machine,
    tests,
    text,
    tuning,
    vision,
    without_cudnns_attention,
)

# The times that a run took on a host with an H200: to start, and to compile.
START_S = 15.0
COMPILE_S = 66.0


@dataclass(frozen=True)
class Step:
    """A step of the evidence.

    title: what is measured.
    command: returns the command. A sweep takes the number of repetitions.
    read: returns the findings.
    estimate_s: returns the duration on an H200 in seconds, with the start.
    skip: returns why a place leaves the step out; empty if it does not.
    repeats: True if repeating the step gives more information.
    """

    name: str
    title: str
    command: Callable[[Circumstances, int], list[str]]
    read: Read
    estimate_s: Callable[[Circumstances], float]
    skip: Callable[[Circumstances], str] = lambda place: ""
    repeats: bool = True


FAST: Words = {"preset": "fast", "batch_size": 64, "dataset.image_size": 500}
# preset=fast without compilation, which takes a minute at each start.
FAST_AT_ONCE: Words = FAST | {"compile": False}
TABLE2: Words = {"experiment": "table2"}
LOADED: Words = {"batch_size": 64, "dataset.image_size": 224, "precision": "fp16", "layout": "nhwc"}
LORA: Words = {"method": "lora", "precision": "bf16", "max_steps": 30}
# Rows are generated. There are 20 steps of 8,192 tokens, of which 15 count.
FAST_LORA: Words = {"preset": "fast", "method": "lora", "dataset.rows": 3000, "max_steps": 20}
TABLE5: Words = {
    "experiment": "table5",
    "dataset": "synthetic",
    "dataset.rows": 200,
    "max_steps": 30,
    "warmup_steps": 5,
}
TOO_LARGE: Words = {
    "precision": "fp64",
    "batch_size": 4096,
    "dataset.image_size": 700,
    "num_workers": 0,
}
TOO_LARGE |= {"model.name": "efficientnet_v2_l"}
PUBLISHED_LORA = "12,473 tokens/s a GPU (NeMo 24.12, 8B, H100)"


def per_gpu_count(seconds: float) -> Callable[[Circumstances], float]:
    """Return an estimate of this many seconds for each number of GPUs that is measured."""
    return lambda place: seconds * len(place.counts)


def one_and_all_gpus(place: Circumstances) -> str:
    """List one GPU, and all GPUs."""
    return comma_separated(sorted({1, place.gpus}))


def loaders(place: Circumstances) -> list[str]:
    """Return the loaders that can be used here. DALI needs a GPU to decode."""
    return ["torch", "batched", "device", *(["dali"] if has_dali() and place.is_cuda else [])]


def strategies(place: Circumstances) -> Words:
    """Return every distribution of the data over all GPUs. DataParallel does not run on CPU."""
    names = ["ddp", "ddp_rr", "ddp_ds", *(["dp"] if place.is_cuda else [])]
    return {"strategy": comma_separated(names), "gpus": place.gpus}


def shardings(place: Circumstances) -> Words:
    """Return the ways to shard a model over all GPUs, by the engine that is installed."""
    if len(engines()) == 1:
        return {"engine": "torchtune", "gpus": place.gpus}
    return {"engine": "trl", "sharding": "fsdp,ddp", "gpus": place.gpus}


STEPS: Sequence[Step] = [
    Step(
        "machine",
        "what is there: rates of copies and of all-reduces",
        machine,
        findings.of_machine,
        lambda place: 20 + 10.0 * len(place.counts),
        repeats=False,
    ),
    Step(
        "fast",
        "preset=fast beside the papers' setting",
        vision("fast", lambda place: FAST | {"preset": "papers,fast", **images(6400)}),
        ComparedRates(
            "loader",
            "torch",
            "faster than the papers' setting",
            "images_per_s",
            beside="484 images/s (papers, fp16, one H100)",
            names={"torch": "preset=papers", "device": "preset=fast"},
        ).read,
        lambda place: 2 * START_S + 30 + COMPILE_S + 10,
    ),
    Step(
        "tuning",
        "LoRA by preset=fast, by each engine",
        tuning("tuning", lambda place: FAST_LORA | {"engine": comma_separated(engines())}),
        ComparedRates(
            "engine", "torchtune", "faster than torchtune", "tokens_per_s", beside=PUBLISHED_LORA
        ).read,
        lambda place: len(engines()) * (START_S + 75),
    ),
    Step(
        "scaling",
        "image training over the GPUs",
        vision(
            "scaling",
            lambda place: FAST_AT_ONCE | {"gpus": comma_separated(place.counts), **images(12_800)},
        ),
        ComparedRates("gpus", 1, "faster than one GPU", "images_per_s").read,
        per_gpu_count(START_S + 15),
        skip=needs.several_gpus,
    ),
    Step(
        "tests",
        "the tests that need a GPU",
        tests,
        findings.of_tests,
        lambda place: 90.0,
        skip=needs.tests_of_gpus,
        repeats=False,
    ),
    Step(
        "shardings",
        "LoRA over all GPUs, by sharding",
        tuning("shardings", lambda place: LORA | text(place) | shardings(place)),
        ComparedRates("sharding", "fsdp", "faster than fsdp", "tokens_per_s", by=["engine"]).read,
        lambda place: 2 * (START_S + 40),
        skip=needs.several_gpus,
    ),
    Step(
        "strategies",
        "distribution of the data over all GPUs",
        vision("strategies", lambda place: LOADED | strategies(place) | images(6400)),
        ComparedRates("strategy", "ddp", "faster than ddp", "images_per_s").read,
        lambda place: 4 * (START_S + 15),
        skip=needs.several_gpus,
    ),
    Step(
        "table2",
        "Table 2 of the papers, in short",
        vision(
            "table2",
            lambda place: (
                TABLE2
                | {"precision": "fp64,fp32,fp16", "gpus": one_and_all_gpus(place), **images(3840)}
            ),
        ),
        joined(
            ComparedRates(
                "precision", "fp64", "faster than fp64", "images_per_s", by=["gpus"]
            ).read,
            extrapolated,
        ),
        lambda place: (3 * START_S + 96) * (2 if place.gpus > 1 else 1),
        skip=needs.memory_for_fp64,
    ),
    Step(
        "table5",
        "Table 5 of the papers, in short",
        tuning(
            "table5",
            lambda place: TABLE5 | {"pin_memory": "false,true", "gpus": one_and_all_gpus(place)},
        ),
        ComparedRates(
            "pin_memory", False, "faster than pageable memory", "tokens_per_s", by=["gpus"]
        ).read,
        lambda place: 2 * (START_S + 60.0) * (2 if place.gpus > 1 else 1),
        skip=needs.llama3_8b,
    ),
    Step(
        "attention",
        "LoRA with cuDNN's attention last: do steps stall?",
        without_cudnns_attention(
            tuning(
                "attention",
                lambda place: LORA | text(place) | {"engine": comma_separated(engines())},
            )
        ),
        joined(
            ComparedRates("engine", "torchtune", "faster than torchtune", "tokens_per_s").read,
            findings.slow_steps,
        ),
        lambda place: len(engines()) * (START_S + 25),
        skip=needs.a_gpu,
        repeats=False,
    ),
    Step(
        "pinned",
        "pinned memory in image training",
        vision(
            "pinned",
            lambda place: (
                LOADED | {"loader": "torch", "pin_memory": "false,true", **images(12_800)}
            ),
        ),
        ComparedRates("pin_memory", False, "faster than pageable memory", "images_per_s").read,
        lambda place: 2 * (START_S + 15),
    ),
    Step(
        "loaders",
        "loaders",
        vision(
            "loaders",
            lambda place: LOADED | {"loader": comma_separated(loaders(place)), **images(12_800)},
        ),
        ComparedRates("loader", "torch", "faster than torch's loader", "images_per_s").read,
        lambda place: len(loaders(place)) * (START_S + 15),
    ),
    Step(
        "tuning_scaling",
        "LoRA by preset=fast over the GPUs",
        tuning(
            "tuning_scaling",
            lambda place: (
                FAST_LORA | {"engine": "torchtune", "gpus": comma_separated(place.counts)}
            ),
        ),
        ComparedRates("gpus", 1, "faster than one GPU", "tokens_per_s").read,
        per_gpu_count(START_S + 90),
        skip=needs.several_gpus,
    ),
    Step(
        "qlora",
        "LoRA and QLoRA",
        tuning("qlora", lambda place: LORA | text(place) | {"method": "lora,qlora"}),
        ComparedRates("method", "lora", "faster than LoRA", "tokens_per_s").read,
        lambda place: 2 * (START_S + 30),
    ),
    Step(
        "liger",
        "LoRA by preset=fast, with Liger's kernels",
        tuning("liger", lambda place: FAST_LORA | {"engine": "trl", "kernels": "torch,liger"}),
        ComparedRates("kernels", "torch", "faster than without", "tokens_per_s").read,
        lambda place: 2 * (START_S + 75),
        skip=needs.liger,
    ),
    Step(
        "kernels",
        "the kernels of a step of preset=fast",
        vision("kernels", lambda place: FAST | {"profile": "kineto", **images(6400)}),
        findings.kernels,
        lambda place: START_S + COMPILE_S + 20,
        repeats=False,
    ),
    Step(
        "depthwise",
        "depthwise convolutions by Triton, in preset=fast",
        vision(
            "depthwise",
            lambda place: FAST | {"model.depthwise": "convolution,triton", **images(6400)},
        ),
        ComparedRates("model.depthwise", "convolution", "faster than cuDNN's", "images_per_s").read,
        lambda place: 2 * (START_S + COMPILE_S + 10),
        skip=needs.a_gpu,
    ),
    Step(
        "diagnosis",
        "what limits preset=fast",
        vision("diagnosis", lambda place: FAST_AT_ONCE | {"diagnose": True, **images(6400)}),
        findings.diagnosis,
        lambda place: START_S + 45,
        repeats=False,
    ),
    Step(
        "memory",
        "a batch that is too large",
        vision("memory", lambda place: TOO_LARGE | images(8192, epochs=1)),
        findings.of_memory,
        lambda place: START_S + 30,
        skip=needs.a_gpu,
        repeats=False,
    ),
    Step(
        "whole",
        "the papers' training whole, by preset=fast",
        vision("whole", lambda place: FAST | {"epochs": 20}),
        findings.whole,
        lambda place: 600.0,
        skip=needs.a_gpu,
        repeats=False,
    ),
]
