"""Console: takes documents and tasks in, shows what happens to them, and lets operators act.

Reads    tasks, task_attempts, task_events, agents, documents, costs, replicas
Writes   tasks: enqueue, cancel, reprioritise; agents; documents; cost_requests; operator_audit; the totals
Hears    nothing; its pages hear the notifier and poll
Sends    task_ready, task_changed, config_changed, cancel_requested, cost_requested
Calls    the Files API: documents into the Volume and out of it
If down  nothing new comes in and nobody sees the pages; what is queued goes on. Any number of replicas.
"""
