import lmosd

for name, value in lmosd.watch("forecast", event="storm"):
    print(name, value)
    break
