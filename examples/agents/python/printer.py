import lmosd

agent = lmosd.Agent("printer", "Prints slowly.", version="1.0.0")

@agent.property
def ink() -> int:
    "Per cent."
    return 40

@agent.action(synchronous=False)  # it takes long, and goes on without its caller
def copy(text: str, times: int, call: lmosd.Context) -> int:
    for done in range(times):
        if call.wait(0.1):  # it is cancelled
            return done
    return times

@agent.action
async def staple(pages: int) -> None:
    if pages > 40:
        raise lmosd.Error(f"{pages} pages are too thick", hint="staple 40 pages at most")

agent.run()
