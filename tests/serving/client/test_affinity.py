"""Which server and rank a session's requests name."""

from __future__ import annotations

import pytest

from m3agent.serving.client.endpoint import Flavour
from m3agent.serving.client.parameters import Affinity
from tests.servers.misbehaving import MisbehavingServer
from tests.serving.talk import FINE, ask, client, endpoint

SESSION = "20261127-120000-abcdef"
ROUTERS = {"x-session-id", "x-dynamo-session-id"}


def named(flavour: Flavour, ranks: int) -> tuple[dict[str, str], dict[str, int]]:
    affinity, at = Affinity(SESSION, ranks), endpoint("http://h/v1", flavour=flavour)
    return affinity.headers(at), affinity.parameters(at)


@pytest.mark.parametrize(
    ("flavour", "headers", "rank_header", "rank_parameter"),
    [
        ("vllm", ROUTERS, True, False),
        ("sglang", ROUTERS, False, True),
        ("trtllm", ROUTERS, False, False),
        ("unknown", ROUTERS, False, False),
        ("minimax", set(), False, False),
        ("openrouter", set(), False, False),
        ("embedded", set(), False, False),
    ],
)
def test_what_each_kind_of_server_gets(
    flavour: Flavour, headers: set[str], rank_header: bool, rank_parameter: bool
) -> None:
    one, none = named(flavour, 1)
    assert ({name.lower() for name in one}, none) == (headers, {})
    several, body = named(flavour, 8)
    rank = Affinity(SESSION, 8).rank
    assert rank is not None and 0 <= rank < 8
    assert several == one | ({"X-data-parallel-rank": str(rank)} if rank_header else {})
    assert body == ({"routed_dp_rank": rank} if rank_parameter else {})


def test_the_id_is_the_session_s_alone_and_hides_it() -> None:
    key = Affinity(SESSION).key
    assert key == Affinity(SESSION, 8).key != Affinity(SESSION + "0").key
    assert SESSION[:8] not in key
    assert {Affinity(str(n), 4).rank for n in range(100)} == {0, 1, 2, 3}


async def test_every_request_of_a_client_names_the_session(server: MisbehavingServer) -> None:
    server.answers = [FINE]
    async with client(server, affinity=Affinity(SESSION, 4)) as made:
        await ask(made)
        await ask(made)
    async with client(server) as other:
        await ask(other)
    first, second, without = server.chats
    assert first.headers["x-session-id"] == second.headers["x-session-id"] == Affinity(SESSION).key
    assert first.headers["x-data-parallel-rank"] == str(Affinity(SESSION, 4).rank)
    assert "x-session-id" not in without.headers
    server.reset()
    server.answers = [FINE]
    sglang = endpoint(server.url, flavour="sglang")
    async with client(server, endpoint=sglang, affinity=Affinity(SESSION, 4)) as made:
        await ask(made)
    assert server.chats[0].json["routed_dp_rank"] == Affinity(SESSION, 4).rank
