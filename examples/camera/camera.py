"""A camera: an action that streams pictures, a property and an event. The pictures are drawn (PGM), because a test has no lens."""
import time

import lmosd

WIDTH, HEIGHT = 32, 24
agent = lmosd.Agent("camera", "Streams pictures.", capabilities=["urn:example:camera"])
zoom = agent.state("zoom", 1)
motion = agent.event("motion", int)


def picture(number: int) -> bytes:
    "A grey picture with a bright column that moves."
    row = bytearray([40] * WIDTH)
    row[number % WIDTH] = 255
    return b"P5 %d %d 255\n" % (WIDTH, HEIGHT) + bytes(row) * HEIGHT


@agent.action
def record(pictures: int = 3):
    "Streams pictures, each as soon as it is taken."
    for number in range(pictures):
        motion.emit(number)
        yield picture(number)
        time.sleep(0.01)


agent.run()
