"""Real libraries of data analysis through E2B's code interpreter. Prints `done` when all held."""

import base64

from e2b_code_interpreter import Sandbox

FIGURE = """
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.bar(["north", "south"], [20, 40])
axes.set_title("Units")
axes.set_xlabel("region")
plt.show()
"""

TABLE = """
import pandas
table = pandas.DataFrame({"region": ["north", "south"], "units": [20, 40]})
table
"""

PICTURE = """
from PIL import Image
Image.new("RGB", (7, 5), "red")
"""


def size_of(png):
    """Width and height of a PNG in base64."""
    content = base64.b64decode(png)
    assert content.startswith(b"\x89PNG\r\n"), content[:8]
    return tuple(int.from_bytes(content[at : at + 4], "big") for at in (16, 20))


def figures_and_charts(sandbox):
    """A figure is a picture and a chart."""
    execution = sandbox.run_code(FIGURE)
    assert execution.error is None, execution.error
    [shown] = execution.results
    width, height = size_of(shown.png)
    assert width > 300 and height > 200, (width, height)
    chart = shown.chart
    assert (chart.type.value, chart.title, chart.x_label) == ("bar", "Units", "region"), chart
    bars = [(bar.label, bar.value) for bar in chart.elements]
    assert [(label, float(value)) for label, value in bars] == [("north", 20), ("south", 40)], bars


def tables_and_pictures(sandbox):
    """A table is text, a page and data; a picture is one."""
    shown = sandbox.run_code(TABLE).results[0]
    assert "south" in shown.text and "<table" in shown.html, shown
    assert shown.data == {"region": ["north", "south"], "units": [20, 40]}, shown.data
    assert size_of(sandbox.run_code(PICTURE).results[0].png) == (7, 5)


def a_notebooks_words(sandbox):
    """Commands of the shell and magic, as whom and where they run."""
    said = sandbox.run_code("!whoami; pwd").logs.stdout
    assert "".join(said).split() == ["user", "/home/user"], said
    assert sandbox.run_code("%pwd").text == "/home/user"
    result = sandbox.commands.run("id -un; pwd; echo $HOME; sudo -n id -un")
    assert result.stdout.split() == ["user", "/home/user", "/home/user", "root"], result
    assert sandbox.commands.run("id -un; pwd", user="root").stdout.split() == ["root", "/root"]
    sandbox.files.write("note", "x")
    info = sandbox.files.get_info("note")
    assert (info.path, info.owner) == ("/home/user/note", "user"), info


def main():
    """All of it, in one sandbox and in a fork of it."""
    with Sandbox.create(timeout=900) as sandbox:
        for part in (figures_and_charts, tables_and_pictures, a_notebooks_words):
            part(sandbox)
        [fork] = sandbox.fork(timeout=300)
        assert fork.run_code("int(table.units.sum())").text == "60"
        fork.kill()
    print("done")


main()
