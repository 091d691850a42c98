"""What Python programs draw after a renewal of their machine.

Method: real programs, started as the guest agent starts them, with the folder that it makes. They
count the renewals themselves, as the agent does. That children differ, in OpenSSL's generator too,
is shown by the system test `random_numbers_differ_in_children`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src/python"
SECS_MAX = 120

BEGIN = """
import os, struct, sys
def renewed(count=[0]):
    count[0] += 1
    place = os.open(os.environ["COUNT"], os.O_WRONLY)
    os.pwrite(place, struct.pack("=Q", count[0]), 0)
    os.close(place)
"""


class Guest:
    """What is in the memory of a guest, on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "python"
        self.count = root / "renewals"
        shutil.copytree(SOURCES, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.count.write_bytes(bytes(8))

    def start(
        self, program: str, options: tuple[str, ...] = (), path: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end."""
        script = self.root / "program.py"
        script.write_text(BEGIN + program)
        environment = {
            **os.environ,
            "COUNT": str(self.count),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), path])),
            **variables,
        }
        command = [sys.executable, *options, str(script)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECS_MAX, check=False
        )

    def run(self, program: str, path: str = "", **variables: str) -> None:
        """Runs a program that says nothing and ends well."""
        ended = self.start(program, (), path, **variables)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


RANDOM = """
import random
how = {
    "betavariate": (1, 2), "binomialvariate": (10**6, 0.5), "choice": (range(10**9),),
    "choices": (range(10**9),), "expovariate": (1.0,), "gammavariate": (1, 2), "gauss": (0, 1),
    "getrandbits": (64,), "lognormvariate": (0, 1), "normalvariate": (0, 1), "paretovariate": (1,),
    "randbytes": (16,), "randint": (0, 10**9), "random": (), "randrange": (10**9,),
    "sample": (range(10**9), 3), "triangular": (0, 1), "uniform": (0, 1), "vonmisesvariate": (0, 1),
    "weibullvariate": (1, 2),
}
others = {"Random", "SystemRandom", "seed", "getstate", "setstate", "shuffle"}
drawing = set(random.__all__) - others
"""


def test_every_function_of_random_draws_anew_after_a_renewal_and_only_then(guest: Guest) -> None:
    guest.run(
        RANDOM
        + """
for name in sorted(drawing):
    draw, arguments = getattr(random, name), how[name]
    def seeded():
        random.seed(7)
        # It keeps a number for the next call, which must be forgotten.
        if name == "gauss": draw(*arguments)
    seeded()
    first, second = draw(*arguments), draw(*arguments)
    seeded()
    assert draw(*arguments) == first, name
    seeded()
    renewed()
    assert draw(*arguments) != first, name
    seeded()
    assert [draw(*arguments), draw(*arguments)] == [first, second], name
cards = list(range(100))
random.seed(7)
renewed()
random.shuffle(cards)
random.seed(7)
others = list(range(100))
random.shuffle(others)
assert cards != others and sorted(cards) == sorted(others)
"""
    )


def test_a_state_that_is_set_or_saved_after_a_renewal_is_not_of_before(guest: Guest) -> None:
    guest.run("""
import random
random.seed(7)
saved = random.getstate()
first = random.random()
for again in (lambda: random.seed(7), lambda: random.setstate(saved)):
    renewed()
    again()
    assert random.random() == first
random.seed(7)
renewed()
assert random.getstate() != saved
# Those of the program's own are as it made them.
mine = random.Random(7)
renewed()
assert mine.random() == first
""")


def test_the_global_generator_of_numpy_draws_anew_by_whichever_name(guest: Guest) -> None:
    guest.run("""
import pickle
import numpy as np
from numpy.random import mtrand, normal
draws = {
    "rand": np.random.rand, "ranf": np.random.ranf, "normal": normal,
    "_rand": lambda: mtrand._rand.uniform(), "RandomState": lambda: mtrand._rand.randn(),
    "permutation": lambda: np.random.permutation(1000).tolist(),
}
for name, draw in draws.items():
    np.random.seed(7)
    first = draw()
    np.random.seed(7)
    assert draw() == first, name
    np.random.seed(7)
    renewed()
    assert draw() != first, name
    np.random.seed(7)
    assert draw() == first, name
np.random.seed(7)
state = np.random.get_state()
renewed()
np.random.set_state(state)
assert normal() == np.random.RandomState(7).normal()
assert isinstance(mtrand._rand, np.random.RandomState)
copy = pickle.loads(pickle.dumps(mtrand._rand))
assert copy.normal() == normal()
assert pickle.loads(pickle.dumps(np.random.rand)) is np.random.rand
""")


def test_numpys_functions_are_all_adapted(guest: Guest) -> None:
    guest.run("""
import numpy as np
kept = [name for name, value in vars(np.random).items()
        if isinstance(getattr(value, "__self__", None), np.random.RandomState)]
assert kept == [], kept
""")


def test_no_thread_draws_from_the_state_of_before(guest: Guest) -> None:
    guest.run("""
import random, sys, threading
sys.setswitchinterval(1e-6)
for turn in range(20):
    random.seed(turn)
    state = random.getstate()
    of_before = {random.random() for _ in range(1000)}
    random.setstate(state)
    start, drawn = threading.Barrier(9), []
    def draw():
        start.wait()
        drawn.extend(random.random() for _ in range(50))
    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads: thread.start()
    renewed()
    start.wait()
    for thread in threads: thread.join()
    assert len(drawn) == 400 and not of_before.intersection(drawn), turn
""")


def test_a_renewal_amid_a_draw_has_it_drawn_again(guest: Guest) -> None:
    guest.run("""
import random
generator = random._inst
draw = generator.random
said = []
def interrupted():
    if not said:
        said.append(draw())
        renewed()
        return said[0]
    return draw()
generator.random = interrupted
random.seed(7)
assert said == [] and random.gauss(0, 1) is not None
generator.random = draw
of_branch = random.Random(7)
assert said == [of_branch.random()]
random.seed(7)
said.clear()
value = random.gauss(0, 1)
generator.random = interrupted
random.seed(7)
assert random.gauss(0, 1) != value and said
""")


def test_openssl_is_seeded_before_whatever_draws_from_it(guest: Guest) -> None:
    guest.run("""
import ssl
kept, added = [], []
add = ssl.RAND_add
ssl.RAND_add = lambda data, entropy: (added.append(data), add(data, entropy))
context = ssl.create_default_context()
def handshake():
    connection = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    return connection.do_handshake
def over_a_socket(act):
    import socket
    ours, theirs = socket.socketpair()
    kept.append(theirs)
    ours.setblocking(False)
    wrapped = context.wrap_socket(ours, server_hostname="localhost", do_handshake_on_connect=False)
    return lambda: act(wrapped)
draws = [
    lambda: ssl.RAND_bytes(8), lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), handshake(),
    over_a_socket(lambda wrapped: wrapped.do_handshake()),
    over_a_socket(lambda wrapped: wrapped.send(b"x")),
    over_a_socket(lambda wrapped: wrapped.recv(1)),
]
for number, draw in enumerate(draws):
    renewed()
    for _ in "once", "and no more":
        try: draw()
        except ssl.SSLWantReadError: pass
        assert len(added) == number + 1, number
assert len(set(added)) == len(draws) and {len(data) for data in added} == {64}
assert len(ssl.RAND_bytes(5)) == 5
""")


def test_a_draw_amid_the_seeding_does_not_wait_for_itself(guest: Guest) -> None:
    guest.run("""
import random, signal, ssl
drawn, add = [], ssl.RAND_add
signal.signal(signal.SIGUSR1, lambda *_: drawn.append(random.random()))
def interrupted(data, entropy):
    ssl.RAND_add = add
    signal.raise_signal(signal.SIGUSR1)
    add(data, entropy)
ssl.RAND_add = interrupted
random.seed(7)
renewed()
drawn.append(random.random())
random.seed(7)
assert len(set(drawn)) == 2 and random.random() not in drawn
ssl.RAND_add = lambda data, entropy: drawn.append(random.random())
renewed()
drawn.append(random.random())
assert len(set(drawn)) == len(drawn) > 3
""")


def test_forked_processes_and_spawned_ones_draw_for_themselves(guest: Guest) -> None:
    guest.run("""
import multiprocessing, random, warnings
warnings.simplefilter("ignore", DeprecationWarning)
def draw(_):
    return random.random()
if __name__ == "__main__":
    for method in "fork", "spawn":
        with multiprocessing.get_context(method).Pool(2) as pool:
            random.seed(7)
            assert len(set(pool.map(draw, range(8), 1))) == 8, method
            renewed()
            assert len(set(pool.map(draw, range(8), 1))) == 8, method
    # A pipe of a child that was forked before the renewal.
    random.seed(7)
    first = random.Random(7).random()
    ours, theirs = os.pipe()
    if os.fork() == 0:
        random.seed(7)
        renewed()
        os.write(theirs, b"same" if random.random() == first else b"anew")
        os._exit(0)
    os.wait()
    assert os.read(ours, 4) == b"anew"
    assert random.random() != first
""")


def test_seeds_are_kept_where_a_program_wants_that_and_keys_are_not(guest: Guest) -> None:
    guest.run(
        """
import random, ssl
import numpy as np
added = []
ssl.RAND_add = lambda data, entropy: added.append(data)
random.seed(7)
np.random.seed(7)
first, of_numpy = random.random(), np.random.rand()
random.seed(7)
np.random.seed(7)
renewed()
assert (random.random(), np.random.rand()) == (first, of_numpy)
assert type(random.random).__name__ == "builtin_function_or_method"
ssl.RAND_bytes(8)
assert len(added) == 1
""",
        FORKD_KEEP_SEEDS="1",
    )


def test_a_program_finds_its_modules_and_its_path_as_ever(guest: Guest) -> None:
    guest.run("""
import copy, importlib, importlib.util, inspect, pickle, random, runpy
assert os.environ["PYTHONPATH"] not in sys.path
assert random.__loader__ is random.__spec__.loader
assert type(random.__loader__).__name__ == "SourceFileLoader"
assert "def betavariate" in inspect.getsource(random)
assert str(inspect.signature(random.getrandbits)) == "(k, /)", inspect.signature(random.getrandbits)
assert random.random.__doc__ and random.random.__name__ == "random"
assert pickle.loads(pickle.dumps(random.random)) is random.random
state = random.getstate()
assert copy.deepcopy(random._inst).getstate() == state
assert importlib.util.find_spec("random").loader.get_filename("random") == random.__file__
random.seed(7)
importlib.reload(random)
random.seed(7)
first = random.random()
random.seed(7)
renewed()
assert random.random() != first, "loaded again"
""")


def test_the_images_own_sitecustomize_runs(guest: Guest, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import random\nrandom.seed(7)\nmade = 'own'\n")
    guest.run(
        """
import random, sitecustomize
assert sitecustomize.made == "own"
first = random.Random(7).random()
assert random.random() == first
random.seed(7)
renewed()
assert random.random() != first
""",
        path=str(own),
    )
    (own / "sitecustomize.py").write_text("raise ValueError('its own mistake')\n")
    ended = guest.start("print('runs')", path=str(own))
    assert ended.stdout == "runs\n"
    assert "its own mistake" in ended.stderr, "as without forkd"


def test_a_program_that_cannot_be_protected_says_so_and_runs(guest: Guest) -> None:
    guest.count.unlink()
    ended = guest.start("import random\nprint(random.random() < 1)")
    assert ended.stdout == "True\n"
    assert "goes on with its source's random numbers" in ended.stderr


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_what_python_is_told_to_ignore_stays_away(guest: Guest, option: str) -> None:
    ended = guest.start("import random\nprint(type(random.random).__name__)", options=(option,))
    expected = "builtin_function_or_method\n"
    assert (ended.stdout, ended.stderr) == (expected, "")
