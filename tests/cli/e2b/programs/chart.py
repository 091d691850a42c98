"""Data analysis: a table is uploaded, summed up in the sandbox, and comes back as a chart.

The drawing needs nothing but Python: with matplotlib in the template it would be `plt.bar(...)`.
"""

import base64

from e2b_code_interpreter import Sandbox

SALES = "region,units\nnorth,12\nsouth,30\nwest,18\nsouth,10\nnorth,8\n"

SUM_UP = """
import collections, csv
units = collections.Counter()
for row in csv.DictReader(open("/tmp/sales.csv")):
    units[row["region"]] += int(row["units"])
dict(units)
"""

DRAW = """
import struct, zlib

class Bars:
    def __init__(self, values, width=120, bar=20):
        self.rows = [[0 if x < width * value // max(values) else 255 for x in range(width)]
                     for value in values for _ in range(bar)]

    def _repr_png_(self):
        def chunk(kind, data):
            body = kind + data
            return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
        pixels = b"".join(b"\\0" + bytes(row) for row in self.rows)
        head = struct.pack(">IIBBBBB", len(self.rows[0]), len(self.rows), 8, 0, 0, 0, 0)
        parts = [(b"IHDR", head), (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
        return b"\\x89PNG\\r\\n\\x1a\\n" + b"".join(chunk(*part) for part in parts)

Bars(list(units.values()))
"""

with Sandbox.create() as sandbox:
    sandbox.files.write("/tmp/sales.csv", SALES)
    print(sandbox.run_code(SUM_UP).text)
    chart = base64.b64decode(sandbox.run_code(DRAW).results[0].png)
    width, height = (int.from_bytes(chart[at : at + 4], "big") for at in (16, 20))
    print(f"a chart of {width} x {height}, {chart[1:4].decode()}")
    wrong = sandbox.run_code("units['east'] / 0").error
    print(f"a mistake: {wrong.name}")
