"""Everything that can happen to StoreJobs, from one seed: drivers that fail, pods that go, people who change their
minds, an API server that does not answer, an operator that is cut off between any two writes. `JobJudge` watches; in
the end every run is over, as its drivers had it, and nothing is left running.
"""

from __future__ import annotations

import random
from typing import Any

from jobs_lab import NAMESPACE, OVER, JobLab, Script, result

GOOD = ("Clean", "DifferencesFound", "Done")


class JobStorm:
    """One run. `log` lists its events, for the report of a failure."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = JobLab(seed + 1, groups=self.random.choice((1, 2)))
        self.log: list[str] = []
        self.made = 0
        for _ in range(self.random.randint(1, 2)):
            self.new_job()
        if self.random.random() < 0.5:
            self.new_template()

    def run(self, turns: int = 40) -> None:
        """AssertionError: the judge saw something, or it did not come to rest."""
        deeds = (
            *(self.nothing,) * 4,
            *(self.cut_off,) * 6,
            *(self.drop_requests, self.evict, self.evict, self.delete_pod, self.delete_pod, self.machines),
            *(self.suspend, self.meddle, self.new_job, self.lose_plan, self.again, self.lose_claim),
        )
        for _ in range(turns):
            self.random.choice(deeds)()
            for _ in range(self.random.randint(1, 3)):
                self.passes()
                self.lab.tick(self.random.choice((0.5, 1.0, 5.0, 20.0)))
        self.settle()

    def passes(self) -> None:
        for name in self.lab.jobs():
            if name in self.lab.jobs():
                self.lab.one_pass(name)

    def settle(self) -> None:
        self.note("over")
        lab = self.lab
        lab.machine_up, lab.fuse, lab.api.failing = True, None, 0
        lab.schedulable = lambda pod: True
        for group in range(2):
            for member in range(3):
                if f"orders-{group}-{member}" in [each["metadata"]["name"] for each in lab.api.all("brokernodes")]:
                    lab.make_member(group, member)
        for _ in range(10):
            self.passes()
            lab.tick(2.0)
        for name in lab.jobs():
            if lab.body(name)["spec"].get("suspend"):
                going = [pod for pod in self.left() if pod in lab.pods(name)]
                assert not going or lab.phase(name) in OVER, f"{name} is suspended, and {going} run"
                lab.change(name, suspend=False)
        for name in lab.jobs():
            if "schedule" in lab.body(name)["spec"]:
                lab.change(name, suspend=True)
        for _ in range(400):
            self.passes()
            lab.tick(5.0)
            if all(lab.phase(name) in (*OVER, "Suspended") for name in lab.jobs()) and not self.left():
                break
        self.check()

    def left(self) -> list[str]:
        return [name for name, pod in self.pods().items() if pod["status"].get("phase") not in ("Succeeded", "Failed")]

    def pods(self) -> dict[str, Any]:
        return {body["metadata"]["name"]: body for body in self.lab.api.all("pods")}

    def check(self) -> None:
        assert self.left() == [], f"left running: {self.left()}"
        for name in self.lab.jobs():
            body, phase = self.lab.body(name), self.lab.phase(name)
            if "schedule" in body["spec"]:
                assert phase == "Suspended"
                continue
            assert phase in OVER, f"{name} is {self.lab.status(name)}"
            status, uid = self.lab.status(name), body["metadata"]["uid"]
            assert ("result" in status) == (phase == "Completed")
            attempts = self.lab.judge.attempts.get(uid, [])
            if phase == "Failed" and status["conditions"][2]["reason"] != "DeadlineExceeded":
                wanted = body["spec"].get("maxRetries", 1) + 1
                assert status["attempt"] == wanted, f"{name}: given up at attempt {status['attempt']} of {wanted}"
            assert not attempts or attempts[-1] <= status.get("attempt", 0), f"{name}: {attempts} and {status}"

    def note(self, text: str) -> None:
        self.log.append(f"{self.lab.time:.0f} {text}")

    # -- what happens --------------------------------------------------------------------------------------------------

    def nothing(self) -> None:
        pass

    def new_job(self) -> None:
        self.made += 1
        spec: dict[str, Any] = {"maxRetries": self.random.randint(0, 3), "activeDeadlineSeconds": 600}
        spec["job"] = self.random.choice(("audit", "stats"))
        if self.random.random() < 0.3:
            spec["groups"] = [self.random.randint(0, 1)]
        if self.random.random() < 0.3:
            spec["executor"] = {"instances": 1}
        self.note(f"job-{self.made} {spec}")
        self.lab.job(f"job-{self.made}", *self.scripts(), **spec)

    def new_template(self) -> None:
        policy = self.random.choice(("Allow", "Forbid", "Replace"))
        self.note(f"nightly {policy}")
        self.lab.job(
            "nightly",
            *self.scripts(),
            schedule="* * * * *",
            concurrencyPolicy=policy,
            activeDeadlineSeconds=300,
            successfulJobsHistoryLimit=2,
        )

    def scripts(self) -> tuple[Script, ...]:
        found = []
        for _ in range(self.random.randint(1, 4)):
            code = self.random.choice((0, 0, 0, 1, 2, None))
            message = result(self.random.choice(GOOD)) if code == 0 else "no"
            found.append(Script(self.random.choice((1, 5, 30)), code, message))
        return tuple(found)

    def cut_off(self) -> None:
        self.lab.fuse = self.random.randint(0, 8)
        self.note(f"the operator is cut off after {self.lab.fuse} writes")

    def drop_requests(self) -> None:
        self.lab.api.failing = self.random.randint(1, 6)
        self.note(f"{self.lab.api.failing} requests are lost")

    def a_pod(self) -> str | None:
        return self.random.choice([*sorted(self.pods()), None])

    def evict(self) -> None:
        name = self.a_pod()
        if name is not None and "deletionTimestamp" not in self.pods()[name]["metadata"]:
            phase = (self.pods()[name].get("status") or {}).get("phase")
            if phase not in ("Succeeded", "Failed"):
                self.note(f"{name} is evicted")
                self.lab.evict(name)

    def delete_pod(self) -> None:
        name = self.a_pod()
        if name is not None and not (name.endswith("-driver") and self.ended(name)):
            self.note(f"{name} is deleted")
            self.lab.delete("pods", name)

    def ended(self, name: str) -> bool:
        return (self.pods()[name].get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def machines(self) -> None:
        self.lab.machine_up = not self.lab.machine_up
        self.note(f"machines {'up' if self.lab.machine_up else 'away'}")

    def a_job(self) -> str:
        return self.random.choice(self.lab.jobs())

    def suspend(self) -> None:
        name = self.a_job()
        if "-" in name.removeprefix("job-") or not self.lab.jobs():
            return  # a run of a template: unknown here
        now = not self.lab.body(name)["spec"].get("suspend", False)
        self.note(f"{name} suspend {now}")
        self.lab.change(name, suspend=now)

    def meddle(self) -> None:
        group, member = 0, self.random.randint(0, 2)
        phase, role = self.random.choice((("Ready", "Follower"), ("Lost", "None"), ("Ready", "Leader")))
        self.note(f"n{member} of group 0 is {phase} {role}")
        self.lab.make_member(group, member, phase=phase, role=role)

    def lose_claim(self) -> None:
        name = f"data-orders-0-{self.random.randint(0, 2)}"
        self.note(f"{name} is gone")
        self.lab.api.objects.pop(("persistentvolumeclaims", NAMESPACE, name), None)

    def lose_plan(self) -> None:
        name = f"{self.a_job()}-job"
        if self.lab.api.get("configmaps", name) is not None:
            self.note(f"the plan {name} is deleted")
            self.lab.api.remove(("configmaps", NAMESPACE, name))

    def again(self) -> None:
        """A user deletes a job and creates it again, at once."""
        name = self.random.choice([each for each in self.lab.jobs() if each.startswith("job-")])
        spec = self.lab.body(name)["spec"]
        self.note(f"{name} is created again")
        self.lab.delete("storejobs", name)
        self.lab.job(name, **spec)


def run(seed: int, turns: int = 40) -> JobStorm:
    storm = JobStorm(seed)
    try:
        storm.run(turns)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(storm.log[-30:])) from error
    return storm
