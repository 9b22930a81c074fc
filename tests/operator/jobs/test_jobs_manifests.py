"""The objects of a run: pods that may do nothing, read only, and find each other; a plan that its runtime knows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tallystick.operator.core.backup_place import BackupPlace
from tallystick.operator.core.names import numbers_of
from tallystick.operator.jobs import manifests
from tallystick.operator.jobs.names import JobNames, shortened
from tallystick.operator.jobs.plan import plan, plan_of, text_of
from tallystick.operator.jobs.sources import Choice, Source
from tallystick.operator.jobs.spec import Job, JobSpecError

Json = dict[str, Any]
URL = "http://{node}.{namespace}.svc:8080"
FRAME = manifests.Frame("jobs:1", "low", ({"name": "registry"},), "orders-reader-1", "orders")


def job(**spec: Any) -> Job:
    metadata = {"namespace": "shop", "name": "nightly", "uid": "u1"}
    return Job.parse({"metadata": metadata, "spec": {"clusterName": "orders", "job": "audit"} | spec})


def choice(members: int = 3, shared: bool = False) -> Choice:
    return Choice(
        tuple(Source(f"orders-0-{n}", "orders-0", n, (f"w-orders-0-{n}.nightly-job",), "x") for n in range(members)),
        shared,
    )


def made(wanted: Job, shared: bool = False) -> tuple[Json, Json]:
    """A driver and a worker."""
    found = plan(wanted, choice(shared=shared), 2, URL)
    return (
        manifests.driver_pod(wanted, found, FRAME, 100),
        manifests.worker_pod(wanted, found, "orders-0-1", FRAME, 100),
    )


def volumes(pod: Json) -> dict[str, Json]:
    return {each["name"]: each for each in pod["spec"]["volumes"]}


def mounts(pod: Json) -> dict[str, Json]:
    return {each["mountPath"]: each for each in pod["spec"]["containers"][0]["volumeMounts"]}


def test_every_object_belongs_to_the_job_and_is_deleted_with_it() -> None:
    wanted = job()
    found = plan(wanted, choice(), 1, URL)
    objects = [manifests.service(wanted), manifests.secret(wanted, "s"), manifests.config_map(wanted, found, ())]
    for each in (*objects, manifests.network_policy(wanted), *made(wanted)):
        labels, (owner,) = each["metadata"]["labels"], each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("StoreJob", "u1", True)
        assert labels["tallystick.dev/job"] == "nightly" and labels["tallystick.dev/cluster"] == "orders"
        assert labels["app.kubernetes.io/component"] == "job"
        assert labels["app.kubernetes.io/managed-by"] == "tallystick-operator"
        assert each["metadata"]["namespace"] == "shop"


@pytest.mark.parametrize("output", [None, {"claim": {"name": "lake"}}, {"s3": {"uri": "s3://lake", "secretName": "k"}}])
def test_every_pod_passes_the_restricted_level_and_knows_nothing_of_the_api_server(output: Json | None) -> None:
    for pod in made(job(**({"output": output} if output else {})), shared=True):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert volumes(pod)["tmp"]["emptyDir"]["sizeLimit"] and container["resources"]["limits"]["memory"]
        assert spec["priorityClassName"] == "low" and spec["activeDeadlineSeconds"] == 100
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert not any("hostPath" in volume for volume in spec["volumes"])


def test_a_brokers_volume_is_mounted_read_only_and_keeps_its_owner() -> None:
    driver, worker = made(job(output={"claim": {"name": "lake"}}), shared=True)
    assert volumes(worker)["store"]["persistentVolumeClaim"] == {"claimName": "data-orders-0-1", "readOnly": True}
    assert mounts(worker)["/stores/orders-0-1"]["readOnly"] is True
    assert "fsGroup" not in worker["spec"]["securityContext"]
    assert "store" not in volumes(driver)


def test_only_the_read_token_is_mounted() -> None:
    for pod in made(job()):
        names = [each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each]
        assert names == [JobNames("shop", "nightly", "orders").secret("u1"), "orders-reader-1"]
        assert volumes(pod)["reader"]["secret"]["optional"] is True


def test_they_find_each_other_by_name() -> None:
    wanted = job()
    found, service = plan(wanted, choice(), 1, URL), manifests.service(wanted)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    for pod, host in zip(made(wanted), (found["driver"]["host"], found["sources"][1]["host"]), strict=True):
        assert f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" == host
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_what_is_started() -> None:
    driver, worker = made(job())
    assert driver["spec"]["containers"][0]["command"] == [
        *("tally-spark", "driver", "--plan", "/etc/tallystick-job/plan.json")
    ]
    assert worker["spec"]["containers"][0]["command"][1:] == [
        *("worker", "--plan", "/etc/tallystick-job/plan.json", "--node", "orders-0-1")
    ]
    assert (driver["spec"]["restartPolicy"], worker["spec"]["restartPolicy"]) == ("Never", "OnFailure")
    assert driver["metadata"]["labels"]["tallystick.dev/job-attempt"] == "2"
    assert driver["spec"]["containers"][0]["image"] == "jobs:1"
    assert made(job(image="mine:2"))[0]["spec"]["containers"][0]["image"] == "mine:2"


def test_a_worker_without_a_volume_is_like_the_others() -> None:
    wanted = job()
    pod = manifests.worker_pod(wanted, plan(wanted, choice(), 1, URL), "orders-0-1", FRAME, 9, claim=False)
    assert "store" not in volumes(pod) and "/stores/orders-0-1" not in mounts(pod)
    assert pod["spec"]["hostname"] == "w-orders-0-1"


def test_the_second_worker_of_a_volume_has_a_name_of_its_own_and_the_same_volume() -> None:
    wanted = job(executor={"perVolume": 2})
    source = Source("orders-0-1", "orders-0", 1, ("w-orders-0-1.nightly-job", "w-orders-0-1-2.nightly-job"), "x")
    found = plan(wanted, Choice((source,)), 1, URL)
    assert found["sources"][0]["moreHosts"] == ["w-orders-0-1-2.nightly-job"]
    assert manifests.worker_nodes(found) == [("orders-0-1", 1), ("orders-0-1", 2)]
    pods = [
        manifests.worker_pod(wanted, found, *each[:1], FRAME, 9, number=each[1])
        for each in manifests.worker_nodes(found)
    ]
    assert [pod["metadata"]["name"] for pod in pods] == ["nightly-w-orders-0-1", "nightly-w-orders-0-1-2"]
    assert [pod["spec"]["hostname"] for pod in pods] == ["w-orders-0-1", "w-orders-0-1-2"]
    assert volumes(pods[0])["store"] == volumes(pods[1])["store"]
    assert [pod["spec"]["containers"][0]["command"][-2:] for pod in pods] == [
        ["--node", "orders-0-1"],
        ["--number", "2"],
    ]


def test_credentials_of_backups_are_files_and_no_account_of_a_deleted_cluster_is_named() -> None:
    place = BackupPlace(
        bucket="b", endpoint="http://m:9", region="eu", credentials="keys", key_secret="k", key_name="a.key"
    )
    wanted = job(job="stats", groups=[0], source={"destination": {"s3": {"bucket": "b", "credentialsSecret": "keys"}}})
    found = plan(
        wanted, Choice((Source("orders-0", "orders-0", 0, ("w-orders-0.nightly-job",), None, "s3://b/x"),)), 1, URL
    )
    assert (found["sources"][0]["root"], found["sources"][0]["http"]) == ("backup:s3://b/x", None)
    frame = replace(FRAME, account="", backups=place)
    for pod in (
        manifests.driver_pod(wanted, found, frame, 9),
        manifests.worker_pod(wanted, found, "orders-0", frame, 9, claim=False),
    ):
        assert volumes(pod)["backup-s3"]["secret"]["secretName"] == "keys"
        assert volumes(pod)["backup-key"]["secret"]["secretName"] == "k"
        assert mounts(pod)["/etc/tallystick-key"]["readOnly"] is True
        assert pod["spec"]["securityContext"]["fsGroup"] == 10001
        assert "serviceAccountName" not in pod["spec"]
        (container,) = pod["spec"]["containers"]
        assert {each["name"]: each["value"] for each in container["env"]} == {
            "HOME": "/tmp",
            "TALLY_BACKUP_KEY_FILE": "/etc/tallystick-key/a.key",
            "TALLYSTICK_BACKUP_S3_SETTINGS": "/etc/tallystick-s3",
            "TALLYSTICK_BACKUP_S3_ENDPOINT": "http://m:9",
            "TALLYSTICK_BACKUP_S3_REGION": "eu",
        }
    (of_cluster, _) = made(job())
    assert of_cluster["spec"]["serviceAccountName"] == FRAME.account


PROGRAM = {
    "job": "program",
    "program": {
        "configMap": {"name": "code", "key": "job.py"},
        "arguments": ["--day", "x"],
        "sparkConf": {"spark.sql.shuffle.partitions": "4"},
        "secretName": "spice",
    },
}


def test_a_program_is_mounted_where_tasks_are_as_well() -> None:
    driver, worker = made(job(**PROGRAM))
    for pod in (driver, worker):
        assert volumes(pod)["program"]["configMap"] == {"name": "code"}
        assert mounts(pod)["/etc/tallystick-program"]["readOnly"] is True
        assert volumes(pod)["program-secret"]["secret"]["secretName"] == "spice"
        assert mounts(pod)["/etc/tallystick-program-secret"]["readOnly"] is True
        assert "spice" not in json.dumps(
            [pod["spec"]["containers"][0].get(name) for name in ("env", "envFrom", "command")]
        )
    assert plan(job(**PROGRAM), choice(), 1, URL)["program"] == {
        "file": "/etc/tallystick-program/job.py",
        "arguments": ["--day", "x"],
        "sparkConf": {"spark.sql.shuffle.partitions": "4"},
    }


def test_a_program_of_the_image_is_not_mounted() -> None:
    driver, _ = made(job(job="program", program={"file": "/opt/job.py"}))
    assert "program" not in volumes(driver) and "program-secret" not in volumes(driver)
    found = plan(job(job="program", program={"file": "/opt/job.py"}), choice(), 1, URL)["program"]
    assert found == {"file": "/opt/job.py", "arguments": [], "sparkConf": {}}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"job": "program"}, "spec.program is required for job program, and only for it"),
        ({"job": "stats", "program": {"file": "/x"}}, "spec.program is required for job program, and only for it"),
        ({"arguments": {"key": "k"}}, "spec.arguments has no meaning for job program: use spec.program.arguments"),
        ({"program": {}}, "exactly one of file and configMap"),
        ({"program": {"file": "/x", "configMap": {"name": "a", "key": "b"}}}, "exactly one of file and configMap"),
    ],
)
def test_programs_that_are_refused(spec: Json, told: str) -> None:
    with pytest.raises(JobSpecError, match=told):
        job(**({"job": "program", "program": {"file": "/x"}} | spec) if spec != {"job": "program"} else spec)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("spark.executor.memory", "is set by the operator: use spec.executor.memory"),
        ("spark.master", "is set by the operator"),
        ("spark.authenticate", "is set by the operator"),
        ("spark.authenticate.secret.file", "is set by the operator"),
        ("spark.kubernetes.namespace", "is set by the operator"),
        ("spark.jars.packages", "use an image that has them"),
        ("spark.hadoop.fs.s3a.secret.key", "looks like a secret"),
        ("spark.hadoop.fs.s3a.access.key", "looks like a secret"),
        ("spark.hadoop.x.PASSWORD", "looks like a secret"),
        ("hive.x", "does not begin with spark."),
    ],
)
def test_settings_that_are_refused_by_name(name: str, told: str) -> None:
    with pytest.raises(JobSpecError, match=f"spec.program.sparkConf: {name} .*{told}"):
        job(job="program", program={"file": "/x", "sparkConf": {name: "x"}})


@pytest.mark.parametrize(
    "name", ["spark.sql.shuffle.partitions", "spark.driver.maxResultSize", "spark.masters", "spark.eventLog.enabled"]
)
def test_settings_that_are_the_programs(name: str) -> None:
    assert job(job="program", program={"file": "/x", "sparkConf": {name: "x"}}).spec.program is not None


@pytest.mark.parametrize("shared", [True, False])
def test_the_output_is_the_drivers_and_the_workers_if_it_is_shared(shared: bool) -> None:
    driver, worker = made(job(job="export", output={"claim": {"name": "lake", "path": "a/b"}}), shared=shared)
    assert volumes(driver)["out"]["persistentVolumeClaim"] == {"claimName": "lake"}
    assert driver["spec"]["securityContext"]["fsGroup"] == 10001
    assert ("out" in volumes(worker)) is shared


def test_credentials_of_an_object_store_are_files_of_pods() -> None:
    for pod in made(job(job="export", output={"s3": {"uri": "s3://lake/x", "secretName": "keys"}})):
        container = pod["spec"]["containers"][0]
        assert "envFrom" not in container
        (folder,) = [each["value"] for each in container["env"] if each["name"] == "TALLYSTICK_OUTPUT_S3_SETTINGS"]
        assert volumes(pod)["output-s3"]["secret"] == {"secretName": "keys", "defaultMode": 0o444}
        assert {"name": "output-s3", "mountPath": folder, "readOnly": True} in container["volumeMounts"]


def test_memory_beside_the_heap() -> None:
    driver, worker = made(job(executor={"memory": "1Gi", "cores": 3}))
    assert worker["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "3", "memory": "1766Mi"}
    assert driver["spec"]["containers"][0]["resources"]["limits"]["memory"] == "1203Mi"
    told = {"limits": {"memory": "9Gi"}}
    assert made(job(driver={"resources": told}))[0]["spec"]["containers"][0]["resources"] == told


def test_one_job_does_not_reach_another() -> None:
    own, http = manifests.network_policy(job())["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"tallystick.dev/job": "nightly"}}}]}
    assert http["ports"] == [{"port": 8080, "protocol": "TCP"}]


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_that_are_too_long_are_shortened_and_stay_apart() -> None:
    names = JobNames("shop", "j" * 52, "c" * 40)
    found = {names.worker(f"{'c' * 40}-{group}-{member}") for group in range(64) for member in range(5)}
    assert len(found) == 320 and all(len(name) == 63 for name in found)
    assert names.worker("c-0-1") == f"{'j' * 52}-w-c-0-1"
    assert max(map(len, (names.shared, names.driver, names.secret("u")))) <= 65
    assert len(names.driver) <= 63 and len(names.shared) <= 63
    assert shortened("a" * 63) == "a" * 63 and len(shortened("a" * 64)) == 63
    assert numbers_of("a-b-12-3") == (12, 3)


def test_a_secret_is_of_one_storejob_and_not_of_the_next_of_its_name() -> None:
    names = JobNames("shop", "audit", "orders")
    assert names.secret("u1") != names.secret("u2")


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_the_plan_is_the_contract() -> None:
    wanted = job(
        job="export",
        arguments={"topics": ["a"], "queues": [], "from": "2026-01-01T00:00:00Z", "lagMillis": 0},
        executor={"cores": 2, "memory": "1Gi"},
        output={"claim": {"name": "lake", "path": "a"}},
    )
    found = plan(wanted, Choice((*choice(1).sources, Source("orders-1-2", "orders-1", 2)), True), 3, URL)
    assert found == {
        "version": 1,
        "job": "export",
        "name": "nightly",
        "attempt": 3,
        "arguments": {"topics": ["a"], "from": "2026-01-01T00:00:00Z", "lagMillis": 0},
        "driver": {"host": "driver.nightly-job", "memoryMiB": 512},
        "executor": {"cores": 2, "memoryMiB": 1024},
        "executorsWaitSeconds": 60,
        "sources": [
            {
                "node": "orders-0-0",
                "group": "orders-0",
                "member": 0,
                "root": "/stores/orders-0-0/store",
                "host": "w-orders-0-0.nightly-job",
                "http": "http://orders-0-0.shop.svc:8080",
            },
            {
                "node": "orders-1-2",
                "group": "orders-1",
                "member": 2,
                "root": "/stores/orders-1-2/store",
                "host": None,
                "http": "http://orders-1-2.shop.svc:8080",
            },
        ],
        "output": {"folder": "/out/a", "shared": True},
    }
    assert plan_of(text_of(found)) == found


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"claim": {"name": "x"}}, {"folder": "/out", "shared": False}),
        ({"s3": {"uri": "s3://b/p"}}, {"s3": {"uri": "s3://b/p", "endpoint": None, "region": None}}),
        (
            {"s3": {"uri": "s3://b", "endpoint": "http://m:9", "region": "eu"}},
            {"s3": {"uri": "s3://b", "endpoint": "http://m:9", "region": "eu"}},
        ),
    ],
)
def test_where_the_results_go(output: Json, expected: Json) -> None:
    assert plan(job(output=output), choice(), 1, URL)["output"] == expected


@pytest.mark.parametrize("text", ["", "no", "[]", "{}", json.dumps({"attempt": "1"})])
def test_what_is_no_plan(text: str) -> None:
    assert plan_of(text) is None


@pytest.mark.parametrize(("name", "given"), [("audit", True), ("rebuild", True), ("stats", False)])
def test_jobs_that_need_settings_get_those_of_the_cluster(name: str, given: bool) -> None:
    """The arguments of the run override them."""
    chosen = replace(choice(), settings={"maxIndexNum": "9", "messageDelayLevel": "1s"})
    arguments = {"settings": {"maxIndexNum": "7"}} if given else {}
    found = plan(job(job=name, arguments=arguments), chosen, 1, URL)["arguments"]
    assert found == ({"settings": {"maxIndexNum": "7", "messageDelayLevel": "1s"}} if given else {})
