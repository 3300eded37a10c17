"""Training through every crash: attempt after attempt until the last step is done."""

import contextvars
import threading
import time

from prefect import flow, get_run_logger

from flows.campaign import Campaign, load_campaign
from flows.checkpoint import publish_checkpoints
from infra.errors import StayerError
from tasks.checkpoints import newest_step
from tasks.launching import find_live_attempt, kill, launch_or_attach, stop, watch
from tasks.recovery import Action, decide
from tasks.stages import stage
from tasks.stop import STOP, StoppedError
from training.rundir import AttemptRecord

_SYNC_EVERY_S = 5.0


class GivenUpError(StayerError):
    """Recovery decided that going on would only repeat the failure."""


@flow(name="train", flow_run_name="{run}")
def train(run: str) -> int:
    """Train a prepared run to its last step, restarting failed attempts from the last committed checkpoint.

    If the run is already being trained (the flow that started it is gone), this attaches to it. Each checkpoint
    is published and scored as it is committed, beside the training.

    Returns:
        The last step.

    Raises:
        StoppedError: somebody asked it to stop; a checkpoint was taken.
        GivenUpError: a restart would not help, with the reason.
    """
    campaign = load_campaign(run)
    try:
        with STOP.honoured():
            return _attempts(campaign)
    except Exception:
        raise  # a failure of the orchestrator is none of the training: it goes on, and a resume attaches to it
    except BaseException:  # a signal ended this flow
        _end_training(campaign)
        raise


def _attempts(campaign: Campaign) -> int:
    run = campaign.run
    while True:
        attempt = launch_or_attach(str(run.path), campaign.job.cluster)
        _look_after(campaign, attempt)
        decision = decide(run, campaign.job.recovery)
        run.record_event("decision", attempt=attempt.number, **decision.model_dump(mode="json"))
        campaign.tracking.sync()
        if decision.action is Action.FINISH:
            return int(run.metrics()[-1]["step"])
        if STOP.is_set():
            raise StoppedError(decision.why, hint=f"stayer resume {run.run_id}")
        if decision.action is Action.STOP:
            where = f"logs: {run.attempt(attempt.number)}; go on with `stayer resume {run.run_id}`"
            raise (StoppedError if decision.on_request else GivenUpError)(decision.why, hint=where)
        get_run_logger().warning("%s; starting again in %.0f s", decision.why, decision.wait_s)
        if STOP.wait(decision.wait_s):
            raise StoppedError(f"stopped on request between two attempts: {decision.why}")


def _look_after(campaign: Campaign, attempt: AttemptRecord) -> None:
    """Watch an attempt to its end; ship its metrics and publish its checkpoints meanwhile."""
    publisher, next_sync_s = _Publisher(campaign), 0.0

    def meanwhile() -> None:
        nonlocal next_sync_s
        publisher.look()
        if time.monotonic() >= next_sync_s:
            campaign.tracking.sync()
            next_sync_s = time.monotonic() + _SYNC_EVERY_S

    with stage("train", campaign.run, timed=False):
        cluster, recovery = campaign.job.cluster, campaign.job.recovery
        watch(campaign.run, attempt, cluster=cluster, recovery=recovery, meanwhile=meanwhile)
    publisher.finish()


class _Publisher:
    """Publishes beside the watch, one pass at a time, so that slow stores and evaluations delay nothing."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._handled = 0
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Start a pass if a checkpoint was committed since the last one began."""
        newest = newest_step(self._campaign.run)
        if newest <= self._handled or (self._thread is not None and self._thread.is_alive()):
            return
        self._handled = newest
        context = contextvars.copy_context()  # the pass shows as part of this flow run
        self._thread = threading.Thread(target=context.run, args=(self._pass,), name="publish")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the pass in progress; after a stop request it ends early."""
        if self._thread is not None:
            self._thread.join()

    def _pass(self) -> None:
        run = self._campaign.run
        try:
            publish_checkpoints(run.run_id)
        except StoppedError:
            return
        except Exception as err:  # told, and tried again with the next checkpoint and at the end
            run.record_event("publish_failed", error=f"{type(err).__name__}: {err}"[:500])


def _end_training(campaign: Campaign) -> None:
    """Take the training along: politely at the first signal, at once at the second."""
    attempt = find_live_attempt(campaign.run)
    if attempt is None:
        return
    if STOP.is_set():
        kill(campaign.run, attempt, found="killed on request")
    else:
        STOP.set()
        stop(campaign.run, attempt, campaign.job.cluster)
