"""Double-entry bookkeeping: what one account gains, others lose."""

from collections.abc import Mapping

from payouts import money


class Unbalanced(Exception):
    """The entries of a posting do not add up to zero."""


class Ledger:
    """Accounts and the postings that made their balances."""

    def __init__(self) -> None:
        self.postings: list[tuple[str, dict[str, int]]] = []
        self._balances: dict[str, int] = {}

    def post(self, text: str, entries: Mapping[str, int]) -> None:
        """Book all `entries` (account to cents), or none if they do not balance."""
        difference = sum(entries.values())
        if difference != 0:
            raise Unbalanced(f"{text}: entries are off by {money.show(difference)}")
        for account, cents in entries.items():
            self._balances[account] = self._balances.get(account, 0) + cents
        self.postings.append((text, dict(entries)))

    def balance(self, account: str) -> int:
        """Cents that `account` holds."""
        return self._balances.get(account, 0)

    def accounts(self) -> list[str]:
        """All accounts that were ever posted to."""
        return sorted(self._balances)
