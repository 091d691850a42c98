import pytest

from project import state


@pytest.fixture(autouse=True)
def _prepared() -> None:
    if not state.primes:
        state.prepare()


def test_how_many() -> None:
    assert len(state.primes) == 17_984


@pytest.mark.parametrize("number", [2, 3, 199_999])
def test_some(number: int) -> None:
    assert number in state.primes


def test_none_is_even_but_two() -> None:
    assert [prime for prime in state.primes if prime % 2 == 0] == [2]
