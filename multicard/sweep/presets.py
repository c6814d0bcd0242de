"""Find what the preset of a command decides, because the command does not set it itself.

Tables and sentences name the preset in place of it.
"""

from collections.abc import Sequence
from functools import cache

from multicard import workloads
from multicard.config import strict_yaml
from multicard.config.keys import flat
from multicard.records.comparable import PRESET, PRESET_KEY
from multicard.run.workload import Workload

OVERRIDE = "override /"  # Hydra's word in a preset's defaults, before the name of a group.


def decided(workload: Workload, words: Sequence[str]) -> list[str]:
    """Return the groups and keys that some preset sets, without those that words of a command set.

    What only another preset sets is decided too: this preset leaves it at its default. A word for a
    key counts for its group too. A word for a group does not count for its keys, because the preset
    is composed after the group: `model=resnet18` leaves `model.depthwise` to the preset.
    """
    typed_names = {word.lstrip("+~").partition("=")[0] for word in words}
    return sorted(
        name
        for name in names_set_by_presets(workload.entry)
        if not any(_is_part(typed, name) for typed in typed_names)
    )


def _is_part(name: str, of_name: str) -> bool:
    return name == of_name or name.startswith(f"{of_name}.")


@cache
def names_set_by_presets(entry: str) -> frozenset[str]:
    """Return the groups and keys that at least one preset of an entry sets."""
    workload = workloads.of_entry(entry)
    names = set[str]()
    for option in workloads.files(workload, PRESET):
        content = strict_yaml.read_yaml(workloads.option_file(workload, PRESET, option)) or {}
        for choice in content.pop("defaults", []):
            names.update(key.removeprefix(OVERRIDE) for key in choice)
        names.update(flat(content))
    return frozenset(names - {PRESET_KEY})
