"""What a notebook's code has that Python has not: `!command`, `%magic` and `object?`, by IPython.

The driver runs this file when code is not Python as it stands, so that nobody waits for IPython
who has no use for it. What IPython makes of the code runs in the driver's namespace like any other
code; IPython itself runs none.
"""


def _forkd_notebook(main):
    import builtins

    display = builtins.display
    try:
        from IPython.core.inputtransformer2 import TransformerManager
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        raise ModuleNotFoundError(
            "`!command`, `%magic` and `object?` need IPython, which this sandbox does not have: "
            "`pip install ipython`, or use the image code-interpreter"
        ) from None
    from traitlets.config import Config

    class Shell(InteractiveShell):
        """Knows magics and runs commands. It has no terminal and no window."""

        def enable_gui(self, gui=None):
            """There is none."""

        def enable_matplotlib(self, gui=None):
            """The driver shows figures, whatever backend is asked for."""
            return gui, "agg"

    config = Config()
    # Others may not write where the user's is, and nobody looks at it.
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    shell = Shell.instance(user_module=main, config=config)
    # It has put its own there.
    builtins.display = display
    for name in ("display", "exit", "quit"):
        main.__dict__.pop(name, None)
    transformer = TransformerManager()

    def transform(source):
        """The same code as Python."""
        return transformer.transform_cell(source)

    return transform
