"""Fork of ten: one prepared state, ten attempts at once, and the best of them is kept."""

import concurrent.futures

from e2b_code_interpreter import Sandbox

PREPARE = """
import random
points = [(x, 3 * x + 7) for x in range(20)]
def miss(slope):
    return sum(abs(y - slope * x - 7) for x, y in points)
"""


def attempt(fork, slope):
    execution = fork.run_code(f"tried = {slope}\nmiss(tried)")
    return int(execution.text)


with Sandbox.create() as sandbox:
    sandbox.run_code(PREPARE)
    forks = sandbox.fork(count=10, timeout=300)
    print("forks:", len({fork.sandbox_id for fork in forks}))
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        misses = list(pool.map(attempt, forks, range(10)))
        best = min(range(10), key=misses.__getitem__)
        print("misses:", misses)
        print("the best keeps what it tried:", forks[best].run_code("tried").text)
        print("the source has tried nothing:", sandbox.run_code("tried").error.name)
        print("ended:", sum(pool.map(lambda fork: fork.kill(), forks)))
