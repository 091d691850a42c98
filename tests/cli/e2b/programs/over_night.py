"""Paused over night: work goes on in the morning where it was, and the clock is right.

The night is made: the clock of the sandbox is put back by eight hours, as one finds it that has
stood still for so long; and the sandbox is woken when its time to live is long over.
"""

import time

from e2b import Sandbox, SandboxQuery, SandboxState

LIVES_SECS = 10
NIGHT_SECS = 12
CLOCK_OFF_SECS_MAX = 60

WORK = 'python3 -c "number = 41; input(); print(number + 1)"'


def clock_is_off_by(sandbox):
    """Seconds, by the clock of this machine."""
    return abs(time.time() - float(sandbox.commands.run("date +%s.%N").stdout))


sandbox = Sandbox.create(timeout=300)
sandbox.commands.run(WORK, background=True, stdin=True, timeout=0)
sandbox.commands.run(f"date -s @{int(time.time()) - 8 * 3600}")
print("in the evening the clock is behind:", clock_is_off_by(sandbox) > 7 * 3600)
sandbox.set_timeout(LIVES_SECS)
sandbox.pause()
time.sleep(NIGHT_SECS)

asleep = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
print("asleep:", sandbox.sandbox_id in [one.sandbox_id for one in asleep])
sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=300)
print("in the morning it is right:", clock_is_off_by(sandbox) < CLOCK_OFF_SECS_MAX)
[work] = sandbox.commands.list()
handle = sandbox.commands.connect(work.pid)
sandbox.commands.send_stdin(work.pid, "\n")
print("the work goes on:", handle.wait().stdout.strip())
sandbox.kill()
