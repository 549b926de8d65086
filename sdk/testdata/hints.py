"""Prints the input and output schemas of actions, and the arguments of functions for an input."""

import dataclasses
import json
import os
import sys
import typing

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
sys.dont_write_bytecode = True
import lmosd  # noqa: E402

agent = lmosd.Agent("types", capabilities=["urn:x", {"id": "urn:y", "name": "Y", "version": "2"}], id="urn:x:types", tool=True)


@dataclasses.dataclass
class Leaf:
    n: int
    tags: typing.List[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    leaves: typing.List[Leaf]
    left: typing.Optional["Tree"] = None


@agent.action
def nothing():
    pass


@agent.action
def plain(s: str, i: int, f: float, b: bool, anything, words: typing.Annotated[str, "in words"] = "x") -> typing.Dict[str, int]:
    """Says
    more."""


@agent.action(name="lists", idempotent=True, title="Lists")
def many(a: list, b: typing.List[int], c: typing.Tuple[str, ...], d: typing.Tuple[int, str], e: typing.Set[bool],
         g: typing.Sequence[float]) -> None:
    pass


@agent.action(safe=True)
def unions(a: typing.Optional[int], b: typing.Union[int, float], c: typing.Union[str, typing.Any], d: typing.Literal["x", 1],
           e: typing.Union[str, typing.List[int], None]):
    pass


@agent.action
def whole(input: Leaf) -> typing.List[Leaf]:
    return [input]


@agent.action
def context(call: lmosd.Context, n: int = 1, *rest, **more) -> str:
    pass


@agent.action
def built(tree: Tree, some: typing.List[Leaf], maybe: typing.Optional[Leaf] = None, words: typing.Annotated[Leaf, "x"] = None):
    pass


input = {"tree": {"leaves": [{"n": 1, "unknown": 2}], "left": {"leaves": []}}, "some": [{"n": 2, "tags": ["x"]}],
         "maybe": {"n": 3}, "words": {"n": 4}, "unknown": 1}
arguments = lmosd.arguments(built, input, None)
errors = {}
for name, do in {
    "missing": lambda: lmosd.arguments(built, {"tree": {}}, None),
    "no object": lambda: lmosd.arguments(built, [1], None),
    "set": lambda: lmosd.encode({1, 2}) and lmosd.encode(object()),
    "nan": lambda: lmosd.encode(float("nan")),
    "surrogate": lambda: lmosd.encode("\ud800"),
    "too long": lambda: lmosd.encode("x" * (4 << 20)),
    "twice": lambda: agent.action(nothing),
}.items():
    try:
        do()
    except lmosd.Error as e:
        errors[name] = e.code
print(json.dumps({"about": agent.about, "built": repr(arguments), "errors": errors,
                  "encoded": lmosd.encode([Leaf(1, ["é"]), (1, 2)]).decode()}))
