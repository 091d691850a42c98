"""Branches a PostgreSQL server at work, and treats each copy badly: see README.md.

Needs the Python SDK and a daemon. Ends with 0 only if every copy was consistent and the server did
not notice; the last line of standard output is `FORKD_POSTGRESQL_FIXTURE` and the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkd_sdk import Client, ForkdError, Sandbox

HERE = Path(__file__).resolve().parent
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

ACCOUNTS = 5000
MONEY = ACCOUNTS * 1000
SECS_MAX = 300.0

# Not with `su`, whose session would end with the command, and the server with it.
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
PSQL = [*AS_POSTGRES, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "bank"]
CLUSTER = "v=$(ls /usr/lib/postgresql); pg_ctlcluster $v main "

START = CLUSTER + "start -- -w"
CRASH = CLUSTER + "stop -m immediate; " + START
COPY = "createdb copy && pg_dump bank | psql -q --no-psqlrc -o /dev/null copy"

# What each child does to its copy, and what is then true of it.
DEEDS: dict[str, tuple[str, str]] = {
    "migrates the schema": (
        "ALTER TABLE accounts ADD COLUMN owner text; UPDATE accounts SET owner = 'o' || id;",
        "SELECT count(owner) = count(*) FROM accounts",
    ),
    "loses the ledger": (
        "TRUNCATE transfers;",
        "SELECT transfers < 10000 AND unexplained > 0 FROM audit",
    ),
    "drops everything": (
        "DROP TABLE accounts, transfers CASCADE;",
        "SELECT to_regclass('accounts') IS NULL",
    ),
}


@dataclass(frozen=True)
class Audit:
    """What the server says about its books."""

    transfers: int
    money: int
    unexplained: int

    @property
    def is_consistent(self) -> bool:
        return self.money == MONEY and self.unexplained == 0


@dataclass(frozen=True)
class Outcome:
    """What came out of one child."""

    sandbox: str
    deed: str
    committed: int
    found: Audit
    recovered: Audit
    done: bool

    @property
    def is_well(self) -> bool:
        """Consistent as it was found and after a crash, and nothing was ever taken back."""
        both = self.found.is_consistent and self.recovered.is_consistent
        grows = self.committed <= self.found.transfers <= self.recovered.transfers
        return both and grows and self.done


def shell(sandbox: Sandbox, script: str) -> None:
    sandbox.commands.run(script, timeout=SECS_MAX, check=True)


def query(sandbox: Sandbox, sql: str) -> str:
    return sandbox.commands.run([*PSQL, "-c", sql], timeout=SECS_MAX, check=True).stdout.strip()


def audit(sandbox: Sandbox) -> Audit:
    transfers, money, unexplained = query(sandbox, "TABLE audit").split("|")
    return Audit(int(transfers), int(money), int(unexplained))


def prepare(sandbox: Sandbox) -> None:
    """Starts the server, makes the bank, and has it trade."""
    shell(sandbox, "echo 'jit = off' >> $(ls -d /etc/postgresql/*/main/conf.d)/bank.conf")
    shell(sandbox, START)
    sandbox.commands.run([*AS_POSTGRES, "createdb", "bank"], timeout=SECS_MAX, check=True)
    sandbox.files.write("/srv/schema.sql", (HERE / "schema.sql").read_bytes())
    sandbox.commands.run([*PSQL, "-f", "/srv/schema.sql"], timeout=SECS_MAX, check=True)
    sandbox.commands.start([*PSQL, "-c", "CALL trade()"], timeout=None)


def treat(sandbox: Sandbox, deed: str, committed: int) -> Outcome:
    """Looks at a copy, crashes its server, looks again, and does the deed.

    `committed` transfers were there before the branch.
    """
    action, check = DEEDS[deed]
    found = audit(sandbox)
    shell(sandbox, CRASH)
    recovered = audit(sandbox)
    query(sandbox, action)
    done = query(sandbox, check) == "t"
    return Outcome(sandbox.id, deed, committed, found, recovered, done)


def compare(sandbox: Sandbox) -> float:
    """Seconds that a copy takes which the server makes of itself."""
    begun = time.monotonic()
    sandbox.commands.run([*AS_POSTGRES, "sh", "-c", COPY], timeout=SECS_MAX, check=True)
    secs = time.monotonic() - begun
    print(f"one copy by pg_dump: {secs:.1f} s, without its sessions")
    return secs


def branched(sandbox: Sandbox) -> tuple[float, list[Outcome]]:
    """Makes a copy for each deed, and does them: seconds until the copies run, and what came."""
    committed = int(query(sandbox, "SELECT count(*) FROM transfers"))
    begun = time.monotonic()
    with sandbox.branch(len(DEEDS)) as branch, ThreadPoolExecutor(len(DEEDS)) as pool:
        secs = time.monotonic() - begun
        pause = branch.snapshot.info.pause_ms
        print(f"{len(DEEDS)} copies by branch: {secs:.2f} s, pause {pause:.1f} ms")
        children = branch.unwrap()
        outcomes = list(pool.map(treat, children, DEEDS, [committed] * len(children)))
    for outcome in outcomes:
        word = "consistent" if outcome.is_well else "NOT CONSISTENT"
        print(
            f"  {outcome.sandbox}: {outcome.found.transfers} transfers, {word},"
            f" {outcome.recovered.transfers} after a crash; {outcome.deed}"
        )
    return secs, outcomes


def story(sandbox: Sandbox, rounds: int, *, with_dump: bool) -> dict[str, Any]:
    """Prepares, branches and treats, as often as asked for."""
    begun = time.monotonic()
    prepare(sandbox)
    print(f"prepared once in {time.monotonic() - begun:.1f} s: a server that trades")
    figures: dict[str, Any] = {"dump_secs": compare(sandbox)} if with_dump else {}
    results = [branched(sandbox) for _ in range(rounds)]
    outcomes = [outcome for _, some in results for outcome in some]
    before = audit(sandbox)
    time.sleep(1)
    after = audit(sandbox)
    goes_on = before.is_consistent and after.is_consistent and after.transfers > before.transfers
    print(f"the server trades on: {after.transfers} transfers, {'well' if goes_on else 'NOT WELL'}")
    return figures | {
        "copies": len(outcomes),
        "consistent": sum(outcome.is_well for outcome in outcomes),
        "source_goes_on": goes_on,
        "branch_secs": [round(secs, 2) for secs, _ in results],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Branch a PostgreSQL server at work.")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--with-dump", action="store_true", help="copy by pg_dump as well")
    options = parser.parse_args()
    try:
        with Client() as client, Sandbox.create("postgresql", client=client) as sandbox:
            figures = story(sandbox, max(1, options.rounds), with_dump=options.with_dump)
    except ForkdError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print("FORKD_POSTGRESQL_FIXTURE " + json.dumps(figures))
    well = figures["consistent"] == figures["copies"] and figures["source_goes_on"]
    return 0 if well else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
