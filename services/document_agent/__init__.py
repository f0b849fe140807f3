"""Document agent: turns one PDF into fields that stand in it, and says how sure it is. Runs as a Lakeflow Job.

Reads    agent_inputs; the document from its Volume
Writes   attempt_results: the row of its own attempt, once
Hears    nothing; a heartbeat's answer may tell it to stop
Sends    nothing; it posts result, failure and heartbeats to the callback receiver
Calls    the Files API, the model endpoint (OpenAI protocol), the MLflow tracking server
If down  tasks wait, or the sweeper gives their leases back; no other process is touched

The pipeline, each room knowing only those before it: text (layer, reading order) → tables, ocr → pages
(what the file is, one method per page, the child process in which it is opened) → confidence →
fields (the model, and what of its answer stands in the document) → report.
"""
