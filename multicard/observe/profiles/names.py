"""The metric that each kind and name of event counts for."""

import re
from enum import IntEnum
from typing import NamedTuple

from multicard.measure import timing


class Kind(IntEnum):
    """The kind of record. Every event has one, so that none counts on the host and on the device."""

    API = 0  # a CUDA call, on the host
    KERNEL = 1
    COPY = 2
    SET = 3
    RANGE = 4  # an annotation on the host
    DEVICE_RANGE = 5  # the same annotation, around what it launched


ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.SET)

PHASES = (*timing.PHASES, "evaluate")
GLOO = "gloo:"  # prefix of torch.distributed's ranges around gloo's work
STEP = "ProfilerStep#"  # prefix of torch.profiler's step markers
WINDOW = "ProfilerWindow"  # around all that counts, where that is more than steps
RUN = "run"  # what ended a window that lasted to the end of the training

# Calls that have a row in every profile of a GPU, with 0 calls too; by the driver's (cu...) Triton launches its kernels
CUDA_APIS = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync")
CUDA_APIS += ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaEventDestroy", "cudaDeviceSynchronize")
# A call that launches a kernel, several, or a graph: cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch
LAUNCH = re.compile(r"(cuda|cu)(Drv)?(Graph)?Launch(?!HostFunc)\w*")
# Calls in which a host thread only waits for the device. Synchronous copies wait too, but move bytes meanwhile
BLOCKING = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
BLOCKING += ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
COPIES = {
    "HtoD": "memcpy Host-to-Device",
    "DtoH": "memcpy Device-to-Host",
    "DtoD": "memcpy Device-to-Device",
    "PtoP": "memcpy Peer-to-Peer",
}
MEMSET = "memset"


class Metric(NamedTuple):
    group: str  # api, copy, collective, kernel, phase, annotation
    name: str
    detail: str = ""  # algorithm and protocol of a collective, memory of a copy


def metric(kind: Kind, name: str) -> Metric | None:
    """The metric of an event; None for step markers."""
    if kind is Kind.API:
        return Metric("api", api(name))
    if kind is Kind.KERNEL:
        return collective(name) or Metric("kernel", name)
    if kind is Kind.COPY:  # `Memcpy HtoD (Pinned -> Device)`: Kineto's form, which the reader of nsys writes too
        way, _, memory = name.removeprefix("Memcpy ").partition(" ")
        host = [word for word in ("pageable", "pinned", "managed") if word in memory.lower()]
        return Metric("copy", COPIES.get(way, f"memcpy {way}"), " to ".join(host))
    if kind is Kind.SET:
        return Metric("copy", MEMSET)
    if kind is Kind.RANGE and name.startswith(GLOO):
        return Metric("collective", f"gloo {name.removeprefix(GLOO)}")
    group = "phase" if name in PHASES else "annotation"
    own = f"{name} (device)" if kind is Kind.DEVICE_RANGE else name
    return None if name.startswith(STEP) or name == WINDOW else Metric(group, own)


def api(name: str) -> str:
    """The call's name without CUPTI's version, of four digits or more: `cudaStreamGetCaptureInfo_v2` of `..._v11030`"""
    return re.sub(r"_v\d{4,}$", "", name)


# ncclDevKernel_AllReduce_Sum_f32_RING_LL(...) since NCCL 2.19, ncclKernel_AllReduce_RING_LL_Sum_float(...) before;
# ncclDevKernel_Generic_4(...) runs several fused operations
_NCCL = re.compile(r"nccl\w*?Kernel_(?P<name>[A-Z][A-Za-z]*)(?P<rest>[^(<]*)")
_DETAILS = {"RING", "TREE", "COLLNET", "DIRECT", "CHAIN", "NVLS", "PAT", "LL", "LL128", "SIMPLE"}


def collective(kernel: str) -> Metric | None:
    """The collective of an NCCL kernel, its algorithm and protocol as detail; None for any other kernel."""
    bare = kernel.removeprefix("void ")
    if not bare.startswith("nccl"):
        return None
    match = _NCCL.match(bare)
    if match is None:
        return Metric("collective", "nccl other")
    words = [word for word in match["rest"].split("_") if word in _DETAILS]
    return Metric("collective", f"nccl {match['name']}", " ".join(words))
