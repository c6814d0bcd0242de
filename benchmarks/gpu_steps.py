"""The steps of `benchmarks.on_gpu`, in the order of what they are worth; and the same, shrunk, for CPU ranks."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import gpu_findings as findings
from benchmarks import stand_in_mnist

IMAGES, ROWS, TOKENIZER = "MNIST/raw", "alpaca*.jsonl", "tokenizer.model"  # below the folder of the data
Words = dict[str, object]  # options of an entry; several values, separated by commas, are a sweep

GOAL: Words = {"preset": "fast", "precision": "fp16", "batch_size": 64, "dataset": "mnist", "dataset.image_size": 500}
SMALL_VISION: Words = {
    "device": "cpu",
    "dataset": "digits",
    "dataset.image_size": 32,
    "dataset.train_limit": 96,
    "dataset.test_limit": 48,
    "model.width": 0.35,
    "batch_size": 16,
    "epochs": 2,
    "warmup_steps": 1,
}
LLAMA: Words = {"model": "llama3_8b", "precision": "bf16", "max_steps": 30}
SMALL_LLAMA: Words = {
    "device": "cpu",
    "model": "llama3_tiny",
    "precision": "fp32",
    "dataset.rows": 24,
    "max_steps": 3,
    "skip_steps": 1,
}


@dataclass(frozen=True)
class Pass:
    """The circumstances of all steps of a folder.

    cuda: on a GPU; else on CPU ranks, shrunk.
    data: a folder with MNIST/raw, alpaca*.jsonl or Llama's tokenizer.model, or with folders that hold these.
    """

    out: Path
    cuda: bool
    data: Path | None = None

    def log(self, name: str) -> Path:
        return self.out / f"{name}.log"

    def train(self, name: str, words: Words, small: Words | None = None) -> list[str]:
        """The command of a sweep of `train_vision.py`, whose folder has the step's name; `small` is added on CPU
        ranks."""
        return self._sweep("train_vision.py", name, self.vision(words, small))

    def vision(self, words: Words, small: Words | None = None) -> Words:
        """Options of `train_vision.py`, with MNIST's folder, or that of images in its form."""
        if not self.cuda:
            return words | SMALL_VISION | (small or {})
        raw = self._file(IMAGES)
        root = raw.parents[1] if raw else stand_in_mnist.written(self.out / "stand_in")
        return words | ({"dataset.root": root} if words["dataset"] == "mnist" else {})

    def tune(self, name: str, words: Words, small: Words | None = None) -> list[str]:
        """The command of a sweep of `tune_llm.py`, likewise."""
        return self._sweep("tune_llm.py", name, words if self.cuda else words | SMALL_LLAMA | (small or {}))

    def text(self) -> Words:
        """Alpaca's rows and Llama's tokenizer where they are, else generated rows and the embedded tokenizer."""
        rows, tokens = (self._file(pattern) if self.cuda else None for pattern in (ROWS, TOKENIZER))
        words: Words = {"dataset": "alpaca_cleaned", "dataset.data_files": rows} if rows else {}
        return words | ({"tokenizer": "llama3", "tokenizer.path": tokens} if tokens else {})

    def holds_data(self) -> bool:
        """True where `data` has any of the files that are looked for there."""
        return any(self._file(pattern) for pattern in (IMAGES, ROWS, TOKENIZER))

    def _file(self, pattern: str) -> Path | None:
        """A file or folder of the data."""
        paths = [*self.data.glob(pattern), *self.data.glob(f"*/{pattern}")] if self.data else []
        return min(paths, default=None)

    def _sweep(self, entry: str, name: str, words: Words) -> list[str]:
        fixed = {"name": name, "hydra.sweep.dir": self.out / name, "tracker.mode": "disabled"}
        return [sys.executable, entry, "-m", *(f"{key}={value}" for key, value in (words | fixed).items())]


@dataclass(frozen=True)
class Step:
    """A step.

    estimate_s: its duration on an H200, start-up included; of the tests, which take longer, a first part.
    read: its findings, of the folder of its runs and its log.
    skip: why a pass leaves it out; empty where it does not.
    goes_on: what was done when it was cut off is not done again, so that it may begin where it does not fit.
    last: after all others, unless it is asked for.
    """

    name: str
    title: str
    estimate_s: float
    command: Callable[[Pass], list[str]]
    read: findings.Read
    skip: Callable[[Pass], str] = lambda run: ""
    goes_on: bool = False
    last: bool = False


def gpu_only(why: str) -> Callable[[Pass], str]:
    return lambda run: "" if run.cuda else why


def dali_absent(_: Pass) -> str:
    installed = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
    return "" if installed else "DALI is not installed"


def module(name: str, *words: object) -> list[str]:
    return [sys.executable, "-m", name, *map(str, words)]


PYTEST = ("-o", "addopts=", "-v", "--tb=short", "--continue-on-collection-errors")


def tests(run: Pass) -> list[str]:
    """The tests that earlier calls have not seen through. It needs no plugin of pytest."""
    log = run.log("tests")
    outcomes = findings.test_outcomes(log.read_text()) if log.exists() else {}
    done = [f"--deselect={name}" for name, outcome in outcomes.items() if outcome in ("PASSED", "SKIPPED")]
    return module("pytest", *PYTEST, "-m", "gpu", "tests/gpu", *done)


