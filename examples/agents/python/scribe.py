import lmosd

agent = lmosd.Agent("scribe")

@agent.action
def hear(speech: lmosd.Chunks) -> str:
    size = 0
    for chunk in speech:  # bytes, while they come
        size += len(chunk)
    return f"{size} bytes of {speech.content_type}"

agent.run()
