"""A terminal session: a shell with Python in it, typed into, interrupted, resized and left."""

import threading
import time

from e2b import PtySize, Sandbox


class Screen:
    """What the terminal has shown so far."""

    def __init__(self):
        self.text = ""

    def show(self, data):
        self.text += data.decode(errors="replace")

    def shows(self, words, patience=60):
        until = time.monotonic() + patience
        while words not in self.text:
            if time.monotonic() > until:
                raise TimeoutError(f"{words!r} is not in {self.text!r}")
            time.sleep(0.05)
        return words


with Sandbox.create() as sandbox:
    screen = Screen()
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    reader = threading.Thread(target=terminal.wait, args=(screen.show,))
    reader.start()

    def type_in(keys):
        sandbox.pty.send_stdin(terminal.pid, keys.encode())

    type_in("python3 -q\n")
    screen.shows(">>> ")
    type_in("6 * 7\n")
    print("computed:", screen.shows("42"))
    # What is typed shows before it runs; what it prints does not. Python loses no Ctrl-C, but a
    # sleep that is about to begin does not see it: so there are many short ones.
    type_in("import time; print('it', 'sleeps'); [time.sleep(0.1) for _ in range(6000)]\n")
    screen.shows("it sleeps")
    type_in("\x03")
    print("interrupted:", screen.shows("KeyboardInterrupt"))
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=132))
    type_in("import os; os.get_terminal_size()\n")
    print("resized:", screen.shows("columns=132, lines=40"))
    type_in("exit()\n")
    type_in("exit\n")
    reader.join()
    print("left")
