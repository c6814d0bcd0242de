"""Reads YAML from untrusted files: plain values, no duplicate keys, limited depth and size.

The limits also stop alias bombs. A time such as `2:00:00` stays text; YAML 1.1 reads it as 7200.
"""

from pathlib import Path
from typing import Any

import yaml

from multicard.messages import Message, Refusal

# The most values in a file. Values behind an alias count each time.
MOST_VALUES = 100_000
DEEPEST = 100


# CSafeLoader exists if PyYAML was built with libyaml.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[str]()
        for key, _ in node.value:
            if str(key.value) in names:
                problem = Message(
                    "yaml.duplicate-key", f"found duplicate key {key.value}", name=str(key.value)
                )
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int | str:
        return str(node.value) if ":" in node.value else self.construct_yaml_int(node)

    def construct_number(self, node: yaml.ScalarNode) -> float | str:
        return str(node.value) if ":" in node.value else self.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def read_yaml(path: Path) -> Any:
    """Return the content of a file.

    Raises:
        OSError: the file cannot be read.
        Refusal: the file is not plain YAML; the message says why, and in which line.
    """
    try:
        text = path.read_text()
        _check_size(text)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        problem = error.problem if error.context is None else f"{error.context}, {error.problem}"
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        where = "" if line is None else f"line {line}: "
        raise Refusal("yaml.malformed", f"{where}{problem}", line=line, problem=problem) from None
    except (ValueError, yaml.YAMLError) as error:
        problem = str(error).splitlines()[0]
        raise Refusal("yaml.no-text", problem, problem=problem) from None


def _check_size(text: str) -> None:
    """Refuse content that is too large or too deep, before it is built in memory."""
    anchored = dict[str | None, int]()
    counts = [("", 0)]  # For each open collection: its anchor, and the number of values so far.
    for event in yaml.parse(text, _Loader):
        anchor, count = counts[-1]
        if isinstance(event, yaml.CollectionStartEvent):
            counts.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            counts.pop()
            anchored[anchor] = count
            counts[-1] = counts[-1][0], counts[-1][1] + count
        elif isinstance(event, yaml.ScalarEvent):
            anchored[event.anchor] = 1
            counts[-1] = anchor, count + 1
        elif isinstance(event, yaml.AliasEvent):
            # An alias to a collection that contains it counts as infinitely many values.
            counts[-1] = anchor, count + anchored.get(event.anchor, MOST_VALUES)
        if len(counts) > DEEPEST:
            problem = Message("yaml.too-deep", f"is nested more than {DEEPEST} deep", most=DEEPEST)
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        if counts[-1][1] > MOST_VALUES:
            problem = Message(
                "yaml.too-many-values",
                f"has more than {MOST_VALUES:,} values; values behind aliases count each time",
                most=MOST_VALUES,
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
