"""What the guest programs and the host agree on: places, the journal's lines, the state's size."""

import os
import zlib

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


def build_state() -> bytearray:
    """The worker's state: bytes that depend on the seed alone."""
    import random  # Here, because `ask.py` is to start quickly and has no use for it.

    source = random.Random(STATE_SEED)
    block = 1 << 20
    # In place: a second copy would stay behind as changed memory and be captured, too.
    state = bytearray(STATE_MIB * block)
    for start in range(0, len(state), block):
        state[start : start + block] = source.randbytes(block)
    return state
