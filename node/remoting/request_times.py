"""How long requests took, by the codes of request and answer, for `/metrics`.

Source of the classes and of the labels: RemotingMetricsManager of RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.store.engine.distribution import Distribution, Tally

LIMITS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_REMOTING = "remoting"

Labels = tuple[str, ...]
"""Protocol, name of the request code, name of the response code, and whether the request was held."""


class RequestTimes:
    """Counts the answers of the servers of one broker. The codes of requests that have a handler are few."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int, bool], Tally] = {}

    def add(self, request: int, response: int, seconds: float, *, held: bool = False) -> None:
        """Counts an answer to a request that arrived `seconds` ago. `held`: it waited for a message (long polling)."""
        tally = self._tallies.get((request, response, held))
        if tally is None:
            tally = self._tallies[request, response, held] = Tally(LIMITS_MS)
        tally.add(seconds * 1000)

    def distributions(self, others: Mapping[Labels, Distribution]) -> Iterator[tuple[Labels, Distribution]]:
        """Yields the answers by their labels, together with `others`, which have the same classes."""
        rest = dict(others)
        for (request, response, held), tally in list(self._tallies.items()):
            labels = _labels(request, response, held=held)
            found = tally.distribution()
            other = rest.pop(labels, None)
            yield labels, found if other is None else _sum(found, other)
        yield from rest.items()


def send_times(answers: Mapping[int, Distribution]) -> dict[Labels, Distribution]:
    """Returns the answers of the kernel, which are by response code, by their labels."""
    return {_labels(RequestCode.SEND_MESSAGE_V2, code, held=False): found for code, found in answers.items()}


def _labels(request: int, response: int, *, held: bool) -> Labels:
    return _REMOTING, _name(RequestCode, request), _name(ResponseCode, response), "true" if held else "false"


def _name(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)


def _sum(one: Distribution, other: Distribution) -> Distribution:
    counts = [mine + more for mine, more in zip(one.counts, other.counts, strict=True)]
    return Distribution(one.limits, counts, one.total + other.total)
