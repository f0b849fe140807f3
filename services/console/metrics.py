"""Metrics of the console."""

from __future__ import annotations

from prometheus_client import Counter

DOCUMENTS = Counter("lockkeeper_documents_total", "Uploaded files by what became of them.", ["outcome"])
DOCUMENT_BYTES = Counter("lockkeeper_document_bytes_total", "Bytes of documents stored in the Volume.")
ENQUEUED = Counter("lockkeeper_tasks_enqueued_total", "Tasks that the console enqueued.", ["agent"])
OPERATOR_ACTIONS = Counter("lockkeeper_operator_actions_total", "Operators' actions on tasks, agents.", ["action"])
TASKS_COUNTED = Counter("lockkeeper_tasks_counted_total", "Tasks whose place in the totals was moved.")
