"""The steps of `benchmarks.on_gpu`, in the order of what they are worth, and their findings; shrunk for CPU ranks."""

import json
import re
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from multicard.machine import environment
from multicard.measure import memory
from multicard.messages import Message
from multicard.records.run_folder import replacing
from multicard.records.text_table import in_bytes
from multicard.vision.data.datasets import MNIST_FILES

IMAGES, ROWS, TOKENIZER = "MNIST/raw", "alpaca*.jsonl", "tokenizer.model"  # below the folder of the data
Words = dict[str, object]  # options of an entry; several values, separated by commas, are a sweep

GOAL: Words = {"preset": "fast", "precision": "fp16", "batch_size": 64, "dataset": "mnist", "dataset.image_size": 500}
SMALL_IMAGES = {"dataset.image_size": 32, "dataset.train_limit": 96, "dataset.test_limit": 48}
SMALL_VISION: Words = {"device": "cpu", "dataset": "digits", **SMALL_IMAGES, "model.width": 0.35, "batch_size": 16}
SMALL_VISION |= {"epochs": 2, "warmup_steps": 1}
LLAMA: Words = {"model": "llama3_8b", "precision": "bf16", "max_steps": 30}
SMALL_LLAMA: Words = {"device": "cpu", "model": "llama3_tiny", "precision": "fp32", "dataset.rows": 24}
SMALL_LLAMA |= {"max_steps": 3, "skip_steps": 1}


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
        # predicting takes seconds a cell
        fixed = {"name": name, "hydra.sweep.dir": self.out / name, "tracker.mode": "disabled", "fit": "off"}
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


# Findings, of a step's folder and its log


@dataclass(frozen=True)
class Finding:
    """A figure of a step.

    against: what others measured, or the goal.
    passed: of a check; None where a figure is no check.
    """

    what: str
    value: str
    against: str = ""
    passed: bool | None = None


Read = Callable[[Path, str], list[Finding]]
Record = dict[str, Any]  # of a run, as result.json has it
SLOWEST = 12  # kernels that are listed
TRAINING = (60_000, 10_000, 20)  # images, test images and epochs of the papers
PAPERS_TOTAL_S = {"fp64": 6234, "fp32": 3721, "fp16": 2477}  # on one H100: 2503.15252, Table 2 (fp64, fp32 derived)
PUBLISHED = "12,473 tokens/s (best published, H100); 14,000 (goal)"


def of_machine(_: Path, log: str) -> list[Finding]:
    figures = json.loads(log.splitlines()[-1])
    versions = ", ".join(f"{name} {figures['versions'][name]}" for name in ("torch", "CUDA", "cuDNN", "driver"))
    against = {"within the device": "4,300 GB/s (H200)"}
    rates = figures["bytes_per_s"].items()
    return [
        Finding("hardware", figures["hardware"]),
        Finding("versions", versions),
        *(Finding(f"copy {what}", f"{rate / 1e9:,.1f} GB/s", against.get(what, "")) for what, rate in rates),
    ]


def test_outcomes(log: str) -> dict[str, str]:
    """The last outcome of each test that `pytest -v` names, over all calls."""
    return dict(re.findall(r"^(tests/.+?) (PASSED|FAILED|ERROR|SKIPPED)", log, re.MULTILINE))


