from lmosd import Agent

agent = Agent("forecast", capabilities=["urn:example:forecast"])
units = agent.state("units", "celsius")
storm = agent.event("storm", str)

@agent.action(safe=True)
def today(city: str) -> str:
    "Reports the weather."
    return "sunny in " + city

@agent.action
def week(days: int = 7):
    "Tells one day after the other."
    for day in range(1, days + 1):
        yield f"day {day}: sunny\n"

@agent.action
def warn(of: str) -> None:
    "Warns all who watch."
    storm.emit(of)

agent.run()
