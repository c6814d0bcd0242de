"""Names that tensors have in files which older versions of torchvision saved.

Most of torchvision's pretrained weights are such files. torchvision's own loaders rename their
tensors.
"""

import re

from multicard.config.vision import ModelConfig
from multicard.vision import model_names

# Patterns of older names and what replaces them, by the beginning of the model's name.
OLDER_NAMES = {
    "densenet": [(re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)"), r"\1\2")],
    "vit_": [
        (re.compile(r"(?<=\.mlp\.)linear_1(?=\.)"), "0"),
        (re.compile(r"(?<=\.mlp\.)linear_2(?=\.)"), "3"),
    ],
}


def current_name(name: str, config: ModelConfig) -> str:
    """Return the name that torchvision now gives to a tensor of a file."""
    if model_names.is_timm(config.name):
        return name
    for beginning, renamings in OLDER_NAMES.items():
        if config.name.startswith(beginning):
            for pattern, replacement in renamings:
                name = pattern.sub(replacement, name)
    return name