def of_tests(_: Path, log: str) -> list[Finding]:
    outcomes = test_outcomes(log)
    bad = [name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    counts = [f"{[*outcomes.values()].count(name)} {name.lower()}" for name in ("PASSED", "FAILED", "ERROR", "SKIPPED")]
    failed = [Finding(name, "failed", passed=False) for name in bad]
    return [Finding("tests", ", ".join(counts), passed=not bad), *failed]


def of_step(_: Path, log: str) -> list[Finding]:
    """The rows that `benchmarks.step` left as lines of JSON; of those of one step the last."""
    rows = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    values = {row["step"]: f"{row['images_per_s']} images/s, {row['step_ms']} ms" for row in rows}
    ceilings = {row["step"]: f"{row['ceiling']} images/s (memory's ceiling)" for row in rows}
    return [Finding(what, value, ceilings[what]) for what, value in values.items()]


def of_runs(*tell: Callable[[Record], Finding], axes: Sequence[str] = ("precision",), known: str = "ok") -> Read:
    """Findings of each run of a step. A run that did not end well is a failed check, unless its status is `known`: a
    sweep does not fail where a run diverged or ran out of memory."""

    def read(folder: Path, _: str) -> list[Finding]:
        findings = []
        for path in sorted(folder.glob("*/result.json")):
            record = json.loads(path.read_text())
            status = record["status"]
            if status == "ok":
                findings += [each(record) for each in tell]
            else:
                message = (record.get("cause") or {}).get("message", "no cause")
                passed = None if status == known else False
                findings.append(Finding(setting(record, *axes), f"{status}: {message}", passed=passed))
        return findings

    return read


def setting(record: Record, *axes: str) -> str:
    return ", ".join(f"batch {record['axes'][axis]}" if axis == "batch_size" else record["axes"][axis] for axis in axes)


def rate(record: Record) -> Finding:
    compiled = f", compiled in {record['compile_s']:.0f} s" if record["compile_s"] else ""
    peak = in_bytes(record["peak_memory_bytes"]["max"])
    value = f"{record['images_per_s']:,.0f} images/s, {peak}, {record['total_s']:.1f} s{compiled}"
    return Finding(setting(record, "precision", "loader"), value, "484 images/s (papers, one H100)")


def extrapolated_s(record: Record) -> tuple[float, str]:
    """The papers' training from a shorter one of at least two epochs: seconds, and how they come about.

    total = once + epochs (epoch + images / (images/s) + test images / (test images/s)), where images/s leave out the
    warm-up, `epoch` is what the last epoch took beside its images, and `once` is what the first took beside the last.
    """
    first, last = record["epochs"][0], record["epochs"][-1]
    images, test_images, epochs = TRAINING
    images_per_s, tested_per_s = record["images_per_s"], last["test_samples"] / last["evaluate_s"]
    epoch_s = max(0.0, last["train_s"] - last["samples"] / images_per_s)
    once_s = max(0.0, sum(first[key] - last[key] for key in ("train_s", "evaluate_s")))
    total_s = once_s + epochs * (epoch_s + images / images_per_s + test_images / tested_per_s)
    parts = f"{epoch_s:.2f} + {images:,} / {images_per_s:,.0f} + {test_images:,} / {tested_per_s:,.0f}"
    return total_s, f"{once_s:.1f} + {epochs} ({parts})"


def papers_training(record: Record) -> str:
    images, _, epochs = TRAINING
    return f"{record['axes']['precision']}, {epochs} x {images:,} images"


def extrapolated(against: str = "") -> Callable[[Record], Finding]:
    """The papers' training, extrapolated; by default beside Table 2's first column."""

    def tell(record: Record) -> Finding:
        total_s, formula = extrapolated_s(record)
        printed = f"{PAPERS_TOTAL_S[record['axes']['precision']]:,} s (papers, one H100)"
        return Finding(papers_training(record), f"{total_s:,.0f} s = {formula}", against or printed)

    return tell


def whole(record: Record) -> Finding:
    reached = f"{record['total_s']:.1f} s, accuracy {record['test_accuracy']:.2%}"
    return Finding(papers_training(record), reached, "300 s at 99 % (goal)")


def kernels(record: Record) -> Finding:
    """Milliseconds of a profiled step in each of its slowest kernels."""
    profile, blocks = record["profile"], record["config"]["model"]["blocks"]
    rows = [row for row in profile.get("rows", []) if row["group"] == "kernel" and row["rank"] is not None]
    slowest = sorted(rows, key=lambda row: -row["total_s"])[:SLOWEST]
    each = [f"{row['metric'][:40]} {1000 * row['total_s'] / profile['steps']:.2f} ms" for row in slowest]
    value = "; ".join(each) or profile.get("error") or "no kernels: CPU ranks have none"
    return Finding(f"kernels, model.blocks={blocks}", value)


def diagnosis(record: Record) -> Finding:
    return Finding("what limits it", record["diagnosis"]["sentence"])


def of_tuning(against: str = "") -> Read:
    """Seconds an iteration and tokens per second, beside a figure of others; out of memory is an answer too."""
    # no roles: headings of a finding
    axes = ("engine", "method", "precision", "batch_size")

    def tokens(record: Record) -> Finding:
        speed, peak = record["tokens_per_s"]["non_padding"], in_bytes(record["peak_memory_bytes"]["max"])
        value = f"{speed:,.0f} tokens/s, {record['iteration_s']['mean']:.3f} s/it, {peak}"
        return Finding(setting(record, *axes), value, against)

    return of_runs(tokens, axes=axes, known="oom")


def slow_steps(record: Record) -> Finding:
    """How far the slowest twentieth of the steps are from the median: steps that stall are three times as long."""
    steps = record["iteration_s"]
    times = f"{steps['p95'] / steps['median']:.2f} times the median at the 95th percentile"
    slow = ", ".join(map(str, steps.get("slow_steps") or [])) or "none"
    return Finding(setting(record, "engine"), f"{times}; slow steps: {slow}")


def of_stalls(folder: Path, log: str) -> list[Finding]:
    """Tokens/s of each run, and its steps that stalled."""
    return [*of_tuning()(folder, log), *of_runs(slow_steps, axes=("engine",), known="oom")(folder, log)]


def of_memory(folder: Path, _: str) -> list[Finding]:
    (path,) = folder.glob("*/result.json")
    status = json.loads(path.read_text())["status"]
    return [Finding("a batch too large", status, "oom", passed=status == "oom")]


# The steps


@dataclass(frozen=True)
class Step:
    """A step.

    estimate_s: its duration on an H200, start-up included; of the tests, which take longer, a first part.
    skip: why a pass leaves it out; empty where it does not.
    """

    name: str
    title: str
    estimate_s: float
    command: Callable[[Pass], list[str]]
    read: Read
    skip: Callable[[Pass], str] = lambda run: ""


def gpu_only(why: str) -> Callable[[Pass], str]:
    return lambda run: "" if run.cuda else why


def no_room_for_fp64(run: Pass) -> str:
    """Why loader workers have no room for the papers' batches in fp64: two each, and the one in use."""
    batches = 2 * min(8, environment.cores()) + 1
    free_bytes, needed_bytes = memory.free_shared_memory_bytes(), batches * 32 * (3 * 500**2 * 8 + 8)
    if not run.cuda or free_bytes is None or free_bytes >= needed_bytes:
        return ""
    have = f"/dev/shm has {in_bytes(free_bytes)} free, fp64 needs {in_bytes(needed_bytes)}"
    sentence = f"{have}; start the container with a larger `--shm-size=SIZE`, or with `--ipc=host`"
    return Message("gpu-steps.shared-memory", sentence, free_bytes=free_bytes, needed_bytes=needed_bytes)


def dali_absent(_: Pass) -> str:
    is_there = find_spec("nvidia") and find_spec("nvidia.dali")
    return "" if is_there else Message("gpu-steps.no-dali", "DALI is not installed")


def liger_absent(_: Pass) -> str:
    is_there = find_spec("trl") and find_spec("liger_kernel")
    return "" if is_there else Message("gpu-steps.no-liger", "TRL or liger-kernel is not installed")


def engines() -> str:
    return "torchtune,trl" if find_spec("trl") and find_spec("peft") else "torchtune"


def without_cudnns_attention(command: list[str]) -> list[str]:
    """The command where torch prefers its other kernels of attention: cuDNN plans anew for each length of rows."""
    return ["env", "TORCH_CUDNN_SDPA_DEPRIORITIZED=1", *command]


def module(name: str, *words: object) -> list[str]:
    return [sys.executable, "-m", name, *map(str, words)]


def tests(run: Pass) -> list[str]:
    """The tests that earlier calls have not seen through. It needs no plugin of pytest."""
    log = run.log("tests")
    outcomes = test_outcomes(log.read_text()) if log.exists() else {}
    done = [f"--deselect={name}" for name, outcome in outcomes.items() if outcome in ("PASSED", "SKIPPED")]
    fixed = ("-o", "addopts=", "-v", "--tb=short", "--continue-on-collection-errors", "-m", "gpu")
    return module("pytest", *fixed, "tests/gpu/test_cuda.py", "tests/gpu", *done)


def step_alone(*words: str) -> Callable[[Pass], list[str]]:
    large = ("--image-size", 500, "--batch-size", 64, "--precisions", "fp16", "bf16")
    small = ("--image-size", 32, "--batch-size", 4, "--precisions", "fp32", "--rounds", 2)
    return lambda run: module("benchmarks.step", *(large if run.cuda else small), *words)


def images(count: int, epochs: int = 2) -> Words:
    """Limits of the training images, and of the test images in MNIST's proportion."""
    return {"dataset.train_limit": count, "dataset.test_limit": count // 6, "epochs": epochs}


COMPILED = (
    *("--precisions", "fp16", "--layouts", "nhwc", "--only-compiled", "--compile", "default"),
    *("--depthwise", "convolution", "triton"),
)
PAPERS: Words = {"experiment": "table2", "gpus": 1, "dataset": "mnist", "precision": "fp64,fp32,fp16"}
FP32: Words = {"precision": "fp32"}  # fp16 is slow on CPUs
TOO_LARGE: Words = {"precision": "fp64", "batch_size": 128, "dataset": "mnist", "dataset.image_size": 700}
TOO_LARGE |= {"model.name": "efficientnet_v2_l", "num_workers": 0}  # as in tests/gpu/test_cuda.py
PACKED: Words = {"packed": True, "max_seq_len": 2048, "batch_size": 6, "compile": True, "dataset.rows": 10_000}
SMALL_PACKED: Words = {"max_seq_len": 256, "batch_size": 2, "compile": False}
LORA: Words = LLAMA | {"method": "lora"}
# Rows are generated: 20 steps of 8,192 tokens, of which 15 count
FAST: Words = {"preset": "fast", "model": "llama3_8b", "method": "lora", "dataset.rows": 3000, "max_steps": 20}
SMALL_FAST: Words = SMALL_PACKED | {"dataset.rows": 60, "skip_steps": 1, "max_steps": 3}
FAST_EXPECTED = f"{PUBLISHED}; 9,300 to 22,900 (roofline, H200)"

# name, title, seconds expected, command, findings. Seconds are sums: 15 to start a run, then by published rates.
# The first call takes what proves the most: kernels that were never timed in a whole step, the goal, steps that
# stall, and tuning's fast preset by both engines
STEPS = [
    Step("machine", "versions, bandwidth of copies, nvidia-smi", 25,
        lambda run: module("benchmarks.step", "--bandwidth"), of_machine),
    Step("fused", "fused blocks, profiled (plain: the goal's)", 15 + 66 + 11 + 10,
        lambda run: run.train("fused", GOAL | images(6400) | {"model.blocks": "fused", "profile": "kineto"}),
        of_runs(rate, kernels), skip=gpu_only("its kernels need CUDA")),
    Step("goal", "20,000 images at 500 px, 2 epochs, profiled", 15 + 66 + 2 * 11 + 10,  # compile, epochs, profile
        lambda run: run.train("goal", GOAL | images(20_000) | {"profile": "kineto"}, FP32),
        of_runs(rate, kernels, extrapolated("300 s (goal)"))),
    Step("attention", "Llama3-8B: LoRA, cuDNN's attention last", 2 * (15 + 20),
        lambda run: without_cudnns_attention(run.tune("attention", LORA | run.text() | {"engine": engines()})),
        of_stalls),
    Step("fast", "Llama3-8B, random weights: preset=fast", 2 * (15 + 60 + 15),
        lambda run: run.tune("fast", FAST | {"engine": engines()}, SMALL_FAST), of_tuning(FAST_EXPECTED)),
    Step("liger", "Llama3-8B: preset=fast, Liger's kernels", 15 + 60 + 15,
        lambda run: run.tune("liger", FAST | {"engine": "trl", "kernels": "liger"}, SMALL_FAST),
        of_tuning(FAST_EXPECTED), skip=lambda run: gpu_only("Triton needs CUDA")(run) or liger_absent(run)),
    Step("compiled", "compiled; depthwise by Triton too", 15 + 2 * 60,
        step_alone(*COMPILED), of_step, skip=gpu_only("it compiles for minutes")),
    Step("lora", "Llama3-8B, random weights: LoRA by each engine", 2 * (15 + 20),
        lambda run: run.tune("lora", LORA | run.text() | {"engine": engines()}), of_stalls),
    Step("step", "the training step alone, eager", 60, step_alone(), of_step),
    Step("papers", "Table 2 on one GPU, extrapolated", 3 * 15 + 48 + 28 + 20,  # fp64, fp32, fp16
        lambda run: run.train("papers", PAPERS | images(3840), {"precision": "fp64,fp32"}),
        of_runs(extrapolated()), skip=no_room_for_fp64),
    Step("qlora", "Llama3-8B: QLoRA", 15 + 20,
        lambda run: run.tune("qlora", LLAMA | run.text() | {"method": "qlora"}), of_tuning()),
    Step("packed", "Llama3-8B: LoRA, packed, batches of 6", 15 + 60 + 20,
        lambda run: run.tune("packed", LORA | PACKED, SMALL_PACKED), of_tuning(PUBLISHED)),
    Step("tests", "pytest -m gpu", 90, tests, of_tests, skip=gpu_only("its tests need a CUDA device")),
    Step("dpo", "Llama3-8B: DPO", 15 + 55, lambda run: run.tune("dpo", LLAMA | {"method": "dpo"}), of_tuning()),
    Step("lora_fp32", "Llama3-8B: LoRA in fp32", 15 + 75,
        lambda run: run.tune("lora_fp32", LORA | run.text() | {"precision": "fp32"}),
        of_tuning("0.77 s/it (papers, Table 5, H100)"), skip=gpu_only("the step lora is in fp32 on CPU ranks")),
    Step("diagnose", "what limits the goal's run", 15 + 45,
        lambda run: run.train("diagnose", GOAL | images(6400) | {"diagnose": True}, FP32), of_runs(diagnosis)),
    Step("memory", "a run that exceeds the memory", 15 + 15,
        lambda run: run.train("memory", TOO_LARGE | images(128, epochs=1)), of_memory,
        skip=gpu_only("it would exceed the host's memory")),
    Step("dali", "the goal's run with DALI", 15 + 30,
        lambda run: run.train("dali", GOAL | images(6400) | {"loader": "dali"}, FP32), of_runs(rate),
        skip=dali_absent),
    Step("whole", "the goal: 60,000 images at 500 px, 20 epochs", 480,
        lambda run: run.train("whole", GOAL | {"epochs": 20}), of_runs(rate, whole),
        skip=gpu_only("it takes days")),
]  # fmt: skip
