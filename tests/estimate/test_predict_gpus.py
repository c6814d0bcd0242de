"""The table of GPUs."""

import pytest

from multicard.estimate import target


def test_a_gpu_by_name():
    assert target.named("H100-94gb").products[0] == "NVIDIA H100"
    assert 93 << 30 <= target.named("h100-94gb").memory_bytes < target.named("h100-94gb").nvml_bytes
    with pytest.raises(ValueError, match=r"predict\.gpu=h101: no such GPU; choose one of b200, .*v100-16gb"):
        target.named("h101")


def test_cuda_offers_less_than_the_driver_has():
    for gpu in target.GPUS.values():
        reserved_bytes = gpu.nvml_bytes - gpu.memory_bytes
        assert 0 < reserved_bytes < 0.06 * gpu.nvml_bytes, gpu.name
        assert target.usable_bytes(gpu.products[0], gpu.nvml_bytes) == gpu.memory_bytes


def test_a_gpu_by_the_name_that_its_driver_gives():
    assert target.of_product("NVIDIA H100", 95_830 << 20) is target.GPUS["h100-94gb"]
    assert target.of_product("NVIDIA H100", 64 << 30) is None  # another model of that name
    assert target.usable_bytes("NVIDIA X1", 10 << 30) == (10 << 30) - target.RESERVED_BYTES
    assert target.capability("NVIDIA H100 SXM5 64GB") == target.capability("h100-80gb") == (9, 0)
    links = {target.of_product(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")}
    assert len(links) == 2 and None not in links  # one chip with other links takes other times
    assert target.capability("NVIDIA A100") == (8, 0) and target.capability("NVIDIA X1") is None
