"""Sandboxes that can be branched while they run.

```python
from forkd_sdk import Sandbox

with Sandbox.create("python") as sandbox:
    sandbox.run_code("state = list(range(1000))")
    with sandbox.branch(n=3) as branch:
        for child in branch.unwrap():
            print(child.run_code("sum(state)").result)
```

Every class has an asynchronous twin: `AsyncSandbox`, `AsyncClient` and so on, with the same
methods.
"""

from . import errors, models
from ._async.client import (
    AsyncClient,
    AsyncKeys,
    AsyncNetworks,
    AsyncOperations,
    AsyncSandboxes,
    AsyncSecrets,
    AsyncSnapshots,
)
from ._async.commands import AsyncCommands, AsyncProcess
from ._async.explore import AsyncExploration, explore_async
from ._async.files import AsyncFiles
from ._async.ports import AsyncForward, AsyncPorts
from ._async.sandbox import AsyncBranch, AsyncChild, AsyncSandbox, AsyncSnapshot
from ._async.stream import AsyncByteStream, AsyncStream
from ._async.template import AsyncBuild, AsyncTemplate
from ._core.building import BuildStep
from ._core.recipe import Ready, command, port
from ._core.result import (
    CommandResult,
    Display,
    Event,
    Execution,
    FileChange,
    OutputChunk,
    Part,
)
from ._core.search import Failure, Node
from ._sync.client import Client, Keys, Networks, Operations, Sandboxes, Secrets, Snapshots
from ._sync.commands import Commands, Process
from ._sync.explore import Exploration, explore
from ._sync.files import Files
from ._sync.ports import Forward, Ports
from ._sync.sandbox import Branch, Child, Sandbox, Snapshot
from ._sync.stream import ByteStream, Stream
from ._sync.template import Build, Template
from .errors import (
    ApiError,
    BuildFailedError,
    CodeError,
    CodeTimeoutError,
    CommandFailedError,
    CommandTimeoutError,
    ForkdError,
)
from .models import HeaderRule, HeaderTransform, NetworkPolicy

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncBranch",
    "AsyncBuild",
    "AsyncByteStream",
    "AsyncChild",
    "AsyncClient",
    "AsyncCommands",
    "AsyncExploration",
    "AsyncFiles",
    "AsyncForward",
    "AsyncKeys",
    "AsyncNetworks",
    "AsyncOperations",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSecrets",
    "AsyncSnapshot",
    "AsyncSnapshots",
    "AsyncStream",
    "AsyncTemplate",
    "Branch",
    "Build",
    "BuildFailedError",
    "BuildStep",
    "ByteStream",
    "Child",
    "Client",
    "CodeError",
    "CodeTimeoutError",
    "CommandFailedError",
    "CommandResult",
    "CommandTimeoutError",
    "Commands",
    "Display",
    "Event",
    "Execution",
    "Exploration",
    "Failure",
    "FileChange",
    "Files",
    "ForkdError",
    "Forward",
    "HeaderRule",
    "HeaderTransform",
    "Keys",
    "NetworkPolicy",
    "Networks",
    "Node",
    "Operations",
    "OutputChunk",
    "Part",
    "Ports",
    "Process",
    "Ready",
    "Sandbox",
    "Sandboxes",
    "Secrets",
    "Snapshot",
    "Snapshots",
    "Stream",
    "Template",
    "command",
    "errors",
    "explore",
    "explore_async",
    "models",
    "port",
]
