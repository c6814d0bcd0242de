"""The known models of GPUs: memory, published rates, and the names that drivers give them.

The module reads gpus.csv and does not import torch.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
RESERVED_BYTES = GIB * 3 // 4  # The most that the driver reserved on any GPU of the table.
MIG = "MIG"  # Occurs in the name of a part of a GPU, which has only a part of its rates.


@dataclass(frozen=True)
class GpuModel:
    """One model of GPU.

    Attributes:
        name: The model's name in `predict.gpu`. Models with different links (SXM, PCIe) have
        different
            names, because steps on several of them differ in time.
        products: The names that NVML gives the model.
        nvml_bytes: All of its memory, as nvidia-smi prints it.
        memory_bytes: torch's `total_memory`, by the lowest report. If ECC can be switched off, this
            is with ECC.
        flops_per_s: The published peak of dense matrix products by number format: fp32 without
        TF32,
            and bf16 accumulated in fp32 if the GPU supports it.
        memory_bytes_per_s: The published memory bandwidth.
        links_bytes_per_s: The published bandwidth to other GPUs of the node, in one direction, over
            NVLink or else PCI Express.
    """

    name: str
    products: tuple[str, ...]
    nvml_bytes: int
    memory_bytes: int
    capability: tuple[int, int]
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    links_bytes_per_s: float


def _gpu(row: Mapping[str, str]) -> GpuModel:
    """Make a `GpuModel` of a row of `gpus.csv`.

    MiB are as nvidia-smi prints them. GiB are as torch's out-of-memory messages give them ("a total
    capacity of 93.00 GiB"), from public issues: VACE 56 (H100 NVL), Step-Video-T2V 8 (L40S),
    MTVCrafter 21 (RTX 6000 Ada), CogVLM 236 (A10), CogVideo 36 (RTX 4090), LlamaFactory 182 (V100).
    If no issue was found (H20, GH200, L4, T4), GiB are the MiB less 1 GiB. Compute capabilities are
    from developer.nvidia.com/cuda-gpus.

    Rates are from NVIDIA's data sheet of each product (nvidia.com/en-us/data-center), and for
    GeForce and RTX from the white papers "NVIDIA Ampere GA102" and "NVIDIA Ada GPU Architecture".
    If a sheet gives the rate with sparsity only, half of it is taken. A10G is from AWS's page of
    its G5 instances. No sheet covers the H100 SXM with 94 GB: it is assumed to compute like the one
    with 80 GB, and to have HBM2e with 2.4 TB/s.
    """
    nvml_bytes = int(row["nvml_mib"]) << 20
    memory_bytes = int(float(row["usable_gib"]) * GIB)
    major, minor = map(int, row["capability"].split("."))
    formats = {"fp32": row["fp32_tflops"], "bf16": row["bf16_tflops"]}
    return GpuModel(
        name=row["name"],
        products=tuple(row["products"].split("|")),
        nvml_bytes=nvml_bytes,
        memory_bytes=memory_bytes,
        capability=(major, minor),
        flops_per_s={name: float(rate) * 1e12 for name, rate in formats.items() if rate},
        memory_bytes_per_s=float(row["memory_gb_s"]) * 1e9,
        links_bytes_per_s=float(row["links_gb_s"]) * 1e9,
    )


with Path(__file__).with_name("gpus.csv").open(newline="") as lines:
    GPUS: dict[str, GpuModel] = {gpu.name: gpu for gpu in map(_gpu, csv.DictReader(lines))}


def of_product(product: str, nvml_bytes: int | None = None) -> GpuModel | None:
    """Return the GPU with this name in NVML and a memory within 8 % of `nvml_bytes`, or None."""
    same_name = [gpu for gpu in GPUS.values() if product in gpu.products]
    matching = [
        gpu
        for gpu in same_name
        if nvml_bytes is None or abs(gpu.nvml_bytes - nvml_bytes) <= 0.08 * gpu.nvml_bytes
    ]
    return matching[0] if matching else None


def known(name: str) -> GpuModel | None:
    """Return the GPU with this name in the table, in NVML or in CUDA, or None."""
    return GPUS.get(name) or of_product(name)


def usable_bytes(product: str, nvml_bytes: int) -> int:
    """Return the memory that CUDA offers: by the table, else a little less than NVML's total."""
    gpu = of_product(product, nvml_bytes)
    return gpu.memory_bytes if gpu else nvml_bytes - RESERVED_BYTES


def capability(product: str | None) -> tuple[int, int] | None:
    """Return the compute capability of a GPU, or None if it is unknown.

    Args:
        product: The name in NVML or in the table. Otherwise, the chip's letters and number count,
            such as "H100" in "NVIDIA H100 SXM5 64GB".
    """
    gpu = known(product or "") or next(iter(_models_of_chip(product or "")), None)
    return gpu.capability if gpu else None


def peak_flops_per_s(product: str, products: str) -> float | None:
    """Return the peak of dense matrix products in a number format, or None if it is unknown.

    Args:
        product: The GPU's name in CUDA. The size of memory does not change the peak. A GPU with an
            unknown size therefore takes the peak of its chip if all models of the chip agree: this
            holds for A100, but not for H100.
        products: The number format, as in `flops_per_s`.
    """
    gpu = known(product)
    if gpu is not None:
        return gpu.flops_per_s.get(products)
    if MIG in product.split():
        return None
    peaks = {model.flops_per_s.get(products) for model in _models_of_chip(product)}
    return peaks.pop() if len(peaks) == 1 else None


def _models_of_chip(product: str) -> list[GpuModel]:
    """Return the GPUs whose chip (letters and number) occurs in a product's name."""
    words = re.findall(r"[A-Z]+\d+[A-Z]?", product.upper())
    return [gpu for gpu in GPUS.values() if gpu.name.split("-")[0].upper() in words]


def is_gpu(hardware: str) -> bool:
    """Tell whether the hardware of a record is a GPU, known or unknown."""
    return hardware in GPUS or hardware.startswith(("NVIDIA", "Tesla"))


def product(hardware: str | None) -> str | None:
    """Return one name for all names of a GPU. Other hardware is returned unchanged."""
    gpu = None if hardware is None else of_product(hardware)
    return hardware if gpu is None else gpu.name
