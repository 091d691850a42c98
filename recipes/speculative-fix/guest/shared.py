"""What the guest programs and the host agree on: places, the journal's lines, the state's size."""

import os
import random
import zlib
from collections.abc import Iterator

HOME = os.environ.get("DEMO_HOME", "/srv")
RUN = os.environ.get("DEMO_RUN", "/run/demo")
JOURNAL = f"{HOME}/journal.log"
PROGRAM = f"{HOME}/program"

STATE_MIB = 50
STATE_SEED = 20_240_229

JOURNAL_LINES = 6_000
# Lines forced to the disk, and lines after them that stay in the writing process.
JOURNAL_LINES_ON_DISK = 3_000
JOURNAL_LINES_BUFFERED = 500


def socket_path(name: str) -> str:
    """The control socket of the guest program `name`."""
    return f"{RUN}/{name}.sock"


def journal_line(index: int) -> bytes:
    """Line `index` of the journal; a missing, repeated or torn line changes the file's hash."""
    return b"entry %06d checksum %08x\n" % (index, zlib.crc32(b"%d" % index))


def state_blocks() -> Iterator[bytes]:
    """The worker's state in blocks of 1 MiB: bytes that depend on the seed alone."""
    source = random.Random(STATE_SEED)
    for _ in range(STATE_MIB):
        yield source.randbytes(1 << 20)
