"""Callback receiver: settles attempts by what their agents report, once, and answers only after the commit.

Reads    tasks, task_attempts, agents, attempt_results, recovered_results
Writes   tasks and task_attempts: complete, fail, retry, supersede; leases and progress by heartbeat
Hears    result_recovered
Sends    task_changed, task_ready, attempt_settled, cancel_requested
Serves   POST /callbacks/v1/attempts/{attempt_id}/{result|failure|heartbeat}, signed
If down  agents keep their result row and offer the callback again; the sweeper finds rows whose callback
         never came, and they are settled here when it is back. Any number of replicas may run.
"""
