"""Starts the ranks and passes orders on: one line in, one line of JSON out. Runs in the training root file system."""

import json
import os
import subprocess
import sys


def main():
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    ranks = []
    for rank in range(plan["ranks"]):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(plan["ranks"]))
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(plan["port"]))
        if plan["agent"]:
            env["SINGULARITY_RANK_DIR"] = f"/bench/run/rank-{rank}"
        command = [sys.executable, "/bench/steps.py", str(plan["width"])]
        if plan["cores"]:
            command = ["taskset", "-c", str(plan["cores"][rank]), *command]
        ranks.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for line in sys.stdin:
        alone = line.startswith(("hook", "collective"))
        asked = ranks[:1] if alone else ranks
        for process in asked:
            process.stdin.write(line)
            process.stdin.flush()
        answers = [answer(process) for process in asked]
        if line.startswith("go"):
            answers = [{"seconds": max(a["seconds"] for a in answers), "cpu": sum(a["cpu"] for a in answers)}]
        print(json.dumps(answers[0]), flush=True)


def answer(process):
    """What a rank says: older versions of gloo print lines of their own."""
    line = next((line for line in process.stdout if line.startswith("{")), None)
    assert line, "a rank has ended"
    return json.loads(line)


main()
