"""The YAML of a plan's file, in which nothing is taken for something else without a word."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


def load(path: Path) -> Any:
    """What a file holds.

    Raises:
        ValueError: it cannot be read, or might be taken otherwise than it was meant; with the file and the line.
    """
    try:
        root = yaml.compose(path.read_text(), yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path}: has no keys; write jobs: {{name: {{run: train_vision.py}}}}")
        _check(root)
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        reasons = filter(None, (error.context, error.problem))
        raise ValueError(f"{path}{where}: {', '.join(reasons)}") from None
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None


def _check(root: yaml.Node) -> None:
    """Refuse what YAML takes for something else without a word: the last of several values of a key, an empty key, and
    1:30 for 90.

    Raises:
        yaml.MarkedYAMLError: with the line.
    """
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:  # an alias may hold itself
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith((":int", ":float")) and ":" in node.value:
                raise _problem(f"{node.value}: write a time as 90s, 30min or 2h", node)
        elif isinstance(node, yaml.MappingNode):
            names = set[str]()
            for key, value in node.value:
                if key.tag.endswith(":null") or not isinstance(key, yaml.ScalarNode):
                    raise _problem("a key is a name or a number", key)
                if key.value in names:
                    raise _problem(f"found duplicate key {key.value}", key)
                names.add(key.value)
                left += [key, value]
        else:
            left += node.value


def _problem(words: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=words, problem_mark=node.start_mark)
