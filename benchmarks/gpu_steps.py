"""The steps of `benchmarks.on_gpu`, in the order of what they are worth; shrunk for CPU ranks."""

import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from multicard.records.run_folder import replacing
from multicard.vision.data.datasets import MNIST_FILES

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
        """The command of a sweep of `train_vision.py`, whose folder has the step's name, on MNIST or images in its
        form; `small` is added on CPU ranks."""
        if self.cuda and words["dataset"] == "mnist":
            raw = self._file(IMAGES)
            words = words | {"dataset.root": raw.parents[1] if raw else made_images(self.out / "stand_in")}
        return self._sweep("train_vision.py", name, words, SMALL_VISION | (small or {}))

    def tune(self, name: str, words: Words, small: Words | None = None) -> list[str]:
        """The command of a sweep of `tune_llm.py`, likewise."""
        return self._sweep("tune_llm.py", name, words, SMALL_LLAMA | (small or {}))

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

    def _sweep(self, entry: str, name: str, words: Words, small: Words) -> list[str]:
        fixed = {"name": name, "hydra.sweep.dir": self.out / name, "tracker.mode": "disabled"}
        words = words | ({} if self.cuda else small) | fixed
        return [sys.executable, entry, "-m", *(f"{key}={value}" for key, value in words.items())]


def made_images(root: Path) -> Path:
    """`root`, with 70,000 images as MNIST's four files: scikit-learn's digits (8 x 8), enlarged three times, each at a
    random place. The test images show digits that no training image shows."""
    from sklearn.datasets import load_digits

    raw = root / "MNIST" / "raw"
    if all((raw / name).exists() for name in MNIST_FILES):
        return root
    raw.mkdir(parents=True, exist_ok=True)
    digits, labels = map(np.asarray, load_digits(return_X_y=True))
    large = np.kron(digits.reshape(-1, 8, 8) * (255 / 16), np.ones((3, 3))).astype(np.uint8)  # (1797, 24, 24)
    random, tested = np.random.default_rng(0), np.arange(len(labels)) % 5 == 0
    for part, chosen in (("train", ~tested), ("t10k", tested)):
        count = MNIST_FILES[f"{part}-labels-idx1-ubyte"][1]
        drawn = random.choice(np.flatnonzero(chosen), count)
        images = np.zeros((count, 28, 28), np.uint8)
        for image, digit, (row, column) in zip(images, drawn, random.integers(0, 5, (count, 2)), strict=True):
            image[row : row + 24, column : column + 24] = large[digit]
        for name, values in (("images-idx3", images), ("labels-idx1", labels[drawn].astype(np.uint8))):
            header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}i", *values.shape)
            with replacing(raw / f"{part}-{name}-ubyte") as file:
                file.write(header + values.tobytes())
    return root


@dataclass(frozen=True)
class Step:
    """A step.

    estimate_s: its duration on an H200, start-up included; of the tests, which take longer, a first part.
    skip: why a pass leaves it out; empty where it does not. expects: statuses with which its runs may end.
    others: what others measured, or the goal.
    """

    name: str
    title: str
    estimate_s: float
    command: Callable[[Pass], list[str]]
    skip: Callable[[Pass], str] = lambda run: ""
    expects: tuple[str, ...] = ("ok",)
    others: str = ""


def gpu_only(why: str) -> Callable[[Pass], str]:
    return lambda run: "" if run.cuda else why


def dali_absent(_: Pass) -> str:
    installed = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
    return "" if installed else "DALI is not installed"


def module(name: str, *words: object) -> list[str]:
    return [sys.executable, "-m", name, *map(str, words)]


def tests(run: Pass) -> list[str]:
    """The tests that earlier calls have not seen through. It needs no plugin of pytest."""
    log = run.log("tests")
    outcomes = re.findall(r"^(tests/.+?) (PASSED|SKIPPED)", log.read_text(), re.MULTILINE) if log.exists() else []
    done = [f"--deselect={name}" for name in dict(outcomes)]
    fixed = ("-o", "addopts=", "-v", "--tb=short", "--continue-on-collection-errors", "-m", "gpu", "tests/gpu")
    return module("pytest", *fixed, *done)


