"""Streaming output: lines are there when they are written, of two programs at once, and of code."""

import asyncio
import time

from e2b_code_interpreter import AsyncSandbox

TICK = "for number in 1 2 3; do echo {name} $number; sleep 0.5; done"
CODE = "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.5)"


async def main():
    """Follows a command that does not end, two at once, and code."""
    async with await AsyncSandbox.create() as sandbox:
        came = asyncio.Event()
        endless = asyncio.create_task(
            sandbox.commands.run(
                "echo ready; exec sleep 600", timeout=0, on_stdout=lambda _: came.set()
            )
        )
        await came.wait()
        print("a line came before its command has ended:", not endless.done())
        endless.cancel()

        lines = []
        follow = [
            sandbox.commands.run(TICK.format(name=name), on_stdout=lines.append)
            for name in ("left", "right")
        ]
        await asyncio.gather(*follow)
        names = [line.split()[0] for line in lines]
        print("".join(sorted(lines)), end="")
        print("both at once:", names.index("right") < 3 and names.index("left") < 3)

        times = []
        execution = await sandbox.run_code(CODE, on_stdout=lambda _: times.append(time.time()))
        print("of code:", "".join(execution.logs.stdout).split())
        print("piece by piece:", times[-1] - times[0] > 0.5)


asyncio.run(main())
