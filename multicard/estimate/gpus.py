"""GPUs by short name, with the memory that CUDA offers on them: what `predict.gpu` may name. No torch."""

import re
from dataclasses import dataclass

GIB = 1 << 30
RESERVED_BYTES = GIB * 3 // 4  # the most that the driver kept for itself on the GPUs of the table


@dataclass(frozen=True)
class Gpu:
    """A model of GPU.

    Fields:
        name: as `predict.gpu` has it; those with other links (SXM, PCIe) have a name of their own, as steps on several
            of them take other times. products: its names as NVML gives them.
        nvml_bytes: all of its memory, as nvidia-smi prints it.
        memory_bytes: what CUDA offers (`total_memory` in torch), the least that is reported; with ECC where the GPU
            can switch it off.
        capability: CUDA's compute capability.
    """

    name: str
    products: tuple[str, ...]
    nvml_bytes: int
    memory_bytes: int
    capability: tuple[int, int]


def _gpu(name: str, products: str, nvml_mib: int, usable_gib: float, capability: tuple[int, int]) -> Gpu:
    return Gpu(name, tuple(products.split("|")), nvml_mib << 20, int(usable_gib * GIB), capability)


# MiB as nvidia-smi prints them, GiB as torch's messages on memory that ran out have them ("a total capacity of 93.00
# GiB"): public issues, as VACE 56 (H100 NVL), Step-Video-T2V 8 (L40S), MTVCrafter 21 (RTX 6000 Ada), CogVLM 236 (A10),
# CogVideo 36 (RTX 4090), LlamaFactory 182 (V100). Where none was found (H20, GH200, L4, T4): the same less 1 GiB.
# Compute capabilities: developer.nvidia.com/cuda-gpus
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("b200", "NVIDIA B200", 183359, 178.35, (10, 0)),
        _gpu("gh200-96gb", "NVIDIA GH200 480GB", 97871, 94.5, (9, 0)),
        _gpu("h200", "NVIDIA H200", 143771, 139.72, (9, 0)),
        _gpu("h200-nvl", "NVIDIA H200 NVL", 143771, 139.72, (9, 0)),
        _gpu("h100-94gb", "NVIDIA H100|NVIDIA H100 SXM5 94GB", 95830, 93.0, (9, 0)),
        _gpu("h100-nvl", "NVIDIA H100 NVL", 95830, 93.0, (9, 0)),
        _gpu("h100-80gb", "NVIDIA H100 80GB HBM3", 81559, 79.1, (9, 0)),
        _gpu("h100-pcie", "NVIDIA H100 PCIe", 81559, 79.1, (9, 0)),
        _gpu("h20", "NVIDIA H20", 97871, 94.5, (9, 0)),
        _gpu("a100-80gb", "NVIDIA A100-SXM4-80GB", 81920, 79.14, (8, 0)),
        _gpu("a100-80gb-pcie", "NVIDIA A100 80GB PCIe", 81920, 79.14, (8, 0)),
        _gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", 40960, 39.38, (8, 0)),
        _gpu("a100-40gb-pcie", "NVIDIA A100-PCIE-40GB", 40960, 39.38, (8, 0)),
        _gpu("l40s", "NVIDIA L40S", 46068, 44.39, (8, 9)),
        _gpu("l40", "NVIDIA L40", 46068, 44.39, (8, 9)),
        _gpu("l4", "NVIDIA L4", 23034, 21.9, (8, 9)),
        _gpu("a10", "NVIDIA A10", 23028, 21.98, (8, 6)),
        _gpu("a10g", "NVIDIA A10G", 23028, 21.98, (8, 6)),
        _gpu("rtx4090", "NVIDIA GeForce RTX 4090", 24564, 23.5, (8, 9)),
        _gpu("rtx3090", "NVIDIA GeForce RTX 3090", 24576, 23.5, (8, 6)),
        _gpu("rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", 46068, 44.4, (8, 9)),
        _gpu("rtxa6000", "NVIDIA RTX A6000", 46068, 44.4, (8, 6)),
        _gpu("v100-32gb", "Tesla V100-SXM2-32GB", 32768, 31.73, (7, 0)),
        _gpu("v100-32gb-pcie", "Tesla V100-PCIE-32GB", 32768, 31.73, (7, 0)),
        _gpu("v100-16gb", "Tesla V100-SXM2-16GB", 16384, 15.77, (7, 0)),
        _gpu("v100-16gb-pcie", "Tesla V100-PCIE-16GB", 16384, 15.77, (7, 0)),
        _gpu("t4", "Tesla T4", 15360, 14.5, (7, 5)),
    )
}


def named(text: str, key: str = "predict.gpu") -> Gpu:
    """The GPU that `key` names.

    Raises:
        ValueError: with the names there are.
    """
    gpu = GPUS.get(text.strip().lower())
    if gpu is None:
        raise ValueError(f"{key}={text}: no such GPU; choose one of {', '.join(GPUS)}")
    return gpu


def of_product(product: str, nvml_bytes: int | None = None) -> Gpu | None:
    """The GPU with NVML's name and a memory within 8 % of `nvml_bytes`; None: not known."""
    alike = [gpu for gpu in GPUS.values() if product in gpu.products]
    near = [gpu for gpu in alike if nvml_bytes is None or abs(gpu.nvml_bytes - nvml_bytes) <= 0.08 * gpu.nvml_bytes]
    return near[0] if near else None


def usable_bytes(product: str, nvml_bytes: int) -> int:
    """What CUDA offers of a GPU's memory: by the table, else a little less than NVML's total."""
    gpu = of_product(product, nvml_bytes)
    return gpu.memory_bytes if gpu else nvml_bytes - RESERVED_BYTES


def capability(product: str) -> tuple[int, int] | None:
    """The compute capability of a GPU by its name as NVML or this table has it; None: not known."""
    gpu = GPUS.get(product) or of_product(product) or _alike(product)
    return gpu.capability if gpu else None


def _alike(product: str) -> Gpu | None:
    """A GPU of the table whose letters and number are in the name, as "H100" in "NVIDIA H100 SXM5 64GB"."""
    words = re.findall(r"[A-Z]+\d+[A-Z]?", product.upper())
    return next((gpu for gpu in GPUS.values() if gpu.name.split("-")[0].upper() in words), None)
