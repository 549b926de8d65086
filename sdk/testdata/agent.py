"""The lamp of the tests, in Python. It unregisters and ends with its standard input."""

import asyncio
import dataclasses
import os
import sys
import time
import typing

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
sys.dont_write_bytecode = True
import lmosd  # noqa: E402

agent = lmosd.Agent(sys.argv[1], "A lamp.", ["urn:example:lamp"], version="1.2.3", ping=float(os.environ.get("LAMP_PING", 20)))
units = agent.state("units", "celsius")
level = agent.state("level", 0, minimum=0, maximum=100)
hung = agent.state("hung", 0, readOnly=True)
alarm = agent.event("alarm", str)


@dataclasses.dataclass
class Point:
    lat: float
    lon: float = 0


@dataclasses.dataclass
class Place:
    name: str
    at: typing.Optional[Point] = None
    near: typing.List[Point] = dataclasses.field(default_factory=list)


@agent.action(safe=True)
def add(a: int, b: int = 1) -> int:
    "Adds."
    return a + b


@agent.action
async def echo(input: str) -> str:
    await asyncio.sleep(0)
    return input


@agent.action
def count(to: int):
    for i in range(to):
        yield "%d " % (i + 1)


@agent.action
async def numbers(to: int) -> typing.AsyncIterator[int]:
    for i in range(to):
        await asyncio.sleep(0)
        yield i + 1


@agent.action
def move(place: typing.Annotated[Place, "where to"], by: typing.Union[int, float, None] = None) -> Place:
    at = place.at or Point(0)
    return Place(place.name, Point(at.lat + (by or 1), at.lon), [Point(p.lat) for p in place.near])


@agent.action
def ring(text: str) -> None:
    alarm.emit(text)


@agent.action
def fail():
    raise ValueError("out of order")


@agent.action
def refuse():
    raise lmosd.Error("no bulb", "LMOS-1529", "screw one in")


@agent.action
def unwritable():
    return float("nan")


@agent.action
def leave():
    sys.exit("no exit")


@agent.action
def huge(size: int) -> str:
    return "x" * size


@agent.action
def hang(call: lmosd.Context):
    call.wait(60)
    hung.value += 1


@dataclasses.dataclass
class Room:
    name: str
    dim: bool = False


@agent.action(requires_input=True)
def place(call: lmosd.Context) -> str:
    room = call.ask("Which room?", Room)
    return "nowhere" if room is None else "%s%s" % (room.name, ", dimly" * room.dim)


@agent.action
def drip(call: lmosd.Context):
    try:
        while True:
            yield "drop"
            call.wait(0.001)
    finally:
        hung.value += 1


@agent.action
async def sleep():
    try:
        await asyncio.sleep(60)
    finally:
        hung.value += 1


@agent.action
def hear(sound: lmosd.Chunks) -> str:
    return "%d of %s" % (sum(len(chunk) for chunk in sound), sound.content_type)


@agent.action
async def parrot(sound: lmosd.Chunks):
    async for chunk in sound:
        yield chunk


@agent.action
def sip(sound: lmosd.Chunks, call: lmosd.Context) -> str:
    first = next(sound)
    sound.close()
    return first[:9].decode()


@agent.action
def nap(sound: lmosd.Chunks, call: lmosd.Context):
    try:
        next(sound)
        call.wait(60)
    finally:
        hung.value += 1


@agent.property
def peak() -> int:
    "KiB of memory, where the system tells."
    if not os.path.exists("/proc/self/status"):
        return 0
    with open("/proc/self/status", encoding="ascii") as f:
        return int(f.read().split("VmHWM:")[1].split()[0])


@agent.action(synchronous=False)
def slow(text: str) -> str:
    return text


@agent.action
def crash():
    os._exit(1)


@agent.property
def version() -> str:
    return "1.2.3"


notes = []


visits = [""]


def who(caller):
    return caller.id + (" for " + caller.lent_by if caller.lent_by else "")


def visit(call: lmosd.Context, value):
    visits[0] = "%s by %s%s" % (value, who(call.caller), "" if call.deadline > time.time() else ", who has no time")


@agent.property(write=visit)
async def visitor(call: lmosd.Context) -> str:
    return "%s, read by %s" % (visits[0], who(call.caller))


@agent.property(write=notes.append)
def note() -> typing.Any:
    return notes[-1] if notes else None


agent.start()
print("ready", agent.id, flush=True)
sys.stdin.read()
agent.stop()
