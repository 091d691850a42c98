"""The data behind figures and tables, in the form that clients of E2B's code interpreter read.

The driver runs this file when a figure of matplotlib or a table of pandas is shown first. A chart
has the kind, the titles, the units, and the data of each axes of a figure; several make up a
`superchart`. A figure that has none of the known kinds is `unknown`, without data.
"""


def _forkd_charts():
    import json

    # Of a larger one the picture says enough.
    points_max = 20_000
    cells_max = 200_000

    def plain(value):
        """A number or a text, as JSON has them."""
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, (bool, str)) or value is None:
            return value
        if isinstance(value, (int, float)):
            return value if value - value == 0 else None
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    def unit(label):
        """What stands in brackets at the end: `Time (s)` is in seconds."""
        for opened, closed in ("()", "[]"):
            if label.endswith(closed) and opened in label:
                return label[label.rindex(opened) + 1 : -1] or None
        return None

    def kept(items):
        return items[:: max(1, -(-len(items) // points_max))]

    def axis_of(axis, name):
        """Where the marks of an axis are and what they say."""
        converter = type(getattr(axis, "converter", None)).__name__
        scale = axis.get_scale()
        if "Category" in converter:
            scale = "categorical"
        elif "Date" in converter or "Date" in type(axis.get_major_formatter()).__name__:
            scale = "datetime"
        low, high = sorted(axis.get_view_interval())
        marks = [mark for mark in zip(axis.get_ticklocs(), axis.get_ticklabels())
                 if low <= mark[0] <= high]
        return {
            name + "_ticks": [plain(at) for at, _ in marks],
            name + "_tick_labels": [label.get_text() for _, label in marks],
            name + "_scale": scale,
        }

    def points_of(xs, ys):
        # What is not a number has no place in a chart.
        pairs = [[plain(x), plain(y)] for x, y in kept(list(zip(xs, ys)))]
        return [pair for pair in pairs if None not in pair]

    def named(artist, count):
        label = str(artist.get_label())
        return "Series %d" % count if label.startswith("_") else label

    def lines_of(axes):
        return [{"label": named(line, count), "points": points_of(*line.get_data(orig=True))}
                for count, line in enumerate(axes.get_lines(), 1)]

    def is_drawn(line):
        return line.get_linestyle() not in ("None", "", " ")

    def clouds_of(axes):
        from matplotlib.collections import PathCollection
        clouds = [cloud for cloud in axes.collections if isinstance(cloud, PathCollection)]
        return [{"label": named(cloud, count), "points": points_of(*zip(*cloud.get_offsets()))}
                for count, cloud in enumerate(clouds, 1) if len(cloud.get_offsets())]

    def bars_of(axes):
        from matplotlib.container import BarContainer
        bars = []
        groups = [group for group in axes.containers if isinstance(group, BarContainer)]
        for count, group in enumerate(groups, 1):
            lies = getattr(group, "orientation", "vertical") == "horizontal"
            axis = axes.yaxis if lies else axes.xaxis
            words = {round(at, 6): label.get_text()
                     for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels())}
            for bar in kept(list(group.patches)):
                start, wide = bar.get_x(), bar.get_width()
                length = bar.get_height()
                if lies:
                    start, wide, length = bar.get_y(), length, wide
                at = round(start + wide / 2, 6)
                label = words.get(at) or str(plain(at))
                bars.append({"label": label, "group": named(group, count), "value": plain(length)})
        return bars

    def slices_of(axes):
        from matplotlib.patches import Wedge
        wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
        return [{"label": str(wedge.get_label()), "angle": plain(wedge.theta2 - wedge.theta1),
                 "radius": plain(wedge.r)} for wedge in wedges]

    def boxes_of(axes):
        # The driver keeps what a box plot is drawn from: nothing on the axes tells it.
        return [{
            "label": str(box.get("label", count)),
            "min": plain(box["whislo"]),
            "first_quartile": plain(box["q1"]),
            "median": plain(box["med"]),
            "third_quartile": plain(box["q3"]),
            "max": plain(box["whishi"]),
            "outliers": [plain(point) for point in kept(list(box.get("fliers", ())))],
        } for count, box in enumerate(getattr(axes, "_forkd_boxes", ()), 1)]

    def chart_of(axes):
        chart = {"type": "unknown", "title": axes.get_title(), "elements": []}
        slices = slices_of(axes)
        if slices:
            return dict(chart, type="pie", elements=slices)
        for name, label in (("x", axes.get_xlabel()), ("y", axes.get_ylabel())):
            chart[name + "_label"], chart[name + "_unit"] = label or None, unit(label)
        boxes = boxes_of(axes)
        if boxes:
            return dict(chart, type="box_and_whisker", elements=boxes)
        bars = bars_of(axes)
        if bars:
            return dict(chart, type="bar", elements=bars)
        lines, clouds = lines_of(axes), clouds_of(axes)
        if not lines and not clouds:
            return chart
        chart.update(axis_of(axes.xaxis, "x"), **axis_of(axes.yaxis, "y"))
        if any(is_drawn(line) for line in axes.get_lines()):
            return dict(chart, type="line", elements=lines)
        return dict(chart, type="scatter", elements=clouds + lines)

    def figure(value):
        """The chart of a figure, as JSON."""
        charts = [chart_of(axes) for axes in value.get_axes()]
        # Of a colour bar and its like nothing is known.
        known = [chart for chart in charts if chart["type"] != "unknown"] or charts[:1]
        if not known:
            return None
        title = value._suptitle.get_text() if getattr(value, "_suptitle", None) else ""
        chart = {"type": "superchart", "title": title, "elements": known}
        return json.dumps(known[0] if len(known) == 1 else chart).encode()

    def table(value):
        """Columns of a table and their values, as JSON."""
        if value.size > cells_max:
            return None
        split = json.loads(value.to_json(orient="split", date_format="iso"))
        columns = zip(*split["data"]) if split["data"] else [()] * len(split["columns"])
        named = zip(split["columns"], columns)
        return json.dumps({str(name): list(column) for name, column in named}).encode()

    return {"chart": figure, "table": table}
