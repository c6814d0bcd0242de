"""The values of the key `compile`: whether torch.compile compiles the model, and in which mode.

One key holds both, so that `compile=true` and `compile=reduce-overhead` are values of one axis.
Hydra does not allow `compile.mode` next to `compile`: a key is either a value or a group.
"""

from multicard.messages import Refusal

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # Modes that launch kernels as CUDA graphs.
# CUDA graphs run from the third pass on: the first warms up, the second records.
GRAPH_PASSES = 3
MODES = ("default", *CUDA_GRAPHS, "max-autotune-no-cudagraphs")


def checked(value: bool | str | None) -> bool | str | None:
    """Return the value of `compile`, with true in place of "default", which means the same.

    Words that are not modes are refused.
    """
    if isinstance(value, str) and value not in MODES:
        raise Refusal(
            "config.compile-mode",
            f"compile={value}: is not a mode of torch.compile; use true, false or one of"
            f" {', '.join(MODES)}",
            key="compile",
            value=value,
            choices=["true", "false", *MODES],
        )
    return True if value == "default" else value


def mode(value: bool | str | None) -> str:
    """Return the mode of torch.compile for a value of `compile` that compiles the model."""
    return value if isinstance(value, str) else "default"


def has_cuda_graphs(value: bool | str | None) -> bool:
    return mode(value) in CUDA_GRAPHS


def word(value: bool | str | None) -> str:
    """Return a value of `compile` as it is typed on the command line."""
    return "null" if value is None else str(value).lower()
