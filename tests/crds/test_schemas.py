"""The definitions of our kinds: structural, described, bounded; what people may write is accepted, the rest refused.

CEL rules are carried out by an API server only (`replay.py`). Here is checked that each has a case there.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import structural
import yaml
from scripts import loaded

from tallystick.operator.clusters.spec import OWN_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "crds").glob("*.yaml"))
DEFINITIONS: dict[str, dict[str, Any]] = {
    definition["spec"]["names"]["kind"]: definition for definition in (yaml.safe_load(f.read_text()) for f in FILES)
}
KINDS = sorted(DEFINITIONS)
CASES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "crds" / "cases.yaml").read_text())
EXAMPLES = [
    (path.name, manifest)
    for path in sorted((ROOT / "crds" / "examples").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
]


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = DEFINITIONS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def messages_of(kind: str) -> set[str]:
    """Messages of all CEL rules of a kind."""
    found = structural.every(schema_of(kind))
    return {rule["message"] for _, schema in found for rule in schema.get("x-kubernetes-validations", ())}


def written(manifest: dict[str, Any]) -> list[str]:
    """What the API server would say to an object before it looks at CEL rules."""
    schema = schema_of(manifest["kind"])
    schema = {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
    value = {"apiVersion": "tallystick.dev/v1beta1", **manifest}
    return structural.violations(schema, structural.defaulted(schema, value))


def merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(value, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    changed = {**value, **{key: merged(value.get(key, {}), part) for key, part in patch.items() if part is not None}}
    return {key: part for key, part in changed.items() if key not in patch or patch[key] is not None}


# -- the definitions ---------------------------------------------------------------------------------------------------


def test_there_is_a_file_for_each_kind() -> None:
    assert KINDS == [
        "Backup",
        "BrokerCluster",
        "BrokerNode",
        "ConsumerGroup",
        "ScheduledBackup",
        "StoreJob",
        "Topic",
        "User",
    ]
    assert [path.stem for path in FILES] == [kind.lower() for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural(kind: str) -> None:
    assert structural.problems(schema_of(kind)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_version(kind: str) -> None:
    definition = DEFINITIONS[kind]
    names = definition["spec"]["names"]
    assert definition["metadata"]["name"] == f"{names['plural']}.tallystick.dev"
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert (names["singular"], names["listKind"]) == (kind.lower(), f"{kind}List")
    (version,) = definition["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1beta1", True, True)
    assert version["subresources"]["status"] == {}


def at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema at a path of fields, `.status.groups`; a filter of a list of conditions is passed over."""
    for name in path.split("[?")[0].lstrip(".").split("."):
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_scale_show_fields_that_exist(kind: str) -> None:
    version = DEFINITIONS[kind]["spec"]["versions"][0]
    for column in version["additionalPrinterColumns"]:
        if column["jsonPath"] == ".metadata.creationTimestamp":
            continue
        field = at(schema_of(kind), column["jsonPath"])
        found = "date" if field.get("format") == "date-time" else field["type"]
        assert found in (column["type"], "array"), column["name"]
        assert column["description"].endswith(".")
    assert version["additionalPrinterColumns"][-1]["name"] == "Age"
    for path in version["subresources"].get("scale", {}).values():
        assert at(schema_of(kind), path)["type"] in ("integer", "string")


def test_a_condition_has_one_shape_everywhere() -> None:
    shapes = [schema_of(kind)["properties"]["status"]["properties"]["conditions"]["items"] for kind in KINDS]
    assert all(shape == shapes[0] for shape in shapes)


def test_the_template_of_a_schedule_has_the_fields_of_a_backup() -> None:
    template = at(schema_of("ScheduledBackup"), ".spec.template")
    assert template["properties"] == at(schema_of("Backup"), ".spec")["properties"]
    assert template["required"] == at(schema_of("Backup"), ".spec")["required"]


