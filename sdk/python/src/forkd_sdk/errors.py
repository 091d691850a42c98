"""All exceptions of this package. `ForkdError` is the root.

The daemon's errors are `ApiError`, with one class for each code of its catalogue.
"""

from ._codes import *  # noqa: F403 - the module is generated and says what it exports
from ._core.failure import (
    ApiError as ApiError,
    BuildFailedError as BuildFailedError,
    ClientClosedError as ClientClosedError,
    ConnectionBrokenError as ConnectionBrokenError,
    ForkdError as ForkdError,
    NotUnderstoodError as NotUnderstoodError,
    ProgramMissingError as ProgramMissingError,
    RequestTimeoutError as RequestTimeoutError,
    SandboxGoneError as SandboxGoneError,
    UnreachableError as UnreachableError,
)
from ._core.result import (
    CodeError as CodeError,
    CodeTimeoutError as CodeTimeoutError,
    CommandFailedError as CommandFailedError,
    CommandTimeoutError as CommandTimeoutError,
)
