"""A program for E2B under a domain, over TLS. Prints `done` when all of it held."""

from e2b_code_interpreter import Sandbox

with Sandbox.create(timeout=600) as sandbox:
    assert sandbox.commands.run("echo hello").stdout == "hello\n"
    sandbox.files.write("/tmp/note", "text")
    assert sandbox.files.read("/tmp/note") == "text"
    assert sandbox.run_code("6 * 7").text == "42"
    seen = []
    sandbox.commands.run("echo one; echo two", on_stdout=seen.append)
    assert "".join(seen) == "one\ntwo\n", seen
print("done")
