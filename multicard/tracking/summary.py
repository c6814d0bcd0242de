"""A record as the summary of its run: every figure, flat, under the names of result.json."""

from collections.abc import Iterator, Mapping
from typing import Any

from multicard.tracking import keys

# In the configuration, the history or a table
ELSEWHERE = ("schema_version", "axes", "config", "epochs", "folder")
LEFT_OUT = ("profile.rows", "profile.files", "diagnosis.rounds_s", "gpu.parts")  # many values, which result.json has


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The summary: "outer.inner" to value, and "outer.0.inner" of a list, without what is null.

    The lines of a log are one text, and a list of texts one line.
    """
    own = {key: value for key, value in record.items() if key not in ELSEWHERE}
    attempts = own.get("segments")
    told = {keys.ATTEMPTS: len(attempts)} if attempts else {}
    return told | dict(_values(own, ""))


def _values(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if key in LEFT_OUT or value is None:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _values(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            yield key, ("\n" if key.endswith("log_tail") else ", ").join(value)
        else:
            for number, inner in enumerate(value):
                yield from _values(inner, f"{key}.{number}")
    else:
        yield key, value
