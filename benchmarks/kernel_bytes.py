"""Count the bytes that Inductor's generated code moves, and the kernels that it launches."""

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
BATCH = "batch"  # The code that prepares the batch on the device.
# Inductor begins the name of a kernel with its kind.
PREFIXES = {"triton_poi": ELEMENTWISE, "triton_red": REDUCTION, "triton_per": REDUCTION}
DEFINITION = re.compile(r"^(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)''',", re.S | re.M)
LAUNCH = re.compile(r"^\s+(triton_\w+?)\.run\(", re.M)
GIGABYTES = re.compile(r"'kernel_num_gb': ([\d.e+-]+)")
CONVOLUTION_BACKWARD = "torch.ops.aten.convolution_backward.default"

# One launch over lists of tensors takes this number of tensors, by the number of lists, and this
# number of blocks: ATen/native/cuda/MultiTensorApply.cuh
TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS_PER_LAUNCH = 320
VALUES_PER_BLOCK = 65536
LIST_OPERATION = re.compile(r"aten::(_foreach_|_fused_|_amp_foreach_)")
# These operations launch nothing, although they are not views.
WITHOUT_LAUNCH = re.compile(
    r"aten::(empty|new_empty|detach|lift_fresh|is_pinned|record_stream|set_)"
)


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel in a graph.

    Attributes:
        launches: the number of launches. For a library's operation, it is a lower bound.
        moved_bytes: the bytes of all launches. Each tensor counts once in a launch that reads or
            writes it.
    """

    name: str
    kind: str
    launches: int
    moved_bytes: int


@dataclass
class Graph:
    """The generated code of one part of a step: "batch", "forward", "backward" or "inference"."""

    part: str
    kernels: list[Kernel] = field(default_factory=list)
    calls: int = 0

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)

    def moved_bytes(self, *kinds: str) -> int:
        """Return the bytes that kernels of these kinds move, or all kernels if none is given."""
        return sum(
            kernel.moved_bytes for kernel in self.kernels if not kinds or kernel.kind in kinds
        )


@contextmanager
def collect_graphs(mode: Any) -> Iterator[list[Graph]]:
    """Collect the graphs that Inductor generates code for in this context, in that order.

    Compiled functions can be called. They return tensors of the mode and count in `Graph.calls`.
    Inductor pads matrix products if a trial on the device is faster. There is no device here, so
    none are padded.
    """
    graphs: list[Graph] = []

    def intercept_code(lowering: GraphLowering, code: Any) -> SimpleNamespace:
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
        "profile_bandwidth": True,  # Inductor then writes the bytes of each kernel into the code.
        "shape_padding": False,
    }
    with (
        mock.patch.object(GraphLowering, "_compile_to_module_lines", intercept_code),
        inductor_config.patch(options),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        yield graphs


def _layout_of(output: Any) -> dict[str, Any] | None:
    """Return the arguments of `torch.empty_strided` for an output, or None if it is no tensor."""
    if isinstance(output, ir.NoneAsConstantBuffer | ir.ShapeAsConstantBuffer):
        return None
    return {
        "size": [int(length) for length in output.get_size()],
        "stride": [int(length) for length in output.get_stride()],
        "dtype": output.get_dtype(),
        "device": output.get_device(),
    }


def read_graph(lowering: GraphLowering, code: str) -> Graph:
    """Return the kernels of a graph whose code was just generated."""
    part = BACKWARD if lowering.is_backward else INFERENCE if lowering.is_inference else FORWARD
    combined = 0
    calls = Counter[str]()
    moved = Counter[str]()
    for node in lowering.scheduler.nodes:
        if isinstance(node, ForeachKernelSchedulerNode):
            combined += node.get_read_write_buffers_sizes()
        elif node.is_extern() and not isinstance(node.node, ir.MultiOutput):
            name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
            launches, repeated_bytes = _library_launches(node.node, name)
            calls[name] += launches
            moved[name] += node.get_read_write_buffers_sizes() + repeated_bytes
    kernels = triton_kernels(code, combined)
    kernels += [Kernel(name, LIBRARY, calls[name], moved[name]) for name in calls]
    return Graph(part, kernels)


def _library_launches(node: Any, name: str) -> tuple[int, int]:
    """Return the least number of launches of a library's operation, and the bytes it reads twice.

    Two kernels compute the gradients of a convolution. Both read the gradient of the output.
    """
    if name != CONVOLUTION_BACKWARD:
        return 1, 0
    gradient = node.inputs[0]
    read_bytes = V.graph.sizevars.size_hint(gradient.get_numel()) * gradient.get_dtype().itemsize
    has_both_gradients = sum(isinstance(output, ir.MultiOutput) for output in node.outputs) > 1
    return (2, read_bytes) if has_both_gradients else (1, 0)


def triton_kernels(code: str, combined_bytes: int = 0) -> list[Kernel]:
    """Return the Triton kernels that a module of generated code launches.

    Args:
        combined_bytes: the bytes of all kernels that combine several others. Inductor does not
            write these into the code.
    """
    moved_bytes = {}
    for name, body in DEFINITION.findall(code):
        gigabytes = GIGABYTES.search(body)
        moved_bytes[name] = None if gigabytes is None else round(1e9 * float(gigabytes[1]))
    kernels = []
    combined_launches = 0
    for name, launches in Counter(LAUNCH.findall(code)).items():
        launch_bytes = moved_bytes.get(name)
        if launch_bytes is None:
            combined_launches += launches
        else:
            kernels.append(Kernel(name, PREFIXES[name[:10]], launches, launches * launch_bytes))
    if combined_launches:
        kernels.append(Kernel("combined", COMBINED, combined_launches, combined_bytes))
    return kernels


class EagerLaunches(TorchDispatchMode):
    """Count the kernels that operations outside compiled graphs launch on a device, by name.

    Each operation counts as at least one launch.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode = mode
        self.launches: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        # Some in-place operations over lists have no implementation for fake tensors.
        in_place = LIST_OPERATION.match(name) and not func._schema.returns
        with self.mode:
            out = None if in_place else func(*args, **(kwargs or {}))
        values = tree_leaves((args, kwargs, out))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        on_device = any(tensor.device.type == "cuda" for tensor in tensors)
        if (
            on_device
            and name.startswith("aten::")
            and not func.is_view
            and not WITHOUT_LAUNCH.match(name)
        ):
            self.launches[name] += listed_launches(args) if LIST_OPERATION.match(name) else 1
        return out


def listed_launches(arguments: Any) -> int:
    """Count the launches of an operation over lists of tensors, such as `_foreach_add_`.

    A launch takes a limited number of tensors and of blocks.
    """
    lists = [
        argument
        for argument in arguments
        if isinstance(argument, list | tuple)
        and len(argument)
        and isinstance(argument[0], torch.Tensor)
    ]
    blocks = sum(-(-tensor.numel() // VALUES_PER_BLOCK) for tensor in lists[0])
    tensors = -(-len(lists[0]) // TENSORS_PER_LAUNCH[len(lists)])
    return max(tensors, -(-blocks // BLOCKS_PER_LAUNCH))
