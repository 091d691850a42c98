"""Runs code for the guest agent, one request at a time, in one lasting namespace.

Request on descriptor 0:  length (u32, little endian), flags (u8), length of variables (u32), variables
as NAME=VALUE with a zero byte between them, source text. Flags: 1, parts are wanted; 2, the machine
is another since the last request, a copy of the one that it was; 4, displays are wanted.
Answer on the same socket: parts (if wanted), then one of R repr, N nothing, E error; each with its
kind, length (u32) and content. Content of a part P: whether the next one goes on with it (u8), which
display it belongs to (u32; 0, the value), whether that ends with it (u8), length of its media type
(u8), the type, bytes. Content of an error: the exception's name, what it says and the traceback, with
a zero byte between them. Its arguments are two more sources, of what is needed rarely.
"""


def _forkd_driver():
    import _thread
    import ast
    import linecache
    import os
    import signal
    import struct
    import sys
    import traceback
    import types
    import warnings

    text_bytes_max = 100 * 1024
    part_bytes_max = 60 * 1024
    parts_bytes_max = 4 * 1024 * 1024 - 64 * 1024
    forms = (
        ("text/html", "_repr_html_"),
        ("text/markdown", "_repr_markdown_"),
        ("text/latex", "_repr_latex_"),
        ("image/svg+xml", "_repr_svg_"),
        ("image/png", "_repr_png_"),
        ("image/jpeg", "_repr_jpeg_"),
        ("application/json", "_repr_json_"),
    )
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    owner = os.getpid()
    notebook, charts = sys.argv[1:3]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [""]
    here = sys._getframe().f_code.co_filename
    running = False
    shown = None
    loop = None
    # Not of `threading`, whose import an interpreter that starts would wait for.
    sending = _thread.RLock()
    main_thread = _thread.get_ident()
    # The main thread is within an answer, and was interrupted there.
    answering = interrupted = False
    # Figures are shown as pictures, and there is no window to open.
    os.environ.setdefault("MPLBACKEND", "agg")
    warnings.filterwarnings("ignore", "Matplotlib is currently using agg")

    def interrupt(_signal, _frame):
        nonlocal interrupted
        # Half of an answer would end the interpreter.
        interrupted = answering
        if running and not answering:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)

    def renew_random():
        # What others who were copied from the same machine have too. Only of what is loaded: the
        # rest seeds itself when it is.
        renewals = (
            ("random", lambda module: module.seed()),
            ("numpy.random", lambda module: module.seed()),
            ("ssl", lambda module: module.RAND_add(os.urandom(64), 64.0)),
        )
        for name, renew in renewals:
            module = sys.modules.get(name)
            if module is None or (name != "ssl" and os.environ.get("FORKD_KEEP_SEEDS")):
                continue
            try:
                renew(module)
            except Exception as error:
                sys.stderr.write("forkd: %s still has its source's random state: %r\n"
                                 % (name, error))

    def read_exactly(count):
        data = b""
        while len(data) < count:
            piece = os.read(channel, count - len(data))
            if not piece:
                os._exit(0)
            data += piece
        return data

    def encode(text):
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > text_bytes_max:
            data = data[:text_bytes_max].decode("utf-8", "ignore").encode() + b"..."
        return data

    def answer(kind, data):
        data = kind + struct.pack("<I", len(data)) + data
        while data:
            data = data[os.write(channel, data):]

    def answer_parts(parts, display):
        for left, (mime, data) in zip(range(len(parts) - 1, -1, -1), parts):
            mime = mime.encode()
            while data is not None:
                piece, rest = data[:part_bytes_max], data[part_bytes_max:]
                last = not left and not rest
                head = struct.pack("<BIBB", bool(rest), display, last, len(mime))
                answer(b"P", head + mime + piece)
                data = rest or None

    def ask(value, name):
        # On the type, as Python does it: an object that answers to every name has no such form.
        method = getattr(type(value), name, None)
        if not callable(method):
            return None
        try:
            form = method(value)
        except Exception:
            return None
        # Some give what they have to say about it too.
        return form[0] if isinstance(form, tuple) and form else form

    def part_of(mime, form):
        if not isinstance(mime, str) or not 0 < len(mime) <= 100:
            return None
        if not all("!" <= letter <= "~" for letter in mime):
            return None
        is_text = mime.startswith("text/") or mime.endswith(("json", "xml", "javascript"))
        try:
            if isinstance(form, (bytes, bytearray, memoryview)):
                return bytes(form)
            if isinstance(form, str):
                if is_text:
                    return form.encode()
                # By custom a text that stands for bytes is base64. Imported when needed: an
                # interpreter shall start fast.
                import base64
                return base64.b64decode(form)
            if not mime.endswith("json"):
                return None
            import json
            return json.dumps(form).encode()
        except Exception:
            return None

    def made_by(source, name, *arguments):
        # Compiled when needed: an interpreter shall start fast. As a part of this file, whose
        # frames no traceback shows.
        found = {}
        exec(compile(source, here, "exec"), found)
        return found[name](*arguments)

    def is_a(value, module, name):
        # Without an import: what was never imported has no values.
        kind = getattr(sys.modules.get(module), name, None)
        return isinstance(kind, type) and isinstance(value, kind)

    def is_figure(value):
        return is_a(value, "matplotlib.figure", "Figure")

    def data_of(value):
        nonlocal charts
        name = "chart" if is_figure(value) else "table"
        if name == "table" and not is_a(value, "pandas", "DataFrame"):
            return "", None
        try:
            if isinstance(charts, str):
                charts = made_by(charts, "_forkd_charts")
            return "application/vnd.forkd.%s+json" % name, charts[name](value)
        except Exception:
            return "", None

    def parts_of(value, plain):
        found = {"text/plain": plain}
        bundle = ask(value, "_repr_mimebundle_")
        named = list(bundle.items()) if isinstance(bundle, dict) else []
        for mime, name in forms:
            if not isinstance(bundle, dict) or mime not in bundle:
                named.append((mime, ask(value, name)))
        named += [("image/png", picture_of(value)), data_of(value)]
        room = parts_bytes_max - len(plain)
        for mime, form in named[:32]:
            data = None if form is None else part_of(mime, form)
            # What is too large is left out; a part of it would be of no use.
            if data is None or mime in found or len(data) > room:
                continue
            found[mime] = data
            room -= len(data)
        return list(found.items())

    def show(parts):
        nonlocal answering, shown
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        is_main = _thread.get_ident() == main_thread
        # All parts at once, or those of several threads would be mixed up.
        with sending:
            if shown is None or os.getpid() != owner:
                # Of a thread that has outlived its code, or of a copy of this process.
                return
            shown += 1
            try:
                answering = is_main
                answer_parts(parts, shown)
            finally:
                answering = False
        if is_main and interrupted:
            raise KeyboardInterrupt

    def display(*values, **_wishes):
        """Shows values in all forms that they have, wherever in the code it is called."""
        for value in values:
            if shown is None or os.getpid() != owner:
                print(repr(value))
            else:
                show(parts_of(value, encode(repr(value))))

    import builtins
    builtins.display = display

    def picture_of(value):
        if not is_figure(value):
            return None
        import io
        picture = io.BytesIO()
        value.savefig(picture, format="png", bbox_inches="tight")
        return picture.getvalue()

    def show_figures(*_arguments, **_wishes):
        pyplot = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums() if pyplot else ():
            figure = pyplot.figure(number)
            try:
                show(parts_of(figure, encode(repr(figure))))
            finally:
                pyplot.close(figure)

    def show_without_window(module):
        show_plainly = module.show
        module.show = lambda *arguments, **wishes: (
            show_plainly if shown is None else show_figures)(*arguments, **wishes)

    def keep_boxes(module):
        draw = module.Axes.bxp

        def and_keep(axes, boxes, *arguments, **wishes):
            axes._forkd_boxes = [*getattr(axes, "_forkd_boxes", ()), *boxes]
            return draw(axes, boxes, *arguments, **wishes)

        module.Axes.bxp = and_keep

    def display_here(module):
        module.display = display

    class Adapts:
        """Fits modules to this place when they are imported."""

        changes = {
            # It has no window to open.
            "matplotlib.pyplot": show_without_window,
            # What a box plot is drawn from is lost otherwise.
            "matplotlib.axes._axes": keep_boxes,
            "IPython.core.display_functions": display_here,
        }

        def find_spec(self, name, path, target=None):
            change = self.changes.pop(name, None)
            if change is None:
                return None
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
            spec = next(filter(None, found), None)
            if spec is not None:
                execute_module = spec.loader.exec_module

                def and_change(module):
                    execute_module(module)
                    change(module)

                spec.loader.exec_module = and_change
            return spec

    sys.meta_path.insert(0, Adapts())

    def finish(coroutine):
        nonlocal loop
        # Imported when needed: an interpreter shall start fast.
        import asyncio
        if loop is None or loop.is_closed():
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except BaseException:
            # Interrupted: what it waits for shall end too.
            if not task.done():
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    def execute(tree, name, mode):
        code = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        made = eval(code, main.__dict__)
        return finish(made) if code.co_flags & 0x80 else made

    def parse(source, name):
        nonlocal notebook
        try:
            return ast.parse(source, name)
        except SyntaxError:
            import re
            import textwrap
            try:
                return ast.parse(textwrap.dedent(source), name)
            except SyntaxError:
                pass
            if not re.search(r"^\s*[!%?]|=\s*[!%]|\?\s*$", source, re.MULTILINE):
                raise
            if isinstance(notebook, str):
                notebook = made_by(notebook, "_forkd_notebook", main)
            changed = notebook(source)
            if changed.strip() == source.strip():
                raise
            return ast.parse(changed, name)

    def run(source, name):
        tree = parse(source, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        execute(tree, name, "exec")
        return None if last is None else execute(last, name, "eval")

    def describe(error):
        # The driver's own frames say nothing to the user.
        where = error.__traceback__
        while where is not None and where.tb_frame.f_code.co_filename == here:
            where = where.tb_next
        lines = traceback.format_exception(type(error), error, where)
        try:
            value = str(error)
        except Exception:
            value = ""
        said = (type(error).__name__[:200], value[:4096], "".join(lines).rstrip("\n"))
        return b"\0".join(encode(text.replace("\0", " ")) for text in said)

    count = 0
    while True:
        length, flags, variables = struct.unpack("<IBI", read_exactly(9))
        variables = os.fsdecode(read_exactly(variables))
        source = read_exactly(length).decode("utf-8", "replace")
        parts_wanted = flags & 1
        shown = 0 if flags & 4 else None
        interrupted = False
        variables = [variable.partition("=") for variable in variables.split("\0") if variable]
        before = [(key, value, os.environ.get(key)) for key, _, value in variables]
        for key, value, _ in before:
            os.environ[key] = value
        if flags & 2:
            renew_random()
        count += 1
        name = "<eval-%d>" % count
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        linecache.cache.pop("<eval-%d>" % (count - 100), None)
        parts = []
        try:
            try:
                running = True
                value = run(source, name)
                kind, text = (b"N", b"") if value is None else (b"R", encode(repr(value)))
                if parts_wanted and value is not None:
                    parts = parts_of(value, text)
            finally:
                if shown is not None:
                    show_figures()
                running = False
        except BaseException as error:
            running = False
            try:
                kind, text = b"E", describe(error)
            except BaseException:
                kind, text = b"E", b"Exception\0\0an exception that cannot be described"
        if os.getpid() != owner:
            # A fork in the code came back here: only the original answers.
            os._exit(0)
        value = None
        for key, value, earlier in before:
            # What the code has set to something else is meant to stay.
            if os.environ.get(key) == value:
                os.environ.pop(key)
                if earlier is not None:
                    os.environ[key] = earlier
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass
        with sending:
            shown = None
            answer_parts(parts, 0)
            answer(kind, text)
        parts = None


_forkd_driver()
