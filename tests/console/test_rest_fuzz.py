"""Requests that schemathesis draws from the OpenAPI document, against a real node: valid ones and invalid ones.

No request gets a status 500, each answer is as the document says, and each invalid request is refused. `make fuzz-rest`
draws more of them: EXAMPLES for each operation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_lab import DOCUMENT, Answered, check
from tally_process import TallyProcess

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis.generation import GenerationMode  # noqa: E402

EXAMPLES = int(os.environ.get("EXAMPLES", "2"))
ENDLESS = {"streamEvents", "streamTopic"}
"""Valid requests to these have no end."""
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT.content)
OPERATIONS = {each.ok().definition.raw["operationId"]: each.ok() for each in SCHEMA.get_all_operations()}
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    with TallyProcess(tmp_path_factory.mktemp("node")) as node:
        yield node


def test_all_operations_are_drawn() -> None:
    assert set(OPERATIONS) == {operation.id for operation in DOCUMENT.operations}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_drawn_requests(node: TallyProcess, name: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[name]
    if mode is GenerationMode.POSITIVE and name in ENDLESS:
        pytest.skip("a valid request has no end")
    has_input = operation.body or operation.query or operation.path_parameters or operation.headers
    if mode is GenerationMode.NEGATIVE and not has_input:
        pytest.skip("no request is invalid")

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        _small(case)
        answer = case.call(base_url=f"http://{node.places['http']}/api/v1", timeout=60)
        media_type = answer.headers.get("content-type", [""])[0].partition(";")[0]
        text = answer.content.decode("utf-8", "replace")
        value = json.loads(text) if "json" in media_type and text else None
        found = Answered(answer.status_code, answer.headers, text, value)
        assert found.status != 500, (case.as_curl_command(), found.text)
        if found.status == 400 and text.startswith("Got more than"):
            return  # a URL or a header is too long for the server, which refuses it before there is a route
        path = answer.request.path_url.partition("?")[0]
        check(str(answer.request.method), path, found.status, media_type, found)
        if mode is GenerationMode.NEGATIVE and case.meta is not None and case.meta.generation.mode is mode:
            assert 400 <= found.status < 500, (case.as_curl_command(), found.text)

    run()


def _small(case: Any) -> None:
    """Requests that wait, and topics with thousands of queues, take long and find nothing."""
    if isinstance(case.query, dict) and isinstance(case.query.get("waitSeconds"), int | float):
        case.query["waitSeconds"] = min(case.query["waitSeconds"], 0.1)
    if isinstance(case.body, dict):
        for field, most in (("waitSeconds", 0.1), ("readQueues", 8), ("writeQueues", 8), ("retryQueues", 8)):
            value = case.body.get(field)
            if isinstance(value, int | float) and not isinstance(value, bool):
                case.body[field] = min(value, most)


def test_the_node_still_serves(node: TallyProcess) -> None:
    assert node.get("/healthz")[0] == 200
    assert "Traceback" not in Path(node.log).read_text()
