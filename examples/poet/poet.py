"""An agent that uses a language model: any endpoint with the OpenAI API. MODEL_URL and MODEL_NAME select it, MODEL_KEY is its key."""
import json
import os
import urllib.request

import lmosd

URL = os.environ.get("MODEL_URL", "http://127.0.0.1:11434/v1")
agent = lmosd.Agent("poet", "Writes poems.", capabilities=["urn:example:poetry"])


@agent.action
def write(topic: str, lines: int = 2) -> str:
    "Writes a poem about a topic."
    body = {"model": os.environ.get("MODEL_NAME", "llama3.2"), "messages": [
        {"role": "system", "content": "You write short poems."},
        {"role": "user", "content": "A poem of %d lines about %s." % (lines, topic)}]}
    request = urllib.request.Request(URL + "/chat/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("MODEL_KEY", "none")})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except OSError as err:
        raise lmosd.Error("the model at %s does not answer: %s" % (URL, err), hint="set MODEL_URL")


agent.run()
