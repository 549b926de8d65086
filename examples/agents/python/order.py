import lmosd

task = lmosd.start("baker", "bake")
try:
    print(task.wait(timeout=60))
except lmosd.Error as e:
    if e.code != "LMOS-1428":
        raise
    print([i["message"] for i in task.inputs.values()])  # it requires input
    task.answer(topping="salt")
    print(task.wait())
