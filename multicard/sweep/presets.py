"""Find what a command sets otherwise than the preset that it chooses.

Tables and sentences name a preset in place of all that it sets. What was set otherwise is named
beside it.
"""

from collections.abc import Sequence
from functools import cache

from multicard import workloads
from multicard.config import strict_yaml
from multicard.config.keys import flat
from multicard.records.comparable import PRESET, PRESET_KEY
from multicard.run.workload import Workload

OVERRIDE = "override /"  # Hydra's word in a preset's defaults, before the name of a group.


def overridden(workload: Workload, words: Sequence[str]) -> list[str]:
    """Return the groups and keys that some preset sets, and that the words of a command set too.

    What another preset sets counts as well: this preset leaves it at its default.
    """
    typed_names = {word.lstrip("+~").partition("=")[0] for word in words}
    return sorted(typed_names & names_set_by_presets(workload.entry))


@cache
def names_set_by_presets(entry: str) -> frozenset[str]:
    """Return the groups and keys that at least one preset of an entry sets."""
    workload = workloads.of_entry(entry)
    names = set[str]()
    for option in workloads.files(workload, PRESET):
        content = strict_yaml.read(workloads.option_file(workload, PRESET, option)) or {}
        for choice in content.pop("defaults", []):
            names.update(key.removeprefix(OVERRIDE) for key in choice)
        names.update(flat(content))
    return frozenset(names - {PRESET_KEY})
