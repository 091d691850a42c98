"""Every scenario, with both shells, against a real daemon with real guests."""

from __future__ import annotations

from typing import Any

import pytest
from player import Player, lacking, scenarios

from forkd_sdk import AsyncClient, Client

SCENARIOS = [pytest.param(scenario, id=scenario["name"]) for scenario in scenarios()]


def skip_if_lacking(scenario: dict[str, Any], interface: dict[str, Any]) -> None:
    if missing := lacking(scenario, interface):
        pytest.skip(f"the daemon lacks {', '.join(missing)}")


@pytest.mark.anyio
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_synchronous(
    scenario: dict[str, Any], client: Client, interface: dict[str, Any]
) -> None:
    skip_if_lacking(scenario, interface)
    await Player(client).play(scenario)


@pytest.mark.anyio
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_asynchronous(
    scenario: dict[str, Any], url: str, client: Client, interface: dict[str, Any]
) -> None:
    skip_if_lacking(scenario, interface)
    async with AsyncClient(url) as asynchronous:
        await Player(asynchronous).play(scenario)
