"""Python programs run this as they start, because the guest agent names this folder in PYTHONPATH.

It has the modules with generators of random numbers adapted when they are imported, so that they
are seeded anew in a branched machine. Until then it costs next to nothing. Then it does what would
have happened without it: the folder leaves `sys.path`, and the image's own `sitecustomize` runs.

Python 2 must be able to read it, too: an image may have one. There it does nothing.
"""

import sys


class _Watches(object):
    """Has modules adapted as soon as they are loaded, by those who know how."""

    names = ("random", "ssl", "numpy.random")

    def __init__(self, folder):
        self.folder = folder
        self.adapt = None
        self.looking = set()

    def find_spec(self, name, path=None, target=None):
        # Others may look for modules as we do, and would ask us again.
        if name not in self.names or name in self.looking:
            return None
        self.looking.add(name)
        try:
            found = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
            found = (find(name, path, target) for find in found if find is not None)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self.looking.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loads(spec.loader, self)
        return spec

    def load(self, module, execute=None):
        # Before the module seeds itself: a renewal from then on is not missed.
        problem = self.prepare()
        if execute is not None:
            execute(module)
        try:
            if problem is None:
                self.adapt(module)
        except Exception as error:
            problem = error
        if problem is not None:
            import warnings
            warnings.warn("forkd: in a branch, %s goes on with its source's random numbers: %r"
                          % (module.__name__, problem), RuntimeWarning)

    def prepare(self):
        if self.adapt is None:
            try:
                from _frozen_importlib_external import SourceFileLoader
                found = {"__name__": "_forkd_renewal"}
                loader = SourceFileLoader("_forkd_renewal", self.folder + "/_forkd_renewal.py")
                exec(loader.get_code("_forkd_renewal"), found)
                self.adapt = found["prepare"](self.folder + "/../renewals")
            except Exception as error:
                return error
        return None


class _Loads(object):
    """Loads as another does, and has the module adapted then. Nothing of it stays in the module."""

    def __init__(self, loader, watches):
        self.loader = loader
        self.watches = watches

    def __getattr__(self, name):
        # For those who only look at modules.
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.watches.load(module, self.loader.exec_module)


def _start():
    folder = __file__.rpartition("/")[0]
    watches = _Watches(folder)
    sys.meta_path.insert(0, watches)
    for name in watches.names:
        # By something that ran even earlier.
        if name in sys.modules:
            watches.load(sys.modules[name])
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    import _frozen_importlib
    from _frozen_importlib_external import PathFinder
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = _frozen_importlib.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if sys.version_info >= (3, 7):
    _start()
