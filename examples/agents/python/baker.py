import dataclasses
import lmosd

agent = lmosd.Agent("baker")

@dataclasses.dataclass
class Wish:
    topping: str
    large: bool = False

@agent.action(requires_input=True)
def bake(call: lmosd.Context) -> str:
    wish = call.ask("What shall be on it?", Wish)
    if wish is None:  # no answer
        return "plain bread"
    return ("large " if wish.large else "") + "bread with " + wish.topping

agent.run()
