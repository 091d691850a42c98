# %% a table that knows how to show itself
class Table:
    def __init__(self, rows):
        self.rows = rows

    def _repr_html_(self):
        rows = "".join(f"<tr><td>{name}<td>{value}" for name, value in self.rows)
        return f"<table>{rows}</table>"

    def __repr__(self):
        return f"Table of {len(self.rows)} rows"


sales = Table([("north", 12), ("south", 30), ("west", 18)])
sales


# %% a chart
class Bars:
    def __init__(self, table):
        self.rows = table.rows

    def _repr_svg_(self):
        bars = "".join(
            f'<rect y="{20 * at}" width="{5 * value}" height="16"/>'
            for at, (_, value) in enumerate(self.rows)
        )
        return f'<svg xmlns="http://www.w3.org/2000/svg" height="60">{bars}</svg>'


Bars(sales)

# %% this cell does half of its work and fails
from pathlib import Path

Path("/srv/total").write_text("half")
sales.rows.clear()
sum(value for _, value in sales.rows) / len(sales.rows)

# %% nothing of it has happened
from pathlib import Path

assert not Path("/srv/total").exists()
sum(value for _, value in sales.rows)
