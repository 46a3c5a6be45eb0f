"""A process tree that changes: workers come and go, and all of their memory goes into one chain of digests.

Each line of `chain` follows from those before it. So it is the same for everybody who gets as far, moved or not. argv:
steps after which it ends; 0: when there is a file `end`.
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

SIZE, PATCH = 3 << 20, 5000


def patch(memory, word):
    at = int.from_bytes(word, "big") % (SIZE - PATCH)
    memory[at : at + PATCH] = hashlib.shake_128(word).digest(PATCH)


def work(orders, answers, memory, name):
    while word := os.read(orders, 8):
        patch(memory, hashlib.sha256(word + name).digest()[:8])
        os.write(answers, hashlib.sha256(memory).digest())
    os._exit(0)


def fork(workers, memory, name):
    orders, to = os.pipe()
    back, answers = os.pipe()
    pid = os.fork()
    if not pid:
        for descriptor in (to, back, *(end for _, *ends in workers for end in ends)):
            os.close(descriptor)
        work(orders, answers, memory, name)
    os.close(orders)
    os.close(answers)
    workers.append((pid, to, back))


def end(worker):
    pid, to, back = worker
    os.close(to)
    os.close(back)
    os.waitpid(pid, 0)


def main():
    chance, limit, chain, step, workers = random.Random(7), int(sys.argv[1]), b"", 0, []
    memory = bytearray(chance.randbytes(SIZE))
    with open("chain", "w", buffering=1) as out:
        while step < limit or not (limit or Path("end").exists()):
            turn, word = chance.random(), chance.randbytes(8)
            if len(workers) < 2 or (turn < 0.1 and len(workers) < 6):
                fork(workers, memory, word)
            elif turn < 0.2:
                end(workers.pop(chance.randrange(len(workers))))
            if turn > 0.7:
                patch(memory, word)
            for _, to, _ in workers:
                os.write(to, word)
            for _, _, back in workers:
                chain = hashlib.sha256(chain + os.read(back, 32)).digest()
            step += 1
            out.write(f"{chain.hex()}\n")
            if not limit:
                time.sleep(0.01)
    for worker in workers:
        end(worker)


main()
