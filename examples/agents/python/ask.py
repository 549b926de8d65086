import lmosd

print(lmosd.call("forecast", "today", city="Bonn"))
for part in lmosd.stream("forecast", "week", days=2):
    print(part, end="")
print(lmosd.read("forecast", "units"))
try:
    lmosd.call("forecast", "today", town="Bonn")
except lmosd.Error as e:
    print(e.code, e.title)
