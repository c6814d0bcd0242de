"""The values of the key `compile`: whether torch.compile compiles the model,
and in which of its modes.

One key holds both, so that `compile=true` and `compile=reduce-overhead` are values of one axis;
Hydra would not take a `compile.mode` beside it, because a key is either a value or a group.
"""

from multicard.messages import Refusal

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that have CUDA graphs launch the kernels
# until CUDA graphs run: the first warms up, the second is recorded, the third replays
GRAPH_PASSES = 3
MODES = ("default", *CUDA_GRAPHS, "max-autotune-no-cudagraphs")


def checked(value: bool | str | None) -> bool | str | None:
    """The value of `compile`, with true for "default", which is the same.
    No other words than modes are accepted.
    """
    if isinstance(value, str) and value not in MODES:
        raise Refusal(
            "config.compile-mode",
            f"compile={value}: is no mode of torch.compile; use true, false or one of"
            f" {', '.join(MODES)}",
            key="compile",
            value=value,
            choices=["true", "false", *MODES],
        )
    return True if value == "default" else value


def mode(value: bool | str | None) -> str:
    """The mode of torch.compile that a value of `compile` stands for,
    where the model is compiled.
    """
    return value if isinstance(value, str) else "default"


def has_cuda_graphs(value: bool | str | None) -> bool:
    return mode(value) in CUDA_GRAPHS


def word(value: bool | str | None) -> str:
    """A value of `compile` as the command line takes it."""
    return "null" if value is None else str(value).lower()
