"""The product, through its command line and nothing else.

Every call is one `forkd ... --json` process. `--json` is left out where the command is shown.
"""

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console import Console

# For one command: the slowest boots a guest under emulation on a busy machine.
COMMAND_TIMEOUT_SECS = 1200
EXEC_TIMEOUT_SECS = 600


class CommandFailed(Exception):
    """A command of `forkd` did not do what it was asked for; the text says which and why."""


@dataclass(frozen=True)
class ExecResult:
    """What a program in a sandbox wrote, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int


class Forkd:
    """Runs commands; can be used from several threads."""

    def __init__(self, program: str, environment: Mapping[str, str], console: Console) -> None:
        self._program = program
        self._environment = dict(environment)
        self._console = console
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def run(self, *arguments: str, show: bool = True, partly: bool = False) -> Any:
        """The parsed answer of a command that must succeed, or, with `partly`, that may do less."""
        if show:
            self._console.command(arguments)
        code, stdout, stderr = self._process([arguments[0], "--json", *arguments[1:]], None)
        if code != 0 and not (partly and stdout.strip()):
            raise CommandFailed(f"forkd {' '.join(arguments)} ended with {code}\n{stderr.strip()}")
        return self._parsed(arguments, stdout, stderr)

    def exec(
        self,
        sandbox: str,
        *arguments: str,
        cwd: str | None = None,
        stdin: str | None = None,
        show: bool = True,
    ) -> ExecResult:
        """Runs a program in `sandbox`, whatever its exit code; out of time is a failure."""
        command = exec_command(sandbox, *arguments, cwd=cwd, stdin=stdin is not None)
        if show:
            self._console.command(command)
        options = ["--json", "--timeout-secs", str(EXEC_TIMEOUT_SECS)]
        _, stdout, stderr = self._process([command[0], *options, *command[1:]], stdin)
        answer = self._parsed(command, stdout, stderr)
        if answer["timed_out"]:
            raise CommandFailed(f"{' '.join(arguments)} did not end within {EXEC_TIMEOUT_SECS} s")
        return ExecResult(answer["stdout"], answer["stderr"], answer["exit_code"])

    def output(self, sandbox: str, *arguments: str, **options: Any) -> str:
        """What a program in `sandbox` wrote that must succeed."""
        result = self.exec(sandbox, *arguments, **options)
        if result.exit_code != 0:
            text = f"{' '.join(arguments)} in {sandbox} ended with {result.exit_code}"
            raise CommandFailed(f"{text}\n{(result.stdout + result.stderr).strip()}")
        return result.stdout

    def end_all(self) -> None:
        """Ends the commands that other threads wait for."""
        with self._lock:
            for process in self._running:
                process.terminate()

    def _process(self, command: Sequence[str], stdin: str | None) -> tuple[int, str, str]:
        with subprocess.Popen(
            [self._program, *command],
            env=self._environment,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            with self._lock:
                self._running.add(process)
            try:
                stdout, stderr = process.communicate(stdin, timeout=COMMAND_TIMEOUT_SECS)
            except subprocess.TimeoutExpired as error:
                process.kill()
                text = f"forkd {' '.join(command)} did not end within {COMMAND_TIMEOUT_SECS} s"
                raise CommandFailed(text) from error
            except BaseException:
                process.kill()
                raise
            finally:
                with self._lock:
                    self._running.discard(process)
        return process.returncode, stdout, stderr

    @staticmethod
    def _parsed(command: Sequence[str], stdout: str, stderr: str) -> Any:
        try:
            return json.loads(stdout)
        except ValueError as error:
            said = (stderr or stdout).strip()
            raise CommandFailed(f"forkd {' '.join(command)} gave no answer\n{said}") from error


def exec_command(
    sandbox: str, *arguments: str, cwd: str | None = None, stdin: bool = False
) -> list[str]:
    """The arguments of `forkd` that run a program in `sandbox`."""
    options = ["--cwd", cwd] if cwd else []
    options += ["--stdin"] if stdin else []
    return ["exec", sandbox, *options, "--", *arguments]
