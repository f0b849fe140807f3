"""Metrics of the console."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

REQUESTS = Counter("lockkeeper_http_requests_total", "Requests by route and answer.", ["route", "status"])
REQUEST_SECONDS = Histogram(
    "lockkeeper_http_request_seconds", "From request to the answer's last byte.", ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
)  # fmt: skip
DOCUMENTS = Counter("lockkeeper_documents_total", "Uploaded files by what became of them.", ["outcome"])
DOCUMENT_BYTES = Counter("lockkeeper_document_bytes_total", "Bytes of documents stored in the Volume.")
ENQUEUED = Counter("lockkeeper_tasks_enqueued_total", "Tasks that the console enqueued.", ["agent"])
OPERATOR_ACTIONS = Counter("lockkeeper_operator_actions_total", "Operators' actions on tasks, agents.", ["action"])
TASKS_COUNTED = Counter("lockkeeper_tasks_counted_total", "Tasks whose place in the totals was moved.")
