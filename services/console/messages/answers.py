"""Bodies that clients get. Answers are built as plain JSON; a test holds each equal to its class here."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

Status = str


class Answer(BaseModel):
    """Answers may gain fields; clients leave aside what they do not know."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """An error as RFC 9457 says."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    reason: str | None = Field(default=None, description="a stable word for programs")


class Document(Answer):
    """A stored PDF."""

    id: UUID
    name: str
    volume_path: str
    sha256: str
    bytes: int
    pages: int | None
    customer: str | None
    uploaded_by: str
    created_at: datetime
    reused: bool | None = Field(default=None, description="true: it had been uploaded just before")


class RefusedFile(Answer):
    """A file of an upload that was not kept."""

    name: str
    reason: str
    message: str


class UploadAnswer(Answer):
    """What became of each file of an upload."""

    documents: list[Document]
    refused: list[RefusedFile]


class Error(BaseModel):
    """Why a task or attempt failed."""

    model_config = ConfigDict(extra="allow")
    reason: str | None = None
    message: str | None = None


class Progress(Answer):
    """How far the present attempt is."""

    pages_done: int | None
    pages_total: int | None
    step: str | None


class DocumentOfTask(Answer):
    """The document of a task."""

    id: UUID
    name: str | None
    pages: int | None


class Waiting(Answer):
    """Why a task waits; place and start only for a single task."""

    reason: str
    place: int | None = None
    estimated_start: datetime | None = None


class Cost(Answer):
    """Tokens and money; amounts are decimal strings, `pending`, `unknown` or `unpriced`."""

    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    llm_cost: str
    compute_cost: str
    retry_cost: str | None
    currency: str
    cost_status: str


class Task(Cost):
    """A task."""

    id: UUID
    agent: str
    customer: str | None
    priority: int
    status: Status
    reason: str | None
    attempt: int
    max_attempts: int
    created_at: datetime
    available_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    estimated_tokens: int | None
    progress: Progress
    confidence: float | None
    document: DocumentOfTask | None
    labels: dict[str, Any]
    source_task_id: UUID | None
    parent_task_id: UUID | None
    created_by: str
    error: Error | None
    waiting: Waiting | None
    version: int


class Attempt(Cost):
    """One try of a task."""

    id: UUID
    attempt: int
    status: str
    locked_by: str | None
    run_id: str | None
    task_run_id: str | None
    leased_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_confirmed_at: datetime | None
    pages: int | None
    trace_id: str | None
    trace_state: str | None
    llm_cost_source: str | None
    error: Error | None


class Event(Answer):
    """One change of a task."""

    version: int
    at: datetime
    verb: str
    status: Status
    attempt: int
    actor: str
    reason: str | None


class Family(Answer):
    """A parent's rule, and how many of its children are where; one that was done anew counts as its newest copy."""

    gather: str
    children: int
    enqueued: int
    processing: int
    completed: int
    failed: int
    cancelled: int


class TaskDetail(Task):
    """Everything about one task. The cost of a parent is that of all its children."""

    attempts: list[Attempt]
    events: list[Event]
    cost: Cost
    result: Any
    input: dict[str, Any]
    family: Family | None
    redone_by: list[UUID] = Field(description="tasks that retry or reprocess this one")


class TaskPage(Answer):
    """A page of tasks, newest first."""

    tasks: list[Task]
    next_cursor: str | None


class BulkAnswer(Answer):
    """How many tasks the action fits, and how many it changed."""

    action: str
    dry_run: bool
    matched: int
    changed: int


class DeadLetter(Answer):
    """Tasks of one agent that failed for one reason and were not tried again; the message is the latest one's."""

    agent: str
    reason: str
    tasks: int
    first_at: datetime
    last_at: datetime
    example_task_id: UUID
    message: str | None


class DeadLetters(Answer):
    """The dead letters, most frequent first."""

    dead_letters: list[DeadLetter]


class Summary(Answer):
    """Totals of the tasks that a filter means."""

    counts: dict[str, int]
    total: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    llm_cost: str
    compute_cost: str
    currency: str
    llm_cost_pending: int
    compute_cost_pending: int
    median_response_seconds: float | None
    p95_response_seconds: float | None
    confidence: float | None
    oldest_waiting_at: datetime | None
    is_exact: bool = Field(description="counted for this answer; otherwise from totals kept beside the queue")
    counted_from: datetime | None = Field(description="with text or labels over many tasks: none older are counted")
    counted_at: datetime | None = Field(description="of totals: everything committed by then is in them")


class AuditEntry(Answer):
    """What an operator did."""

    id: UUID
    at: datetime
    actor: str
    action: str
    target: str
    before: Any
    after: Any
    note: str | None


class AuditPage(Answer):
    """A page of the audit, newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None


class Replica(Answer):
    """One process of the system."""

    id: str
    service: str
    is_alive: bool
    started_at: datetime
    heartbeat_at: datetime
    listener: str | None


class ServiceState(Answer):
    """How many replicas of a service live."""

    service: str
    alive: int
    listener: str | None


class State(Answer):
    """The system as it stands."""

    as_of: datetime
    services: list[ServiceState]
    replicas: list[Replica]
    agents: list[dict[str, Any]]


class PageView(Answer):
    """A page of a document. `marks` are left, top, width, height of the words looked for, as parts of the page."""

    page: int
    pages: int
    width: int
    height: int
    marks: list[list[float]]
    image: str = Field(description="the page as a data: address of a JPEG")
