"""Reconciles BrokerClusters, Topics, ConsumerGroups, Users, StoreJobs, Backups and ScheduledBackups in Kubernetes.

Usage: tally-operator [--help | --version | --prepare-uninstall]

The operator waits for its lease, then watches resources and reconciles them until it receives SIGTERM or loses the
lease. It changes nothing in a namespace whose Lease operator.tallystick.dev another operator holds.

With --prepare-uninstall, the command stops the running operator instead, and removes the finalizers that nothing would
remove afterwards. Environment variables configure it; the three without a default are required:

  TALLYSTICK_NODE_IMAGE  image of clusters without spec.image
  POD_NAME               name of this operator in the lease; it must be unique
  POD_NAMESPACE          namespace of the lease and of the operator's key
  WATCH_NAMESPACES       watched namespaces, separated by commas (all)
  TALLYSTICK_JOBS_IMAGE  image of StoreJobs without spec.image (none: such a StoreJob cannot start)
  JOBS_PRIORITY_CLASS    priority class of the pods of StoreJobs (none)
  HTTP_PORT              port of /healthz, /readyz and /metrics (8081)
  LOG_LEVEL              DEBUG, INFO, WARNING or ERROR (INFO)
  LEASE_NAME             name of the lease (tallystick-operator)
  LEASE_SECONDS          seconds until another operator takes over from one that was killed (15)
  NODE_URL_TEMPLATE      URL of the HTTP API of a member (http://{node}.{namespace}.svc:8080)
  RESYNC_SECONDS         seconds between reconciliations of a cluster without events (10)
  PASS_SECONDS           time limit of a reconciliation in seconds (60)
  WORKERS                reconciliations at the same time (4)
  KUBE_THREADS           requests to the API server at the same time (8)

Exit status:
  0  it received SIGTERM or SIGINT; it stopped all reconciliations and released the lease
  1  a task failed, or finalizers could not be removed; the log contains the error
  2  it could not start: an invalid argument or environment variable, or no configuration of an API server
  3  it lost the lease; the process ends at once, and the next operator continues
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from importlib.metadata import version

import aiohttp

from tallystick.operator.backups.metrics import BackupMetrics
from tallystick.operator.backups.reconcile import BackupsReconciler
from tallystick.operator.clusters.reconcile import ClusterReconciler
from tallystick.operator.core.admin_token import AdminTokens, load_key
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Events
from tallystick.operator.core.guard import Guard, Work
from tallystick.operator.core.health import Pulse, application, serving
from tallystick.operator.core.kube import (
    BACKUPS,
    CLUSTERS,
    SCHEDULED_BACKUPS,
    STORE_JOBS,
    Json,
    Kube,
    KubeError,
    connect,
)
from tallystick.operator.core.lease import Lease, LeaseLostError
from tallystick.operator.core.logs import configure
from tallystick.operator.core.metrics import Metrics
from tallystick.operator.core.namespace_leases import NamespaceLeases
from tallystick.operator.core.node_api import NodeApi, Trust, node_session
from tallystick.operator.core.release import release_terminating
from tallystick.operator.core.settings import Settings, SettingsError
from tallystick.operator.core.work_queue import Key, Kind, WorkQueue
from tallystick.operator.jobs.driver_http import DriverHttp
from tallystick.operator.jobs.metrics import JobMetrics
from tallystick.operator.jobs.reasons import OVER
from tallystick.operator.jobs.reconcile import JobsReconciler
from tallystick.operator.schedules.metrics import ScheduleMetrics
from tallystick.operator.schedules.reconcile import SchedulesReconciler
from tallystick.operator.topics.brokers import NodeBrokers
from tallystick.operator.topics.metrics import TopicMetrics
from tallystick.operator.topics.reconcile import TopicsReconciler
from tallystick.operator.uninstall import FINALIZERS, prepare_uninstall
from tallystick.operator.users.reconcile import UsersReconciler

_logger = logging.getLogger(__name__)

DISCOVER_SECONDS = 30.0
"""Interval of listing all clusters and jobs, to find those whose events were lost."""
LEASE_LOST = 3
PREPARE_UNINSTALL = "--prepare-uninstall"
LIMIT_PASSES = 3
"""The operator is unhealthy after so many times the limit of a pass without progress."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status. `arguments`: those after the command's name."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given != [PREPARE_UNINSTALL]:
        return _answer(given)
    try:
        settings = Settings.parse()
        configure(settings.log_level)
        kube = Kube(connect(settings.kube_threads), threads=settings.kube_threads)
    except SettingsError as error:
        print(f"tally-operator: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # the official client has no common base class for configuration errors
        print(f"tally-operator: cannot configure the API server: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_uninstall(settings, kube) if given else run(settings, kube))
    finally:
        kube.close()


def _answer(arguments: Sequence[str]) -> int:
    """Prints the help or the version, or refuses an argument. Returns the exit status."""
    if unknown := [each for each in arguments if each not in ("-h", "--help", "--version", PREPARE_UNINSTALL)]:
        problem = f"unrecognized arguments: {' '.join(unknown)} (see tally-operator --help)"
        print(f"tally-operator: {problem}", file=sys.stderr)
        return 2
    text = f"tallystick {version('tallystick')}" if arguments[0] == "--version" else (__doc__ or "").rstrip()
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
    return 0


async def _uninstall(settings: Settings, kube: Kube) -> int:
    try:
        await prepare_uninstall(settings, kube)
    except (KubeError, LeaseLostError) as error:
        _logger.error("could not release all finalizers: %s", error)
        return 1
    return 0


async def run(settings: Settings, kube: Kube) -> int:
    """Waits for the lease, then leads. Returns the exit status."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # kopf replaces the handlers while it runs, and ends on a signal
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    lease = Lease(
        kube, settings.pod_namespace, settings.lease_name, settings.pod_name, settings.lease_seconds, time.monotonic
    )
    namespaces = NamespaceLeases(kube, f"{settings.pod_namespace}/{settings.lease_name}", time.monotonic, _end)
    metrics.namespaces.labels("acting").set_function(lambda: namespaces.counts()[0])
    metrics.namespaces.labels("waiting").set_function(lambda: namespaces.counts()[1])
    queue: WorkQueue | None = None

    def pulse() -> Pulse:
        if queue is None or not lease.held:
            return Pulse(leads=False)
        ended = queue.last_pass_ended
        age = None if ended is None else loop.time() - ended
        return Pulse(True, len(queue.schedule), queue.longest_wait(), age)

    limit = LIMIT_PASSES * settings.pass_seconds + settings.resync_seconds
    async with serving(application(metrics, pulse, limit), settings.http_port):
        if not await _unless(stop, lease.acquire()):
            return 0
        try:
            async with node_session() as session:
                token = AdminTokens(await _key(kube, settings))
                queue = _queue(settings, kube, session, token, metrics, namespaces)
                status = await _lead(settings, kube, queue, lease, namespaces, stop)
                if stop.is_set():
                    ending = settings.watch_namespaces or (settings.pod_namespace,)
                    await release_terminating(kube, ending, FINALIZERS)
                return status
        finally:
            await namespaces.release()
            await lease.release()


async def _key(kube: Kube, settings: Settings) -> bytes:
    """Returns the key of the operator. Retries, because no request to a node is possible without it."""
    wait = 1.0
    while True:
        try:
            return await load_key(kube, settings.pod_namespace)
        except KubeError as error:
            _logger.warning("could not read the key of the operator: %s", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, 15.0)
            if wait >= 15.0:
                raise


def _queue(
    settings: Settings,
    kube: Kube,
    session: aiohttp.ClientSession,
    token: AdminTokens,
    metrics: Metrics,
    namespaces: NamespaceLeases,
) -> WorkQueue:
    queue: WorkQueue
    trust = Trust()
    events = Events(kube, settings.pod_name, time.time)
    nodes = NodeApi(session, settings.node_url_template, token, trust)
    context = Context(
        kube=kube,
        nodes=nodes,
        settings=settings,
        events=events,
        metrics=metrics,
        token=token,
        look_at=lambda key: queue.add(key),
        now=time.time,
        other_operator=namespaces.waiting,
        trust=trust,
    )
    topics = TopicsReconciler(kube, NodeBrokers(nodes), events, TopicMetrics(metrics.registry), time.time)
    users = UsersReconciler(kube, nodes, events, time.time)
    work: dict[Kind, Work] = {
        Kind.CLUSTER: ClusterReconciler(context).reconcile,
        Kind.JOB: JobsReconciler(context, DriverHttp(session), JobMetrics(metrics.registry)).reconcile,
        Kind.BACKUP: BackupsReconciler(context, BackupMetrics(metrics.registry)).reconcile,
        Kind.SCHEDULE: SchedulesReconciler(context, ScheduleMetrics(metrics.registry)).reconcile,
        Kind.TOPICS: lambda key: topics.reconcile(key.namespace, key.name),
        Kind.USERS: lambda key: users.reconcile(key.namespace, key.name),
    }

    def ended(key: Key, seconds: float, error: BaseException | None) -> None:
        metrics.passes.labels(key.kind.value, "failed" if error else "done").inc()
        metrics.pass_seconds.labels(key.kind.value).observe(seconds)
        if error is not None:
            metrics.errors.labels(key.kind.value, type(error).__name__).inc()

    guard = Guard(kube, namespaces, events, work)
    queue = WorkQueue(guard.run, workers=settings.workers, pass_seconds=settings.pass_seconds, ended=ended)
    return queue


async def _lead(
    settings: Settings, kube: Kube, queue: WorkQueue, lease: Lease, namespaces: NamespaceLeases, stop: asyncio.Event
) -> int:
    """Runs until a signal arrives or a task ends. Returns the exit status."""
    import kopf  # imported late: kopf needs half of the memory, and a standby operator does not use it

    from tallystick.operator.handlers import registry_for, settings_for_kopf

    keeping = asyncio.create_task(lease.keep(), name="lease")
    stopping = asyncio.create_task(stop.wait(), name="signal")
    ours = [
        keeping,
        stopping,
        asyncio.create_task(namespaces.keep(queue.schedule.namespaces), name="namespaces"),
        asyncio.create_task(queue.run(), name="queue"),
        asyncio.create_task(discover(kube, queue, settings), name="discover"),
    ]
    keeping.add_done_callback(_end_if_lost)
    watching = asyncio.create_task(
        kopf.operator(
            registry=registry_for(queue.add),
            settings=settings_for_kopf(settings),
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
        ),
        name="kopf",
    )
    try:
        done, _ = await asyncio.wait([*ours, watching], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*ours, watching):
            task.cancel()
        await asyncio.gather(*ours, watching, return_exceptions=True)
    failed = [(task, task.exception()) for task in done if not task.cancelled()]
    for task, error in failed:
        if error is not None:
            _logger.error("task %s failed: %s", task.get_name(), error, exc_info=error)
            return 1
    _logger.info("shutting down")
    return 0


def _end_if_lost(keeping: asyncio.Task[None]) -> None:
    error = None if keeping.cancelled() else keeping.exception()
    if isinstance(error, LeaseLostError):
        _end(error)


def _end(error: LeaseLostError) -> None:
    """Ends the process at once: a thread may be about to send a request that only the holder of the lease may send."""
    _logger.critical("lost the lease: %s", error)
    logging.shutdown()
    os._exit(LEASE_LOST)


async def discover(kube: Kube, queue: WorkQueue, settings: Settings) -> None:
    """Lists clusters, jobs and backups and adds unknown ones to the queue: a watch may be broken or too old."""
    namespaces: Sequence[str | None] = settings.watch_namespaces or (None,)
    kinds = (
        (CLUSTERS, (Kind.CLUSTER, Kind.TOPICS, Kind.USERS)),
        (STORE_JOBS, (Kind.JOB,)),
        (BACKUPS, (Kind.BACKUP,)),
        (SCHEDULED_BACKUPS, (Kind.SCHEDULE,)),
    )
    while True:
        for namespace, (resource, concerns) in itertools.product(namespaces, kinds):
            try:
                for body in await kube.list(resource, namespace):
                    if resource is not CLUSTERS and not _lives(body):
                        continue
                    for kind in concerns:
                        key = Key(body["metadata"]["namespace"], body["metadata"]["name"], kind)
                        if key not in queue.schedule:
                            queue.add(key)
            except KubeError as error:
                _logger.warning("could not list %s: %s", resource.plural, error)
        await asyncio.sleep(DISCOVER_SECONDS)


def _lives(job: Json) -> bool:
    """Whether a resource needs a reconciliation: it has not ended, it expires, or it is being deleted."""
    if job["metadata"].get("deletionTimestamp"):
        return True
    phase, ttl = (job.get("status") or {}).get("phase"), (job.get("spec") or {}).get("ttlSecondsAfterFinished")
    return phase not in OVER or ttl is not None


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Returns whether `work` ended before `stop` was set; otherwise cancels it."""
    doing, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        await doing
        return True
    finally:
        for task in (doing, stopping):
            task.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)
