"""Checked by a strict type checker, and not run: a program that uses the annotations of the library."""

import dataclasses
import typing

import lmosd

agent = lmosd.Agent("lamp", capabilities=["urn:x", {"id": "urn:y", "version": "2"}])
units = agent.state("units", "celsius")
storm = agent.event("storm", str)
anything = agent.event("anything")


@dataclasses.dataclass
class Wish:
    topping: str
    large: bool = False


@agent.action(safe=True)
def today(city: str) -> str:
    return "%s in %s" % (units.value.upper(), city)


@agent.action
def bake(call: lmosd.Context) -> str:
    wish = call.ask("What?", Wish)
    roles: typing.Tuple[str, ...] = call.caller.roles if call.caller else ()
    return wish.topping if wish and roles else ""


@agent.action
async def hear(speech: lmosd.Chunks) -> str:
    return "%d %s" % (sum([len(chunk) async for chunk in speech]), speech.content_type)


@agent.property
def ink() -> int:
    return 40


def client() -> None:
    task: lmosd.Task = lmosd.start("lamp", "bake")
    try:
        task.wait(5)
    except lmosd.NotRunning as e:
        print(e.hint)
    except lmosd.Error as e:
        if e.code == "LMOS-1428":
            task.answer(topping="salt")
    for name, value in lmosd.watch("lamp", event="storm"):
        print(name.upper(), value)
    print([found["name"] for found in lmosd.find_all("lamp")], today("Bonn").upper(), ink() + 1)
    storm.emit("hail")
    storm.emit(1)  # type: ignore[arg-type]
    anything.emit(1)
    units.value = 1  # type: ignore[assignment]
    today(1)  # type: ignore[arg-type]


agent.run()
