"""Values that stay as they are typed: Hydra reads `1.10`, `1e3` or `007` as a number, and no longer
knows how it was written.
"""

from collections.abc import Iterator
from typing import Any, Optional

from antlr4 import CommonTokenStream, InputStream, ParserRuleContext
from hydra.core.override_parser.overrides_visitor import HydraErrorListener
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from multicard import workloads
from multicard.config.script import STYLE, Style
from multicard.run.workload import Workload

TEXTS = (str, Optional[str], list[str], Optional[list[str]])  # types of keys whose values are texts
LISTS = (list[str], Optional[list[str]])
LITERALS = f"args.{STYLE}={Style.equals}"  # by which true is no flag, but a value


def kept(words: list[str], workload: Workload) -> list[str]:
    """The words, where those values are quoted that Hydra would change: of keys that are texts, and
    of the keys of any name, which have no type.
    """
    types = workloads.known_keys(workload)
    has_literals = LITERALS in words
    return [_kept(word, types, workload, has_literals) for word in words]


def _kept(word: str, types: dict[str, set[Any]], workload: Workload, has_literals: bool) -> str:
    key, sign, _ = word.lstrip("+").partition("=")
    own = types.get(key, set())
    is_free = key.partition(".")[0] in workload.free
    is_text = bool(own) and all(one in TEXTS for one in own)
    if not sign or not (is_free or is_text):
        return word
    is_list = any(one in LISTS for one in own)
    tokens = [
        token for token in _alone(word) if _is_changed(token, is_text or has_literals, is_list)
    ]
    for token in sorted(tokens, key=lambda one: -one.start):
        word = f"{word[: token.start]}'{token.text}'{word[token.stop + 1 :]}"
    return word


def _is_changed(token: Any, is_text: bool, is_list: bool) -> bool:
    """True for a value that would not be written again as it is typed."""
    if token.type == OverrideLexer.INT:
        return str(int(token.text)) != token.text
    if token.type == OverrideLexer.FLOAT:
        return str(float(token.text)) != token.text
    if token.type == OverrideLexer.BOOL:  # `true` makes a flag of an argument
        return is_text or (token.in_list and token.text != token.text.lower())
    return token.type == OverrideLexer.NULL and (is_list or token.in_list)


def _alone(word: str) -> Iterator[Any]:
    """The parts of a word that are a whole value each, as tokens with their places;
    none where Hydra cannot read it.
    """
    try:
        lexer = OverrideLexer(InputStream(word))
        parser = OverrideParser(CommonTokenStream(lexer))
        for each in (lexer, parser):
            each.removeErrorListeners()
            each.addErrorListener(HydraErrorListener())
        tree = parser.override()
    except HydraException:
        return
    yield from _primitives(tree, in_list=False)


def _primitives(tree: Any, in_list: bool) -> Iterator[Any]:
    if isinstance(tree, OverrideParser.FunctionContext) and not tree.getText().startswith(
        "choice("
    ):
        return  # its arguments are numbers, as those of range()
    if isinstance(tree, OverrideParser.PrimitiveContext):
        children: list[Any] = [*tree.getChildren()]
        tokens = [child.symbol for child in children if child.symbol.type != OverrideLexer.WS]
        if len(tokens) == 1:
            tokens[0].in_list = in_list
            yield tokens[0]
        return
    if isinstance(tree, ParserRuleContext):
        inside = in_list or isinstance(tree, OverrideParser.ListContainerContext)
        for child in tree.getChildren():
            yield from _primitives(child, inside)
