"""The document agent: turns one PDF into fields that stand in it, and says how sure it is.

Runs as a Lakeflow Job, one attempt per run. Reads its input from `lockkeeper.agent_inputs` and the file from
its Volume; writes one row of `lockkeeper.attempt_results` and posts the callback. Listens to nothing.
If down: tasks wait, or the sweeper gives their leases back; no other process is touched.

The pipeline, each room knowing only those before it:
pages (what the file is, one method per page) → text (layer, reading order) → tables → ocr →
fields (the model, and what of its answer stands in the document) → confidence → report.
Everything that opens the PDF runs in a child process with limits, so that no file harms this one.
"""
