"""Seeds the generators of a Python program anew before it draws in a machine that is a copy.

The guest agent counts the machine's renewals in a file of eight bytes, in memory, before any
program runs on in a branched machine. The file is mapped here, so to look at the count costs no
system call. Whatever draws looks at it after it has drawn, and if it has changed, seeds and draws
again. So no number that a caller gets comes from a state that others have as well, in whichever
thread. What sets a state looks before, so that a state which is set after the branch stays.

Does not reach generators that a program makes for itself, and not what draws from OpenSSL without
the module `ssl`.
"""


def prepare(path):
    """What adapts each module that has a generator, with the count of renewals in a file."""
    import _thread
    import mmap
    import os
    import sys

    # Otherwise a descriptor stays open that the program has not opened.
    options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        page = mmap.mmap(descriptor, 8, mmap.MAP_SHARED, mmap.PROT_READ, **options)
    finally:
        os.close(descriptor)
    renewals = memoryview(page).cast("Q")
    seen = renewals[0]
    seeds = {}
    # By its thread once more if the handler of a signal draws meanwhile, which seeds as well.
    seeding = _thread.RLock()
    depth = 0

    def renew():
        nonlocal depth, seen
        with seeding:
            now = renewals[0]
            if now == seen:
                # Another thread was first.
                return
            depth += 1
            try:
                # If seeding itself draws, as somebody's own `RAND_add` may, it ends here.
                for name, seed in list(seeds.items()) if depth < 3 else ():
                    try:
                        seed()
                    except Exception as error:
                        sys.stderr.write("forkd: %s still has its source's random state: %r\n"
                                         % (name, error))
                # Last: until then the other threads wait.
                seen = now
            finally:
                depth -= 1

    def forked():
        nonlocal depth, seeding
        # It may be held by a thread that this process does not have.
        depth, seeding = 0, _thread.RLock()

    os.register_at_fork(after_in_child=forked)

    def named(function, like, module):
        # As that which it stands for: for those who look, and for pickle.
        function.__name__ = function.__qualname__ = like.__name__
        function.__module__ = module
        function.__doc__ = like.__doc__
        function.__wrapped__ = like
        return function

    # They compare with what was seen before they drew: another thread may have seeded since.
    def drawn(draw, module):
        def function(*arguments, **options):
            state = seen
            value = draw(*arguments, **options)
            while renewals[0] != state:
                renew()
                state = seen
                value = draw(*arguments, **options)
            return value
        return named(function, draw, module)

    def drawn_with_nothing(draw, module):
        # The same, faster.
        def function():
            state = seen
            value = draw()
            while renewals[0] != state:
                renew()
                state = seen
                value = draw()
            return value
        return named(function, draw, module)

    def drawn_with_one(draw, module):
        # The same, faster.
        def function(k):
            state = seen
            value = draw(k)
            while renewals[0] != state:
                renew()
                state = seen
                value = draw(k)
            return value
        return named(function, draw, module)

    def looks_before(action, module):
        def function(*arguments, **options):
            if renewals[0] != seen:
                renew()
            return action(*arguments, **options)
        return named(function, action, module)

    def adapt_random(module):
        # All functions of the module are methods of it, and draw by the first two.
        generator = module._inst
        changes = {
            "random": drawn_with_nothing,
            "getrandbits": drawn_with_one,
            # It may have kept a number from the time before.
            "gauss": drawn,
            "getstate": looks_before,
            "setstate": looks_before,
            "seed": looks_before,
        }
        seed = generator.seed
        for name, change in changes.items():
            changed = change(getattr(generator, name), "random")
            setattr(generator, name, changed)
            if hasattr(module, name):
                setattr(module, name, changed)
        seeds["random"] = seed

    def adapt_numpy(module):
        mtrand = sys.modules["numpy.random.mtrand"]
        first = mtrand._rand

        class RandomState(mtrand.RandomState):
            """numpy's, with room for attributes."""

        # Of the same generator, whose state stays. Other libraries draw from it by its name.
        generator = RandomState(first._bit_generator)
        seeds["numpy.random"] = generator.seed
        for name in dir(mtrand.RandomState):
            if name.startswith("_") or not callable(getattr(generator, name)):
                continue
            change = looks_before if name in ("seed", "set_state", "get_state") else drawn
            setattr(generator, name, change(getattr(generator, name), "numpy.random.mtrand"))
        for space in (mtrand, module):
            for name, value in list(vars(space).items()):
                if getattr(value, "__self__", None) is first:
                    setattr(space, name, getattr(generator, name))
        mtrand._rand = generator

    def adapt_ssl(module):
        # It seeds the generator that those of all threads are seeded from, and they notice.
        seeds["ssl"] = lambda: module.RAND_add(os.urandom(64), 64.0)
        for name in ("RAND_bytes", "RAND_pseudo_bytes"):
            if hasattr(module, name):
                setattr(module, name, drawn(getattr(module, name), "ssl"))
        # What may make a key, and must not be done twice.
        for kind, names in (
            (module.SSLContext, ("__new__",)),
            (module.SSLObject, ("do_handshake", "read", "write", "verify_client_post_handshake")),
            (module.SSLSocket, ("do_handshake", "read", "write", "send",
                                "verify_client_post_handshake")),
        ):
            for name in names:
                action = getattr(kind, name, None)
                if action is None:
                    continue
                changed = looks_before(action, "ssl")
                changed.__qualname__ = "%s.%s" % (kind.__name__, name)
                setattr(kind, name, staticmethod(changed) if name == "__new__" else changed)

    adapts = {"ssl": adapt_ssl}
    # A program that wants its own sequences to go on in each copy.
    if not os.environ.get("FORKD_KEEP_SEEDS"):
        adapts.update({"random": adapt_random, "numpy.random": adapt_numpy})
    return lambda module: adapts.get(module.__name__, lambda module: None)(module)
