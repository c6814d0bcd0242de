"""The models of GPUs that are known: memory, published rates,
and the names by which drivers give them. No torch.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
RESERVED_BYTES = GIB * 3 // 4  # the most that the driver kept for itself on the GPUs of the table
MIG = "MIG"  # in the name of a part of a GPU, which has a part of its rates


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU.

    Fields:
        name: as `predict.gpu` has it; models that differ in their links (SXM, PCIe) differ in name,
            as steps on several
            of them take other times. products: its names as NVML gives them.
        nvml_bytes: all of its memory, as nvidia-smi prints it.
        memory_bytes: `total_memory` in torch, the least that is reported; with ECC where the GPU
            can switch it off.
        flops_per_s: the published peak of dense products of matrices, by the format of numbers:
            fp32 without TF32, and bf16 with sums in fp32, where the GPU has it.
        memory_bytes_per_s: the published rate of its memory.
        links_bytes_per_s: the published rate to other GPUs of the node, in one direction: NVLink,
            else PCI Express.
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
    """The GPU of a row of `gpus.csv`.

    MiB are as nvidia-smi prints them, GiB as torch's messages on memory that ran out have them ("a
    total capacity of 93.00 GiB"): public issues, as VACE 56 (H100 NVL), Step-Video-T2V 8 (L40S),
    MTVCrafter 21 (RTX 6000 Ada), CogVLM 236 (A10), CogVideo 36 (RTX 4090), LlamaFactory 182 (V100).
    Where none was found (H20, GH200, L4, T4): the same less 1 GiB. Compute capabilities:
    developer.nvidia.com/cuda-gpus

    Rates are those of NVIDIA's data sheets of each product (nvidia.com/en-us/data-center), and for
    GeForce and RTX of the white papers "NVIDIA Ampere GA102" and "NVIDIA Ada GPU Architecture".
    Where a sheet has the rate with sparsity alone, it is half of that. A10G: AWS's page of its G5
    instances. H100 of 94 GB in SXM: no sheet of NVIDIA's has it; its rates of products are taken to
    be those of 80 GB, its memory HBM2e with 2.4 TB/s.
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
    """The GPU with NVML's name and a memory within 8 % of `nvml_bytes`; None: not known."""
    alike = [gpu for gpu in GPUS.values() if product in gpu.products]
    near = [
        gpu
        for gpu in alike
        if nvml_bytes is None or abs(gpu.nvml_bytes - nvml_bytes) <= 0.08 * gpu.nvml_bytes
    ]
    return near[0] if near else None


def known(name: str) -> GpuModel | None:
    """The GPU by its name in the table, or as NVML and CUDA give it; None: not known."""
    return GPUS.get(name) or of_product(name)


def usable_bytes(product: str, nvml_bytes: int) -> int:
    """Memory that CUDA offers: by the table, else a little less than NVML's total."""
    gpu = of_product(product, nvml_bytes)
    return gpu.memory_bytes if gpu else nvml_bytes - RESERVED_BYTES


def capability(product: str | None) -> tuple[int, int] | None:
    """The compute capability of a GPU by its name as NVML or the table has it, or by its letters
    and number, as "H100" in "NVIDIA H100 SXM5 64GB"; None: not known.
    """
    gpu = known(product or "") or next(iter(_of_chip(product or "")), None)
    return gpu.capability if gpu else None


def peak_flops_per_s(product: str, products: str) -> float | None:
    """The peak of dense products of matrices in a format; None where it is not known.

    Args:
        product: the GPU's name as CUDA gives it. A memory that is not in the table changes no peak,
            so that of one with the same letters and number counts where all of these agree: A100,
            but not H100.
    """
    gpu = known(product)
    if gpu is not None:
        return gpu.flops_per_s.get(products)
    if MIG in product.split():
        return None
    peaks = {one.flops_per_s.get(products) for one in _of_chip(product)}
    return peaks.pop() if len(peaks) == 1 else None


def _of_chip(product: str) -> list[GpuModel]:
    """The GPUs with the letters and number in a product's name."""
    words = re.findall(r"[A-Z]+\d+[A-Z]?", product.upper())
    return [gpu for gpu in GPUS.values() if gpu.name.split("-")[0].upper() in words]


def is_gpu(hardware: str) -> bool:
    """True for the hardware of a record that is a GPU, known or not."""
    return hardware in GPUS or hardware.startswith(("NVIDIA", "Tesla"))


def product(hardware: str | None) -> str | None:
    """One name for all names of a GPU; others unchanged."""
    gpu = None if hardware is None else of_product(hardware)
    return hardware if gpu is None else gpu.name
