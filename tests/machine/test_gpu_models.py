"""The table of GPUs: rates that are whole and plausible."""

from multicard.machine import gpu_models
from multicard.machine.gpu_models import GPUS


def test_every_gpu_has_the_rates_by_which_a_step_is_bounded():
    for gpu in GPUS.values():
        assert 8e12 <= gpu.flops_per_s["fp32"] <= 100e12, gpu.name
        assert 3e11 <= gpu.memory_bytes_per_s <= 8e12 and gpu.links_bytes_per_s <= 1e12, gpu.name
        has_bf16 = gpu.capability >= (8, 0)  # the first with products in it
        assert ("bf16" in gpu.flops_per_s) == has_bf16, gpu.name
        if has_bf16:
            assert 1.9 * gpu.flops_per_s["fp32"] <= gpu.flops_per_s["bf16"], gpu.name


def test_a_gpu_is_known_by_its_name_in_the_table_and_by_nvmls():
    assert gpu_models.known("h200") is gpu_models.known("NVIDIA H200") is GPUS["h200"]
    assert gpu_models.known("AMD EPYC") is None
