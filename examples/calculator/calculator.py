"""A calculator: four actions whose schemas come from the type hints."""
import lmosd

agent = lmosd.Agent("calculator", "Calculates with two numbers.", capabilities=["urn:example:math:arithmetic"])


@agent.action(safe=True)
def add(a: float, b: float) -> float:
    "The sum of two numbers."
    return a + b


@agent.action(safe=True)
def subtract(a: float, b: float) -> float:
    "The difference of two numbers."
    return a - b


@agent.action(safe=True)
def multiply(a: float, b: float) -> float:
    "The product of two numbers."
    return a * b


@agent.action(safe=True)
def divide(a: float, b: float) -> float:
    "The quotient of two numbers."
    if b == 0:
        raise lmosd.Error("the divisor is 0", hint="divide by another number")
    return a / b


agent.run()
