"""Runs as short stories: what people ask for, what happens to the pods, and what people are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jobs_lab import OVER, JobLab, Script, result
from simulated_api import RefusalError

RUNS = Script(seconds=5)
FAULT = Script(3, 1, "Traceback\nValueError: no such thing")
NOT_DONE = Script(3, 2, json.dumps({"error": "the folder was begun with another filter"}))
FOR_EVER = Script(code=None)


@pytest.fixture
def lab() -> JobLab:
    return JobLab()


def test_an_audit_from_beginning_to_end(lab: JobLab) -> None:
    lab.job("audit", RUNS)
    lab.one_pass()
    assert lab.phase() == "Submitted" and lab.condition("Started")["status"] == "True"
    assert sorted(lab.pods()) == ["audit-driver", *(f"audit-w-orders-0-{n}" for n in range(3))]
    lab.tick()
    lab.one_pass()
    assert lab.phase() == "Running" and lab.status()["executors"] == {"wanted": 3, "running": 3}
    assert lab.status()["progress"] == {"step": "reading", "done": 0, "of": 100}
    lab.until("Succeeding")
    assert lab.status()["result"]["verdict"] == "Clean"
    assert all("deletionTimestamp" in pod["metadata"] for name, pod in lab.pods().items() if "-w-" in name)
    lab.until("Completed")
    assert lab.one_pass() is None, "the run has ended"
    lab.tick()
    assert list(lab.pods()) == ["audit-driver"], "for its log"
    status = lab.status()
    assert (status["driverPod"], status["attempt"], status["executors"]["running"]) == ("audit-driver", 1, 0)
    assert lab.condition("Complete")["status"] == "True" and lab.condition("Complete")["reason"] == "Clean"
    assert lab.condition("Failed")["status"] == "False"
    assert lab.events() == ["Submitted", "Clean"]


def test_a_pass_over_a_run_that_is_over_writes_nothing(lab: JobLab) -> None:
    lab.job("audit", RUNS)
    lab.until("Completed")
    lab.tick()
    before = len(lab.api.writes)
    lab.reconciler = None
    lab.passes(count=3)
    assert lab.api.writes[before:] == []


def test_progress_is_asked_for_and_written_no_more_often_than_every_two_seconds(lab: JobLab) -> None:
    """Events bring passes in between: they neither ask the driver nor write."""
    lab.job("audit", FOR_EVER)
    lab.until("Running")
    writes, asked = len(lab.api.writes), lab.judge.asked
    lab.passes(count=80, seconds=0.25)  # 20 s
    assert lab.judge.asked - asked <= 11
    assert 5 <= len(lab.api.writes) - writes <= 11


@pytest.mark.parametrize(
    ("via", "status", "reason"), [("local", "True", "ReadInPlace"), ("http", "False", "ReadOverHttp")]
)
def test_whether_volumes_were_read_where_they_are(lab: JobLab, via: str, status: str, reason: str) -> None:
    lab.job("audit", Script(message=result(via=via)))
    lab.one_pass()
    assert lab.condition("Local")["status"] == "Unknown"
    lab.until("Completed")
    assert (lab.condition("Local")["status"], lab.condition("Local")["reason"]) == (status, reason)
    assert via == "local" or "orders-0-1" in lab.condition("Local")["message"]


@pytest.mark.parametrize(
    ("told", "reason"),
    [(["local", None, "local"], "ReadInPlace"), ([None] * 3, "NothingRead"), (["local"], "NotAllTold")],
)
def test_missing_figures_are_not_invented(lab: JobLab, told: list[Any], reason: str) -> None:
    rows = [{"node": f"orders-0-{number}", "via": via} for number, via in enumerate(told)]
    lab.job("audit", Script(message=result(sources=rows)))
    lab.until("Completed")
    assert lab.condition("Local")["reason"] == reason


def test_a_bad_verdict_is_reported_as_a_warning(lab: JobLab) -> None:
    told = ["orders-0-2: queue created/0, unit 3"]
    lab.job("audit", Script(message=result("DifferencesFound", differences=told, figures={"differing": 1})))
    lab.until("Completed")
    assert lab.status()["result"]["differences"] == told
    assert lab.status()["result"]["figures"] == {"differing": 1}
    (event,) = [each for each in lab.api.all("events") if each["reason"] == "DifferencesFound"]
    assert event["type"] == "Warning"
    assert lab.job_metrics.ends.labels("audit", "DifferencesFound")._value.get() == 1


# -- what cannot start -------------------------------------------------------------------------------------------------


def test_a_job_without_its_cluster_waits_for_it(lab: JobLab) -> None:
    lab.job("audit", RUNS, clusterName="later")
    assert lab.one_pass() == 10.0
    assert lab.phase() == "SubmissionFailed"
    assert (lab.condition("Started")["status"], lab.condition("Started")["reason"]) == ("False", "ClusterNotFound")
    assert lab.pods() == {} and "startTime" not in lab.status()
    before = len(lab.api.writes)
    lab.tick()
    lab.one_pass()
    assert lab.api.writes[before:] == [], "it is told once"
    lab.make_cluster(name="later")
    lab.until("Completed")
    assert "waitingSince" not in lab.status()


def test_a_job_waits_while_its_cluster_hibernates_also_beyond_its_deadline(lab: JobLab) -> None:
    metadata = lab.api.get("brokerclusters", "orders")["metadata"]
    metadata["annotations"] = {"tallystick.dev/hibernation": "on"}
    lab.job("audit", RUNS, activeDeadlineSeconds=60)
    lab.passes(count=70)
    assert lab.phase() == "SubmissionFailed"
    assert (lab.condition("Started")["status"], lab.condition("Started")["reason"]) == ("False", "ClusterHibernated")
    assert lab.pods() == {} and "waitingSince" not in lab.status()
    del metadata["annotations"]
    lab.until("Completed")


def test_a_job_that_never_can_start_is_given_up_at_its_deadline(lab: JobLab) -> None:
    lab.job("audit", clusterName="later", activeDeadlineSeconds=60)
    lab.passes(count=59)
    assert lab.phase() == "SubmissionFailed"
    lab.passes(count=3)
    assert lab.phase() == "Failed" and lab.condition("Failed")["reason"] == "DeadlineExceeded"
    assert "does not exist in this namespace" in lab.status()["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"from": "yesterday"}, "spec.arguments.from must be a queue offset or an ISO 8601 time, not 'yesterday'"),
        ({"to": "2026-13-01"}, "spec.arguments.to must be a queue offset or an ISO 8601 time, not '2026-13-01'"),
        ({"to": "-1"}, "spec.arguments.to must be"),
    ],
)
def test_a_range_that_is_none_costs_no_attempt(lab: JobLab, arguments: dict[str, Any], told: str) -> None:
    lab.job("stats", RUNS, job="stats", arguments=arguments)
    lab.one_pass("stats")
    assert lab.phase("stats") == "Failed" and lab.condition("Failed", "stats")["reason"] == "InvalidSpec"
    assert told in lab.status("stats")["message"]
    assert lab.pods("stats") == {}


@pytest.mark.parametrize("bound", ["0", "17", "2026-11-21", "2026-11-21T10:00:00Z", "20261121T100000", "2026-W47-1"])
def test_ranges_that_the_job_accepts_start(lab: JobLab, bound: str) -> None:
    lab.job("stats", RUNS, job="stats", arguments={"from": bound, "to": bound})
    lab.until("Completed", "stats")


def test_a_topic_that_does_not_exist_is_told_before_anything_starts(lab: JobLab) -> None:
    lab.topics[0] = {"created", "%RETRY%readers"}
    lab.job("stats", RUNS, job="stats", arguments={"topics": ["created", "craeted"]})
    assert lab.one_pass("stats") == 10.0
    started = lab.condition("Started", "stats")
    assert (started["status"], started["reason"]) == ("False", "TopicNotFound")
    assert "spec.arguments.topics: 'craeted' does not exist on orders" in started["message"]
    assert lab.pods("stats") == {}
    lab.topics[0].add("craeted")
    lab.until("Completed", "stats")


def test_a_topic_on_one_group_of_two_exists() -> None:
    lab = JobLab(groups=2)
    lab.topics = {0: set(), 1: {"created"}}
    lab.job("stats", RUNS, job="stats", arguments={"topics": ["created"]})
    lab.until("Completed", "stats")
    lab.job("part", RUNS, job="stats", groups=[0], arguments={"topics": ["created"]})
    lab.one_pass("part")
    assert "does not exist on groups 0 of orders" in lab.condition("Started", "part")["message"]


@pytest.mark.parametrize("leader", ["silent", "none"])
def test_what_nobody_can_say_about_topics_does_not_hold_a_job(leader: str) -> None:
    """Volumes are read without brokers too."""
    lab = JobLab(groups=2)
    lab.topics = {0: set()}
    if leader == "none":
        lab.topics[1] = set()
        lab.make_member(1, 0, role="Follower")
    lab.job("stats", RUNS, job="stats", arguments={"topics": ["created"]})
    lab.until("Completed", "stats")


def test_a_refusal_of_the_api_server_is_reported_and_retried(lab: JobLab) -> None:
    def quota(*about: Any) -> None:
        right(*about)
        if about[1].plural == "pods" and about[0] == "POST" and "driver" in about[2][2]:
            raise RefusalError(403, "Forbidden", "exceeded quota: pods")

    right, lab.api.hook = lab.api.hook, quota
    lab.job("audit", RUNS)
    lab.one_pass()
    started = lab.condition("Started")
    assert (started["status"], started["reason"]) == ("False", "Refused") and "quota" in started["message"]
    lab.tick()
    lab.one_pass()  # the workers run meanwhile, which is told
    before = len(lab.api.writes)
    lab.tick()
    lab.one_pass()
    assert [each for each in lab.api.writes[before:] if "status" in each] == [], "the same is not written again"
    lab.api.hook = right
    lab.until("Completed")


def test_foreign_objects_are_not_changed(lab: JobLab) -> None:
    lab.put("services", "audit-job", {"spec": {"clusterIP": "None"}})
    lab.job("audit", RUNS)
    lab.one_pass()
    assert lab.condition("Started")["reason"] == "NameTaken"
    assert "Service audit-job exists and has no owner" in lab.status()["message"]
    lab.delete("services", "audit-job")
    lab.until("Completed")


def test_a_foreign_pod_with_the_same_name_is_reported(lab: JobLab) -> None:
    lab.put("pods", "audit-w-orders-0-1", {"spec": {}}, labels={"tallystick.dev/job-role": "x"})
    lab.job("audit", RUNS)
    lab.one_pass()
    assert lab.condition("Started")["reason"] == "NameTaken" and "audit-w-orders-0-1" in lab.status()["message"]


def test_pods_of_others_with_our_labels_are_not_deleted(lab: JobLab) -> None:
    labels = {"tallystick.dev/job": "audit", "app.kubernetes.io/managed-by": "tallystick-operator"}
    lab.put("pods", "mine", {"spec": {}, "status": {}}, labels=labels | {"tallystick.dev/job-role": "driver"})
    lab.job("audit", RUNS)
    for _ in range(5):
        lab.one_pass()
        lab.time += 1.0
    assert lab.api.get("pods", "mine") is not None and "deletionTimestamp" not in str(lab.api.get("pods", "mine"))
    assert lab.status()["message"] == "waiting for earlier pods to be deleted"
    lab.delete("pods", "mine")
    lab.until("Completed")


def test_without_an_image_it_says_so(lab: JobLab) -> None:
    lab = JobLab(jobs_image="")
    lab.job("audit", RUNS)
    lab.one_pass()
    assert lab.condition("Started")["reason"] == "NoImage"
    lab.job("mine", RUNS, image="mine:1")
    lab.until("Completed", "mine")


def test_a_spec_that_cannot_be_is_refused_for_good(lab: JobLab) -> None:
    lab.job("audit", job="export")
    assert lab.one_pass() is None
    assert lab.phase() == "Failed" and lab.condition("Failed")["reason"] == "InvalidSpec"
    assert "output" in lab.status()["message"]


def test_a_job_created_again_waits_for_the_objects_of_the_last_one(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER)
    lab.until("Running")
    lab.machine_up = False  # nothing goes away yet
    del lab.api.objects["storejobs", "shop", "audit"]
    lab.job("audit", RUNS)
    lab.passes(count=3)
    assert lab.phase() == "SubmissionFailed" and "waiting for earlier pods" in lab.status()["message"]
    lab.machine_up = True
    lab.until("Completed")
    secrets = [body["metadata"]["name"] for body in lab.api.all("secrets")]
    assert len([name for name in secrets if name.startswith("audit-job-")]) == 1, "the last one's went with it"


# -- attempts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"), [(FAULT, "DriverFailed"), (NOT_DONE, "NotDone"), (Script(3, 0, "?"), "NoResult")]
)
def test_an_attempt_that_fails_is_followed_by_another(lab: JobLab, script: Script, reason: str) -> None:
    lab.job("audit", script, RUNS)
    lab.until("PendingRerun")
    assert lab.status()["attempt"] == 1 and lab.events()[-1] == reason
    lab.until("Completed")
    assert lab.status()["attempt"] == 2
    assert lab.judge.attempts[lab.body()["metadata"]["uid"]] == [1, 2]
    assert lab.job_metrics.attempts_failed.labels(reason)._value.get() == 1


def test_when_no_attempt_is_left_it_has_failed_and_keeps_the_last_log(lab: JobLab) -> None:
    lab.job("audit", FAULT, NOT_DONE)
    lab.until("Failed")
    lab.passes()
    assert lab.condition("Failed")["reason"] == "NotDone" and "another filter" in lab.condition("Failed")["message"]
    assert lab.status()["message"].startswith("attempt 2: ")
    assert list(lab.pods()) == ["audit-driver"] and "result" not in lab.status()
    assert lab.job_metrics.ends.labels("audit", "Failed")._value.get() == 1


def test_without_retries_the_first_failure_is_the_last(lab: JobLab) -> None:
    lab.job("audit", FAULT, maxRetries=0)
    lab.until("Failed")
    assert lab.status()["attempt"] == 1


def test_an_evicted_driver_is_started_again(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER, RUNS)
    lab.until("Running")
    lab.evict("audit-driver")
    lab.until("Completed")
    assert lab.status()["attempt"] == 2 and "DriverLost" in lab.events()


def test_a_deleted_driver_is_started_again(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER, RUNS)
    lab.until("Running")
    lab.delete("pods", "audit-driver")
    lab.until("PendingRerun")
    lab.until("Completed")


def test_a_worker_that_is_lost_is_not_missed(lab: JobLab) -> None:
    lab.job("audit", RUNS)
    lab.until("Running")
    lab.delete("pods", "audit-w-orders-0-1")
    lab.tick()
    lab.one_pass()
    assert lab.status()["executors"] == {"wanted": 3, "running": 2}
    lab.until("Completed")
    assert lab.status()["attempt"] == 1


def test_the_next_attempt_waits_until_nothing_of_the_last_is_there(lab: JobLab) -> None:
    lab.job("audit", FAULT, RUNS)
    lab.until("PendingRerun")
    lab.machine_up = False
    lab.passes(count=5)
    assert lab.phase() == "PendingRerun" and lab.pods()
    lab.machine_up = True
    lab.until("Completed")


def test_the_next_attempt_reads_what_is_best_then(lab: JobLab) -> None:
    lab.job("audit", FAULT, RUNS, job="stats")
    lab.until("Running")
    assert [source["node"] for source in lab.plan()["sources"]] == ["orders-0-1"]
    lab.make_member(0, 1, phase="CatchingUp")
    lab.until("PendingRerun")
    lab.until("Running")
    assert [source["node"] for source in lab.plan()["sources"]] == ["orders-0-2"]
    assert lab.plan()["attempt"] == 2


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_run_that_takes_too_long_is_stopped_by_its_machine_which_keeps_its_log(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER, activeDeadlineSeconds=20)
    lab.until("Failed")
    assert lab.condition("Failed")["reason"] == "DeadlineExceeded" and lab.status()["attempt"] == 1
    assert list(lab.pods()) == ["audit-driver"]


def test_if_its_machine_does_not_stop_it_the_operator_does(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER, activeDeadlineSeconds=20)
    lab.until("Running")
    lab.machine_up = False
    lab.passes(count=50)
    assert lab.phase() == "Failed"
    assert all("deletionTimestamp" in pod["metadata"] for pod in lab.pods().values())


def test_the_deadline_is_of_all_attempts_together(lab: JobLab) -> None:
    lab.job("audit", Script(15, 1), FOR_EVER, activeDeadlineSeconds=30, maxRetries=5)
    lab.until("PendingRerun")
    lab.until("Running")
    assert lab.pods()["audit-driver"]["spec"]["activeDeadlineSeconds"] <= 15
    lab.until("Failed")
    assert lab.condition("Failed")["reason"] == "DeadlineExceeded"
    assert lab.time < lab.job_start() + 40


def test_pods_that_find_no_place_are_given_up_too(lab: JobLab) -> None:
    lab.schedulable = lambda pod: False
    lab.job("audit", RUNS, activeDeadlineSeconds=20)
    lab.passes(count=15)
    assert lab.phase() == "Submitted"
    lab.until("Failed")
    lab.passes(count=2)
    assert lab.pods() == {}


def test_the_reason_why_a_driver_does_not_run_is_reported(lab: JobLab) -> None:
    lab.schedulable = lambda pod: False
    lab.job("audit", RUNS)
    lab.one_pass()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    lab.pods()["audit-driver"]["status"] = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
    lab.one_pass()
    assert lab.status()["message"] == "the driver is waiting: ImagePullBackOff: no such image"


def test_a_run_is_deleted_when_its_time_is_over(lab: JobLab) -> None:
    lab.job("audit", RUNS, ttlSecondsAfterFinished=30)
    lab.until("Completed")
    assert lab.one_pass() == 30.0
    lab.tick(29)
    lab.one_pass()
    assert lab.jobs() == ["audit"]
    lab.tick(2)
    lab.one_pass()
    assert lab.jobs() == []
    lab.tick()
    lab.tick()
    assert not [key for key in lab.api.objects if key[2].startswith("audit-")], "and what it owns with it"


# -- suspend -----------------------------------------------------------------------------------------------------------


def test_a_suspended_run_stops_and_starts_again(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER, activeDeadlineSeconds=30)
    lab.until("Running")
    lab.change(suspend=True)
    lab.passes(count=40)
    assert lab.phase() == "Suspended" and lab.pods() == {} and "startTime" not in lab.status()
    assert lab.condition("Started")["status"] == "False"
    lab.scripts["audit"] = (RUNS,)
    lab.change(suspend=False)
    lab.until("Completed")
    assert lab.status()["attempt"] == 1


def test_one_that_is_suspended_from_the_beginning_does_not_start(lab: JobLab) -> None:
    lab.job("audit", RUNS, suspend=True)
    lab.passes(count=3)
    assert lab.phase() == "Suspended" and lab.pods() == {}


def test_a_result_that_is_there_counts_more_than_suspend(lab: JobLab) -> None:
    lab.job("audit", RUNS)
    lab.until("Running")
    lab.tick(10)
    lab.change(suspend=True)
    lab.until("Completed")


def test_deleting_a_job_needs_no_operator(lab: JobLab) -> None:
    lab.job("audit", FOR_EVER)
    lab.until("Running")
    assert not lab.body()["metadata"].get("finalizers")
    lab.delete("storejobs", "audit")
    assert lab.one_pass() is None
    lab.tick()
    lab.tick()
    assert not [key for key in lab.api.objects if key[2].startswith("audit-")]


# -- cut off -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scripts", [(RUNS,), (FAULT, RUNS), (FAULT, FAULT)], ids=["well", "second-well", "badly"])
def test_the_operator_is_cut_off_at_every_write_once(scripts: tuple[Script, ...]) -> None:
    """In one run for each write: it ends there, a new one comes, and everything comes to the same end."""
    whole = JobLab()
    whole.job("audit", *scripts)
    _play(whole)
    writes = [each for each in whole.api.writes if "events" not in each]
    for write in range(len(writes)):
        lab = JobLab()
        lab.job("audit", *scripts)
        lab.fuse = write
        _play(lab)
        where = f"cut off before write {write}, {writes[write]}"
        assert lab.fuse is None, where
        assert (lab.phase(), lab.status()["attempt"]) == (whole.phase(), whole.status()["attempt"]), where
        assert lab.status().get("result") == whole.status().get("result"), where
        assert list(lab.pods()) == list(whole.pods()), where


def _play(lab: JobLab) -> None:
    """Until it is over, and three passes more."""
    for _ in range(80):
        lab.passes()
        if lab.phase() in OVER:
            lab.passes(count=3)
            return
    raise AssertionError(lab.status())
