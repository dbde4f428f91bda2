"""Plan a server for a team: how many agents at once, how fast, at what cost, and what to add next.

An agent sends its whole conversation each turn. If the server still has the KV cache of the last turn, it computes the new
tokens only. Otherwise it computes the whole prompt again. So what counts is how many sessions the cache keeps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from m3agent.serving.plan.gpus import Fleet
from m3agent.serving.plan.host_cache import GIGABYTE
from m3agent.serving.plan.memory_model import BLOCK, LONGEST_CONTEXT
from m3agent.serving.plan.plan import HardwarePrices, Plan, PlanRequest
from m3agent.serving.plan.planner import plans, smallest
from m3agent.serving.plan.speed import RESULT_TOKENS, Speed, seconds_between
from m3agent.util.errors import UsageError

TURNS = 50
"""Turns of a session (assumed)."""
OUTPUT_TOKENS = 600
"""Tokens that the model writes in a turn (assumed)."""
TOOL_SECONDS = 10.0
"""Seconds that tools run between two turns (assumed)."""
CONVERSATION = 131_072
"""Room in tokens for what a session adds to the repository: `TURNS` turns, in whole blocks."""
LONGEST_REPOSITORY = LONGEST_CONTEXT - CONVERSATION
HORIZON = 1800.0
"""Shortest time in seconds that the timeline shows."""


class Activity(StrEnum):
    """What an agent's session does."""

    WAITS = "waits"
    WHOLE = "whole"
    CACHED = "cached"


@dataclass(frozen=True)
class Segment:
    """A part of an agent's timeline."""

    activity: Activity
    """`waits` for the GPUs; the `whole` prompt is computed; `cached`: a turn whose prefix is there, or the
    model writes, or tools run.
    """
    start: float
    """Beginning in seconds."""
    end: float
    """End in seconds."""


@dataclass(frozen=True)
class Simulation:
    """What happens if all agents start at the same time."""

    seconds: float
    agents: tuple[tuple[Segment, ...], ...]
    """Segments of each agent, in order and without gaps."""
    cached_share: float
    """Share of the prompt tokens that were cached, without each agent's first turn."""
    turn_seconds: float
    """Mean seconds from a request to the end of the answer, without each agent's first turn."""


@dataclass(frozen=True)
class Addition:
    """Something to add, and what it gives."""

    name: str
    """The option, the things to buy, or what the agents do."""
    advice: str
    """What to do, and how many sessions then stay cached, in one sentence."""
    why: str
    agents: int
    """Number of agents whose sessions stay cached with it."""
    dollars_per_hour: float | None
    """Price of all GPUs with it; None if unknown."""
    options: tuple[str, ...] = ()
    """Options of `m3agent serve` that it takes."""


@dataclass(frozen=True)
class TeamPlan:
    """The answer for a team."""

    agents: int
    """Wanted number of agents at once."""
    repository_tokens: int
    session_tokens: int
    """Tokens of a session at its end; also the context window."""
    plan: Plan
    """The plan that keeps the most sessions, and of these the best."""
    kept: int
    """Sessions that stay cached if each has its own pack."""
    kept_shared: int
    """Sessions that stay cached if all begin with the same pack."""
    first_seconds: float
    """Seconds to the first token of a session."""
    cached_seconds: float
    """Seconds to the first token of a later turn whose prefix is cached."""
    tokens_per_second: float
    """Output tokens a second of one stream."""
    turn_seconds: float
    """Seconds of a turn with a cached prefix, without tools."""
    speed_source: str
    """Where the times come from."""
    dollars_per_agent_hour: float | None
    """Price of an hour for each agent; None if unknown."""
    dollars_per_fix: float | None
    """Price of a session of `TURNS` turns whose prefixes stay cached; None if unknown."""
    as_planned: Simulation
    additions: tuple[Addition, ...]
    """What to add, the first first; empty if nothing is lacking."""
    with_addition: Simulation | None
    """The timeline with the first addition; None without one."""
    fewer: str | None
    """Fewer GPUs of this kind that keep all sessions; None if there are none."""

    def json(self) -> dict[str, object]:
        """Return the answer as JSON types."""
        return {**asdict(self), "plan": self.plan.json()}


def session_tokens(repository: int) -> int:
    """Return the tokens of a session at its end, in whole blocks.

    Raises:
        UsageError: The repository leaves no room for a conversation.
    """
    if not 1 <= repository <= LONGEST_REPOSITORY:
        raise UsageError(
            f"a repository of {repository:,} tokens is out of range: M3 reads {LONGEST_CONTEXT:,} tokens, and a session needs "
            f"{CONVERSATION:,} of them for its conversation, so give 1 to {LONGEST_REPOSITORY:,}"
        )
    return math.ceil((repository + CONVERSATION) / BLOCK) * BLOCK