# -- the checker itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "fault", "told"),
    [
        (".spec.properties.image", {"type": None}, "no type"),
        (".spec.properties.image", {"maxLength": None}, "a text without maxLength"),
        (".spec.properties.image", {"description": " "}, "no description"),
        (".metadata", {"description": "Name."}, "only its type may stand here"),
        (".spec.properties.image", {"nullable": True}, "keywords that are not used here"),
        (".spec.properties.groups", {"default": 0}, "default: : 0 is less than the minimum"),
        (".spec.properties.storage", {"required": ["sise"]}, "required, but no property"),
        (".spec.properties.storage", {"default": {"sise": "1Gi"}}, "default: : Additional properties"),
        (".spec.properties.storage", {"additionalProperties": {"type": "string"}}, "exclude each other"),
        (".spec.properties.tolerations", {"x-kubernetes-list-type": None}, "says how it is merged"),
        (".spec.properties.tolerations", {"x-kubernetes-list-type": "set"}, "a set has scalars"),
        (".spec.properties.tolerations", {"maxItems": None}, "a list without maxItems"),
        (".spec.properties.nodeSelector", {"maxProperties": None}, "a map without maxProperties"),
        (".status.properties.conditions", {"x-kubernetes-list-map-keys": ["kind"]}, "is no scalar that is always"),
    ],
)
def test_a_planted_fault_is_found(place: str, fault: dict[str, Any], told: str) -> None:
    schema = copy.deepcopy(schema_of("BrokerCluster"))
    target = schema["properties"]
    for name in place.lstrip(".").split("."):
        target = target[name]
    target.update(fault)
    for key in [key for key, value in fault.items() if value is None]:
        del target[key]
    assert any(told in problem for problem in structural.problems(schema)), structural.problems(schema)


# -- what people write -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "manifest"), EXAMPLES, ids=[f"{n}-{m['metadata']['name']}" for n, m in EXAMPLES])
def test_examples_are_accepted(name: str, manifest: dict[str, Any]) -> None:
    assert manifest["apiVersion"] == "tallystick.dev/v1beta1"
    assert written(manifest) == []


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cases_say_what_the_schemas_say(case: dict[str, Any]) -> None:
    """A case is refused either by the schema, at the field that it names, or by a CEL rule, with its message."""
    manifest = case["create"]
    if "update" in case:
        assert written(manifest) == []
        manifest = merged(manifest, case["update"])
    refused = case.get("refused")
    if refused is None or not refused.startswith("spec."):
        assert written(manifest) == []
        if refused is not None:
            assert any(refused in message for message in messages_of(manifest["kind"]))
    else:
        assert [text for text in written(manifest) if text.split(":")[0] == refused] != [], written(manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_has_a_case(kind: str) -> None:
    refusals = [case["refused"] for case in CASES if "refused" in case and case["create"]["kind"] == kind]
    without = [message for message in messages_of(kind) if not any(text in message for text in refusals)]
    assert without == []


def test_case_names_are_unique() -> None:
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)


def test_the_settings_that_the_operator_manages_are_one_list() -> None:
    """The rules of spec.config reject at the API server exactly what the operator rejects, which ignores case."""
    rules = at(schema_of("BrokerCluster"), ".spec.config")["x-kubernetes-validations"]
    lists = [re.findall(r"'(\w+)'", rule["rule"]) for rule in rules if " in [" in rule["rule"]]
    names = [name for listed in lists for name in listed]
    assert {name.lower() for name in names} == OWN_SETTINGS
    assert len(names) == len(OWN_SETTINGS)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_reference_is_what_the_schemas_say() -> None:
    reference = loaded(ROOT / "docs" / "kubernetes" / "reference.py")
    assert reference.PAGE.read_text() == reference.page(), "run `make crd-reference`"


def test_the_reference_names_every_field_and_rule() -> None:
    text = (ROOT / "docs" / "kubernetes" / "crd-reference.md").read_text()
    for kind in KINDS:
        for part in ("spec", "status"):
            for path, _ in structural.every(schema_of(kind)["properties"][part]):
                name = path.lstrip(".")
                if name and not name.startswith("conditions") and not name.endswith("[]"):
                    assert f"| `{name}` |" in text, f"{kind}: {name}"
        for message in messages_of(kind):
            assert message.replace("<", "&lt;") in text
