"""One run of a job: what was asked, where it stands, and both shapes in which the Jobs API shows it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

import orjson

from deploy.local.workspace.operation import JsonObject

QUEUED = "QUEUED"
PENDING = "PENDING"
RUNNING = "RUNNING"
TERMINATING = "TERMINATING"
TERMINATED = "TERMINATED"
SKIPPED = "SKIPPED"
INTERNAL_ERROR = "INTERNAL_ERROR"
TERMINAL = frozenset({TERMINATED, SKIPPED, INTERNAL_ERROR})

_STATUS_OF_LIFE_CYCLE = {
    "WAITING_FOR_RETRY": "WAITING",
    **dict.fromkeys(TERMINAL, TERMINATED),
}
# Termination codes for which the platform, not the code of the run or its owner, is to blame.
_CODE_TYPES = {
    "SUCCESS": "SUCCESS",
    "INTERNAL_ERROR": "INTERNAL_ERROR",
    "DRIVER_ERROR": "INTERNAL_ERROR",
    "CLUSTER_ERROR": "CLOUD_FAILURE",
    "CLOUD_FAILURE": "CLOUD_FAILURE",
}


def now_ms() -> int:
    """Milliseconds since 1970, the unit of every instant in the Jobs API."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class End:
    """How a run ends: V1 life cycle and result, V2 termination code, and the message people read."""

    life_cycle: str
    result: str | None
    code: str
    message: str = ""
    task_life_cycle: str | None = None
    error: str | None = None
    error_trace: str | None = None
    cancelled_or_timed_out: bool = False


SUCCESS = End(TERMINATED, "SUCCESS", "SUCCESS")
CANCELED = End(TERMINATED, "CANCELED", "USER_CANCELED", "Run cancelled.", cancelled_or_timed_out=True)
TIMED_OUT = End(TERMINATED, "TIMEDOUT", "CANCELED", "Run timed out.", cancelled_or_timed_out=True)
TOO_MANY = End(
    SKIPPED,
    "MAXIMUM_CONCURRENT_RUNS_REACHED",
    "MAX_CONCURRENT_RUNS_EXCEEDED",
    "Run was skipped because the maximum number of concurrent runs has been reached.",
)
CUT_OFF = End(INTERNAL_ERROR, "FAILED", "INTERNAL_ERROR", "The workspace restarted while the run was in progress.")


@dataclass
class Run:
    """A run. The record is written through ``Store`` after every change of state."""

    run_id: int
    task_run_id: int
    job_id: int
    run_type: str
    run_name: str
    task: JsonObject
    creator: str
    parameters: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    idempotency_token: str | None = None
    timeout_seconds: int = 0
    max_concurrent_runs: int = 1
    queues: bool = False
    number_in_job: int = 1
    life_cycle: str = PENDING
    result: str | None = None
    code: str | None = None
    message: str = ""
    task_life_cycle: str | None = None
    error: str | None = None
    error_trace: str | None = None
    cancelled_or_timed_out: bool = False
    cancel_requested: bool = False
    start_time: int = field(default_factory=now_ms)
    left_queue_time: int | None = None
    executing_time: int | None = None
    end_time: int | None = None

    @property
    def is_terminal(self) -> bool:
        """Nothing more will happen to this run."""
        return self.end_time is not None

    def end(self, end: End) -> None:
        """Write the end into the record."""
        self.life_cycle, self.result, self.code = end.life_cycle, end.result, end.code
        self.task_life_cycle = end.task_life_cycle
        self.message, self.error, self.error_trace = end.message, end.error, end.error_trace
        self.cancelled_or_timed_out = end.cancelled_or_timed_out
        self.end_time = now_ms()

    def to_json(self) -> str:
        """For the store."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Run:
        """From the store."""
        return cls(**orjson.loads(text))

    def shown(self, origin: str, *, with_tasks: bool = True) -> JsonObject:
        """The run as ``runs/get`` shows it: the deprecated ``state`` and the newer ``status`` side by side."""
        shown: JsonObject = {
            "job_id": self.job_id,
            "run_id": self.run_id,
            "job_run_id": self.run_id,
            "original_attempt_run_id": self.run_id,
            "number_in_job": self.number_in_job,
            "attempt_number": 0,
            "creator_user_name": self.creator,
            "run_name": self.run_name,
            "run_type": self.run_type,
            "trigger": "ONE_TIME",
            "run_page_url": f"{origin}/?o=0#job/{self.job_id}/run/{self.run_id}",
            "format": "MULTI_TASK",
            "job_parameters": [{"name": name, "value": value} for name, value in self.parameters.items()],
            **self._instants(),
            **self._states(self.life_cycle),
        }
        if with_tasks:
            shown["tasks"] = [self.shown_task(origin)]
        return shown

    def shown_task(self, origin: str) -> JsonObject:
        """The run of the one task inside, which has an id of its own."""
        return {
            **self.task,
            "run_id": self.task_run_id,
            "attempt_number": 0,
            "run_page_url": f"{origin}/?o=0#job/{self.job_id}/run/{self.task_run_id}",
            **self._instants(),
            **self._states(self.task_life_cycle or self.life_cycle),
        }

    def _instants(self) -> JsonObject:
        begun = self.executing_time
        until = self.end_time or 0
        return {
            "start_time": self.start_time,
            "queue_duration": max(0, (self.left_queue_time or until or now_ms()) - self.start_time),
            "setup_duration": max(0, (begun or until) - (self.left_queue_time or self.start_time)),
            "execution_duration": max(0, until - begun) if begun else 0,
            "cleanup_duration": 0,
            "run_duration": max(0, until - self.start_time),
            "end_time": until,
        }

    def _states(self, life_cycle: str) -> JsonObject:
        state: JsonObject = {
            "life_cycle_state": life_cycle,
            "state_message": self.message,
            "user_cancelled_or_timedout": self.cancelled_or_timed_out,
        }
        status: JsonObject = {"state": _STATUS_OF_LIFE_CYCLE.get(life_cycle, life_cycle)}
        if life_cycle == QUEUED:
            reason = "Queued due to reaching maximum concurrent runs"
            state["queue_reason"] = reason
            status["queue_details"] = {"code": "MAX_CONCURRENT_RUNS_REACHED", "message": reason}
        if self.end_time is not None:
            if self.result is not None:
                state["result_state"] = self.result
            code = self.code or "INTERNAL_ERROR"
            status["termination_details"] = {
                "code": code,
                "type": _CODE_TYPES.get(code, "CLIENT_ERROR"),
                "message": self.message,
            }
        return {"state": state, "status": status}