def team_plan(
    fleet: Fleet, wish: PlanRequest, agents: int, repository: int, prices: HardwarePrices | None = None
) -> TeamPlan | None:
    """Plan a server for a team.

    Args:
        wish: What else is wanted of the server; its window, its number of sequences and their length do not matter.

    Raises:
        UsageError: The repository is too large.
    """
    session = session_tokens(repository)
    wish = replace(wish, context=session, typical=None, concurrency=agents)
    ways = plans(fleet, wish, prices)
    if not ways:
        return None
    plan = ways[0]
    speed = Speed(plan)
    kept = plan.sequences
    if plan.host_cache is not None:
        kept = plan.host_cache.sequences
    host = kept >= agents > plan.sequences
    # Each rank has the shared pack once, and every session's own conversation.
    shared = plan.dp * max(1, (plan.kv_tokens - repository) // (session - repository))
    turn = speed.cached(session) + OUTPUT_TOKENS * seconds_between(session)
    hour = plan.cost.dollars_per_hour
    at_once = min(agents, max(kept, 1))
    as_planned = simulate(speed, agents, repository, plan.sequences, host=host)
    load = (
        as_planned if at_once == agents else simulate(speed, at_once, repository, plan.sequences, host=host)
    )
    fix = speed.cold(repository) + TURNS * (max(turn, load.turn_seconds) + TOOL_SECONDS)
    additions = tuple(_additions(fleet, wish, plan, agents, kept, shared, repository))
    with_addition = None
    if additions:
        host = bool(additions[0].options)
        slots = plan.sequences if host else max(plan.sequences, additions[0].agents)
        with_addition = simulate(speed, agents, repository, slots, host=host)
    enough = smallest(fleet, wish)
    return TeamPlan(
        agents=agents,
        repository_tokens=repository,
        session_tokens=session,
        plan=plan,
        kept=kept,
        kept_shared=max(shared, kept),
        first_seconds=speed.cold(repository),
        cached_seconds=speed.cached(session),
        tokens_per_second=1 / seconds_between(session),
        turn_seconds=turn,
        speed_source=speed.source,
        dollars_per_agent_hour=None if hour is None else hour / agents,
        dollars_per_fix=None if hour is None else hour * fix / 3600 / at_once,
        as_planned=as_planned,
        additions=additions,
        with_addition=with_addition,
        fewer=str(enough) if enough is not None and enough.count < fleet.count else None,
    )


def simulate(speed: Speed, agents: int, repository: int, slots: int, *, host: bool) -> Simulation:
    """Simulate agents that start at the same time, each with its own pack. After `TURNS` turns, an agent begins a new session.

    A rank computes one prompt at a time and drops the session that was used least recently. Sessions stay with their rank.
    The model writes for all sessions at the speed of one stream.

    Args:
        slots: Sessions that the cache of all ranks keeps.
        host: Whether the machine's memory keeps all sessions.
    """
    ranks = [_Rank(max(1, slots // speed.plan.dp)) for _ in range(speed.plan.dp)]
    seconds = max(HORIZON, 2 * math.ceil(agents / len(ranks)) * speed.cold(repository))
    team = [_Agent(repository) for _ in range(agents)]
    asked, cached, turns, took = 0, 0, 0, 0.0
    queue = [(0.0, number) for number in range(agents)]
    while queue:
        ready, number = heapq.heappop(queue)
        if ready >= seconds:
            continue
        agent, rank = team[number], ranks[number % len(ranks)]
        start, hit = rank.admit(number, ready, team)
        known = hit or (host and agent.turns > 0)
        if known:
            activity, work = Activity.CACHED, speed.cached(agent.tokens)
        else:
            activity, work = Activity.WHOLE, speed.cold(agent.tokens)
        work += speed.reload(agent.tokens) if known and not hit else 0.0
        rank.free = start + work
        agent.busy = rank.free + OUTPUT_TOKENS * seconds_between(agent.tokens)
        if agent.turns:
            asked += agent.tokens
            cached += agent.tokens - RESULT_TOKENS if known else 0
            turns, took = turns + 1, took + agent.busy - ready
        rest = agent.busy + TOOL_SECONDS
        agent.timeline += [
            Segment(Activity.WAITS, ready, start),
            Segment(activity, start, rank.free),
            Segment(Activity.CACHED, rank.free, rest),
        ]
        if agent.goes_on(repository):
            rank.kept.append(number)
        heapq.heappush(queue, (rest, number))
    return Simulation(
        seconds,
        tuple(tuple(_merged(agent.timeline, seconds)) for agent in team),
        round(cached / max(asked, 1), 4),
        round(took / max(turns, 1), 1),
    )


@dataclass
class _Agent:
    """An agent at its session."""

    tokens: int
    """Tokens of its next prompt."""
    turns: int = 0
    busy: float = 0.0
    """When its last answer is written."""
    timeline: list[Segment] = field(default_factory=list[Segment])

    def goes_on(self, repository: int) -> bool:
        """Count a turn; return whether its session goes on, else it begins with the next issue."""
        self.turns = (self.turns + 1) % TURNS
        grown = min(self.tokens + OUTPUT_TOKENS + RESULT_TOKENS, repository + CONVERSATION)
        self.tokens = grown if self.turns else repository
        return self.turns > 0


@dataclass
class _Rank:
    """A copy of the attention with its own cache."""

    room: int
    """Sessions that its cache keeps."""
    free: float = 0.0
    """When it can compute the next prompt."""
    kept: list[int] = field(default_factory=list[int])
    """Agents whose sessions it keeps, the least recently used first."""

    def admit(self, agent: int, ready: float, team: Sequence[_Agent]) -> tuple[float, bool]:
        """Return when an agent's turn starts, and whether its session was kept; if not, another one may have to go."""
        start = max(ready, self.free)
        if agent in self.kept:
            self.kept.remove(agent)
            return start, True
        if len(self.kept) >= self.room:  # a session whose answer is being written stays
            start = max(start, min(team[other].busy for other in self.kept))
            self.kept.remove(next(other for other in self.kept if team[other].busy <= start))
        return start, False


def _merged(segments: Sequence[Segment], end: float) -> Iterator[Segment]:
    """Join neighbours with the same activity, and cut what comes after the end."""
    last: Segment | None = None
    for segment in segments:
        part = replace(segment, end=min(segment.end, end))
        if part.end <= part.start:
            continue
        if last is not None and last.activity is part.activity:
            last = replace(last, end=part.end)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def _is_a_server(fleet: Fleet, wish: PlanRequest, agents: int) -> bool:
    """Return whether `serve --servers` can start such a server for so many agents: one rank on one machine."""
    best = plans(fleet, replace(wish, concurrency=agents))[0]
    return best.is_one_rank_of(fleet) and best.sequences >= agents


def _additions(
    fleet: Fleet, wish: PlanRequest, plan: Plan, agents: int, kept: int, shared: int, repository: int
) -> Iterator[Addition]:
    """Yield what makes room for all agents: first what makes the most difference for the least money."""
    hour = plan.cost.dollars_per_hour
    if kept >= agents:
        return
    session = wish.context
    if plan.engine == "vllm":
        # What is in the GPUs' cache is in the host cache too, so it has to have room for all sessions.
        each = session * plan.memory.kv / plan.kv_tokens * plan.tp / plan.nodes
        size = math.ceil(agents * each / GIGABYTE)
        yield Addition(
            f"--host-cache {size}",
            f"Add --host-cache {size}: it keeps {agents} sessions cached.",
            f"{size:,} GB of each machine's memory keep all sessions; one comes back in seconds and is not computed again",
            agents,
            hour,
            ("--host-cache", str(size)),
        )
    if shared >= agents:
        yield Addition(
            "the same commit for all",
            f"If all agents work on the same commit, {shared} sessions stay cached.",
            "all sessions then begin with the same repository, and each cache has it once; `m3agent fix --prefix frozen` "
            "does this for commits that differ a little",
            shared,
            hour,
        )
    servers, used = math.ceil(agents / kept), fleet.of(plan.count)
    router = "a router sends each session to the server that has its prefix"
    if _is_a_server(used, wish, math.ceil(agents / servers)):
        router += (
            f": m3agent serve --servers HOST1,HOST2,... --gpus {used} --context {wish.context} --concurrency {agents} "
            f"--write FOLDER, with the names of {servers} machines"
        )
    else:
        router += "; m3agent serve --servers cannot start these, because each has several caches or machines"
    yield Addition(
        f"{servers} servers of {used}",
        f"Use {servers} servers of {used}: they keep {servers * kept} sessions cached.",
        router if servers * used.count > fleet.count else f"{fleet} are enough for them; {router}",
        servers * kept,
        None if hour is None else hour * servers,
    )
    budget = _budget(fleet, wish, agents, repository)
    if budget:
        yield Addition(
            f"--context-budget {budget}",
            f"Give `m3agent fix` --context-budget {budget}: {agents} sessions then stay cached.",
            f"give this option to `m3agent fix`: it sends {budget:,} tokens of the repository, and the model reads the rest "
            "with tools",
            agents,
            hour,
        )


def _budget(fleet: Fleet, wish: PlanRequest, agents: int, repository: int) -> int:
    """Return the largest pack in thousands of tokens with which the GPUs keep all sessions; 0 if there is none."""
    low, high = 0, repository // 1000
    while low < high:
        middle = (low + high + 1) // 2
        ways = plans(fleet, replace(wish, context=session_tokens(middle * 1000)))
        if ways and ways[0].sequences >= agents:
            low = middle
        else:
            high = middle - 1
    return low * 1000
