"""Finds missing files of a data set that is stored as numbered shards.

Shards have names such as train-00000-of-00002.parquet.
"""

import re
from collections.abc import Iterable

# The form that `datasets` and other programs write. A hash may follow, which differs by file.
SHARD = re.compile(
    r"(?P<head>.*)-(?P<number>\d{4,})-of-(?P<total>\d{4,})(?:-[0-9a-f]+)?(?P<ending>\.[^/]*)?"
)
MOST = 100_000  # A larger total is not taken for a number of shards.


def missing_shards(names: Iterable[str]) -> list[str]:
    """Return the names of the shards that are absent, in order, without hashes.

    Args:
        names: the names of the files in one folder, without the folder.
    """
    present: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        match = SHARD.fullmatch(name)
        if match is not None:
            group = (match["head"], match["total"], match["ending"] or "")
            present.setdefault(group, set()).add(int(match["number"]))
    missing = []
    for (head, total, ending), numbers in sorted(present.items()):
        if int(total) <= MOST:
            absent = (number for number in range(int(total)) if number not in numbers)
            missing += [f"{head}-{number:0{len(total)}d}-of-{total}{ending}" for number in absent]
    return missing
