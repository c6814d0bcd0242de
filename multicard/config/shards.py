"""Files of a data set that are numbered as its shards, as train-00000-of-00002.parquet,
and those that are missing.
"""

import re
from collections.abc import Iterable

# As `datasets` and others write them: a hash may follow, which is another one in each file
SHARD = re.compile(
    r"(?P<head>.*)-(?P<number>\d{4,})-of-(?P<total>\d{4,})(?:-[0-9a-f]+)?(?P<ending>\.[^/]*)?"
)
MOST = 100_000  # shards of one name; a larger number is no count of files


def missing_shards(names: Iterable[str]) -> list[str]:
    """The shards that are absent beside those of these files that are numbered, in order,
    without a hash.

    Args:
        names: of the files of one folder, without the folder.
    """
    present: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        found = SHARD.fullmatch(name)
        if found is not None:
            of = (found["head"], found["total"], found["ending"] or "")
            present.setdefault(of, set()).add(int(found["number"]))
    missing = []
    for (head, total, ending), numbers in sorted(present.items()):
        if int(total) <= MOST:
            absent = (number for number in range(int(total)) if number not in numbers)
            missing += [f"{head}-{number:0{len(total)}d}-of-{total}{ending}" for number in absent]
    return missing