def step_alone(*words: str) -> Callable[[Pass], list[str]]:
    large = ("--image-size", 500, "--batch-size", 64, "--precisions", "fp16", "bf16")
    small = ("--image-size", 32, "--batch-size", 4, "--precisions", "fp32", "--rounds", 2)
    return lambda run: module("benchmarks.step", *(large if run.cuda else small), *words)


def measuring(run: Pass) -> list[str]:
    words = {key: value for key, value in run.vision(MEASURED).items() if key not in ("epochs", "dataset.train_limit")}
    size = ("--minutes", 2, "--steps", 50) if run.cuda else ("--minutes", 0.05, "--steps", 1)
    return module("benchmarks.training_within", *size, *(f"{key}={value}" for key, value in words.items()))


def images(count: int, epochs: int = 2) -> Words:
    """Limits of the training images, and of the test images in MNIST's proportion."""
    return {"dataset.train_limit": count, "dataset.test_limit": count // 6, "epochs": epochs}


COMPILED = ("--layouts", "nhwc", "--only-compiled", "--compile", "default", "--pointwise", "convolution", "linear")
PAPERS: Words = {"experiment": "table2", "gpus": 1, "dataset": "mnist", "precision": "fp64,fp32,fp16"}
FP32: Words = {"precision": "fp32"}  # fp16 is slow on CPUs
MEASURED: Words = {"preset": "fast", "compile": False, "dataset": "mnist", "dataset.image_size": 64}
TOO_LARGE: Words = {"loader": "device", "batch_size": 4096, "dataset": "mnist", "dataset.image_size": 700}
PACKED: Words = {"packed": True, "max_seq_len": 2048, "batch_size": "4,6", "compile": True, "dataset.rows": 10_000}
SMALL_PACKED: Words = {"max_seq_len": 256, "batch_size": 2, "compile": False}
LORA: Words = LLAMA | {"method": "lora"}
PUBLISHED = "12,473 tokens/s (best published, H100); 14,000 (goal)"


# name, title, seconds expected, command, findings
STEPS = [
    Step("machine", "versions, bandwidth of copies, nvidia-smi", 25,
        lambda run: module("benchmarks.bandwidth"), findings.of_machine),
    Step("tests", "pytest -m gpu", 90, tests, findings.of_tests,
        skip=gpu_only("its tests need a CUDA device"), goes_on=True),
    Step("step", "the training step alone, eager", 60, step_alone(), findings.of_step),
    Step("compiled", "compiled; pointwise as matrix products too", 150, step_alone(*COMPILED), findings.of_step,
        skip=gpu_only("it compiles for minutes")),
    Step("goal", "20,000 images at 500 px, 2 epochs, profiled", 75,
        lambda run: run.train("goal", GOAL | images(20_000) | {"profile": "kineto"}, FP32), findings.of_goal),
    Step("papers", "Table 2 on one GPU, extrapolated", 150,
        lambda run: run.train("papers", PAPERS | images(3840), {"precision": "fp64,fp32"}), findings.of_papers,
        goes_on=True),
    Step("lora", "Llama3-8B, random weights: LoRA and QLoRA", 110,
        lambda run: run.tune("lora", LLAMA | run.text() | {"method": "lora,qlora"}), findings.of_tuning(),
        goes_on=True),
    Step("dpo", "Llama3-8B: DPO", 70, lambda run: run.tune("dpo", LLAMA | {"method": "dpo"}), findings.of_tuning()),
    Step("lora_fp32", "Llama3-8B: LoRA in fp32", 90,
        lambda run: run.tune("lora_fp32", LORA | run.text() | {"precision": "fp32"}),
        findings.of_tuning("0.77 s/it (papers, Table 5, H100)"),
        skip=gpu_only("the step lora is in fp32 on CPU ranks")),
    Step("packed", "Llama3-8B: LoRA, packed and compiled", 180,
        lambda run: run.tune("packed", LORA | PACKED, SMALL_PACKED), findings.of_tuning(PUBLISHED), goes_on=True),
    Step("diagnose", "what limits the goal's run", 60,
        lambda run: run.train("diagnose", GOAL | images(6400) | {"diagnose": True}, FP32), findings.of_diagnosis),
    Step("memory", "a run that exceeds the memory", 30,
        lambda run: run.train("memory", TOO_LARGE | images(4096, epochs=1)), findings.of_memory,
        skip=gpu_only("it would exceed the host's memory")),
    Step("dali", "the goal's run with DALI", 45,
        lambda run: run.train("dali", GOAL | images(6400) | {"loader": "dali"}, FP32), findings.of_training,
        skip=dali_absent),
    Step("measuring", "what measuring costs a step", 90, measuring, findings.of_measuring),
    Step("whole", "the goal: 60,000 images at 500 px, 20 epochs", 480,
        lambda run: run.train("whole", GOAL | {"epochs": 20}), findings.of_whole,
        skip=gpu_only("it takes days"), last=True),
]  # fmt: skip
