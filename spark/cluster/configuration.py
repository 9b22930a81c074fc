"""Spark's settings for one run.

The master is `local-cluster` without workers: Spark then runs a standalone master in the driver's Java, which the
driver needs to accept executors. `worker.py` starts these.
"""

from __future__ import annotations

from tallystick.spark.cluster.java import Ports
from tallystick.spark.cluster.plan import JobPlan
from tallystick.spark.versions import PUSHDOWN_SETTING

LOCALITY_WAIT_S = 10
"""How long a task waits for its volume's host while another host is idle. It must be short: tasks also wait for a host
that is lost."""


def spark_settings(plan: JobPlan, secret: str, ports: Ports, folder: str) -> dict[str, str]:
    """Returns Spark's settings. `folder`: for temporary files. Pure.

    Those of a user's program come before those of the run (`fixed_settings`), which the operator refuses in a spec.
    """
    chosen = {"spark.ui.enabled": "false", "spark.log.level": "WARN"}
    if plan.program is None:
        chosen["spark.locality.wait"] = f"{LOCALITY_WAIT_S}s"
    else:
        chosen |= {PUSHDOWN_SETTING: "true", **plan.program.spark_conf}
    return chosen | fixed_settings(plan, secret, ports, folder)


def fixed_settings(plan: JobPlan, secret: str, ports: Ports, folder: str) -> dict[str, str]:
    """Returns the settings that a run cannot work without.

    The application's id is the job's name, so that executors know it: Spark refuses fetches with another id.
    """
    return {
        "spark.master": f"local-cluster[0,1,{plan.executor_memory_mib}]",
        "spark.app.name": plan.name,
        "spark.deploy.appIdPattern": plan.name,
        "spark.driver.host": plan.driver_host,
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(ports.driver),
        "spark.driver.blockManager.port": str(ports.blocks),
        "spark.executor.memory": f"{plan.executor_memory_mib}m",
        "spark.executor.cores": str(plan.executor_cores),
        "spark.standalone.executorRemoveDelayOnDisconnection": "1s",  # there is no master that reports why it ended
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
        "spark.master.rest.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": folder,
    }
