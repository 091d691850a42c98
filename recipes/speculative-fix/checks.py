"""Claims that are checked: what was found against what was wanted."""

from dataclasses import dataclass, field


@dataclass
class Checks:
    """All checks of one subject, such as a child."""

    subject: str
    made: int = 0
    failures: list[str] = field(default_factory=list)

    def equal(self, claim: str, got: object, wanted: object) -> None:
        """`got` is `wanted`."""
        self.holds(claim, got == wanted, got, wanted)

    def holds(self, claim: str, condition: bool, got: object, wanted: object) -> bool:
        """`condition` is true; `got` and `wanted` say it in words where it is not."""
        self.made += 1
        if not condition:
            self.failures.append(f"{self.subject}: {claim}: got {got}, wanted {wanted}")
        return condition

    @property
    def ok(self) -> bool:
        """Whether checks were made and every one of them held."""
        return self.made > 0 and not self.failures
