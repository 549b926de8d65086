"""A task that takes long, asks its caller, and can be cancelled."""
import dataclasses

import lmosd

agent = lmosd.Agent("booking", "Books tables.", capabilities=["urn:example:booking"])


@dataclasses.dataclass
class Guest:
    name: str
    persons: int = 2


@agent.action(synchronous=False, requires_input=True)
def reserve(day: str, call: lmosd.Context) -> str:
    "Reserves a table. It asks for the guest, and continues without its caller."
    guest = call.ask("Who comes?", Guest)
    if guest is None:
        return "no table was booked"
    if call.wait(0.1):  # the restaurant is called; true: the task was cancelled
        return "cancelled"
    return "a table for %d on %s, for %s" % (guest.persons, day, guest.name)


agent.run()
