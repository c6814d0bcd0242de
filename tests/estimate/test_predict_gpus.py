"""The table of GPUs."""

import pytest

from multicard.estimate import gpus


def test_a_gpu_by_name():
    assert gpus.named("H100-94gb").products[0] == "NVIDIA H100"
    assert 93 << 30 <= gpus.named("h100-94gb").memory_bytes < gpus.named("h100-94gb").nvml_bytes
    with pytest.raises(ValueError, match=r"predict\.gpu=h101: no such GPU; choose one of b200, .*v100-16gb"):
        gpus.named("h101")


def test_cuda_offers_less_than_the_driver_has():
    for gpu in gpus.GPUS.values():
        reserved_bytes = gpu.nvml_bytes - gpu.memory_bytes
        assert 0 < reserved_bytes < 0.06 * gpu.nvml_bytes, gpu.name
        assert gpus.usable_bytes(gpu.products[0], gpu.nvml_bytes) == gpu.memory_bytes


def test_a_gpu_by_the_name_that_its_driver_gives():
    assert gpus.of_product("NVIDIA H100", 95_830 << 20) is gpus.GPUS["h100-94gb"]
    assert gpus.of_product("NVIDIA H100", 64 << 30) is None  # another model of that name
    assert gpus.usable_bytes("NVIDIA X1", 10 << 30) == (10 << 30) - gpus.RESERVED_BYTES
    assert gpus.capability("NVIDIA H100 SXM5 64GB") == gpus.capability("h100-80gb") == (9, 0)
    links = {gpus.of_product(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")}
    assert len(links) == 2 and None not in links  # one chip with other links takes other times
    assert gpus.capability("NVIDIA A100") == (8, 0) and gpus.capability("NVIDIA X1") is None
