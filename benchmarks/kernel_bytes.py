"""The bytes that generated code moves and the kernels that it launches, read from what Inductor
writes."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ForeachKernelSchedulerNode
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ELEMENTWISE = "elementwise"
REDUCTION = "reductions"
COMBINED = "combined"
LIBRARY = "library"
KINDS = (ELEMENTWISE, REDUCTION, COMBINED, LIBRARY)
FORWARD = "forward"
BACKWARD = "backward"
INFERENCE = "inference"
BATCH = "batch"  # what prepares it on the device
# Of the name that Inductor gives a kernel
PREFIXES = {"triton_poi": ELEMENTWISE, "triton_red": REDUCTION, "triton_per": REDUCTION}
DEFINITION = re.compile(r"^(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)''',", re.S | re.M)
LAUNCH = re.compile(r"^\s+(triton_\w+?)\.run\(", re.M)
GIGABYTES = re.compile(r"'kernel_num_gb': ([\d.e+-]+)")
CONVOLUTION_BACKWARD = "torch.ops.aten.convolution_backward.default"

# Tensors that a launch over lists of tensors takes, by the lists, and its blocks:
# ATen/native/cuda/MultiTensorApply.cuh
LISTED_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
# values of a block
LISTED_BLOCKS = 320
LISTED_VALUES = 65536
LISTED = re.compile(r"aten::(_foreach_|_fused_|_amp_foreach_)")
# Operations that launch nothing, though they are no views
SILENT = re.compile(r"aten::(empty|new_empty|detach|lift_fresh|is_pinned|record_stream|set_)")


@dataclass(frozen=True)
class Kernel:
    """What is launched under one name in a graph.

    launches: at least, of what a library computes.
    moved_bytes: over all launches; each tensor counts once in a launch that reads or writes it.
    """

    name: str
    kind: str
    launches: int
    moved_bytes: int


@dataclass
class Graph:
    """Generated code of one part of a step: "batch", "forward", "backward" or "inference"."""

    part: str
    kernels: list[Kernel] = field(default_factory=list)
    calls: int = 0

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)

    def moved_bytes(self, *kinds: str) -> int:
        """Of kernels of these kinds; of all without."""
        return sum(
            kernel.moved_bytes for kernel in self.kernels if not kinds or kernel.kind in kinds
        )


@contextmanager
def generated(mode: Any) -> Iterator[list[Graph]]:
    """The graphs that Inductor generates code for in this context, in the order of their
    compilation.

    What is compiled can be called: it gives tensors of the mode, and counts in `Graph.calls`.
    Products that Inductor pads where a trial on the device is faster are not padded, as there is no
    device.
    """
    graphs: list[Graph] = []

    def written(lowering: GraphLowering, code: Any) -> SimpleNamespace:
        graph = read_graph(lowering, code.value)
        graphs.append(graph)
        outputs = [_layout_of(output) for output in lowering.graph_outputs or ()]

        def call(inputs: list[Any]) -> tuple[Any, ...]:
            inputs.clear()
            graph.calls += 1
            with mode:
                return tuple(
                    None if layout is None else torch.empty_strided(**layout) for layout in outputs
                )

        return SimpleNamespace(call=call, __file__="generated")

    options = {
        "fx_graph_cache": False,
        "compile_threads": 1,
        "profile_bandwidth": True,  # writes each kernel's bytes beside it
        "shape_padding": False,
    }
    with (
        mock.patch.object(GraphLowering, "_compile_to_module_lines", written),
        inductor_config.patch(options),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        yield graphs


def _layout_of(output: Any) -> dict[str, Any] | None:
    """The keywords of `torch.empty_strided` for an output of a graph; None if it is no tensor."""
    if isinstance(output, ir.NoneAsConstantBuffer | ir.ShapeAsConstantBuffer):
        return None
    return {
        "size": [int(length) for length in output.get_size()],
        "stride": [int(length) for length in output.get_stride()],
        "dtype": output.get_dtype(),
        "device": output.get_device(),
    }


def read_graph(lowering: GraphLowering, code: str) -> Graph:
    """The kernels of a graph whose code was just generated."""
    part = BACKWARD if lowering.is_backward else INFERENCE if lowering.is_inference else FORWARD
    combined = 0
    calls = Counter[str]()
    moved = Counter[str]()
    for node in lowering.scheduler.nodes:
        if isinstance(node, ForeachKernelSchedulerNode):
            combined += node.get_read_write_buffers_sizes()
        elif node.is_extern() and not isinstance(node.node, ir.MultiOutput):
            name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
            launches, repeated = _of_library(node.node, name)
            calls[name] += launches
            moved[name] += node.get_read_write_buffers_sizes() + repeated
    kernels = triton_kernels(code, combined)
    kernels += [Kernel(name, LIBRARY, calls[name], moved[name]) for name in calls]
    return Graph(part, kernels)


def _of_library(node: Any, name: str) -> tuple[int, int]:
    """Launches of a library's operation, at least, and the bytes that it reads once more than once.

    The gradients of a convolution are two kernels; each reads the gradient of the output.
    """
    if name != CONVOLUTION_BACKWARD:
        return 1, 0
    gradient = node.inputs[0]
    read_bytes = V.graph.sizevars.size_hint(gradient.get_numel()) * gradient.get_dtype().itemsize
    of_both = sum(isinstance(output, ir.MultiOutput) for output in node.outputs) > 1
    return (2, read_bytes) if of_both else (1, 0)


def triton_kernels(code: str, combined_bytes: int = 0) -> list[Kernel]:
    """The kernels of Triton that a module of generated code launches, by their names.

    Args:
        combined_bytes: of all kernels that combine several, as Inductor does not write theirs into
        the code.
    """
    moved_bytes = {}
    for name, body in DEFINITION.findall(code):
        gigabytes = GIGABYTES.search(body)
        moved_bytes[name] = None if gigabytes is None else round(1e9 * float(gigabytes[1]))
    kernels = []
    together = 0
    for name, launches in Counter(LAUNCH.findall(code)).items():
        each = moved_bytes.get(name)
        if each is None:
            together += launches
        else:
            kernels.append(Kernel(name, PREFIXES[name[:10]], launches, launches * each))
    return kernels + ([Kernel("combined", COMBINED, together, combined_bytes)] if together else [])


class EagerLaunches(TorchDispatchMode):
    """Counts the kernels that operations outside compiled graphs launch on a device, at least one
    each, by name."""

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode = mode
        self.launches: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        in_place = LISTED.match(name) and not func._schema.returns  # not all know fake tensors
        with self.mode:
            out = None if in_place else func(*args, **(kwargs or {}))
        values = tree_leaves((args, kwargs, out))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        on_device = any(tensor.device.type == "cuda" for tensor in tensors)
        if on_device and name.startswith("aten::") and not func.is_view and not SILENT.match(name):
            self.launches[name] += listed_launches(args) if LISTED.match(name) else 1
        return out


def listed_launches(arguments: Any) -> int:
    """Launches of an operation over lists of tensors (`_foreach_add_`, fused optimisers): a launch
    takes so many tensors and so many blocks."""
    lists = [
        argument
        for argument in arguments
        if isinstance(argument, list | tuple)
        and len(argument)
        and isinstance(argument[0], torch.Tensor)
    ]
    blocks = sum(-(-tensor.numel() // LISTED_VALUES) for tensor in lists[0])
    tensors = -(-len(lists[0]) // LISTED_TENSORS[len(lists)])
    return max(tensors, -(-blocks // LISTED_BLOCKS))
