import lmosd

def speech():
    yield b"one, "
    yield b"two"

print(lmosd.call("scribe", "hear", speech(), content_type="audio/wav"))