def step_alone(*words: str) -> Callable[[Pass], list[str]]:
    large = ("--image-size", 500, "--batch-size", 64, "--precisions", "fp16", "bf16")
    small = ("--image-size", 32, "--batch-size", 4, "--precisions", "fp32", "--rounds", 2)
    return lambda run: module("benchmarks.step", *(large if run.cuda else small), *words)


def images(count: int, epochs: int = 2) -> Words:
    """Limits of the training images, and of the test images in MNIST's proportion."""
    return {"dataset.train_limit": count, "dataset.test_limit": count // 6, "epochs": epochs}


COMPILED = ("--layouts", "nhwc", "--only-compiled", "--compile", "default", "--pointwise", "convolution", "linear")
PAPERS: Words = {"experiment": "table2", "gpus": 1, "dataset": "mnist", "precision": "fp64,fp32,fp16"}
FP32: Words = {"precision": "fp32"}  # fp16 is slow on CPUs
TOO_LARGE: Words = {"loader": "device", "batch_size": 4096, "dataset": "mnist", "dataset.image_size": 700}
PACKED: Words = {"packed": True, "max_seq_len": 2048, "batch_size": "4,6", "compile": True, "dataset.rows": 10_000}
SMALL_PACKED: Words = {"max_seq_len": 256, "batch_size": 2, "compile": False}
LORA: Words = LLAMA | {"method": "lora"}

OUT_OF_MEMORY = ("ok", "oom")  # an answer of tuning, too

STEPS = [
    Step("machine", "versions, bandwidth of copies, nvidia-smi", 25,
        lambda run: module("benchmarks.step", "--bandwidth"), others="4,300 GB/s within the device (H200)"),
    Step("tests", "pytest -m gpu", 90, tests, skip=gpu_only("its tests need a CUDA device")),
    Step("step", "the training step alone, eager", 60, step_alone()),
    Step("compiled", "compiled; pointwise as matrix products too", 150, step_alone(*COMPILED),
        skip=gpu_only("it compiles for minutes")),
    Step("goal", "20,000 images at 500 px, 2 epochs, profiled", 75,
        lambda run: run.train("goal", GOAL | images(20_000) | {"profile": "kineto"}, FP32),
        others="484 images/s (papers, one H100)"),
    Step("papers", "Table 2 on one GPU, shortened", 150,
        lambda run: run.train("papers", PAPERS | images(3840), {"precision": "fp64,fp32"})),
    Step("lora", "Llama3-8B, random weights: LoRA and QLoRA", 110,
        lambda run: run.tune("lora", LLAMA | run.text() | {"method": "lora,qlora"}), expects=OUT_OF_MEMORY),
    Step("dpo", "Llama3-8B: DPO", 70, lambda run: run.tune("dpo", LLAMA | {"method": "dpo"}), expects=OUT_OF_MEMORY),
    Step("lora_fp32", "Llama3-8B: LoRA in fp32", 90,
        lambda run: run.tune("lora_fp32", LORA | run.text() | {"precision": "fp32"}), expects=OUT_OF_MEMORY,
        skip=gpu_only("the step lora is in fp32 on CPU ranks"), others="0.77 s/it (papers, Table 5, H100)"),
    Step("packed", "Llama3-8B: LoRA, packed and compiled", 180,
        lambda run: run.tune("packed", LORA | PACKED, SMALL_PACKED), expects=OUT_OF_MEMORY,
        others="12,473 tokens/s (best published, H100); 14,000 (goal)"),
    Step("diagnose", "what limits the goal's run", 60,
        lambda run: run.train("diagnose", GOAL | images(6400) | {"diagnose": True}, FP32)),
    Step("memory", "a run that exceeds the memory", 30,
        lambda run: run.train("memory", TOO_LARGE | images(4096, epochs=1)), expects=("oom",),
        skip=gpu_only("it would exceed the host's memory")),
    Step("dali", "the goal's run with DALI", 45,
        lambda run: run.train("dali", GOAL | images(6400) | {"loader": "dali"}, FP32), skip=dali_absent),
    Step("whole", "the goal: 60,000 images at 500 px, 20 epochs", 480,
        lambda run: run.train("whole", GOAL | {"epochs": 20}),
        skip=gpu_only("it takes days"), others="300 s at 99 % (goal)"),
]  # fmt: skip
